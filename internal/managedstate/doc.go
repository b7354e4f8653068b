// Package managedstate serves one state to one engine, as Terraform's http
// backend wants it: on a loopback address of its own choosing, with a password of
// its own, for as long as one run goes on.
//
// It must not know where a state comes from or what becomes of one: who opens the
// server hands it the state as it is, and is told of each that is written.
package managedstate
