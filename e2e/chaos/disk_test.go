package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// smallDisk mounts a disk of that size on a directory, which it makes.
func smallDisk(t *testing.T, dir string, size int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a disk to fill needs root")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Fatalf("mounting a disk on %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
}

// fill takes all that is left of the disk a directory is on, until the returned
// function gives it back.
func fill(t testing.TB, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // what it holds is of no use
	block := make([]byte, 1<<20)
	for size := len(block); size > 0; {
		if _, err = file.Write(block[:size]); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk of %s: %v, want it full", dir, err)
	}
	counted.add("faults: disk full", 1)
	return func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// The disk under the spool is full in the middle of an apply, for a while: the
// engine waits, and not a line is lost.
func TestDiskFullUnderTheSpoolForAWhile(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	smallDisk(t, filepath.Join(a.Dir, "spool"), 8<<20)
	a.Start()
	for range times(1, 10) {
		full := w.deploy("a", endless, 3*time.Millisecond)
		w.awaitPrinted(full, 20)
		empty := fill(t, filepath.Join(a.Dir, "spool"))
		w.awaitMore(full, 400) // ten times of what the last page of the spool has room for
		empty()
		w.enough(full)
		if got := w.AwaitEnd(full.id); got != "SUCCESS" {
			t.Errorf("the run that waited for room = %s: %s; want SUCCESS", got, w.Message(full.id))
		}
		w.AwaitLine(full.id, "for room.")
	}
	a.Terminate()
	w.count(a, "SUCCESS")
}

// The disk under the spool stays full: the run is ended with one interrupt, and
// says why; the next one is none the worse for it.
func TestDiskFullUnderTheSpool(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	a.Set("TENDRIL_RUN_DISK_WAIT", "1s")
	smallDisk(t, filepath.Join(a.Dir, "spool"), 8<<20)
	a.Start()
	for range times(1, 10) {
		full := w.deploy("a", endless, 5*time.Millisecond)
		w.awaitPrinted(full, 20)
		empty := fill(t, filepath.Join(a.Dir, "spool"))
		full.killed = time.Now()
		if got := w.AwaitEnd(full.id); got != "FAILED/spool_failed" || !strings.Contains(w.Message(full.id), "no space left on device") {
			t.Errorf("the run whose disk stayed full = %s: %s; want FAILED/spool_failed, and the disk named", got, w.Message(full.id))
		}
		if log := w.Log(t, full.id); !strings.Contains(log, "Lines are missing here") || strings.Contains(log, "Two interrupts") {
			t.Error("the log does not say that lines are missing, or the engine was interrupted twice")
		}
		empty()
		if got := w.AwaitEnd(w.deploy("a", 10, time.Millisecond).id); got != "SUCCESS" {
			t.Errorf("the run after it = %s, want SUCCESS", got)
		}
	}
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/spool_failed")
}

// The disk under the work directories is full before a run: nothing is begun,
// and the message names the disk.
func TestDiskFullUnderTheWork(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	smallDisk(t, filepath.Join(a.Dir, "work"), 4<<20)
	a.Start()
	first := w.deploy("a", 5, time.Millisecond)
	if got := w.AwaitEnd(first.id); got != "SUCCESS" {
		t.Fatalf("the first run = %s, want SUCCESS", got)
	}
	for range times(1, 10) {
		empty := fill(t, filepath.Join(a.Dir, "work"))
		full := w.deploy("a", 5, time.Millisecond)
		got := w.AwaitEnd(full.id)
		if got != "FAILED/spool_failed" || !strings.Contains(w.Message(full.id), "no space left on device") {
			t.Errorf("the run with a full disk = %s: %s; want FAILED/spool_failed, and the disk named", got, w.Message(full.id))
		}
		empty()
		if got := w.AwaitEnd(w.deploy("a", 5, time.Millisecond).id); got != "SUCCESS" {
			t.Errorf("the run after it = %s, want SUCCESS", got)
		}
	}
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/spool_failed")
}

// The work directory's disk fills up while an apply runs, and stays full: the
// state is elsewhere, so nothing is lost.
func TestDiskFullUnderTheWorkMidApply(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	smallDisk(t, filepath.Join(a.Dir, "work"), 4<<20)
	a.Start()
	full := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(full, 5)
	empty := fill(t, filepath.Join(a.Dir, "work"))
	w.awaitMore(full, 50)
	w.enough(full)
	if got := w.AwaitEnd(full.id); got != "SUCCESS" {
		t.Errorf("the run = %s: %s; want SUCCESS", got, w.Message(full.id))
	}
	empty()
	a.Terminate()
	w.count(a, "SUCCESS")
}

// The disk under Postgres is full in the middle of an apply: the run goes on, its
// lines wait in the spool, and all is stored when there is room again.
func TestDiskFullUnderPostgres(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	smallDisk(t, dir, 256<<20)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	w, own := ownWorks(t, pgtest.Durable(), pgtest.In(filepath.Join(dir, "data")))
	a := w.alone("one", 2)
	a.Start()
	for range times(1, 5) {
		applying := w.deploy("a", endless, 10*time.Millisecond)
		w.awaitPrinted(applying, 20)
		early := w.deploy("b", 20, 10*time.Millisecond)
		w.Await("a run before its apply", "SELECT status = 'PROCESSING' FROM public.provisions WHERE id = $1", early.id)
		empty := fill(t, dir)
		w.untilFull(own)
		w.awaitMore(applying, 50)
		w.enough(applying)
		w.awaitFinished(applying)
		empty()
		w.answersAgain(own)
		w.awaitAll()
	}
	a.Terminate()
	w.count(a, "SUCCESS")
}

// untilFull waits until the server has refused a write for want of room, or has
// given up.
func (w *works) untilFull(own *pgtest.Own) {
	w.T.Helper()
	await(w.T, "Postgres to meet the full disk", func() bool {
		_, err := w.Conn.Exec(w.T.Context(), "CREATE TABLE IF NOT EXISTS public.filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
		return err != nil || ended(own)
	})
}

func ended(own *pgtest.Own) bool {
	select {
	case <-own.Server().Done():
		return true
	default:
		return false
	}
}

// A data directory that cannot be written is refused at the start.
func TestReadOnlyDataDirectory(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	smallDisk(t, a.Dir, 4<<20)
	readOnly(t, a.Dir, true)
	code, out := a.Start().Exit()
	if code != 1 || !strings.Contains(out, a.Dir) || !strings.Contains(out, "read-only") {
		t.Errorf("exit code %d, output %q; want 1, and the directory named as read-only", code, out)
	}
	readOnly(t, a.Dir, false)
	a.Start()
	if got := w.AwaitEnd(w.deploy("a", 5, time.Millisecond).id); got != "SUCCESS" {
		t.Errorf("a run once it can be written = %s, want SUCCESS", got)
	}
	a.Terminate()
	w.count(a, "SUCCESS")
}

// The spool's disk turns read-only between two runs, as disks do that break.
func TestSpoolTurnsReadOnly(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("one", 1)
	smallDisk(t, filepath.Join(a.Dir, "spool"), 8<<20)
	a.Start()
	if got := w.AwaitEnd(w.deploy("a", 5, time.Millisecond).id); got != "SUCCESS" {
		t.Fatalf("the first run = %s, want SUCCESS", got)
	}
	await(t, "the spool to be removed", func() bool { return len(a.Spools()) == 0 })
	readOnly(t, filepath.Join(a.Dir, "spool"), true)
	if got := w.AwaitEnd(w.deploy("a", 5, time.Millisecond).id); got != "FAILED/internal" {
		t.Errorf("a run that has nowhere to put its lines = %s, want FAILED/internal", got)
	}
	readOnly(t, filepath.Join(a.Dir, "spool"), false)
	if got := w.AwaitEnd(w.deploy("a", 5, time.Millisecond).id); got != "SUCCESS" {
		t.Errorf("the run after it = %s, want SUCCESS", got)
	}
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/internal")
}

func readOnly(t *testing.T, dir string, yes bool) {
	t.Helper()
	flags := uintptr(unix.MS_REMOUNT)
	if yes {
		flags |= unix.MS_RDONLY
		counted.add("faults: disk read-only", 1)
	}
	var err error
	await(t, "nobody to have anything open to write there", func() bool { // removed it may be already
		err = unix.Mount("tmpfs", dir, "tmpfs", flags, "")
		return !errors.Is(err, unix.EBUSY)
	})
	if err != nil {
		t.Fatalf("remounting %s: %v", dir, err)
	}
}
