package terraform

import "syscall"

// group puts an engine into a process group of its own, where no signal to this process's
// group reaches it, and ends it with the thread that starts it: with us, whatever happens.
var group = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
