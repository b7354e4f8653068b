// Package terraform drives the engine, Terraform or OpenTofu: it finds or
// installs the binary, runs its commands,
// turns the engine's machine-readable output into log lines, resource events
// and a percentage, and turns its errors into sentences for the person who
// asked.
//
// It runs inside the child process that carries one provision. It must not
// know queues, spools, agents, checkouts or policies, and it masks nothing:
// whoever owns the writers does.
//
// # Who ends a run
//
// When the context of a call is cancelled, the engine gets exactly one SIGINT:
// a second one makes Terraform quit at once and lose state. The package sends
// nothing else and waits. A call returns when the engine has ended and nobody
// holds its stdout or stderr any more, so the caller owns what follows a grace
// period: it ends the whole tree of processes, and the call then returns. See
// [Options.KillAfter] and [Options.Stragglers].
//
// # Which version runs
//
// The snapshot says it, else the template (required_version of its root and of the
// modules in the checkout), else the agent. Of several that the template admits
// the newest installed one is taken, else the newest release. A snapshot and a
// template that contradict each other are refused before anything is installed.
// An engine is unpacked next to its place, checked and renamed, so what a killed
// installer left is never found.
package terraform
