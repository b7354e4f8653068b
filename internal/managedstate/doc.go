// Package managedstate serves one state to one run's engine, as Terraform's http
// backend wants it, on a loopback address.
//
// The commands of a template inherit the engine's environment, and with it the
// address and the password. Three rules keep them from changing the state:
//
//   - Each engine command has a Grant with its own password, which ends with the
//     command. A process that an earlier command left behind is refused.
//   - A Grant takes the lock at most once. An engine takes it before it starts
//     anything of a template's, so nobody else can hold it, before or after.
//   - Writing and unlocking need the lock's id, which the engine made up and which
//     no answer repeats. There is no unlocking by force. What is written must have
//     the stored state's lineage and a higher serial.
//
// A refusal is reported to the caller. A process that can read the engine's memory
// can still read the id there: runs with separate uids do not prevent that within
// one run.
//
// The package must not know where a state comes from or what becomes of it: the
// caller hands the state in and stores each one that is written.
//
// The engine is configured by TF_HTTP_* variables alone, so neither a saved plan
// nor .terraform holds the port or the password: another run, on another agent,
// may apply the plan. A write is sealed and on disk before the engine gets its
// answer, so no apply waits for the database. Two slots take turns, so one is
// always whole. The engine repeats no write (TF_HTTP_RETRY_MAX=0): three tries for
// each resource would outlast the grace of a run that is being stopped.
package managedstate
