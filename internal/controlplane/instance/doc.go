// Package instance lets programs find a running `trellis up`: the data directory that
// it owns, the file there that says how to reach it, and the person who counts as
// signed in.
//
// It must not know how any of that is started: the command line uses it on systems
// where `trellis up` cannot run.
package instance
