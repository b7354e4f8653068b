//go:build !linux

package terraform

import "syscall"

var group = &syscall.SysProcAttr{Setpgid: true}
