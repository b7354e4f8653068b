package devstack

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// TestMain is the agent as well: a Stack starts this very program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "exec") {
		os.Exit(agentcmd.Main(nil, os.Args[1:], os.Stdout, os.Stderr))
	}
	pgtest.Main(ownState{m})
}

// ownState runs tests with a key for data directories of their own.
type ownState struct{ *testing.M }

func (m ownState) Run() int {
	dir, err := os.MkdirTemp("", "devstack-test-state-")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", dir)
	}
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return m.M.Run()
}

// notes is a Reporter that remembers.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *notes) Step(name string) func(string) {
	return func(detail string) { n.add(name + ": " + detail) }
}

func (n *notes) Note(text string) { n.add(text) }

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.lines, "\n")
}

func options(t *testing.T, dir string) (Options, *notes) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report := &notes{}
	return Options{DataDir: dir, Listen: "127.0.0.1:0", AgentCommand: []string{self, "run"}, Version: "test", Report: report}, report
}

func start(t *testing.T, o Options) *Stack {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("Start(%s) = %v\n%s", o.DataDir, err, o.Report)
	}
	t.Cleanup(func() { stop(t, s) }) // a second time does no harm
	return s
}

func stop(t *testing.T, s *Stack) {
	t.Helper()
	ctx, cancel := patience.Context(context.Background(), time.Minute)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
}

func localStore(t *testing.T, s *Stack) *store.Store {
	t.Helper()
	d, err := store.Connect(t.Context(), s.Runtime().DatabaseURL, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d.As(instance.LocalUser)
}

func query(t *testing.T, url, statement string, args ...any) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var text string
	if err := conn.QueryRow(t.Context(), statement, args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return text
}

// takenPort is a port that somebody listens on.
func takenPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return fmt.Sprint(listener.Addr())
}

// stopNow ends a Stack without letting anything finish.
func stopNow(t *testing.T, s *Stack) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("Stop(now) = %v, want nil", err)
	}
}

// pgxExec runs a statement that may well cut its own connection.
func pgxExec(t *testing.T, url, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, _ = conn.Exec(t.Context(), statement)
}

// agentLogOf is what the agent of a data directory said, for messages.
func agentLogOf(o Options) string {
	text, err := os.ReadFile(o.path("agent.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
