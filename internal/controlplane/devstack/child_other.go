//go:build unix && !linux

package devstack

import "syscall"

// dieWithParent does nothing where the kernel knows no such thing.
func dieWithParent(*syscall.SysProcAttr) {}
