output "names" {
  description = "The names, in the order of their berths."
  value       = terraform_data.ship[*].output.name
}

output "ships" {
  description = "How many there are."
  value       = length(terraform_data.ship)
}
