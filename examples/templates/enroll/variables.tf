variable "pool" {
  type        = string
  description = "The pool, of kind ironic, whose agent lets this workspace enroll servers."
}

variable "servers" {
  type = map(object({
    driver         = string
    address        = optional(string)
    user           = optional(string)
    system         = optional(string)
    verify_ca      = optional(string)
    macs           = optional(list(string), [])
    resource_class = optional(string)
    traits         = optional(list(string), [])
    cores          = optional(number)
    memory         = optional(number)
    disk           = optional(number)
    kernel         = optional(string)
    ramdisk        = optional(string)
    inspect        = optional(bool, false)
    adopt          = optional(bool, false)
  }))
  description = "The servers by name: the BMC's driver (redfish or ipmi), address and user, and what Ironic is to know of each."
}

variable "passwords" {
  type        = map(string)
  default     = {}
  sensitive   = true
  description = "The BMCs' passwords by the servers' names. One that was given before can be left out while its BMC stays the same."
}
