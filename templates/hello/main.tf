terraform {
  required_version = ">= 1.4"
}

# terraform_data is built into Terraform: no provider is downloaded, and nothing
# outside the state is made.
resource "terraform_data" "greeting" {
  input = "${var.greeting}, ${var.name}!"

  # Runs on every deploy, so that there is always something to watch.
  triggers_replace = timestamp()

  # Terraform runs this with /bin/sh -c. Values come through the environment,
  # never pasted into the script: a name with a quote in it stays a name.
  provisioner "local-exec" {
    quiet   = true # what it prints, not how
    command = <<-SH
      echo "$GREETING, $NAME!"
      step=1
      while [ "$step" -le "$STEPS" ]; do
        sleep "$PAUSE"
        echo "step $step of $STEPS: growing"
        step=$((step + 1))
      done
      echo "done"
    SH

    environment = {
      GREETING = var.greeting
      NAME     = var.name
      STEPS    = var.steps
      PAUSE    = var.pause_seconds
    }
  }
}

# A secret that a deploy makes. It is kept in the state, and shown nowhere.
resource "terraform_data" "token" {
  input = sha256("${var.passphrase}:${var.name}")
}
