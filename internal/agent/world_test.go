package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// world is a database, a data directory and a directory in which the test
// meets the children.
type world struct {
	*queuetest.World
	data, meet string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, queuetest.NewWorld(t))
}

func newWorldIn(t *testing.T, w *queuetest.World) *world {
	t.Helper()
	w.Exec(t, "UPDATE tendril.settings SET heartbeat = '250 milliseconds', poll = '1 second'")
	return &world{World: w, data: filepath.Join(t.TempDir(), "data"), meet: t.TempDir()}
}

func (w *world) setup() setup { return setup{URL: w.URL, Token: w.Token, DataDir: w.data} }

// deploy queues a provision that follows the steps.
func (w *world) deploy(t *testing.T, workspace string, steps ...string) uuid.UUID {
	t.Helper()
	encoded, err := json.Marshal(script{Dir: w.meet, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	return w.DeploySnapshot(t, fmt.Sprintf(
		`{"template_source": {"repo": "https://git.example/t", "version": "v1"}, "workspace": %q, "terraform_vars": %s}`, workspace, encoded))
}

// becomes waits for a status.
func (w *world) becomes(t *testing.T, id uuid.UUID, want string) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("status %s", want), func() bool {
		got := w.Status(t, id)
		if got != want && got != "QUEUED" && got != "PROCESSING" && !strings.HasSuffix(got, "/agent_lost") {
			t.Fatalf("status = %s, want %s; its log:\n%s", got, want, w.Log(t, id))
		}
		return got == want
	})
}

// logs waits until the log holds a text.
func (w *world) logs(t *testing.T, id uuid.UUID, text string) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("the log to hold %q", text), func() bool { return strings.Contains(w.Log(t, id), text) })
}

// release makes the file that children hold for.
func (w *world) release(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.meet, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// touched waits for a file that a child makes and returns the pid in it.
func (w *world) touched(t *testing.T, name string) int {
	t.Helper()
	var pid int
	patience.Await(t, "a child to make "+name, func() bool {
		content, err := os.ReadFile(filepath.Join(w.meet, name))
		if err != nil || !strings.HasSuffix(string(content), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil {
			t.Fatalf("%s holds %q, want one pid", name, content)
		}
		return true
	})
	return pid
}

// stops returns the reasons for which a child was asked to stop.
func (w *world) stops(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.meet, "stops"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// spooled lists what is in the spool directory, or another of the data directory.
func (w *world) left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.data, dir))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (w *world) wantNothingLeft(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"spool", "rejected"} {
		if left := w.left(t, dir); len(left) > 0 {
			t.Errorf("%s/ holds %q, want it empty", dir, left)
		}
	}
}

// lines returns "line 1\n" … "line n\n".
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}
