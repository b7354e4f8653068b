title       = "Proxmox machine"
description = "One virtual machine on Proxmox VE, cloned from a template with cloud-init."
icon        = "server"

provisioner "machine" {
  machine {
    name    = var.name
    pool    = var.pool
    image   = var.template_name
    cores   = var.cores
    memory  = var.memory
    disk    = var.disk
    address = var.address
    labels  = var.labels
    cloud_init {
      user     = var.user
      password = var.password
      ssh_keys = var.ssh_keys
      wait     = var.wait
    }
    proxmox {
      bridge     = var.bridge
      vlan       = var.vlan
      storage    = var.storage
      full_clone = var.use_full_clone
      cpu        = var.cpu_type
      tags       = var.tags
      on_boot    = var.start_on_boot
    }
  }
}

placement { node = var.target_node }

health { tcp = 22 }
