package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func openTestDir(t *testing.T, path string) *dataDir {
	t.Helper()
	d, err := openDataDir(path, "one")
	if err != nil {
		t.Fatalf("openDataDir() = %v, want nil", err)
	}
	t.Cleanup(d.close)
	return d
}

func TestInstanceOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "data")
	first := openTestDir(t, path)
	first.close()
	second := openTestDir(t, path)
	if first.instance == uuid.Nil || second.instance != first.instance {
		t.Errorf("instances = %s, %s, want the same twice", first.instance, second.instance)
	}
}

func TestDataDirectoryIsPrivate(t *testing.T) {
	t.Parallel()
	d := openTestDir(t, filepath.Join(t.TempDir(), "data"))
	a := provision.Assignment{ClaimID: uuid.New(), WorkspaceID: uuid.New()}
	if _, _, err := (workspaceDirs{dir: d}).open(a.WorkspaceID, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	_, files, err := newClaimFiles(d, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	files.close()
	err = filepath.WalkDir(d.root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has mode %o, want nothing for others", path, mode)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamagedInstanceIsNotReplaced(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "instance"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openDataDir(path, "one")
	if err == nil || !strings.Contains(err.Error(), "holds no instance id") {
		t.Errorf("openDataDir(empty instance file) = %v, want an error that says so", err)
	}
	// The lock was given back: what is wrong can be repaired and tried again.
	if err := os.Remove(filepath.Join(path, "instance")); err != nil {
		t.Fatal(err)
	}
	openTestDir(t, path)
}

func TestSpoolsAreFoundAgain(t *testing.T) {
	t.Parallel()
	d := openTestDir(t, t.TempDir())
	a := provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), Number: 7, WorkspaceID: uuid.New(), Workspace: "prod", Snapshot: []byte(`{"secret":1}`)}
	made, files, err := newClaimFiles(d, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	if err := os.WriteFile(d.path("spool", ".tmp-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := leftClaims(d)
	if err != nil || len(found) != 1 {
		t.Fatalf("leftClaims() = %v, %v, want one", found, err)
	}
	want := claimAbout{Provision: a.ProvisionID, Number: 7, Workspace: a.WorkspaceID, Name: "prod"}
	if found[0].claim != a.ClaimID || found[0].about != want {
		t.Errorf("leftClaims() = %s, %+v, want %s, %+v", found[0].claim, found[0].about, a.ClaimID, want)
	}
	if content, err := os.ReadFile(made.path(aboutSuffix)); err != nil || strings.Contains(string(content), "secret") {
		t.Errorf("CLAIM.json = %s, %v, want nothing of the snapshot", content, err)
	}
	if free, err := found[0].free(); free || err != nil {
		t.Errorf("free() = %v, %v, want false while the lock is held", free, err)
	}
	files.close()
	// What another test is starting has a copy until it is its own program.
	patience.Await(t, "the lock to be free when nobody holds it", func() bool {
		free, err := found[0].free()
		if err != nil {
			t.Fatal(err)
		}
		return free
	})
}

func TestSpoolOfALivingRunIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := openTestDir(t, t.TempDir())
	a := provision.Assignment{ClaimID: uuid.New(), Number: 7, Workspace: "prod"}
	made, files, err := newClaimFiles(d, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	again := a
	again.Number = 8
	if _, _, err := newClaimFiles(d, again, 0); err == nil {
		t.Error("newClaimFiles(same claim) = nil, want an error", 0)
	}
	for _, suffix := range []string{linesSuffix, lockSuffix} {
		if _, err := os.Stat(made.path(suffix)); err != nil {
			t.Errorf("the living run's file: %v, want it left alone", err)
		}
	}
	if content, err := os.ReadFile(made.path(aboutSuffix)); err != nil || !strings.Contains(string(content), `"number":7`) {
		t.Errorf("CLAIM.json = %s, %v, want it left alone", content, err)
	}
}

func TestSpoolThatCannotBeMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	d := openTestDir(t, t.TempDir())
	a := provision.Assignment{ClaimID: uuid.New()}
	lines := a.ClaimID.String() + linesSuffix
	if err := os.Mkdir(d.path("spool", lines), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := newClaimFiles(d, a, 0); err == nil {
		t.Error("newClaimFiles(a directory for lines) = nil, want an error", 0)
	}
	left, err := os.ReadDir(d.path("spool"))
	if err != nil || len(left) != 1 || left[0].Name() != lines {
		t.Errorf("spool/ holds %v, %v, want what was there before only", left, err)
	}
}

func TestLockOfAnother(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	openTestDir(t, path)
	if err := os.Truncate(filepath.Join(path, "lock"), 0); err != nil { // it has not written its pid yet
		t.Fatal(err)
	}
	_, err := openDataDir(path, "one")
	if err == nil || !strings.Contains(err.Error(), "a process that has not said which") {
		t.Errorf("openDataDir(locked) = %v, want it refused", err)
	}
}

func TestHalfWrittenFilesGo(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d, err := openDataDir(root, "one")
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	halves := []string{d.path(durable.TempPrefix + "1"), d.path("spool", durable.TempPrefix+"2"), d.path("engines", durable.TempPrefix+"4")}
	for _, path := range halves {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A directory of such a name is none of ours, and no reason not to start.
	if err := os.MkdirAll(d.path("spool", durable.TempPrefix+"3", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if d, err = openDataDir(root, "one"); err != nil {
		t.Fatal(err)
	}
	d.close()
	left, err := filepath.Glob(d.path("spool", ".*"))
	if err != nil || len(left) != 1 {
		t.Errorf("spool/ holds %v, %v, want only the directory", left, err)
	}
	for _, path := range halves {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("Stat() = %v, want the half-written file gone", err)
		}
	}
}
