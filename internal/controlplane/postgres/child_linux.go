package postgres

import "syscall"

// DieWithParent has the kernel send a signal to a child when the thread that started
// it ends.
func DieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
