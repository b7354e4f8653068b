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
//
// # A state that cannot be stored
//
// Terraform leaves errored.tfstate when its backend fails, or prints the state
// when the disk is full. Until that state is stored, another run would create
// everything in it a second time. So the agent keeps the state outside the run's
// directory, tells the database (state_unsaved), and the next run pushes it before
// it plans. It never pushes by force: when the stored state is another one, a
// person decides. Disk space for the state is reserved before each apply, because
// a full disk gives nothing back afterwards.
//
// # What is decided in which order
//
// Secrets are known to the masker before anything that could print them runs: the
// job's before the checkout, the template's after it, the state's before the plan,
// and the plan's before its text is shown. The plan is copied into a sealed memory
// file, and hook, bundle and apply read that file: a path could be replaced
// between the hook's look and the apply. An identical init is skipped; what it
// made is compared too, because a template's commands can run the engine and
// leave the record of another backend.
package executor
