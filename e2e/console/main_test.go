package console

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/inspect"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/trust"
)

// TestMain is the agent and what looks at templates as well: a stack starts this
// very program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run", "exec":
			os.Exit(agentcmd.Main(nil, os.Args[1:], os.Stdout, os.Stderr))
		case "inspect-template":
			syscall.Exit(inspect.Child(os.Stdin, os.Stdout)) // os.Exit would wait a second for the race detector
		}
	}
	pgtest.Main(ownState{browsertest.With(m)})
}

// ownState runs tests with a key for data directories of their own.
type ownState struct{ tests interface{ Run() int } }

func (m ownState) Run() int {
	dir, err := os.MkdirTemp("", "console-test-state-")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", dir)
	}
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return m.tests.Run()
}

// notes is a Reporter that tells the test.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) Note(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.WriteString(text + "\n")
}

func (n *notes) Step(name string) func(string) {
	return func(detail string) { n.Note(name + ": " + detail) }
}

// house is all of Tendril with the sample data, and what was seen of its pages.
type house struct {
	*devstack.Stack
	dir   string // its data
	store *store.Store
	seen  *seen
	// authority is somebody whose certificates for keys count with the agent.
	authority trust.Person
}

// up starts it, and ends it after the test.
func up(t *testing.T, more ...func(*devstack.Options)) *house {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	authority, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	report, dir := &notes{}, pgtest.Dir(t)
	options := devstack.Options{
		DataDir: dir, Listen: "127.0.0.1:0", Slots: 3, Sample: true, Version: "v1.0.0",
		AgentCommand: []string{self, "run"}, InspectCommand: []string{self, "inspect-template"}, Report: report,
		RequesterKeys: []string{"authority " + authority.Fingerprint()},
	}
	for _, change := range more {
		change(&options)
	}
	stack, err := devstack.Start(t.Context(), options)
	if err != nil {
		t.Fatalf("Start() = %v\n%s", err, &report.text)
	}
	t.Cleanup(func() {
		ctx, cancel := patience.Context(context.Background(), time.Minute)
		defer cancel()
		if err := stack.Stop(ctx); err != nil {
			t.Errorf("Stop() = %v, want nil", err)
		}
		if t.Failed() {
			t.Log(report.text.String())
		}
	})
	d, err := store.Connect(t.Context(), stack.Runtime().DatabaseURL, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &house{Stack: stack, dir: dir, store: d.As(instance.LocalUser), seen: newSeen(t), authority: authority}
}

// runs are the newest provisions.
func (h *house) runs(t *testing.T, limit int) []store.Provision {
	t.Helper()
	org, err := h.store.FindOrg(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := h.store.ListProvisions(t.Context(), org.ID, store.ProvisionFilter{}, 0, limit)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// signIn follows a one-time link, as a person does, at an address of the site.
func (h *house) signIn(t *testing.T, at string) *browsertest.Tab {
	t.Helper()
	link, err := h.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tab := browsertest.Open(t, strings.Replace(link, h.Runtime().BrowserURL, at, 1))
	tab.Click("Sign in")
	tab.Wait(`location.pathname === "/" && document.querySelector("nav")`)
	return tab
}

// template offers the agent a template of these files, and returns where it is.
func (h *house) template(t *testing.T, name string, files map[string]string) (url string) {
	t.Helper()
	repo := gittest.NewRepo(t)
	repo.Tag("v1", repo.Commit(gittest.Text(files)))
	dir := filepath.Join(h.dir, "templates", name+".git")
	if err := os.CopyFS(dir, os.DirFS(repo.Dir)); err != nil {
		t.Fatal(err)
	}
	return "file://" + dir
}

// deploy applies a template without asking anybody, and returns the provision.
func (h *house) deploy(t *testing.T, template, workspace string) store.Deployed {
	t.Helper()
	local, err := h.store.ClusterByRef(t.Context(), uuid.Nil, "local")
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := json.Marshal(provision.Snapshot{TemplateSource: provision.TemplateSource{Repo: template, Version: "v1"}, Workspace: workspace})
	if err != nil {
		t.Fatal(err)
	}
	d, err := h.store.Deploy(t.Context(), local.ID, provision.OperationApply, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
