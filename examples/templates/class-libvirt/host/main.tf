terraform {
  required_providers {
    libvirt = {
      source = "dmacvicar/libvirt"
    }
  }
}

variable "machines" { type = set(string) }
variable "image" { type = string }
variable "cores" { type = number }
variable "memory" { type = number }
variable "virt_type" { type = string }

# An overlay: it keeps only what differs from the image.
resource "libvirt_volume" "disk" {
  for_each         = var.machines
  name             = "${each.key}.qcow2"
  base_volume_name = var.image
  base_volume_pool = "images"
}

resource "libvirt_domain" "machine" {
  for_each = var.machines
  name     = each.key
  type     = var.virt_type
  vcpu     = var.cores
  memory   = var.memory

  disk {
    volume_id = libvirt_volume.disk[each.key].id
  }
  network_interface {
    network_name = "default"
  }
  console {
    type        = "pty"
    target_type = "serial"
    target_port = "0"
  }
}

output "ids" {
  value = { for name, domain in libvirt_domain.machine : name => domain.id }
}
