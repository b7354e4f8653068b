// Package agent claims provisions and supervises the child processes that run
// them. It has the token's queue, and sends there what the children write to
// their spools (packages spool and delivery). It must not know Terraform, git or
// templates: those are the child's (package executor).
//
// # One boot
//
//	lock the data directory ─ register ─┬─ heartbeat: renews leases, brings cancels ──────────────┐
//	                                    └─ leftovers ─ poller ─┬─ run ─ tendril exec ─┐          │
//	                                                           ├─ run ─ tendril exec ─┤─ drain ─ close
//	                                                           └─ …  (one per slot)   ┘
//
// Leftovers are what an earlier boot left in the spool directory: its children
// are waited for, their lines and results delivered, and what has no result is
// ended by the database. Only then is anything claimed.
//
// # One run
//
//	claimed ─▶ workspace free here ─▶ spool and lock made ─▶ child started ─▶ child ended
//	        ─▶ what it left running ended ─▶ result delivered ─▶ spool removed ─▶ slot free
//
// The child owns the ending of its engine. A run is stopped by one message; only
// a child that does not end in its grace and a margin is killed. A database that
// cannot be reached stops nothing: lines wait in the spool, on disk if need be
// until the next start. What continues by itself is set down before the lease ends.
//
// The package needs its process for itself: it makes the process a subreaper
// and ends whatever falls to it when a child dies.
package agent
