//go:build unix && !linux

package postgres

import "syscall"

// DieWithParent does nothing where the kernel knows no such thing: there the
// next start ends what was left behind.
func DieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
