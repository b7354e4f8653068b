variable "name" { type = string }
variable "pool" { type = string }

variable "template_name" {
  type        = string
  description = "The template that is cloned, as Proxmox or the pool's admin calls it."
}

variable "target_node" {
  type        = string
  default     = null
  description = "The node; by default the one with the most free."
}

variable "use_full_clone" {
  type    = bool
  default = false
}

variable "cores" {
  type    = number
  default = 2
}

variable "memory" {
  type        = number
  default     = 2048
  description = "MiB."
}

variable "disk" {
  type        = number
  default     = null
  description = "GiB; by default as large as the template's."
}

variable "address" {
  type        = string
  default     = null
  description = "An address of the pool's ranges; by default the next one, or DHCP in a pool without ranges."
}

variable "labels" {
  type    = map(string)
  default = {}
}

variable "user" {
  type    = string
  default = "ops"
}

variable "password" {
  type      = string
  default   = null
  sensitive = true
}

variable "ssh_keys" {
  type    = list(string)
  default = []
}

variable "wait" {
  type        = string
  default     = null
  description = "Until when the machine is not ready: address, agent or none."
}

variable "bridge" {
  type    = string
  default = null
}

variable "vlan" {
  type    = number
  default = null
}

variable "storage" {
  type    = string
  default = null
}

variable "cpu_type" {
  type    = string
  default = null
}

variable "tags" {
  type    = list(string)
  default = []
}

variable "start_on_boot" {
  type    = bool
  default = true
}
