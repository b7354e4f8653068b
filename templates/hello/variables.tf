variable "name" {
  description = "Who is greeted."
  type        = string

  validation {
    condition     = length(trimspace(var.name)) > 0 && length(var.name) <= 100
    error_message = "The name must have 1 to 100 characters."
  }
}

variable "greeting" {
  description = "The word before the name."
  type        = string
  default     = "Hello"
}

variable "steps" {
  description = "How many lines to print, one after the other."
  type        = number
  default     = 8

  validation {
    condition     = var.steps >= 0 && var.steps <= 1000 && floor(var.steps) == var.steps
    error_message = "The number of steps must be a whole number from 0 to 1000."
  }
}

variable "pause_seconds" {
  description = "Seconds between two lines; fractions are fine."
  type        = number
  default     = 0.5

  validation {
    condition     = var.pause_seconds >= 0 && var.pause_seconds <= 60
    error_message = "The pause must be from 0 to 60 seconds."
  }
}

variable "labels" {
  description = "Anything you want to see again among the outputs."
  type        = map(string)
  default     = {}
}

variable "passphrase" {
  description = "A secret that the sensitive output is made from. Never shown in a log."
  type        = string
  default     = "correct horse battery staple"
  sensitive   = true
}
