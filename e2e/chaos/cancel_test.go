package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Cancelled during init, plan, and each third of an apply of sixty resources, a
// run leaves a managed state that lists what was made and a workspace that is
// free; the next plan is about the rest.
func TestCancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	engines := []string{"terraform"}
	if full() {
		engines = append(engines, "tofu")
	}
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := site.New(t)
			w := newWorks(s)
			identity := w.IdentityFile()
			a := w.agent("one", 1, "")
			a.ManageState(identity)
			a.Start()
			for n := range times(1, 12) {
				m := w.many(t, fmt.Sprint("many", n), identity)
				m.engine = engine
				m.cancelInInit()
				m.cancelInPlan()
				for _, third := range some(0, 20, 40) {
					stop := third + 1 + rand.N(9) // ten are made at once
					id := m.queue("apply", map[string]any{"stop": stop})
					m.awaitMade(stop)
					m.cancel("apply", id)
					m.settled("apply", id, "CANCELLED/cancelled")
				}
				m.finish("cancelled at any moment")
				for k := range times(0, 3) {
					at := w.many(t, fmt.Sprint("whenever", n, "-", k), identity)
					at.engine = engine
					at.cancelWhenever()
				}
			}
			a.Terminate()
			w.countLeftovers(a)
			w.countRows()
		})
	}
}

// cancel cancels a run in the stage that it is in.
func (m *many) cancel(stage string, id uuid.UUID) {
	m.t.Helper()
	m.Await("stage "+stage, "SELECT EXISTS (SELECT FROM tendril.claims WHERE provision_id = $1 AND stage = $2)", id, stage)
	m.Exec(m.t, "SELECT public.cancel_provision($1)", id)
	counted.add("cancels in a run of 60 resources in stage "+stage, 1)
}

// settled looks at what a run that was cancelled leaves.
func (m *many) settled(stage string, id uuid.UUID, wants ...string) {
	m.t.Helper()
	if got := m.AwaitEnd(id); !slices.Contains(wants, got) {
		m.t.Errorf("cancelled in %s: %s: %s, want one of %v", stage, got, m.Message(id), wants)
	}
	free := m.Text(m.t, `SELECT (running_claim IS NULL AND held_by_claim IS NULL AND reserved_by IS NULL AND locked_at IS NULL AND state_lock IS NULL)::text
		FROM public.workspaces WHERE name = $1`, m.name)
	if free != "true" {
		m.t.Errorf("cancelled in %s: the workspace is not free", stage)
	}
	if stage == "init" { // one that is cancelled in its plan comes next
		m.compare("cancelled in " + stage)
		return
	}
	m.planned("cancelled in " + stage)
}

// holdGit has the git server answer nothing about the repositories whose names
// begin so until answer is called; asked waits until it was asked.
func (w *works) holdGit(names string) (asked, answer func()) {
	was, held, serve := make(chan struct{}), make(chan struct{}), w.Git.Git()
	once := sync.OnceFunc(func() { close(was) })
	w.Git.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/"+names) {
			once()
			select {
			case <-held:
			case <-r.Context().Done():
				return
			}
		}
		serve.ServeHTTP(w, r)
	}))
	asked = func() {
		w.T.Helper()
		select {
		case <-was:
		case <-patience.After(site.Patience):
			w.T.Fatalf("nobody asks the git server for %s", names)
		}
	}
	return asked, sync.OnceFunc(func() { close(held) })
}

// cancelInInit cancels a run whose engine waits for a module.
func (m *many) cancelInInit() {
	m.t.Helper()
	name := "module-" + m.name
	asked, answer := m.holdGit(name)
	module := m.Template(name, map[string]string{"main.tf": `output "it" { value = 1 }`})
	m.repo = m.Template("with-"+name, map[string]string{"main.tf": sixty, "module.tf": fmt.Sprintf(`module "held" { source = "git::%s?ref=v1" }`, module)})
	id := m.deploy()
	asked()
	m.cancel("init", id)
	m.AwaitLine(id, "Cancel requested.")
	answer()
	m.settled("init", id, "CANCELLED/cancelled")
}

// cancelInPlan cancels a run whose engine waits for a file.
func (m *many) cancelInPlan() {
	m.t.Helper()
	gate := m.journal + ".gate"
	if err := unix.Mkfifo(gate, 0o666); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chmod(gate, 0o666); err != nil { // beyond the umask
		m.t.Fatal(err)
	}
	id := m.queue("apply", map[string]any{"gate": gate})
	// There is nobody to write for as long as nobody reads.
	open := func() *os.File {
		reads, _ := os.OpenFile(gate, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return reads
	}
	var reads *os.File
	await(m.t, "the engine to read", func() bool {
		reads = open()
		return reads != nil
	})
	m.cancel("plan", id)
	m.AwaitLine(id, "Cancel requested.")
	for ended := false; !ended; ended = m.Text(m.t, "SELECT (finished_at IS NOT NULL)::text FROM public.provisions WHERE id = $1", id) == "true" {
		if reads != nil {
			_ = reads.Close() // nothing was written
		}
		reads = open() // it may read again
	}
	m.settled("plan", id, "CANCELLED/cancelled")
}

// cancelWhenever cancels a run at a moment that nobody has chosen: it may have
// succeeded by then.
func (m *many) cancelWhenever() {
	m.t.Helper()
	id := m.deploy()
	m.Await("the claim", "SELECT status = 'PROCESSING' FROM public.provisions WHERE id = $1", id)
	<-time.After(rand.N(2500 * time.Millisecond))
	m.Exec(m.t, "SELECT public.cancel_provision(id) FROM public.provisions WHERE id = $1 AND status = 'PROCESSING'", id)
	m.settled("any stage", id, "CANCELLED/cancelled", "SUCCESS")
	m.finish("cancelled in any stage")
	counted.add("cancels in a run of 60 resources in any stage", 1)
}
