title       = "Enroll bare-metal servers"
description = "Makes servers known to the Ironic of a pool, by their BMCs, and brings them to where machines can be made on them."
icon        = "server"

provisioner "machine" {
  machine {
    # Names, never numbers: a server that is taken out of the map is removed from Ironic, and no other.
    for_each = var.servers
    name     = each.key
    pool     = var.pool
    ironic {
      enroll = {
        driver         = each.value.driver
        address        = each.value.address
        user           = each.value.user
        password       = try(var.passwords[each.key], null) # without one, the recorded one stays
        system         = each.value.system
        verify_ca      = each.value.verify_ca
        macs           = each.value.macs
        resource_class = each.value.resource_class
        traits         = each.value.traits
        cores          = each.value.cores
        memory         = each.value.memory
        disk           = each.value.disk
        kernel         = each.value.kernel
        ramdisk        = each.value.ramdisk
        inspect        = each.value.inspect
        adopt          = each.value.adopt
      }
    }
  }
}
