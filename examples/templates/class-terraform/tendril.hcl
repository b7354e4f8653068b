title       = "Class by Terraform"
description = "A class whose machines Terraform makes on Proxmox VE, placed by Tendril."
icon        = "people"

provisioner "terraform" {
  machine {
    for_each = setunion(["teacher"], var.students)
    name     = "${var.class}-${each.key}"
    pool     = var.pool
    image    = var.image
    cores    = 2
    memory   = 2048
  }
}

placement {
  variable = "places"
  spread   = true
}
