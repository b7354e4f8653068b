variable "class" {
  type        = string
  description = "The class, which all names begin with."
}

variable "students" {
  type        = set(string)
  default     = []
  description = "The students, by name."
}

variable "student_count" {
  type        = number
  default     = 0
  description = "How many students without a name: student-01 and so on. A smaller number destroys the last ones, and the plan says so."
  validation {
    condition     = var.student_count >= 0 && var.student_count <= 99
    error_message = "A class has 0 to 99 students without a name."
  }
}

variable "pool" {
  type        = string
  description = "The pool that the machines are made in."
}

variable "image" {
  type        = string
  description = "The image, as the pool calls it."
}

variable "node" {
  type        = string
  default     = null
  description = "The only node to use; by default the best ones, one after the other."
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

variable "teacher_cores" {
  type    = number
  default = 4
}

variable "teacher_memory" {
  type        = number
  default     = 4096
  description = "MiB."
}

variable "disk" {
  type        = number
  default     = null
  description = "GiB; by default as large as the image."
}

variable "full_clone" {
  type        = bool
  default     = false
  description = "Copy the whole image instead of linking to it."
}

variable "user" {
  type    = string
  default = "student"
}

variable "password" {
  type        = string
  default     = null
  sensitive   = true
  description = "The password of the user. Without it only the keys work."
}

variable "ssh_keys" {
  type    = list(string)
  default = []
}
