package devstack

import "syscall"

// dieWithParent has the kernel send SIGTERM to a child when the thread that
// started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
