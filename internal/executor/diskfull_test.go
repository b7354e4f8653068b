package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/provision"
)

// smallDisk mounts a file system of its own for the run's work directory and
// the state, or only one of them, and returns its directory.
func (s *site) smallDisk(options string, dirs ...*string) string {
	s.t.Helper()
	if os.Getuid() != 0 {
		s.t.Skip("a full disk is a small tmpfs, and only root can mount one")
	}
	disk := s.t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, options); err != nil {
		s.t.Fatalf("mount a tmpfs: %v", err)
	}
	s.t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			s.t.Errorf("unmount %s: %v", disk, err)
		}
	})
	for _, dir := range dirs {
		*dir = filepath.Join(disk, filepath.Base(*dir))
		if err := os.Mkdir(*dir, 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	s.job.Dirs.Secrets = filepath.Join(s.job.Dirs.Work, "secrets")
	return disk
}

// filling is a template that makes something, runs a command, and makes what
// lets the state grow by some 500 KB.
func filling(command string) string {
	return `
variable "secret" {
  default   = "secret-in-the-state"
  sensitive = true
}
resource "terraform_data" "before" { input = var.secret }
resource "terraform_data" "filler" {
  depends_on = [terraform_data.before]
  provisioner "local-exec" {
    command = ` + fmt.Sprintf("%q", command) + `
  }
}
resource "terraform_data" "after" {
  depends_on = [terraform_data.filler]
  input      = join("", [for i in range(1000) : "` + strings.Repeat("0123456789", 25) + `"])
}
`
}

// localState is the workspace's state file.
func (s *site) localState() string {
	s.t.Helper()
	state, err := os.ReadFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(state)
}

// The disk with the work directory and the state is full in the middle of an
// apply: Terraform can write neither the state nor errored.tfstate. What it
// prints is kept in the room that was reserved.
func TestFullDiskLosesNoState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disk := s.smallDisk("size=8m", &s.job.Dirs.Work, &s.job.Dirs.State)
	first := s.fillsDisk(disk)
	if !strings.Contains(first.text(), "Emergency state dump: ") {
		t.Error("Terraform did not dump its state: this test shows nothing")
	}
	if n := wantCreatedIn(t, first, s.localState()); n == 0 {
		t.Error("the first run created nothing, want something before the disk was full")
	}
}

// The same with the spool on that disk, as an agent has it: the run can tell
// neither lines nor reports until the reserved room is given back.
func TestFullDiskUnderTheSpoolLosesNoState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disk := s.smallDisk("size=8m", &s.job.Dirs.Work, &s.job.Dirs.State)
	s.spoolDir = disk
	s.fillsDisk(disk)
}

// fillsDisk has a run fill the disk in the middle of its apply, and another one
// finish the work when there is room again. It returns the first.
func (s *site) fillsDisk(disk string) *child {
	t := s.t
	t.Helper()
	fill := filepath.Join(disk, "fill")
	s.tries = 1
	s.template(map[string]string{"main.tf": filling("cat /dev/zero >> " + fill + " || true")}, nil)
	got, first := s.run()
	if got.Status != provision.Failed {
		t.Fatalf("run ended %s, want FAILED: the disk is full", got.Status)
	}
	if strings.Contains(first.text(), "secret-in-the-state") {
		t.Error("log holds what is in the state")
	}
	s.wantNothingLeft()

	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	s.tries = 0
	s.template2(filling("true"))
	got, second := s.run()
	wantEnd(t, got, provision.Success, "")
	s.wantKept(0)
	wantCreatedIn(t, second, s.localState())
	if strings.Contains(second.text(), "terraform_data.before: Creating") {
		t.Error("the second run creates once more what the first has created")
	}
	return first
}

