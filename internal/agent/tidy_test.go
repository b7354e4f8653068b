package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// sharedCaches are the ones that runs fill where an engine may be installed.
func sharedCaches(dirs job.Dirs) []caches.Cache {
	return executor.SharedCaches(dirs, job.Engine{Install: true})
}

// fill puts a file of 1 MiB into a data directory.
func fill(t *testing.T, names ...string) string {
	t.Helper()
	path := filepath.Join(names...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func aged(t *testing.T, ago time.Duration, paths ...string) {
	t.Helper()
	for _, path := range paths {
		then := time.Now().Add(-ago)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

const (
	somePackage = "providers/registry.example/acme/cloud/1.0.0/linux_amd64/abc/terraform-provider-cloud"
	someEngine  = "engines/terraform/1.9.0/terraform"
	someMirror  = "repos/0123/git/objects/pack/pack-1.pack"
)

// The agent begins with what an interrupted clean-up has left and with what is
// over the limit, and touches nothing that cannot be had again.
func TestCachesAreTidiedAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idle, unsaved := uuid.NewString(), uuid.NewString()
	gone := []string{
		fill(t, w.data, someMirror), fill(t, w.data, somePackage), fill(t, w.data, someEngine),
		fill(t, w.data, "work", idle, "data", "modules", "m.tf"),
		fill(t, w.data, "work", removedPrefix+"1", "data"), fill(t, w.data, "repos", "0123", "removed-1", "pack"),
		fill(t, w.data, "providers", ".trash-1", "package", "p"), fill(t, w.data, "engines", "terraform", ".removed-1", "terraform"),
		fill(t, w.data, "engines", "terraform", ".installing-1", "terraform"),
	}
	kept := []string{
		fill(t, w.data, "repos", "0123", "tags.json"), fill(t, w.data, "engines", "tofu", "1.9.0", "tofu"),
		fill(t, w.data, "state", idle, "terraform.tfstate"), fill(t, w.data, "state", idle, "errored.tfstate"), fill(t, w.data, "states", idle),
		fill(t, w.data, "work", unsaved, "source", "errored.tfstate"), fill(t, w.data, "work", unsaved, "data", "modules", "m.tf"),
		fill(t, w.data, "rejected", "claim.ndjson"), fill(t, w.data, "home", "mine"),
	}
	s := w.setup()
	s.Caches = caches.Limits{Most: 1}
	a := startAgent(t, s)
	a.says(t, "removed from a cache")
	patience.Await(t, "the caches to be empty", func() bool { return !slices.ContainsFunc(gone, there) })
	a.says(t, "caches are over their limit") // for one of them has a state in it
	for _, kind := range []string{"repos", "providers", "engines", "work"} {
		if !strings.Contains(a.log.String(), fmt.Sprintf("cache=%s why=%q items=1", kind, caches.OverLimit)) {
			t.Errorf("the log does not tell that one of %s was removed, and why", kind)
		}
	}
	id := w.deploy(t, "acme/prod", "succeed")
	w.becomes(t, id, "SUCCESS")
	a.stops(t)
	for _, path := range kept {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
}

// A run's end has the caches looked through, and what a run that goes on uses
// stays.
func TestCachesAreTidiedAfterRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Caches = caches.Limits{Most: 1}
	a := startAgent(t, s)
	long := w.deploy(t, "acme/long", "touch began", "hold on", "succeed")
	w.touched(t, "began")
	mine := w.left(t, "work")
	if len(mine) != 1 {
		t.Fatalf("work/ holds %q, want one directory", mine)
	}
	held := filepath.Dir(fill(t, w.data, somePackage))
	release, is := caches.Hold(held)
	if !is {
		t.Fatal("Hold() = false")
	}
	defer release()
	old := fill(t, w.data, someEngine)
	running := fill(t, w.data, "work", mine[0], "data", "modules", "m.tf")

	w.becomes(t, w.deploy(t, "acme/short", "succeed"), "SUCCESS")
	patience.Await(t, "the short run's things to be removed", func() bool { return !there(old) && slices.Equal(w.left(t, "work"), mine) })
	if !there(running) || !there(held) {
		t.Errorf("what a run uses is there: %v and %v, want both", there(running), there(held))
	}
	release()
	w.release(t, "on")
	w.becomes(t, long, "SUCCESS")
	patience.Await(t, "the long run's things to be removed", func() bool { return !there(held) && len(w.left(t, "work")) == 0 })
	a.stops(t)
	w.wantNothingLeft(t)
}

// With hardly any room on the disk the caches go before a run begins.
func TestCachesMakeRoomForARun(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a small disk is a small tmpfs, and only root can mount one")
	}
	if testing.Short() { // before anything is mounted
		t.Skip("-short: no process of an agent")
	}
	w := newWorld(t)
	if err := errors.Join(os.MkdirAll(w.data, 0o700), unix.Mount("tmpfs", w.data, "tmpfs", 0, "size=40m,mode=0700")); err != nil {
		t.Fatal(err)
	}
	s := w.setup()
	s.Caches = caches.Limits{MinFree: 30 << 20}
	a := startAgent(t, s)
	t.Cleanup(func() {
		a.kill()
		if err := unix.Unmount(w.data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a.says(t, "registered")
	w.becomes(t, w.deploy(t, "acme/first", "succeed"), "SUCCESS")
	used, recent := filepath.Join(w.data, "repos/0123/git"), filepath.Join(w.data, "repos/4567/git")
	for i := range 12 {
		fill(t, used, fmt.Sprint(i))
	}
	fill(t, recent, "pack")
	aged(t, time.Hour, used)
	second := w.deploy(t, "acme/second", "touch began", "hold on", "succeed")
	w.touched(t, "began")
	if there(used) || !there(recent) {
		t.Errorf("when a run has begun the older mirror is there: %v, and the newer: %v; want only as much removed as is needed", there(used), there(recent))
	}
	a.says(t, string(caches.DiskFull))
	w.release(t, "on")
	w.becomes(t, second, "SUCCESS")
	a.stops(t)
}

// newTestTidier keeps a data directory without an agent.
func newTestTidier(t *testing.T, dirs workspaceDirs, limits caches.Limits) (*tidier, *locks) {
	t.Helper()
	var l locks
	return newTidier(dirs, &l, Options{Caches: limits, SharedCaches: sharedCaches, Log: slog.New(slog.DiscardHandler)}, time.Millisecond), &l
}

func openTestDataDir(t *testing.T) *dataDir {
	t.Helper()
	d, err := openDataDir(filepath.Join(pgtest.Dir(t), "data"), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// A work directory that nobody has used for long goes without need.
func TestOldWorkDirectoriesGo(t *testing.T) {
	t.Parallel()
	d := openTestDataDir(t)
	tidier, locks := newTestTidier(t, workspaceDirs{dir: d}, caches.Limits{Keep: time.Hour})
	old, recent, busy := uuid.New(), uuid.New(), uuid.New()
	for _, id := range []uuid.UUID{old, recent, busy} {
		fill(t, d.path("work", id.String(), "data", "record"))
		aged(t, 31*24*time.Hour, d.path("work", id.String()))
	}
	aged(t, 29*24*time.Hour, d.path("work", recent.String()))
	release, _ := locks.tryTake(busy)
	tidier.pass(t.Context())
	for id, want := range map[uuid.UUID]bool{old: false, recent: true, busy: true} {
		if got := there(d.path("work", id.String())); got != want {
			t.Errorf("a work directory is there: %v, want %v", got, want)
		}
	}
	// A run may have begun since it was listed.
	if removed, err := (workCache{workspaceDirs{dir: d}, locks}).Remove(t.Context(), caches.Item{Path: d.path("work", busy.String())}); removed || err != nil {
		t.Errorf("Remove() = %v, %v of what a run uses, want it left alone", removed, err)
	}
	release()
	tidier.pass(t.Context())
	if there(d.path("work", busy.String())) {
		t.Error("a work directory stays that nobody uses any more")
	}
	// A run marks what it has used, whatever a template made of its time.
	aged(t, 31*24*time.Hour, d.path("work", recent.String()))
	workspaceDirs{dir: d}.markUsed(recent.String())
	tidier.pass(t.Context())
	if !there(d.path("work", recent.String())) {
		t.Error("a work directory is gone that was just used")
	}
}

// While a run of an earlier start lives, of which it is not known what it uses,
// nothing is removed.
func TestNothingIsTidiedWhileAnEarlierRunLives(t *testing.T) {
	t.Parallel()
	d := openTestDataDir(t)
	tidier, _ := newTestTidier(t, workspaceDirs{dir: d}, caches.Limits{Most: 1})
	engine := fill(t, d.root, someEngine)
	tidier.outliving.Add(1)
	tidier.pass(t.Context())
	if !there(engine) {
		t.Error("an engine is gone that may be in use")
	}
	tidier.outliving.Add(-1)
	tidier.pass(t.Context())
	if there(engine) {
		t.Error("an engine stays")
	}
}

// An engine that may not be downloaded is not removed.
func TestEnginesStayThatNobodyWouldBringBack(t *testing.T) {
	t.Parallel()
	d := openTestDataDir(t)
	engine := fill(t, d.root, someEngine)
	var l locks
	withoutEngines := func(dirs job.Dirs) []caches.Cache { return executor.SharedCaches(dirs, job.Engine{}) }
	newTidier(workspaceDirs{dir: d}, &l, Options{Caches: caches.Limits{Most: 1}, SharedCaches: withoutEngines, Log: slog.New(slog.DiscardHandler)}, time.Millisecond).pass(t.Context())
	if !there(engine) {
		t.Error("the engine is gone")
	}
}

func TestDataBytes(t *testing.T) {
	t.Parallel()
	a := New(Options{})
	if got := a.DataBytes(); got != nil {
		t.Errorf("DataBytes() = %v before a look, want nil", got)
	}
	d := openTestDataDir(t)
	tidier, _ := newTestTidier(t, workspaceDirs{dir: d}, caches.Limits{})
	a.tidier.Store(tidier)
	for _, name := range []string{someEngine, somePackage, someMirror, "work/" + uuid.NewString() + "/m", "state/s", "spool/s", "rejected/r"} {
		fill(t, d.root, name)
	}
	tidier.pass(t.Context())
	got := a.DataBytes()
	for _, kind := range caches.Kinds() {
		if bytes, is := got[kind]; !is || bytes>>20 != 1 && kind != caches.Other {
			t.Errorf("DataBytes()[%s] = %d, %v, want a little more than 1 MiB", kind, bytes, is)
		}
	}
}

// Where runs have uids of their own, root cleans the caches with the rights of
// their uid: what that has left there leads nowhere, and what root owns stays.
func TestCachesOfAnotherUIDAreTidiedAsThatUID(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives directories to others")
	}
	d := openTestDataDir(t)
	u := testUIDs()
	defer u.block.Close() //nolint:errcheck // only read
	if err := u.own(d); err != nil {
		t.Fatal(err)
	}
	cache := u.block.Cache
	mirror, pack, engine := fill(t, d.root, someMirror), fill(t, d.root, somePackage), fill(t, d.root, someEngine)
	work := fill(t, d.path("work", uuid.NewString(), "data", "m.tf"))
	outside := pgtest.Dir(t)
	secret := fill(t, outside, "secret")
	links := map[string]string{ // what the caches' uid may have made
		d.path("repos", "link"): outside, d.path("repos", "out", "git"): outside,
		d.path("providers", ".trash-1"): outside, d.path("engines", "terraform", "9.9.9"): outside,
	}
	for link, to := range links {
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"repos", "providers", "engines"} {
		err := filepath.WalkDir(d.path(name), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, cache, cache))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	roots := fill(t, d.path("repos", "ffff", "git", "roots")) // in a directory of root's
	if err := os.Chmod(d.path("repos", "ffff"), 0o755); err != nil {
		t.Fatal(err)
	}
	tidier, _ := newTestTidier(t, workspaceDirs{d, u}, caches.Limits{Most: 1})
	if err := tidier.keeper.Sweep(context.Background()); err != nil {
		t.Errorf("Sweep() = %v", err)
	}
	if _, err := tidier.keeper.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "ffff") {
		t.Errorf("Pass() = %v, want it said that what is root's stays", err)
	}
	for path, want := range map[string]bool{mirror: false, pack: false, engine: false, work: false, secret: true, roots: true, d.path("repos", "out", "git"): false} {
		if got := there(path); got != want {
			t.Errorf("%s is there: %v, want %v", path, got, want)
		}
	}
	// Its locks are still ones that its uid can take.
	for _, lock := range []string{d.path("providers", ".change"), d.path("repos", "0123", "use.lock")} {
		var stat unix.Stat_t
		if err := unix.Lstat(lock, &stat); err != nil || int(stat.Uid) != cache {
			t.Errorf("%s belongs to %d, %v, want %d", lock, stat.Uid, err, cache)
		}
	}
}
