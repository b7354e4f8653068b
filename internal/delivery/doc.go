// Package delivery sends one spool to the queue: chunks of the log and updates, in the
// order of the file, each chunk once, through any outage and any number of restarts.
//
//	spool.Reader ─▶ assembler: batches of closed chunks ─▶ flight ─▶ AppendLog
//	             ─▶ an update, when all before it is stored ───────▶ Report ─▶ Acked
//	     … when the child is dead: spool.TailReader ─▶ AppendLog, then the final report
//
// A Pump reads on while one batch is on its way, and keeps no more in memory than that
// and the next. What follows a silence goes at once; a stream of lines goes in batches.
//
// Answers of the queue mean:
//
//	next chunk      what the database expects; less than before: it was restored from a
//	                backup, and the Pump reads the spool again from there
//	unavailable     the call is repeated until it works or the context ends
//	content refused halved until one chunk is left; that is set aside for people and a
//	                line says so. Believed only when the same call without it succeeds
//	anything else   ends the delivery
//
// A final report frees the workspace, so it counts only as the last record of a dead
// child: a template that could write to the spool cannot end its own run.
//
// The package must not know who the child is, how it died, what a plan or a state is, or
// where the spool's files lie: it is handed open files. It sees a spool's records and
// never their bytes.
package delivery
