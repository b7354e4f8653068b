package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The first thread can be ended only by what runs on it, and that is settled
// in init alone.
func init() {
	if os.Getenv(roleEnv) == "leaderless" {
		runtime.LockOSThread()
	}
}

// children are what scenarios start where a shell will not do.
func children() map[string]func() {
	return map[string]func(){
		// A process whose first thread has ended shows as a zombie and runs on.
		"leaderless": func() {
			go func() { select {} }()
			_ = os.WriteFile("/proc/self/comm", []byte("leaderless"), 0)
			go func() {
				for { // keeps a thread busy, so that Go sees no deadlock
					time.Sleep(time.Second)
				}
			}()
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		},
	}
}

// scenarios are programs that start trouble and end it. Each is an undumpable
// subreaper.
func scenarios() map[string]func() error {
	return map[string]func() error{
		"no children at all": func() error { return kill(nil) },

		// os/exec must still get the exit status of what it started.
		"child with a waiting os/exec": func() error {
			cmd := shell("exec sleep 1000")
			if err := cmd.Start(); err != nil {
				return err
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			if err := kill(nil); err != nil {
				return err
			}
			return killedBySignal(<-ended)
		},

		// As some libraries do it: Wait is called only when the output ends,
		// and a grandchild holds that.
		"child whose zombie is waited for late": func() error {
			cmd := shell("setsid sleep 1000 & exit 7")
			cmd.SysProcAttr.Setsid = false
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("the child is a zombie and the grandchild sleeps", func(found []Info) bool {
				return named(found, "sleep") == 1 && isZombie(found, cmd.Process.Pid)
			})
			if err := errors.Join(err, kill(nil), living()); err != nil {
				return err
			}
			return exited(cmd.Wait(), 7)
		},

		"grandchildren in sessions of their own": func() error {
			cmd := shell("(setsid sh -c 'setsid sleep 1000 & sleep 1000' &) ; setsid sleep 1000 & sleep 1000")
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("four sleep", func(found []Info) bool { return named(found, "sleep") == 4 })
			err = errors.Join(err, kill(nil))
			return errors.Join(err, killedBySignal(cmd.Wait()), living())
		},

		"deaf to SIGTERM, and stopped": func() error {
			cmd := shell("trap '' TERM INT HUP; (kill -STOP $(sh -c 'echo $PPID')) & while :; do sleep 1000; done")
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("it sleeps", func(found []Info) bool { return named(found, "sleep") == 1 })
			return errors.Join(err, kill(nil), killedBySignal(cmd.Wait()), living())
		},

		// Several loops that go on forking while they are killed, each child in
		// a session of its own. They hold back a little for the machine's sake:
		// at full speed there are 25,000 before anybody has counted them.
		"fork bomb": func() error {
			cmd := shell("for i in 1 2 3; do (while :; do setsid sleep 1000 & sleep 0.002; done) & done; wait")
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("90 sleep", func(found []Info) bool { return named(found, "sleep") >= 90 })
			return errors.Join(err, kill(nil), killedBySignal(cmd.Wait()), living())
		},

		// Each process lives only until it has forked the next.
		"process that hops from pid to pid": func() error {
			cmd := shell("f() { f & exit; }; f")
			if err := cmd.Start(); err != nil {
				return err
			}
			if err := cmd.Wait(); err != nil {
				return err
			}
			before, err := Descendants(os.Getpid())
			if err != nil {
				return err
			}
			err = until("it has hopped on", func(found []Info) bool { return len(found) > len(before)+50 })
			return errors.Join(err, kill(func(Info) bool { return false }), noneLives())
		},

		"process without its first thread": func() error {
			cmd := self("leaderless")
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("its first thread has ended", func(found []Info) bool {
				state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
				return strings.Contains(string(state), ") Z ") && named(found, "leaderless") == 1
			})
			if err != nil {
				return err
			}
			if !Alive(cmd.Process.Pid) {
				return errors.New("Alive() = false for a process that has lost its first thread only")
			}
			return errors.Join(kill(nil), killedBySignal(cmd.Wait()), living())
		},

		"excepted child with all below it": func() error {
			spared, other := shell("setsid sleep 1000 & sleep 1000"), shell("exec sleep 1000")
			if err := errors.Join(spared.Start(), other.Start()); err != nil {
				return err
			}
			err := until("three sleep", func(found []Info) bool { return named(found, "sleep") == 3 })
			err = errors.Join(err, kill(func(i Info) bool { return i.PID == spared.Process.Pid }))
			if err != nil {
				return err
			}
			below, err := Descendants(spared.Process.Pid)
			if err != nil || named(below, "sleep") != 2 || Alive(other.Process.Pid) || !Alive(spared.Process.Pid) {
				return fmt.Errorf("below the excepted child are %+v, %w, want two that sleep", below, err)
			}
			return errors.Join(kill(nil), killedBySignal(spared.Wait()), living())
		},

		"zombies of others' waits are left, inherited ones reaped": func() error {
			waited, inherited := shell("exit 3"), shell("(setsid sh -c 'exit 4') & setsid sleep 1000 & exit 0")
			if err := errors.Join(waited.Start(), inherited.Run()); err != nil {
				return err
			}
			err := until("two zombies", func(found []Info) bool {
				return named(found, "sleep") == 1 && len(found) == 3 && isZombie(found, waited.Process.Pid)
			})
			err = errors.Join(err, kill(func(i Info) bool { return i.PID == waited.Process.Pid }), noneLives(waited.Process.Pid))
			return errors.Join(err, exited(waited.Wait(), 3))
		},

		// Engines are waited for late, see above: their status must stay theirs.
		"orphans are reaped while children are waited for": func() error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			reaped := make(chan struct{})
			go func() {
				defer close(reaped)
				ReapOrphans(ctx, InOwnSession())
			}()
			late := exec.Command("/bin/sh", "-c", "exit 7")
			engine := exec.Command("/bin/sh", "-c", "(sleep 0.05 &) ; (setsid sleep 0.05 &) ; exit 8")
			engine.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := errors.Join(late.Start(), engine.Start()); err != nil {
				return err
			}
			err := until("only the zombies of the children are left", func(found []Info) bool {
				return len(found) == 2 && isZombie(found, late.Process.Pid) && isZombie(found, engine.Process.Pid)
			})
			cancel()
			<-reaped
			return errors.Join(err, exited(late.Wait(), 7), exited(engine.Wait(), 8))
		},

		"context that is over": func() error {
			cmd := shell("exec sleep 1000")
			if err := cmd.Start(); err != nil {
				return err
			}
			err := until("it sleeps", func(found []Info) bool { return named(found, "sleep") == 1 })
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			err = KillDescendants(ctx, nil)
			want := fmt.Sprintf("%d (sleep)", cmd.Process.Pid)
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("KillDescendants = %w, want one that names %s", err, want)
			}
			return killedBySignal(cmd.Wait()) // tried it was all the same
		},
	}
}

func isZombie(infos []Info, pid int) bool {
	for _, info := range infos {
		if info.PID == pid {
			return info.Zombie
		}
	}
	return false
}

// living fails when a descendant lives.
func living() error {
	found, err := Descendants(os.Getpid())
	if err != nil {
		return err
	}
	for _, info := range found {
		if !info.Zombie {
			return fmt.Errorf("still alive: %+v", info)
		}
	}
	return nil
}

// exited checks what os/exec's Wait says about a child.
func exited(err error, want int) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == want {
		return nil
	}
	return fmt.Errorf("the child ended as %w, want exit status %d", err, want)
}

func killedBySignal(err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
			return nil
		}
	}
	return fmt.Errorf("the child ended as %w, want SIGKILL", err)
}
