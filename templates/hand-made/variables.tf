variable "name" {
  description = "The server's name."
  type        = string
}

variable "site" {
  description = "Where it is to stand."
  type        = string
  default     = "the small hall"
}

variable "cores" {
  description = "Its cores."
  type        = number
  default     = 8
}

variable "memory" {
  description = "Its memory in MiB."
  type        = number
  default     = 16384
}
