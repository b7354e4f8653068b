// Package conformance checks a provisioner against docs/PROVISIONERS.md. It is what
// "tendril provisioner test COMMAND" runs.
//
//	Run ── for each case: a fresh directory, machines with fresh ids
//	         ask ── start COMMAND, send one request, read its answer, end it
//	         ask ── …
//	         destroy what was made
//	    ── Report: ✓, ✗ with what was sent, what came, what is wanted and what to do, or –
//
// Cases judge by what the program says, since only it can reach its cloud. Options.Inventory
// is a command that lists what is really there.
//
// The package must not know the agent, its queue or its isolation: the program runs as the
// person who tests it.
package conformance
