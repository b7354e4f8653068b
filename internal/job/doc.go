// Package job is what passes between an agent and the child process that runs
// one provision (tendril exec): the job itself, the words on the control pipe,
// and the numbers of the inherited descriptors.
//
//	fd 3  control   agent → child   one Job, then one Control per line; end of file: the agent is gone
//	fd 4  spool     child → agent   O_APPEND; the records of package spool
//	fd 5  lock      held by flock for as long as the child lives
//	fd 6  doorbell  child → agent   a byte when the spool has grown; content means nothing
//	fd 7  tail      child → agent   O_APPEND; the end of a log that is beyond its limit,
//	fd 8  tail                      in two files that are written in turn
//	fd 9  uid lock                  where runs have uids of their own
//	fd 10 plan      both ways       a plan bundle: the one to be approved, or the approved one
//
// The child marks all of them close-on-exec before it starts anything, so no
// template can reach them. Package job must not know how either side works.
package job
