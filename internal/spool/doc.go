// Package spool is the file between the child process that carries out a run and the
// agent that delivers what it says, so that no line is lost when either process dies.
//
//	child   bytes ─▶ Writer: clean ─▶ mask ─▶ chunk ─▶ the spool, a record a line
//	             … beyond the log's limit: samples ─▶ the spool, all of it ─▶ Tail
//	             Doorbell ─▶ "there is something new"
//	agent   the spool ─▶ Reader     ─▶ records, numbered ─▶ package delivery
//	             … when the child is dead: Tail ─▶ TailReader ─▶ what the log ends with
//	             … when it left no result: Resume ─▶ a Writer for the last words
//
// A record is text of a chunk, the end of a chunk, or an update: a report that stands in
// its place among the lines. Each is written by one write on an O_APPEND descriptor, so a
// kill tears the last one at most. A chunk's number depends on the files alone: whoever
// reads them, and however often, cuts the same chunks, and the database knows a repeat.
//
// Something else may have written to the file: a template that runs as the child's user.
// So the Reader takes any bytes, holds no more of them than a record may have, and gives
// a record that claims a number that is taken, or far ahead, the next one. What counts
// as a run's end is package delivery's to say.
//
// A log beyond its limit keeps its first half whole, then samples of it, and its end in
// the two files of the Tail. Room on the disk is kept behind the end of each for
// the last words of a run.
//
// The package must not know processes, the queue or Terraform, nor which values are
// secret: it is told. The format is read by agents of other versions after an upgrade or
// a step back, so it only ever grows. docs/ARCHITECTURE.md, "From the child to the
// database", says how the parts work together.
package spool
