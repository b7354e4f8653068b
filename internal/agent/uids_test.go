package agent

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func testUIDs() *uids {
	lock, err := os.Open(os.DevNull)
	if err != nil {
		panic(err) // every Linux has it
	}
	return newUIDs(&isolation.Block{Cache: 1_900_000_000, Lock: lock})
}

func TestUIDsAreOfOneRunEach(t *testing.T) {
	t.Parallel()
	u := testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	var taken []int
	for range isolation.MaxRuns {
		uid, fresh, err := u.take(uuid.New(), 0)
		if err != nil || slices.Contains(taken, uid) || !u.block.Has(uid) || fresh {
			t.Fatalf("take() = %d, %v, %v, want one of the block that none of %v is", uid, fresh, err, taken)
		}
		taken = append(taken, uid)
	}
	if uid, _, err := u.take(uuid.New(), 0); err == nil {
		t.Errorf("take() = %d when all are taken, want an error", uid)
	}
}

func TestUIDsComeBack(t *testing.T) {
	t.Parallel()
	u := testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	one, other := uuid.New(), uuid.New()
	take := func(workspace uuid.UUID, before int) (int, bool) {
		t.Helper()
		uid, fresh, err := u.take(workspace, before)
		if err != nil {
			t.Fatal(err)
		}
		return uid, fresh
	}
	first, _ := take(one, 0)
	if uid, _ := take(other, first); uid == first {
		t.Errorf("take(other workspace) = %d, which a run has", uid)
	}
	u.give(one)
	u.give(other)
	if uid, fresh := take(one, first); uid != first || fresh {
		t.Errorf("take(same workspace) = %d, %v, want %d with nothing to forget", uid, fresh, first)
	}
	u.give(one)
	if uid, fresh := take(other, first); uid != first || !fresh {
		t.Errorf("take(other workspace) = %d, %v, want %d with something to forget", uid, fresh, first)
	}
	// Something may still run as it.
	u.abandon(other)
	u.give(other)
	if uid, _ := take(other, first); uid == first {
		t.Errorf("take() = %d, which was abandoned", uid)
	}
	u.give(other)
	u.keep(1_900_000_005, one) // a run of an earlier start
	if uid, _ := take(other, 1_900_000_005); uid == 1_900_000_005 || u.free(1_900_000_005) {
		t.Errorf("take() = %d, which a run of an earlier start has", uid)
	}
}

