# Not "count": that name is reserved by Terraform.
variable "ships" {
  description = "How many resources to make."
  type        = number
  default     = 12

  validation {
    condition     = var.ships >= 1 && var.ships <= 500 && floor(var.ships) == var.ships
    error_message = "The number of ships must be a whole number from 1 to 500."
  }
}

variable "prefix" {
  description = "What each name begins with."
  type        = string
  default     = "ship"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.prefix))
    error_message = "The prefix must be 1 to 31 lower-case letters, digits and dashes, a letter first."
  }
}

variable "pause_seconds" {
  description = "How long each one takes, in seconds."
  type        = number
  default     = 0.5

  validation {
    condition     = var.pause_seconds >= 0 && var.pause_seconds <= 60
    error_message = "The pause must be from 0 to 60 seconds."
  }
}
