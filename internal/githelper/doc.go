// Package githelper stands between a run and the git that its engine starts to
// fetch modules. git asks a small program for a password, and has it make its
// SSH connections; that program asks the run's process, which decides.
//
//	exec (has the credentials) ◀── abstract socket ── git-helper ◀── git ◀── terraform init
//
// So no credential is in a URL, an argument, the environment or a file. A
// password passes through the helper to git; of SSH the helper hands over its
// descriptors, and no key leaves the run's process. The socket is there for as
// long as modules are fetched, answers only to processes that this one has
// started, by what the kernel says of them, and nothing but git works with it.
//
// The package must not know which credentials there are, nor for what.
package githelper
