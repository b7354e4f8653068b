variable "names" {
  type        = set(string)
  description = "The machines, by name. One that is left out is destroyed."

  validation {
    condition     = length(var.names) <= 20
    error_message = "This sample makes up to 20 machines."
  }
}

variable "cores" {
  type        = number
  default     = 2
  description = "Cores of each machine."
}

variable "memory" {
  type        = number
  default     = 2048
  description = "Memory of each machine in MiB. Another size replaces the machine."
}

variable "cloud" {
  type        = string
  default     = "/var/tmp/tendril-cloud"
  description = "A directory on the agent's machine that plays the cloud: each file in it is a machine."
}
