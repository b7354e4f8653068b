package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// roleEnv makes the test binary a program of its own: one of the scenarios,
// which may kill all its descendants without hitting other tests' children, or
// one of the children that a scenario starts.
const roleEnv = "TENDRIL_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if run, ok := children()[role]; ok {
		run()
	}
	if run, ok := scenarios()[role]; ok {
		if err := errors.Join(Undumpable(), Subreaper(), run()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestKillDescendants(t *testing.T) {
	t.Parallel()
	for name := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := self(name)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil {
				t.Errorf("%v: %s", err, out.String())
			}
		})
	}
}

// self is this test binary in another role.
func self(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

// shell is a script in a session of its own.
func shell(script string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// kill is KillDescendants within a time that is never needed.
func kill(except func(Info) bool) error {
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	return KillDescendants(ctx, except)
}

// until waits for a condition on this process's descendants.
func until(what string, condition func([]Info) bool) error {
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		found, err := Descendants(os.Getpid())
		if err != nil {
			return err
		}
		if condition(found) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %s; there are %+v", what, found)
		}
	}
}

// noneLives fails when a descendant does, or when zombies other than the given
// are left.
func noneLives(zombies ...int) error {
	found, err := Descendants(os.Getpid())
	found = slices.DeleteFunc(found, func(i Info) bool { return i.Zombie && slices.Contains(zombies, i.PID) })
	if err != nil || len(found) > 0 {
		return fmt.Errorf("left over: %+v, %w", found, err)
	}
	return nil
}

func named(infos []Info, name string) (n int) {
	for _, info := range infos {
		if info.Name == name && !info.Zombie {
			n++
		}
	}
	return n
}
