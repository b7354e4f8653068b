// Package doctor looks at everything an agent needs, from its configuration to
// what a template could read, and says of each thing what is wrong and what to
// do. It changes nothing, in the database least of all: it may run beside an
// agent at work.
//
// It must not know command lines or terminals.
package doctor
