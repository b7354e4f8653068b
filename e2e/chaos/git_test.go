package chaos

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// gitTimeout is what agents of these tests allow a git server: more than one that
// is well takes to answer on a busy machine.
var gitTimeout = sync.OnceValue(func() time.Duration { return patience.For(6 * time.Second).Round(time.Second) })

// gitFault is a way for a git server to be of no use.
type gitFault struct {
	name  string
	begin func(*gittest.Server)
	says  []string // what the provision's error has in it
	// passes: the server could not be talked to, so a commit that is known and
	// here already does without it.
	passes bool
}

func gitFaults() []gitFault {
	answers := func(code int) func(*gittest.Server) {
		return func(s *gittest.Server) { s.Override(gittest.Status(code)) }
	}
	return []gitFault{
		{"answers 401", answers(401), []string{"asks for credentials", "status 401", "private or does not exist"}, false},
		{"answers 404", answers(404), []string{"not found", "status 404", "check the URL"}, false},
		{"answers 500", answers(500), []string{"out of order", "status 500", "try again later"}, true},
		{"answers HTML", func(s *gittest.Server) { s.Override(gittest.HTML()) }, []string{"not as a git server", "text/html", "login page"}, false},
		{"resets", func(s *gittest.Server) { s.Override(gittest.Reset()) }, []string{"cannot reach the server", "reset"}, true},
		{"hangs", func(s *gittest.Server) { s.Override(gittest.Hang(make(chan struct{}))) }, []string{"no answer within " + gitTimeout().String(), "timeout under [git]"}, true},
		{"hangs in a pack", func(s *gittest.Server) { s.HangPack(10<<10, make(chan struct{})) }, []string{"no answer within " + gitTimeout().String(), "timeout under [git]"}, true},
		{"breaks in a pack", func(s *gittest.Server) { s.CutPack(10 << 10) }, []string{"cannot reach the server", "connection broke"}, true},
		{"spoils a pack", func(s *gittest.Server) { s.SpoilPack(10 << 10) }, []string{"broken pack", "checksum", "try again"}, true},
	}
}

// sick is a git server with a fault, a template on it, and a workspace for that.
type sick struct {
	gitFault
	server    *gittest.Server
	repo      string
	workspace string
	id        uuid.UUID // its run
}

