package caches

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestWhatIsHeldIsNotClaimed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, held := Hold(dir)
	second, also := Hold(dir)
	if !held || !also {
		t.Fatalf("Hold() twice = %v, %v, want both", held, also)
	}
	for _, release := range []func(){first, second} {
		if _, claimed, err := Claim(dir); claimed || err != nil {
			t.Errorf("Claim(held) = %v, %v, want it refused", claimed, err)
		}
		release()
	}
	release, claimed, err := Claim(dir)
	if !claimed || err != nil {
		t.Fatalf("Claim() = %v, %v, want it", claimed, err)
	}
	defer release()
	if _, held := Hold(dir); held {
		t.Error("Hold(claimed) = true, want it refused")
	}
}

// What is started has copies of all descriptors until it becomes its program: none
// of them keeps what was released.
func TestReleasedIsFreeWhileProcessesStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	over := make(chan struct{})
	var starting sync.WaitGroup
	starting.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 500 {
		release, held := Hold(dir)
		if !held {
			t.Error("Hold() = false, want it: it was released")
			break
		}
		release()
		free, claimed, err := Claim(dir)
		if !claimed || err != nil {
			t.Errorf("Claim() = %v, %v, want it: it was released", claimed, err)
			break
		}
		free()
	}
	close(over)
	starting.Wait()
}

// However a process ends, it holds nothing any more.
func TestAKilledProcessHoldsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir, cmd.Env = dir, []string{holdEnv + "=1"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // it is killed
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if said, err := bufio.NewReader(out).ReadString('\n'); said != "true\n" || err != nil {
		t.Fatalf("the process said %q, %v", said, err)
	}
	if _, claimed, err := Claim(dir); claimed || err != nil {
		t.Errorf("Claim() = %v, %v while another process holds it", claimed, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	release, claimed, err := Claim(dir)
	if !claimed || err != nil {
		t.Fatalf("Claim() = %v, %v after that process was killed, want it", claimed, err)
	}
	release()
}

// Somebody may take a directory away, and make another, before it is locked.
func TestWhatWasOpenedIsGone(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "package")
	for name, again := range map[string]bool{"gone": false, "another": true} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := openDir(dir)
		if err := errors.Join(err, os.Rename(dir, filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
		if again {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if _, held := holdOpen(file, dir); held {
			t.Errorf("holdOpen(what is %s) = true, want it refused", name)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// Who holds a directory finds it there, whatever is being removed and made again
// at the same time.
func TestHeldIsThere(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "package")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var removals atomic.Int32
	all.Go(func() {
		for ctx.Err() == nil {
			release, claimed, err := Claim(dir)
			if err != nil {
				t.Errorf("Claim() error = %v", err)
				return
			}
			if !claimed {
				continue
			}
			gone := filepath.Join(root, fmt.Sprint("gone-", removals.Add(1)))
			err = os.Rename(dir, gone)
			release()
			if err := errors.Join(err, os.Remove(gone), os.Mkdir(dir, 0o700)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	holds := 0
	for limit := patience.Begin(2 * time.Minute); (holds < 200 || removals.Load() < 10) && !limit.Over(); {
		release, held := Hold(dir)
		if !held {
			continue
		}
		holds++
		mark := filepath.Join(dir, "mark")
		if err := errors.Join(os.WriteFile(mark, nil, 0o600), os.Remove(mark)); err != nil {
			t.Errorf("a directory that is held: %v", err)
		}
		release()
	}
	stop()
	all.Wait()
	if holds < 200 || removals.Load() < 10 {
		t.Errorf("held it %d times and removed it %d times, want more", holds, removals.Load())
	}
}

// Where a lock file is to be a template may have put something else.
func TestALockThatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "link", "directory"} {
		ctx, cancel := patience.Context(t.Context(), time.Minute)
		if _, err := Lock(ctx, filepath.Join(dir, name)); err == nil || ctx.Err() != nil {
			t.Errorf("Lock(%s) = %v, want it refused at once", name, err)
		}
		cancel()
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("Lock(link) made what it leads to")
	}
	release, err := Lock(t.Context(), filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := Lock(soon, filepath.Join(dir, "lock")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock(locked) = %v, want it to give up in time", err)
	}
	release()
	release, err = Lock(t.Context(), filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	release()
	for _, name := range []string{"link", "pipe"} {
		if _, claimed, err := Claim(filepath.Join(dir, name)); claimed || err == nil {
			t.Errorf("Claim(%s) = %v, %v, want an error", name, claimed, err)
		}
		if _, held := Hold(filepath.Join(dir, name)); held {
			t.Errorf("Hold(%s) = true, want it refused", name)
		}
	}
}