// What templates could write to before is given to nobody as it is.
func TestOlderDataDirIsTakenOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives directories to others")
	}
	const user = 59991
	root, outside := filepath.Join(pgtest.Dir(t), "data"), t.TempDir()
	workspace := uuid.New()
	work, state := filepath.Join(root, "work", workspace.String()), filepath.Join(root, "state", workspace.String())
	secret := filepath.Join(outside, "secret")
	var errs []error
	for _, dir := range []string{filepath.Join(root, "engines", "terraform"), filepath.Join(root, "spool"), filepath.Join(work, "data"), state} {
		errs = append(errs, os.MkdirAll(dir, 0o700))
	}
	for _, file := range []string{secret, filepath.Join(root, "engines", "terraform", "planted"), filepath.Join(root, "instance"), filepath.Join(state, "terraform.tfstate"), filepath.Join(work, "data", "record")} {
		errs = append(errs, os.WriteFile(file, []byte(uuid.NewString()), 0o600))
	}
	errs = append(errs, os.Symlink(secret, filepath.Join(work, "data", "soft")), os.Link(secret, filepath.Join(work, "data", "hard")), os.Symlink(outside, filepath.Join(root, "repos")))
	errs = append(errs, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == "hard" {
			return err
		}
		return errors.Join(err, os.Lchown(path, user, user))
	}))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	d, u := &dataDir{root: root}, testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	for _, name := range []string{"rejected", "states", "providers", "checkouts"} {
		if err := os.MkdirAll(d.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.own(d); err != nil {
		t.Fatal(err)
	}
	dirs := workspaceDirs{d, u}
	_, uid, err := dirs.open(workspace, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cache := u.block.Cache
	for path, want := range map[string]int{
		root: 0, d.path("spool"): 0, d.path("instance"): 0, d.path("repos"): cache, d.path("engines"): cache, d.path("providers"): cache,
		work: uid, filepath.Join(work, "data", "record"): uid, filepath.Join(state, "terraform.tfstate"): uid, secret: 0, outside: 0,
	} {
		var stat syscall.Stat_t
		if err := syscall.Lstat(path, &stat); err != nil || int(stat.Uid) != want || stat.Mode&0o022 != 0 {
			t.Errorf("%s belongs to %d with mode %o, %v, want %d and no right to write for others", strings.TrimPrefix(path, root), stat.Uid, stat.Mode, err, want)
		}
	}
	if _, err := os.Stat(d.path("engines", "terraform", "planted")); err == nil {
		t.Error("a cache that templates could write to is kept")
	}
	if info, err := os.Lstat(d.path("repos")); err != nil || !info.IsDir() {
		t.Errorf("repos is %v, %v, want a directory in place of the link", info.Mode(), err)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Errorf("what a link led to is gone: %v", err)
	}
	if err := dirs.shut(workspace.String()); err != nil || isolation.Owner(work) != 0 || isolation.Owner(state) != 0 {
		t.Errorf("after shut() work and state belong to %d and %d, %v, want root", isolation.Owner(work), isolation.Owner(state), err)
	}
}

// Templates that were root could write anywhere.
func TestCachesAreMadeAnewAfterATimeWithoutUIDs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives directories to others")
	}
	d, err := openDataDir(filepath.Join(pgtest.Dir(t), "data"), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	workspace := uuid.New()
	planted, record := d.path("engines", "planted"), d.path("work", workspace.String(), "record")
	isolated := func() workspaceDirs {
		t.Helper()
		dirs := workspaceDirs{d, testUIDs()}
		t.Cleanup(func() { _ = dirs.uids.block.Close() }) // only read
		if err := dirs.uids.own(d); err != nil {
			t.Fatal(err)
		}
		if _, _, err := dirs.open(workspace, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	dirs := isolated()
	if err := errors.Join(dirs.shut(workspace.String()), os.WriteFile(planted, nil, 0o600), dirs.uids.own(d)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(planted); err != nil {
		t.Errorf("a start with uids has thrown the caches of the last one away: %v", err)
	}
	if u, err := takeUIDs(d, "off"); err != nil || u != nil {
		t.Fatalf("takeUIDs(off) = %v, %v, want none", u, err)
	}
	if err := os.WriteFile(record, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dirs = isolated()
	if _, err := os.Stat(planted); err == nil {
		t.Error("a cache that templates could write to as root is kept")
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(record, &stat); err != nil || !dirs.uids.block.Has(int(stat.Uid)) {
		t.Errorf("what a run without a uid left belongs to %d, %v, want the next run", stat.Uid, err)
	}
}

// A template of an agent that was an ordinary user may have led a directory of the
// agent's elsewhere.
func TestLinkInTheDataDirIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives directories to others")
	}
	d, err := openDataDir(filepath.Join(pgtest.Dir(t), "data"), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	u := testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	elsewhere, spools := t.TempDir(), d.path("spool")
	err = errors.Join(os.Chmod(elsewhere, 0o755), os.Remove(spools), os.Symlink(elsewhere, spools), os.Lchown(spools, 59991, 59991))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.own(d); err == nil || !strings.Contains(err.Error(), spools+" is no directory but a link") {
		t.Errorf("own() = %v, want an error that names the link", err)
	}
	if info, err := os.Stat(elsewhere); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("where the link leads has the mode %v, %v, want it as it was", info.Mode(), err)
	}
	if err := errors.Join(os.Lchown(spools, 0, 0), u.own(d)); err != nil {
		t.Errorf("own() = %v with a link of root's, want nil", err)
	}
}

// What cannot be removed costs a uid, and neither a run nor the agent's start.
func TestUIDWithLeftoversIsPassedOver(t *testing.T) {
	t.Parallel()
	u := testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	u.suspect()
	workspace := uuid.New()
	first, fresh, err := u.take(workspace, 0)
	if err != nil || !fresh {
		t.Fatalf("take() = %d, %v, %v, want one that has to forget", first, fresh, err)
	}
	u.abandon(workspace)
	u.give(workspace)
	if second, fresh, err := u.take(workspace, first); err != nil || !fresh || second == first {
		t.Errorf("take() = %d, %v, %v, want another than %d that has to forget", second, fresh, err, first)
	}
}

func TestUnreachableDataDirIsRefused(t *testing.T) {
	t.Parallel()
	above := filepath.Join(pgtest.Dir(t), "private")
	root := filepath.Join(above, "data")
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	err := reachable(root)
	if err == nil || !strings.Contains(err.Error(), "chmod o+x "+above) {
		t.Errorf("reachable() = %v, want an error that says what to do about %s", err, above)
	}
	if err := os.Chmod(above, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := reachable(root); err != nil {
		t.Errorf("reachable() = %v when all may pass, want nil", err)
	}
}

// When one uid has to forget a workspace, all that are free do, in one look: none of
// them runs anything or has left anything afterwards, and the next runs need not look.
func TestUIDsForgetTogether(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root ends what others run")
	}
	u := testUIDs()
	u.block.Cache = 1_900_020_000 // nobody else's in these tests
	defer u.block.Close()         //nolint:errcheck // only read
	quiet := slog.New(slog.DiscardHandler)
	first := map[uuid.UUID]int{}
	for range isolation.MaxRuns {
		workspace := uuid.New()
		uid, err := u.ready(workspace, 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		first[workspace] = uid
	}
	// One goes on running, and leaves a process and a file; the others end.
	running := u.block.Cache + 1
	left := u.block.Cache + 7
	file, err := os.CreateTemp("/tmp", "left-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file.Name()) //nolint:errcheck // as a rule it is gone
	if err := errors.Join(file.Chown(left, left), file.Close()); err != nil {
		t.Fatal(err)
	}
	sleeper := func(uid int) *exec.Cmd {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	spared, ended := sleeper(running), sleeper(left)
	defer func() { _, _ = spared.Process.Kill(), spared.Wait() }()
	over := make(chan error, 1)
	go func() { over <- ended.Wait() }()
	for workspace, uid := range first {
		if uid != running {
			u.give(workspace)
		}
	}
	if _, err := u.ready(uuid.New(), 0, quiet); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-patience.After(time.Minute):
		t.Error("what a free uid runs lives on")
	}
	if _, err := os.Lstat(file.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a free uid's file: %v, want it gone", err)
	}
	if err := spared.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("what the uid of a run runs: %v, want it alone", err)
	}
	for range isolation.MaxRuns - 2 {
		if uid, fresh, err := u.take(uuid.New(), 0); err != nil || fresh {
			t.Fatalf("take() = %d, %v, %v, want one that has nothing to forget", uid, fresh, err)
		}
	}
	if uid, _, err := u.take(uuid.New(), 0); err == nil {
		t.Errorf("take() = %d, want none: each uid has a run", uid)
	}
}
