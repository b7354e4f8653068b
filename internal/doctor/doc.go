// Package doctor checks everything an agent needs, from its configuration to what a
// template could read, and says what is wrong with each and how to fix it. It changes
// nothing, so it may run while the agent works.
//
// It must not know command lines or terminals.
package doctor
