terraform {
  required_version = ">= 1.4"
}

# Terraform makes ten at a time unless told otherwise: enough to see resources
# start and finish side by side, and the percentage grow.
resource "terraform_data" "ship" {
  count = var.ships

  input = {
    name  = format("%s-%03d", var.prefix, count.index + 1)
    berth = count.index + 1
  }

  provisioner "local-exec" {
    quiet   = true
    command = "sleep \"$PAUSE\"; echo \"$NAME: at berth $BERTH\""

    environment = {
      NAME  = self.input.name
      BERTH = self.input.berth
      PAUSE = var.pause_seconds
    }
  }
}
