// Package instance is how programs find what `trellis up` runs: the data
// directory that it owns, the file there that says how to reach it, and who asks
// where nobody signs in.
//
// It must not know how any of that is started: the command line has it on
// systems, too, where nothing can be.
package instance
