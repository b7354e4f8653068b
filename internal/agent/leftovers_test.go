package agent

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestOddFilesDoNotKeepAnAgentFromStarting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spool := filepath.Join(w.data, "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		t.Fatal(err)
	}
	odd := map[string]func(path string) error{
		"pipe":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"full directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "a"), 0o700) },
		"link":           func(path string) error { return os.Symlink("/dev/zero", path) },
	}
	for name, put := range odd {
		for _, suffix := range suffixes() {
			path := filepath.Join(spool, uuid.NewString())
			for _, other := range suffixes() {
				err := os.WriteFile(path+other, nil, 0o600)
				if other == suffix {
					_ = os.Remove(path + other)
					err = put(path + other)
				}
				if err != nil {
					t.Fatalf("%s for %s: %v", name, other, err)
				}
			}
		}
	}
	a := startAgent(t, w.setup())
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	a.stops(t)
	if left := w.left(t, "spool"); len(left) > 0 {
		t.Errorf("spool/ holds %q, want what is odd moved away", left)
	}
	if left := w.left(t, "rejected"); len(left) == 0 {
		t.Error("rejected/ is empty, want what is odd in it")
	}
}

func TestEnginesOfADeadRunAreEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "secret tfvars", "orphan grandchild", "touch running", "apply", "sleep never")
	child := w.touched(t, "running")
	grandchild := w.touched(t, "grandchild")
	a.kill()
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !process.Alive(grandchild) {
		t.Fatal("the grandchild is dead, want it to outlive agent and child")
	}
	if secrets := w.secrets(t); !slices.Contains(secrets, "tfvars") {
		t.Fatalf("secrets = %q, want the killed run's", secrets)
	}
	b := startAgent(t, w.setup())
	w.becomes(t, id, "FAILED/agent_restarted")
	if process.Alive(grandchild) {
		t.Errorf("process %d of the dead run is alive", grandchild)
		_ = unix.Kill(grandchild, unix.SIGKILL)
	}
	if secrets := w.secrets(t); len(secrets) > 0 {
		t.Errorf("secrets = %q, want none left", secrets)
	}
	b.stops(t)
}

func TestSecretsGoWithTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	killed := w.deploy(t, "prod", "secret tfvars", "touch running", "hold go", "die")
	w.touched(t, "running")
	if secrets := w.secrets(t); !slices.Contains(secrets, "tfvars") {
		t.Errorf("secrets = %q, want the run's", secrets)
	}
	w.release(t, "go")
	w.becomes(t, killed, "FAILED/exec_died")
	if secrets := w.secrets(t); len(secrets) > 0 {
		t.Errorf("secrets of a killed run = %q, want none", secrets)
	}
	w.becomes(t, w.deploy(t, "prod", "secret tfvars", "succeed"), "SUCCESS")
	a.stops(t)
	if secrets := w.secrets(t); len(secrets) > 0 {
		t.Errorf("secrets of a run that has ended = %q, want none", secrets)
	}
}

// An agent that cannot reach its database removes what a killed run left, and
// nothing of one that lives.
func TestSecretsDoNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	w.deploy(t, "dead", "secret of-the-dead", "touch dead", "sleep never")
	w.deploy(t, "living", "secret of-the-living", "touch living", "sleep end")
	dead := w.touched(t, "dead")
	w.touched(t, "living")
	a.kill()
	if err := unix.Kill(dead, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	patience.Await(t, "the killed child to be gone", func() bool { return !process.Alive(dead) })
	if secrets := w.secrets(t); !slices.Contains(secrets, "of-the-dead") {
		t.Fatalf("secrets = %q, want those of the killed run", secrets)
	}
	away := w.setup()
	away.URL = "postgres://nobody@127.0.0.1:1/none"
	b := startAgent(t, away)
	b.says(t, "register with the database")
	if secrets := w.secrets(t); slices.Contains(secrets, "of-the-dead") || !slices.Contains(secrets, "of-the-living") {
		t.Errorf("secrets = %q, want those of the living run alone", secrets)
	}
	b.stops(t)
	w.release(t, "end")
}

