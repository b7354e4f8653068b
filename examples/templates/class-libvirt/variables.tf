variable "class" { type = string }
variable "students" { type = set(string) }
variable "pool" { type = string }

variable "image" {
  type        = string
  description = "A volume of the storage pool \"images\" that each host has."
}

variable "cores" {
  type    = number
  default = 1
}

variable "memory" {
  type        = number
  default     = 1024
  description = "MiB of each machine."
}

variable "hosts" {
  type        = list(object({ node = string, uri = string }))
  description = "The pool's hosts, as the agent's configuration names them. Never change their order, and destroy the machines of a host before you remove it: Terraform would forget them."
  validation {
    condition     = length(var.hosts) >= 1 && length(var.hosts) <= 3
    error_message = "This template is written for one to three hosts: a provider's configuration can't be repeated."
  }
}

variable "virt_type" {
  type    = string
  default = "kvm"
}

# Tendril fills it in: where each machine goes.
variable "places" {
  type    = map(object({ node = string, vmid = number, address = string }))
  default = {}
}
