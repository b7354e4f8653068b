package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/provision"
)

// smallDisk mounts a file system of so many bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Fatalf("mount a file system of %s: %v", size, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func openOn(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// fill takes what room a disk has left.
func fill(t *testing.T, dir string) {
	t.Helper()
	f := openOn(t, dir, "filler")
	for page := make([]byte, 4096); ; {
		if _, err := f.Write(page); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEndOfTheStoryFitsOnAFullDisk: a run whose disk fills up says so and has a
// result, below its log's limit and beyond it; and where the child died, the
// agent says so.
func TestEndOfTheStoryFitsOnAFullDisk(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("what went wrong, at length. ", 2000)
	for name, tt := range map[string]struct {
		limit int64
		died  bool
	}{
		"below the limit":            {64 << 20, false},
		"beyond the limit":           {leastLimit, false},
		"below, and the child died":  {64 << 20, true},
		"beyond, and the child died": {leastLimit, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t, "3M")
			spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
			if err := Reserve(spool); err != nil {
				t.Fatal(err)
			}
			w := NewWriter(spool, nil)
			w.Limit(tt.limit, tail)
			line := []byte(strings.Repeat("x", 99) + "\n")
			for range 8000 { // far beyond the least limit
				write(t, w, provision.Stdout, string(line))
			}
			fill(t, dir)
			var err error
			for range 8000 {
				if _, err = w.Stream(provision.Stdout).Write(line); err != nil {
					break
				}
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Write() = %v, want %v", err, syscall.ENOSPC)
			}
			fill(t, dir)
			if tt.died {
				_ = w.Close() // ENOSPC again
				if w, err = Resume(spool, tail); err != nil {
					t.Fatal(err)
				}
			}
			w.System("the run is ended")
			report := ended(provision.Failed)
			report.Detail.ErrorMessage = long
			if err := w.Update(report); err != nil {
				t.Errorf("Update() = %v, want nil", err)
			}
			if err := w.Close(); !tt.died && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Close() = %v, want %v", err, syscall.ENOSPC)
			}
			if got := result(t, spool); got == nil || got.Detail.ErrorMessage != long {
				t.Errorf("the spool ends with %+v, want FAILED with its message", got)
			}
			log := text(stored(t, spool, tail))
			if !tt.died && !strings.Contains(log, "Lines are missing here: write the spool: ") {
				t.Error("the log does not say that lines are missing")
			}
			if !strings.HasSuffix(log, "the run is ended\n") {
				t.Errorf("the log ends with %q, want what was said last", log[len(log)-100:])
			}
		})
	}
}

// TestReservedRoomIsNotForText: what a stream prints must not use it up.
func TestReservedRoomIsNotForText(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "1M")
	spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
	if err := Reserve(spool); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(spool, nil)
	w.Limit(64<<20, tail)
	if _, err := io.Copy(w.Stream(provision.Stdout), io.LimitReader(endless{}, 4<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Copy() = %v, want %v", err, syscall.ENOSPC)
	}
	var left unix.Stat_t
	if err := unix.Fstat(int(spool.Fd()), &left); err != nil || left.Blocks*512-left.Size < spoolAhead {
		t.Errorf("%d bytes are kept behind the end of the spool on the full disk, %v, want %d", left.Blocks*512-left.Size, err, spoolAhead)
	}
	_ = w.Close() // ENOSPC again
}

// What others write on the full disk all the while does not take the room away.
func TestReservedRoomIsNotForOthers(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int64{"below the limit": 64 << 20, "beyond the limit": leastLimit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t, "3M")
			spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
			if err := Reserve(spool); err != nil {
				t.Fatal(err)
			}
			w := NewWriter(spool, nil)
			w.Limit(limit, tail)
			for range 8000 {
				write(t, w, provision.Stdout, strings.Repeat("x", 99)+"\n")
			}
			fill(t, dir)
			filler, page := openOn(t, dir, "filler"), make([]byte, 4096)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = filler.Write(page) // there is no room, or now there is
					}
				}
			}()
			for i := range 50 {
				_, _ = io.Copy(w.Stream(provision.Stdout), io.LimitReader(endless{}, 16<<10)) // some of it may be lost
				w.System("said on a full disk %d", i)
			}
			if err := w.Update(ended(provision.Failed)); err != nil {
				t.Errorf("Update() of the end = %v, want room for it", err)
			}
			close(stop)
			<-stopped
			_ = w.Close() // ENOSPC again
			if said := strings.Count(spooledText(t, spool), "said on a full disk"); said != 50 {
				t.Errorf("the spool holds %d of 50 lines", said)
			}
		})
	}
}

// endless is a stream of lines.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
		if i%80 == 79 {
			p[i] = '\n'
		}
	}
	return len(p), nil
}
