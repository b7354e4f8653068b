//go:build unix && !linux

package postgres

import "syscall"

// dieWithParent does nothing where the kernel knows no such thing: there the
// next Start ends what was left behind.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
