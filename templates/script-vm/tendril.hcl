title       = "Virtual machines from a script"
description = "A shell script makes machines in a directory that plays the cloud."
icon        = "server"

provisioner "script" {
  speak      = "once"
  provision  = ["./machine.sh"]
  terminate  = ["./machine.sh"]
  idempotent = true
  timeout    = 60

  machine {
    for_each = var.names
    name     = each.key
    image    = "debian-13"
    cores    = var.cores
    memory   = var.memory
  }
}
