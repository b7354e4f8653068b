output "message" {
  description = "The greeting as it was printed."
  value       = terraform_data.greeting.output
}

output "labels" {
  description = "The labels that were given."
  value       = var.labels
}

output "token" {
  description = "Made from the passphrase. Tendril stores that it exists, never its value."
  value       = terraform_data.token.output
  sensitive   = true
}
