// Package executor carries one provision from assignment to result, inside the
// child process that the agent starts for it (tendril exec): checkout,
// validate, engine, init, plan, apply. What happens goes to the spool; what the
// agent has to say comes down the control pipe.
//
// It must not know the queue, the database or the agent's token. Terraform is
// one provisioner behind a small interface; another way to provision would be
// another one.
//
// # How a run ends
//
// A run is asked to stop by a message, by its time limit, or by the end of the
// control pipe, which means that the agent is gone. The engine then gets one
// SIGINT and the grace period; after that every process below this one is
// killed. A stopped run reports how it ended, except when the agent is gone: it
// then leaves a result only if the engine finished its work all the same, and
// otherwise the agent's next start says what became of the run.
package executor
