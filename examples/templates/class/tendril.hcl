title       = "Class of machines"
description = "A teacher's machine and one for each student, in any pool."
icon        = "people"

provisioner "machine" {
  machine {
    # Names, never numbers: another student more or less changes no other machine.
    for_each = setunion(["teacher"], var.students, toset([for i in range(var.student_count) : format("student-%02d", i + 1)]))
    name     = "${var.class}-${each.key}"
    pool     = var.pool
    image    = var.image
    cores    = each.key == "teacher" ? var.teacher_cores : var.cores
    memory   = each.key == "teacher" ? var.teacher_memory : var.memory
    disk     = var.disk
    labels   = { class = var.class, role = each.key == "teacher" ? "teacher" : "student" }
    cloud_init {
      user     = var.user
      password = var.password
      ssh_keys = var.ssh_keys
    }
    proxmox { full_clone = var.full_clone }
    libvirt { full_clone = var.full_clone }
  }
}

placement {
  spread = var.node == null
  node   = var.node
}

step "clone" { label = "Making the disk" }
step "start" { label = "Starting" }
step "address" { label = "Waiting for network" }

health { tcp = 22 }
