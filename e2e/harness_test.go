package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/gittest"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
)

// patience is how long a test waits for what must happen.
const patience = 90 * time.Second

// site is one database with one cluster, and a git server.
type site struct {
	*queuetest.World
	t    *testing.T
	git  *gittest.Server
	url  string // the database as an agent
	keep string // a directory for what agents share
}

func newSite(t *testing.T) *site {
	t.Helper()
	w := queuetest.NewWorld(t)
	return &site{World: w, t: t, git: gittest.NewServer(t), url: w.AgentURL(t), keep: t.TempDir()}
}

// template serves files as a repository tagged v1 and returns its URL.
func (s *site) template(name string, files map[string]string) (url string) {
	s.t.Helper()
	repo, _ := s.git.Repo(name, gittest.Text(files), "v1")
	return repo.URL
}

func snapshotOf(repo, workspace string, vars map[string]any) string {
	snapshot := map[string]any{
		"template_source": map[string]any{"repo": repo, "version": "v1"}, "workspace": workspace,
	}
	if vars != nil {
		snapshot["terraform_vars"] = vars
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		panic(err) // maps of strings and numbers always encode
	}
	return string(text)
}

// deploy inserts the row that is a whole deploy.
func (s *site) deploy(repo, workspace string, vars map[string]any) uuid.UUID {
	s.t.Helper()
	return s.DeploySnapshot(s.t, snapshotOf(repo, workspace, vars))
}

// await waits until the query, which answers one boolean, says true.
func (s *site) await(what, query string, args ...any) {
	s.t.Helper()
	limit := time.Now().Add(patience)
	for {
		var yes bool
		if err := s.Conn.QueryRow(s.t.Context(), query, args...).Scan(&yes); err != nil {
			s.t.Fatalf("waiting for %s: %v", what, err)
		}
		if yes {
			return
		}
		if time.Now().After(limit) {
			s.t.Fatalf("timed out waiting for %s", what)
		}
		<-time.After(20 * time.Millisecond) // between two looks
	}
}

func (s *site) awaitEnd(id uuid.UUID) string {
	s.t.Helper()
	s.await("the provision's end", "SELECT status IN ('SUCCESS', 'FAILED', 'CANCELLED') FROM public.provisions WHERE id = $1", id)
	return s.Status(s.t, id)
}

func (s *site) awaitLine(id uuid.UUID, text string) {
	s.t.Helper()
	s.await(fmt.Sprintf("the line %q", text), "SELECT EXISTS (SELECT FROM public.provision_logs WHERE provision_id = $1 AND log_chunk LIKE '%' || $2 || '%')", id, text)
}

func (s *site) message(id uuid.UUID) string {
	s.t.Helper()
	return s.Text(s.t, "SELECT coalesce(error_message, '') FROM public.provisions WHERE id = $1", id)
}

// awaitOutput waits for a text in an agent's own log.
func (s *site) awaitOutput(a *agent, text string) {
	s.t.Helper()
	limit := time.Now().Add(patience)
	for !strings.Contains(a.out.String(), text) {
		if time.Now().After(limit) {
			s.t.Fatalf("agent %s does not say %q", a.name, text)
		}
		<-time.After(20 * time.Millisecond) // between two looks
	}
}

// agent is one tendril run.
type agent struct {
	site   *site
	name   string
	dir    string
	config string
	env    []string

	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newAgent configures an agent; extra is TOML that goes to the end of its file.
func (s *site) newAgent(name string, slots int, extra string) *agent {
	s.t.Helper()
	a := &agent{site: s, name: name, dir: filepath.Join(s.t.TempDir(), "data")}
	a.config = filepath.Join(s.t.TempDir(), "tendril.toml")
	content := fmt.Sprintf(`name = %q
data_dir = %q
slots = %d
[queue]
poll_interval = "1s"
[policy]
repos = [%q]
[git]
ca_file = %q
timeout = "20s"
[run]
cancel_grace = "20s"
pass_env = ["TEST_*", "GORACE"]
%s`, name, a.dir, slots, s.git.URL+"/**", s.git.CAFile, extra)
	if err := os.WriteFile(a.config, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	a.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.t.TempDir(),
		// Else each process that the race detector watches sleeps a second at
		// its end.
		"GORACE=atexit_sleep_ms=0",
		"TENDRIL_QUEUE_URL=" + s.url, "TENDRIL_API_TOKEN=" + s.Token,
	}
	return a
}

// shared keeps all state in one place, so that any agent may run any workspace.
func (s *site) shared() string {
	return fmt.Sprintf("[state]\nbackend = \"local\"\n[state.config.local]\npath = %q\n", s.statePath("{workspace_id}"))
}

func (s *site) statePath(workspaceID string) string {
	return filepath.Join(s.keep, workspaceID, "terraform.tfstate")
}

// start starts the agent and ends it with the test.
func (a *agent) start() *agent {
	t := a.site.t
	t.Helper()
	a.out = &lockedBuffer{}
	a.cmd = exec.Command(program("tendril"), "run", "--config", a.config)
	a.cmd.Env, a.cmd.Stdout, a.cmd.Stderr = a.env, a.out, a.out
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, done, out := a.cmd, make(chan struct{}), a.out
	a.done = done
	go func() {
		_ = cmd.Wait() // the exit code is read from cmd.ProcessState
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Process.Signal(syscall.SIGTERM) // the second: now
		select {
		case <-done:
		case <-time.After(patience):
			t.Errorf("agent %s does not end", a.name)
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("log of agent %s:\n%s", a.name, out.String())
		}
		if strings.Contains(out.String(), "DATA RACE") {
			t.Errorf("agent %s has a data race:\n%s", a.name, out.String())
		}
	})
	return a
}

// kill is kill -9.
func (a *agent) kill() {
	a.site.t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		a.site.t.Fatal(err)
	}
	<-a.done
}

// terminate sends SIGTERM and waits for the end.
func (a *agent) terminate() {
	a.site.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.site.t.Fatal(err)
	}
	select {
	case <-a.done:
	case <-time.After(patience):
		a.site.t.Fatalf("agent %s does not end on SIGTERM", a.name)
	}
}

// exit waits for an agent that ends by itself and returns its exit code and output.
func (a *agent) exit() (int, string) {
	a.site.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		a.site.t.Fatalf("agent %s goes on, want it to end by itself:\n%s", a.name, a.out)
	}
	return a.cmd.ProcessState.ExitCode(), a.out.String()
}
