// Package inspect reads which variables a template declares: it takes an inspection
// from the database, checks the version out, reads the declarations and stores them.
// It reads public repositories over HTTPS, without any credentials; what it cannot
// reach it leaves to an agent.
//
// A repository is a stranger's. A child process reads it, which is
// killed when it takes too long or too much memory, in a directory that is removed
// afterwards; of what it answers a bounded part is read. Beyond that the limits
// of packages source (size, number and names of files, links that lead out) and
// tfvars (regular files only, their size, how deep they nest) hold. The child
// connects to public addresses only, so nobody reaches an internal network by the
// URL of a template; which address a name has is decided where it is dialled.
//
// It must not know people and pages.
//
//	wanted ──▶ a trellis claims and reads it ──▶ done, failed
//	   └─ not reachable from here, or not claimed within a minute ──▶ handed ──▶ queued: a run
//	      of operation inspect on an agent that grants it ──▶ done, failed
//
// Such a run has a workspace that no list shows and no snapshot can name. Reading
// a version pins its commit, so a tag that moved is refused as in a deploy.
package inspect
