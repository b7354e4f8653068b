terraform {
  required_providers {
    proxmox = {
      source  = "bpg/proxmox"
      version = "0.73.0"
    }
  }
}

resource "proxmox_virtual_environment_vm" "class" {
  for_each  = var.places
  name      = each.key
  node_name = each.value.node
  vm_id     = each.value.vmid

  clone {
    vm_id = var.template_id
    full  = false
  }
  cpu {
    cores = 2
  }
  memory {
    dedicated = 2048
  }
  initialization {
    ip_config {
      ipv4 {
        address = each.value.address == null ? "dhcp" : "${each.value.address}/24"
      }
    }
  }
}

output "machines" {
  value = {
    for name, vm in proxmox_virtual_environment_vm.class : name => {
      external_id = vm.vm_id
      node        = vm.node_name
      address     = var.places[name].address
      resource    = "proxmox_virtual_environment_vm.class[\"${name}\"]"
    }
  }
}
