// Package health says over HTTP how an agent is: whether its loops turn
// (/healthz), whether it is in touch with the database (/readyz), and what a
// handler that it is given measures (/metrics).
//
// The two questions are apart because what asks them acts on the answers. Who is
// told that the loops do not turn restarts the agent, which ends what it runs:
// so a database that is away, busy slots and a drain are no such thing. Who is
// told that the agent is not ready waits, and goes no further with an upgrade.
//
// It must not know queues, provisions or Terraform, nor how things are measured.
// Nothing secret, and no name of a customer's, may reach it: everybody who can
// reach the port may ask.
package health
