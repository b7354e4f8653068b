terraform {
  required_providers {
    libvirt = {
      source  = "dmacvicar/libvirt"
      version = "0.8.3"
    }
  }
}

locals {
  # A host that is not there has the first one's address and no machines.
  hosts = [for n in range(3) : n < length(var.hosts) ? var.hosts[n] : { node = "", uri = var.hosts[0].uri }]
  on    = [for host in local.hosts : toset([for name, place in var.places : name if place.node == host.node])]
}

provider "libvirt" {
  alias = "first"
  uri   = local.hosts[0].uri
}

provider "libvirt" {
  alias = "second"
  uri   = local.hosts[1].uri
}

provider "libvirt" {
  alias = "third"
  uri   = local.hosts[2].uri
}

module "first" {
  source    = "./host"
  providers = { libvirt = libvirt.first }
  machines  = local.on[0]
  image     = var.image
  cores     = var.cores
  memory    = var.memory
  virt_type = var.virt_type
}

module "second" {
  source    = "./host"
  providers = { libvirt = libvirt.second }
  machines  = local.on[1]
  image     = var.image
  cores     = var.cores
  memory    = var.memory
  virt_type = var.virt_type
}

module "third" {
  source    = "./host"
  providers = { libvirt = libvirt.third }
  machines  = local.on[2]
  image     = var.image
  cores     = var.cores
  memory    = var.memory
  virt_type = var.virt_type
}

output "machines" {
  value = merge([
    for name, host in { first = module.first.ids, second = module.second.ids, third = module.third.ids } : {
      for machine, id in host : machine => {
        external_id = id
        node        = var.places[machine].node
        address     = var.places[machine].address
        resource    = "module.${name}.libvirt_domain.machine[\"${machine}\"]"
      }
    }
  ]...)
}
