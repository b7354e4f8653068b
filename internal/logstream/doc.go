// Package logstream carries what a provision prints and reports from the child
// process that runs it to the queue, through a file, so that no line is lost
// when either process dies.
//
//	child   bytes → Writer: clean → mask → chunk → spool (a record a line)
//	        … beyond the log's limit: samples → spool, all of it → Tail
//	agent   spool → Reader → Pump: batches of closed chunks, updates in their place → queue
//	        … when the child is dead: Tail → Pump, then the final report
//
// The spool's format, the rules of chunk numbering and what becomes of a log
// beyond its limit stand in docs/ARCHITECTURE.md, "From the child to the
// database". A chunk's number depends on nothing but the files: whoever delivers
// them, and however often, cuts the same chunks.
//
// The package must not know processes, SQL, HTTP or Terraform, nor which
// values are secret: it is told.
package logstream
