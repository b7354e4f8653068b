// Package e2e tests the whole system: the built programs, a real PostgreSQL,
// git over HTTPS, real Terraform. It has no code of its own to ship.
package e2e
