// Package credentials reads, for each run, the cloud credentials that the agent's
// configuration selects for the run's workspace. No workspace gets another one's.
//
// It must not know a run's content: only the workspace's name and id select.
//
// The agent reads the files, not the child: a replaced file serves the next run,
// and the run's user need not be able to read it. Copies go down the control pipe
// and do not change while the run lasts, because a web identity token must outlive
// it. Once one entry exists, the agent's own cloud credentials reach no run.
// Everybody who may deploy to a workspace uses its credentials.
package credentials
