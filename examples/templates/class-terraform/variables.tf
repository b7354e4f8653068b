variable "class" { type = string }
variable "students" { type = set(string) }
variable "pool" { type = string }
variable "image" { type = string }

variable "template_id" {
  type        = number
  description = "VM id of the template in Proxmox."
}

# Tendril fills it in: where each machine goes.
variable "places" {
  type    = map(object({ node = string, vmid = number, address = string }))
  default = {}
}
