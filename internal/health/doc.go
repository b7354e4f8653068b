// Package health says over HTTP how an agent is: whether its loops turn
// (/healthz), whether it is in touch with the database (/readyz), and what a
// handler that it is given measures (/metrics).
//
// The two answers differ because Kubernetes acts on them. If the loops do not turn,
// it restarts the agent, which ends what it runs: so a database that is away, busy
// slots and a drain do not fail /healthz. If the agent is not ready, it waits and
// pauses an upgrade.
//
// It must not know queues, provisions or Terraform, nor how things are measured.
// Nothing secret, and no name of a customer's, may reach it: everybody who can
// reach the port may ask.
package health
