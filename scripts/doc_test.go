// Package scripts tests the scripts of this directory, the words that people read and
// the comments of packages.
package scripts