// secrets lists the directories for secrets, by their names, and their files.
func (w *world) secrets(t *testing.T) (names []string) {
	t.Helper()
	for _, workspace := range w.left(t, "work") {
		entries, err := os.ReadDir(filepath.Join(w.data, "work", workspace, secretsName))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, secretsName)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// orphanage is a queue that takes all that is left, and notes which claims it is told are
// still in hand.
type orphanage struct {
	reportedQueue
	spared chan []uuid.UUID
}

func (o orphanage) FailOrphans(_ context.Context, except []uuid.UUID) ([]uuid.UUID, error) {
	o.spared <- except
	return nil, nil
}

// leftRun is what a run of an earlier start has left: claim, secrets, a state that was not
// stored, and an engine.
type leftRun struct {
	claim  *claimFiles
	files  childFiles // locked: its child lives
	secret string
	engine chan error // its end
}

func (w workspaceDirs) leftRun(t *testing.T, mark func(string) string) leftRun {
	t.Helper()
	a := provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "dev/x"}
	dirs, _, err := w.open(a.WorkspaceID, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	claim, files, err := newClaimFiles(w.dir, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(files.close)
	r := leftRun{claim, files, fill(t, dirs.Secrets, "tfvars"), make(chan error, 1)}
	fill(t, dirs.Work, job.SourceName, job.UnsavedState)
	engine := exec.Command("sleep", "1000")
	engine.Env = []string{mark(dirs.Work) + "data"}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Process.Kill() })
	go func() { r.engine <- engine.Wait() }()
	return r
}

// What is dead is ended, told of and removed; what lives keeps its slot, its workspace
// and its secrets until it has ended.
func TestLeftoversAlone(t *testing.T) {
	t.Parallel()
	unsaved := make(chan provision.Report, 1)
	q := orphanage{reportedQueue{reported: func(r provision.Report) { unsaved <- r }}, make(chan []uuid.UUID, 1)}
	dirs := workspaceDirs{dir: openTestDir(t, t.TempDir())}
	mark := func(work string) string { return "LEFT=" + work + "/" }
	dead, living := dirs.leftRun(t, mark), dirs.leftRun(t, mark)
	dead.files.close()

	quiet, known := slog.New(slog.DiscardHandler), status{}
	var claims inflight
	var workspaces locks
	var outliving atomic.Int32
	var outlived sync.WaitGroup
	l := &leftovers{
		log: quiet, queue: q, dirs: dirs, inflight: &claims, observer: unobserved{}, engineMark: mark,
		deliveries: &deliveries{queue: q, dir: dirs.dir, retrying: func() {}, ctx: t.Context(), stop: func() {}},
		newWatch:   func() *watch { return &watch{status: &known, observer: unobserved{}} },
		workspaces: &workspaces, slots: make(chan struct{}, 1), busy: &known.busy, outliving: &outliving, outlived: &outlived,
	}
	l.slots <- struct{}{}
	if err := l.find(); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if there(dead.secret) || !there(living.secret) || len(claims.claims()) != 2 {
		t.Errorf("after find() the secrets of the dead and of the living are there: %v, %v, and %d claims are held, want the second's and both",
			there(dead.secret), there(living.secret), len(claims.claims()))
	}
	if err := l.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-dead.engine
	if spared := <-q.spared; !slices.Equal(spared, []uuid.UUID{living.claim.claim}) {
		t.Errorf("the database was told that %v are in hand, want the living one's", spared)
	}
	if told := (<-unsaved).Detail.StateUnsaved; told == nil || !*told {
		t.Error("the database was not told of the dead run's state")
	}
	if !workspaces.taken(living.claim.about.Workspace) || len(l.slots) != 0 || known.busy.Load() != 1 || !there(living.secret) {
		t.Error("a run that lives has lost its workspace, its slot or its secrets")
	}
	select {
	case <-living.engine:
		t.Error("the engine of a run that lives was ended")
	default:
	}
	living.files.close()
	if spared := <-q.spared; len(spared) != 0 {
		t.Errorf("the database was told that %v are in hand, want none", spared)
	}
	<-living.engine
	outlived.Wait()
	left, err := leftClaims(dirs.dir)
	if err != nil || len(left) > 0 || len(l.slots) != 1 || outliving.Load() != 0 || workspaces.taken(living.claim.about.Workspace) || there(living.secret) {
		t.Errorf("when all have ended %d claims are left, %v, and %d slots are free, want none and the one", len(left), err, len(l.slots))
	}
}
