title       = "Bare-metal server"
description = "One server of a pool of kind ironic, with an image and a config drive."
icon        = "server"

provisioner "machine" {
  machine {
    name   = var.name
    pool   = var.pool
    image  = var.image
    cores  = 1 # a server is given out whole
    memory = 1
    labels = var.resource_class == null ? {} : { resource_class = var.resource_class }
    cloud_init {
      ssh_keys  = var.ssh_keys
      user_data = var.user_data
      wait      = "none"
    }
    ironic {
      resource_class = var.resource_class
      traits         = var.traits
      meta_data      = var.meta_data == null ? null : jsondecode(var.meta_data)
      network_data   = var.network_data == null ? null : jsondecode(var.network_data)
      clean          = var.clean
    }
  }
}

placement { node = var.server }
