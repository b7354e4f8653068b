variable "name" { type = string }
variable "pool" { type = string }

variable "image" {
  type        = string
  description = "The image, as the pool or Glance calls it."
}

variable "server" {
  type        = string
  default     = null
  description = "The server, by its id in Ironic or its name; by default any that is available."
}

variable "resource_class" {
  type        = string
  default     = null
  description = "Any server of this class."
}

variable "traits" {
  type        = list(string)
  default     = []
  description = "Only servers with these traits."
}

variable "ssh_keys" {
  type    = list(string)
  default = []
}

variable "user_data" {
  type        = string
  default     = null
  sensitive   = true
  description = "What cloud-init is told: a document that begins with #cloud-config."
}

variable "meta_data" {
  type        = string
  default     = null
  sensitive   = true
  description = "More of the config drive's meta data, as JSON."
}

variable "network_data" {
  type        = string
  default     = null
  sensitive   = true
  description = "The config drive's network data, as JSON."
}

variable "clean" {
  type        = string
  default     = null
  description = "What becomes of the disks when the server is given back: metadata, full or none; by default as Ironic is configured."
}
