package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/process"

	"github.com/tendril-run/tendril/e2e/site"
)

// A template may end the process that supervises it, and comes by no success.
func TestTemplateThatEndsItsRun(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.NewAgent("one", 1, "").Start()
	repo := s.Template("ends", map[string]string{"main.tf": `
resource "terraform_data" "end" {
  provisioner "local-exec" {
    command = "pid=$PPID; while [ $(cat /proc/$pid/comm) != tendril ]; do pid=$(awk '/^PPid/ {print $2}' /proc/$pid/status); done; kill -9 $pid; sleep 1000"
  }
}`})
	id := s.DeployTemplate(repo, "ends", nil)
	if got := s.AwaitEnd(id); got != "FAILED/exec_died" {
		t.Errorf("the run = %s: %s, want FAILED/exec_died", got, s.Message(id))
	}
	harmless := s.Template("harmless", map[string]string{"main.tf": `resource "terraform_data" "a" {}`})
	if next := s.DeployTemplate(harmless, "other", nil); s.AwaitEnd(next) != "SUCCESS" {
		t.Errorf("the next run: %s", s.Message(next))
	}
}

// stateStore is an http backend that can be away.
type stateStore struct {
	mu    sync.Mutex
	away  bool
	state []byte
}

func (s *stateStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && s.state == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		_, _ = w.Write(s.state) // whether it arrives shows in the engine
	case s.away:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		s.state, _ = io.ReadAll(r.Body) // a torn one is none
	}
}

func (s *stateStore) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *stateStore) stored() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.state)
}

// The state that a killed run has kept is stored by the next one, which has
// another uid.
func TestKeptStateOfAnotherUID(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has uids to give; the tests of CI run as root")
	}
	s := site.New(t)
	store := &stateStore{away: true}
	server := httptest.NewServer(store)
	t.Cleanup(server.Close)
	a := s.NewAgent("one", 1, "[state]\nbackend = \"http\"\n[state.config.http]\naddress = \""+server.URL+"/{workspace_id}\"\nretry_max = \"0\"\n")
	a.Start()
	repo := s.Template("kept", map[string]string{"main.tf": `
resource "terraform_data" "made" { input = "made once" }
resource "terraform_data" "who" {
  triggers_replace = [timestamp()]
  provisioner "local-exec" { command = "echo ran as $(id -u)" }
}`})
	ran := regexp.MustCompile(`ran as (\d+)`)
	first := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(first, "The engine could not store its state.")
	below, err := process.Descendants(a.Cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	a.Kill()
	for _, child := range below {
		_ = syscall.Kill(child.PID, syscall.SIGKILL) // or it has ended already
	}
	if kept, err := filepath.Glob(filepath.Join(a.Dir, "state", "*", "errored.tfstate")); err != nil || len(kept) != 1 {
		t.Fatalf("kept states: %v, %v, want one", kept, err)
	}
	store.set(false)
	a.Set("TENDRIL_RUN_UIDS", "1879060000")
	a.Start()
	if got := s.AwaitEnd(first); got != "FAILED/agent_restarted" {
		t.Errorf("the killed run = %s: %s, want FAILED/agent_restarted", got, s.Message(first))
	}
	second := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(second); got != "SUCCESS" {
		t.Fatalf("the next run = %s: %s", got, s.Message(second))
	}
	log := s.Log(t, second)
	before, after := ran.FindStringSubmatch(s.Log(t, first)), ran.FindStringSubmatch(log)
	if before == nil || after == nil || before[1] == after[1] {
		t.Errorf("the runs say %v and %v, want two uids", before, after)
	}
	if !strings.Contains(log, "The state is stored, and the file is removed.") || strings.Contains(log, "terraform_data.made: Creat") {
		t.Errorf("the next run did not begin with the kept state:\n%s", log)
	}
	if !strings.Contains(store.stored(), "made once") {
		t.Errorf("the store has %q, want the state", store.stored())
	}
}

// Directories within each other, deeper than a path can name, neither stop the
// agent from clearing up nor the next run, under another uid, from beginning.
func TestTemplateThatLeavesADeepTree(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	a := s.NewAgent("one", 1, "").Start()
	repo := s.Template("deep", map[string]string{"main.tf": `
resource "terraform_data" "deep" {
  triggers_replace = [timestamp()]
  provisioner "local-exec" {
    command = "p=$(printf %01500d 0 | sed s,0,d/,g); for top in . $HOME $HOME/..; do (cd $top && mkdir -p a/$p b/$p && mv b a/$p || echo broken); done; echo dug"
  }
}`})
	for range 2 {
		id := s.DeployTemplate(repo, "a", nil)
		if got := s.AwaitEnd(id); got != "SUCCESS" || !strings.Contains(s.Log(t, id), "dug") || strings.Contains(s.Log(t, id), "): broken") {
			t.Fatalf("the run = %s: %s\n%s", got, s.Message(id), s.Log(t, id))
		}
		for _, pattern := range []string{"work/*/source", "work/*/home"} {
			if left, err := filepath.Glob(filepath.Join(a.Dir, pattern)); err != nil || len(left) > 0 {
				t.Errorf("after the run there are %v, %v, want none", left, err)
			}
		}
		a.Terminate()
		if os.Geteuid() == 0 {
			a.Set("TENDRIL_RUN_UIDS", "1879062000")
		}
		a.Start()
	}
	// What a test cannot remove by its name is not left to it.
	a.Terminate()
	if err := isolation.RemoveAll(filepath.Join(a.Dir, "work")); err != nil {
		t.Error(err)
	}
}