// hog takes every byte of a disk that becomes free from when a file begin is there, until it
// is stopped.
func hog(t *testing.T, begin, fill string) (stop func()) {
	t.Helper()
	file, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	var hogging sync.WaitGroup
	hogging.Go(func() {
		defer func() { _ = file.Close() }()
		block := make([]byte, 4096)
		tick := time.NewTicker(50 * time.Microsecond)
		defer tick.Stop()
		for begun := false; ; {
			if _, err := os.Stat(begin); err == nil {
				begun = true
			}
			for begun {
				if _, err := file.Write(block); err != nil {
					break // until something is freed
				}
			}
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(stopped)
		hogging.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// The same with a program that takes every byte that becomes free: the state is
// kept all the same, for its room is never given back, and stored when there
// is room again.
func TestDiskThatStaysFullKeepsTheState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disk := s.smallDisk("size=8m", &s.job.Dirs.Work, &s.job.Dirs.State)
	fill := filepath.Join(disk, "fill")
	s.tries = 1
	begin, probe := filepath.Join(s.t.TempDir(), "begin"), filepath.Join(disk, "probe")
	stop := hog(t, begin, fill)
	s.template(map[string]string{"main.tf": filling("touch " + begin + "; while echo x 2>/dev/null >> " + probe + "; do :; done; true")}, nil)
	got, first := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "no space left on device")
	s.wantKept(1)
	if last := first.unsaved(); len(last) == 0 || !last[len(last)-1] {
		t.Errorf("reports said StateUnsaved = %v, want true at last", last)
	}

	// Still full: nothing is begun.
	got, _ = s.run()
	if got.Status != provision.Failed {
		t.Errorf("run on the full disk = %s, want FAILED", got.Status)
	}
	s.wantKept(1)

	stop()
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	s.tries = 0
	s.template2(filling("true"))
	got, second := s.run()
	wantEnd(t, got, provision.Success, "")
	s.wantKept(0)
	if n := wantCreatedIn(t, first, s.localState()); n == 0 {
		t.Error("the first run created nothing, want something before the disk was full")
	}
	wantCreatedIn(t, second, s.localState())
	if strings.Contains(second.text(), "terraform_data.before: Creating") {
		t.Error("the second run creates once more what the first has created")
	}
}

// Without a free inode Terraform cannot make errored.tfstate, takes it for
// written and prints nothing.
func TestNoInodeLosesNoState(t *testing.T) {
	t.Parallel()
	s, server := remote(t, "")
	disk := s.smallDisk("size=64m,nr_inodes=200", &s.job.Dirs.Work)
	s.tries = 1
	server.breaks(-1)
	s.template2("terraform {\n  backend \"http\" {}\n}\n" + filling("cd "+disk+" && i=0; while touch inode-$i 2>/dev/null; do i=$((i+1)); done; true"))
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	s.wantKept(1)
	server.breaks(0)
	for _, path := range must(filepath.Glob(filepath.Join(disk, "inode-*"))) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	s.tries = 0
	got, _ = s.run()
	wantEnd(t, got, provision.Success, "")
	if n := wantCreatedIn(t, c, server.stored()); n != 3 {
		t.Errorf("%d resources were created, want 3", n)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Work directory and state on two disks: keeping a state copies it.
func TestStateIsKeptOnAnotherDisk(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	s.smallDisk("size=8m", &s.job.Dirs.State)
	s.tries = 1
	server.breaks(-1)
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	s.wantKept(1)
	server.breaks(0)
	s.tries = 0
	got, _ = s.run()
	wantEnd(t, got, provision.Success, "")
	wantCreatedIn(t, c, server.stored())
}

// Where there is no room for a state, nothing is applied.
func TestNoRoomNoApply(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.smallDisk("size=512k", &s.job.Dirs.State)
	marker := filepath.Join(t.TempDir(), "applied")
	s.template(map[string]string{"main.tf": slow("touch " + marker)}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeSpoolFailed)
	wantMessage(t, got, "Nothing was applied", "1024 KiB", "no space left on device")
	if _, err := os.Lstat(marker); err == nil {
		t.Error("the apply ran without room for its state")
	}
	if left := must(os.ReadDir(s.job.Dirs.State)); len(left) > 0 {
		t.Errorf("%s is left in the state's directory", left[0].Name())
	}
}

// A disk that is full before Terraform has written anything: what it leaves has
// the serial of the state that is stored, and a push of it would be refused.
func TestStateWithTheOldSerialIsStored(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disk := s.smallDisk("size=8m", &s.job.Dirs.Work, &s.job.Dirs.State)
	s.template(map[string]string{"main.tf": filling("true")}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")

	s.template2(filling("true") + "resource \"terraform_data\" \"new\" {}\n")
	s.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if r.Detail.Stage == provision.StageApply {
			fillBut(t, filepath.Join(disk, "fill"), 64<<10) // for the lock's file
		}
		return nil
	}
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	wantMessage(t, got, "no space left on device", "what was done is in it")
	s.wantKept(0)
	if n := wantCreatedIn(t, c, s.localState()); n != 1 {
		t.Errorf("%d resources were created, want 1", n)
	}
}

// fillBut fills a disk but for some bytes.
func fillBut(t *testing.T, path string, spare int64) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer file.Close() //nolint:errcheck // only read
	var size int64
	for block := make([]byte, 64<<10); err == nil; {
		var n int
		n, err = file.Write(block)
		size += int64(n)
	}
	if err := file.Truncate(size - spare); err != nil {
		t.Error(err)
	}
}
