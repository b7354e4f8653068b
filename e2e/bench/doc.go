// Package bench measures a whole system as it ships, each figure beside its bare
// limit: what the same machine takes for the same work without Tendril.
//
// A benchmark does one round of both a time it loops, in turn, so that what else
// the machine does meanwhile hits both alike, and reports each as a metric of
// its own. "make bench" runs it several times; package figures makes a table of
// that. It must assert nothing about how fast anything is.
//
// A metric is named WHAT-UNIT, or bare-WHAT-UNIT for the limit, where the unit is
// ms, MB/s, MB, /s, s or %. WHAT begins with p50, p99 … for a percentile.
package bench
