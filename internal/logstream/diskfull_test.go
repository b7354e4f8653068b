package logstream

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
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
		"below the limit":           {64 << 20, false},
		"beyond the limit":          {leastLimit, false},
		"below, and the child died": {64 << 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t, "3M")
			spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
			if err := tail.Reserve(); err != nil {
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
			for err == nil {
				_, err = w.Stream(provision.Stdout).Write(line)
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
			q := &memQueue{}
			d := run(t, NewPump(q, uuid.New(), spool, PumpOptions{Tail: tail}))
			if d.Result == nil || d.Result.Detail.ErrorMessage != long {
				t.Errorf("Run() = %+v, want FAILED with its message", d)
			}
			if !tt.died && !strings.Contains(q.text(), "Lines are missing here: write the spool: ") {
				t.Error("the log does not say that lines are missing")
			}
			if !strings.HasSuffix(q.text(), "the run is ended\n") {
				t.Errorf("the log ends with %q, want what was said last", q.text()[len(q.text())-100:])
			}
		})
	}
}

// TestReservedRoomIsNotForText: what a stream prints must not use it up.
func TestReservedRoomIsNotForText(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "1M")
	spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
	if err := tail.Reserve(); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(spool, nil)
	w.Limit(64<<20, tail)
	if _, err := io.Copy(w.Stream(provision.Stdout), io.LimitReader(endless{}, 4<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Copy() = %v, want %v", err, syscall.ENOSPC)
	}
	var left unix.Stat_t
	if err := unix.Fstat(int(tail[reserved].Fd()), &left); err != nil || left.Blocks*512 < reserve {
		t.Errorf("%d bytes are set aside on the full disk, %v, want %d", left.Blocks*512, err, reserve)
	}
	_ = w.Close() // ENOSPC again
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
