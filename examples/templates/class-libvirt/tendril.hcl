title       = "Class by Terraform on libvirt"
description = "A class whose machines Terraform makes on libvirt hosts, placed by Tendril."
icon        = "people"

provisioner "terraform" {
  machine {
    for_each = setunion(["teacher"], var.students)
    name     = "${var.class}-${each.key}"
    pool     = var.pool
    image    = var.image
    cores    = var.cores
    memory   = var.memory
  }
}

placement {
  variable = "places"
  spread   = true
}
