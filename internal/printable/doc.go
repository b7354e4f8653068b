// Package printable makes other people's text fit to be printed: lines of a log,
// plans, names, messages that come from templates, rows and servers.
//
//	to a file or a pipe     no escape sequences at all
//	to a terminal           colours and looks, from a list of those that hide nothing
//	to either               no control characters but \n and \t; what can't be seen
//	                        or turns the direction of writing becomes a mark (U+202E, ␛)
//
// A sequence is taken apart and made again: what a terminal gets was written
// here. Concealed (8) and blinking (5, 6) text is shown as any other, and so is
// text in the colour of its background.
//
// The console's log does the same in JavaScript (assets/log/ansi.js, marks.js,
// style.js). testdata/cases.json is read by the tests of both.
//
// The package must not know who prints, and where.
package printable