// sickServers makes a server for each fault, all of them well, and lets the
// agent use them.
func (w *works) sickServers(a *site.Agent, faults []gitFault) []*sick {
	w.T.Helper()
	allowed := []string{w.Git.URL + "/**"}
	noise := make([]byte, 256<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	var all []*sick
	for _, fault := range faults {
		s := &sick{gitFault: fault, server: gittest.NewServer(w.T), workspace: strings.ReplaceAll(fault.name, " ", "-")}
		repo, _ := s.server.Repo("acme/app", gittest.Files{
			"main.tf": gittest.File("resource \"terraform_data\" \"a\" {}\n"), "noise": gittest.File(string(noise)),
		}, "v1")
		s.repo = repo.URL
		allowed = append(allowed, s.server.URL+"/**")
		all = append(all, s)
	}
	// Test servers share a certificate, so that one CA file serves them all.
	a.Set("TENDRIL_POLICY_REPOS", strings.Join(allowed, ","))
	a.Set("TENDRIL_GIT_TIMEOUT", gitTimeout().String())
	return all
}

// took is how long a provision took from its claim to its end.
func (w *works) took(id uuid.UUID) time.Duration {
	w.T.Helper()
	var seconds float64
	err := w.Conn.QueryRow(w.T.Context(), "SELECT extract(epoch FROM p.finished_at - c.created_at)::float8 FROM public.provisions p JOIN tendril.claims c ON c.provision_id = p.id WHERE p.id = $1", id).Scan(&seconds)
	if err != nil {
		w.T.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// Git servers are down in all ways at once: each run ends in time and says why,
// the one on a server that is well is not disturbed, and once the others are
// well again, so are the runs.
func TestGitServerOfNoUse(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.agent("one", 1+len(gitFaults()), w.SharedState())
	all := w.sickServers(a, gitFaults())
	a.Start()
	steady := w.deploy("steady", endless, 20*time.Millisecond)
	w.awaitPrinted(steady, 5)
	for _, s := range all {
		s.begin(s.server)
		s.id = w.DeployTemplate(s.repo, s.workspace, nil)
		counted.add("faults: git server "+s.name, 1)
	}
	for _, s := range all {
		if got := w.AwaitEnd(s.id); got != "FAILED/checkout_failed" {
			t.Errorf("git server %s: %s, want FAILED/checkout_failed", s.name, got)
		}
		message := w.Message(s.id)
		for _, want := range append(s.says, s.repo) {
			if !strings.Contains(message, strings.TrimSuffix(want, ".git")) {
				t.Errorf("git server %s: message %q, want %q in it", s.name, message, want)
			}
		}
		took := w.took(s.id)
		t.Logf("%s, after %s: %s", s.name, took.Round(time.Millisecond), message)
		if took > gitTimeout()+site.Patience/2 {
			t.Errorf("git server %s: the run took %s with a timeout of %s", s.name, took, gitTimeout())
		}
		s.server.Override(nil)
		s.id = w.DeployTemplate(s.repo, s.workspace, nil)
	}
	for _, s := range all {
		if got := w.AwaitEnd(s.id); got != "SUCCESS" {
			t.Errorf("after the git server %s and is well again: %s (%s), want SUCCESS", s.name, got, w.Message(s.id))
		}
	}
	w.awaitMore(steady, 5)
	w.enough(steady)
	w.awaitAll()
	a.Terminate()
	w.noTornPacks(a)
	w.count(a, "SUCCESS")
}

// noTornPacks looks for what half a download left.
func (w *works) noTornPacks(a *site.Agent) {
	w.T.Helper()
	left, err := filepath.Glob(filepath.Join(a.Dir, "repos/*/git/objects/pack/tmp_*"))
	if err != nil {
		w.T.Fatal(err)
	}
	if len(left) > 0 {
		w.T.Errorf("agent %s left %v", a.Name, left)
	}
}

// What a tag is pinned to is here already: a server that cannot be talked to
// does not matter then, and one that refuses does.
func TestGitServerOfNoUseForWhatIsHere(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	faults := gitFaults()
	if !full() {
		faults = faults[1:7] // a refusal or two, and each way not to answer
	}
	a := w.agent("one", len(faults), w.SharedState())
	all := w.sickServers(a, faults)
	a.Start()
	for _, s := range all {
		s.id = w.DeployTemplate(s.repo, s.workspace, nil)
	}
	for _, s := range all {
		if got := w.AwaitEnd(s.id); got != "SUCCESS" {
			t.Fatalf("the first use of %s = %s (%s), want SUCCESS", s.repo, got, w.Message(s.id))
		}
		s.begin(s.server)
		s.id = w.DeployTemplate(s.repo, s.workspace, nil)
		counted.add("faults: git server "+s.name+", the commit is here", 1)
	}
	for _, s := range all {
		want := "FAILED/checkout_failed"
		if s.passes {
			want = "SUCCESS"
		}
		if got := w.AwaitEnd(s.id); got != want {
			t.Errorf("git server %s: %s (%s), want %s", s.name, got, w.Message(s.id), want)
		}
	}
	a.Terminate()
	w.count(a)
}

// A cancel ends a run at once whose git server hangs.
func TestCancelWhileAGitServerHangs(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.agent("one", 2, w.SharedState())
	all := w.sickServers(a, gitFaults()[:2])
	a.Set("TENDRIL_GIT_TIMEOUT", "5m")
	a.Start()
	for i, hang := range []func(*gittest.Server, chan struct{}){
		func(s *gittest.Server, started chan struct{}) { s.Override(gittest.Hang(started)) },
		func(s *gittest.Server, started chan struct{}) { s.HangPack(10<<10, started) },
	} {
		s, started := all[i], make(chan struct{})
		hang(s.server, started)
		id := w.DeployTemplate(s.repo, s.workspace, nil)
		select {
		case <-started:
		case <-patience.After(site.Patience):
			t.Fatal("nobody asks the git server")
		}
		began := time.Now()
		w.Exec(t, "SELECT public.cancel_provision($1)", id)
		if got := w.AwaitEnd(id); got != "CANCELLED/cancelled" {
			t.Errorf("provision = %s (%s), want CANCELLED/cancelled", got, w.Message(id))
		}
		if message := w.Message(id); !strings.Contains(message, "Cancel requested") || !strings.Contains(message, "was interrupted") {
			t.Errorf("message = %q, want it to say what was interrupted and why", message)
		}
		took := time.Since(began)
		t.Logf("cancelled within %s: %s", took.Round(time.Millisecond), w.Message(id))
		if took > site.Patience/2 { // of the minutes that the server is allowed
			t.Errorf("the cancel took %s", took)
		}
		s.server.Override(nil)
		if got := w.AwaitEnd(w.DeployTemplate(s.repo, s.workspace, nil)); got != "SUCCESS" {
			t.Errorf("the next run there = %s, want SUCCESS", got)
		}
		counted.add("faults: git server hangs, run cancelled", 1)
	}
	a.Terminate()
	w.noTornPacks(a)
	w.count(a)
}
