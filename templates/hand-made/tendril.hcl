title       = "Server made by hand"
description = "A person mounts a server and says where it is."
icon        = "server"

provisioner "manual" {
  instructions = "INSTRUCTIONS.md"
  expires      = "72h"

  machine {
    name   = var.name
    cores  = var.cores
    memory = var.memory
    labels = { site = var.site }
  }

  output "rack" { description = "Where it stands, such as B12." }
  output "units" {
    description = "How many rack units it takes."
    type        = number
  }
}
