// Package templatefile reads tendril.hcl, the file next to variables.tf that says
// what a template is when it is more than Terraform: what the catalogue shows, what
// carries it out, the machines that it wants, how their health is checked. Without
// the file a template is Terraform's.
//
//	Read ──► File: what stands there literally (title, provisioner, steps, health)
//	           │ variables of one run, sensitive ones marked
//	           ├──► Machines      each with its name, size and pool
//	           ├──► Placement     where they may go
//	           └──► Instructions  what a person is to do (manual)
//
// Read needs no variables, so the catalogue can read a template that nobody has
// deployed. Every problem is reported at once, each with its place and its line.
//
// A template is a stranger's. An expression sees var, each and the pure functions of
// functions.go: no file, no environment, no clock, no chance. HCL can't be stopped
// while it evaluates, so meter.go puts a counter into the tree: each node spends from
// one budget, and evaluation ends when that is spent. What runs a command decides
// later whether it may; here it is only read.
//
// It must not know which run it is for, nor how machines are made.
package templatefile
