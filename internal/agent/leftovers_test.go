package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/process"
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
	eventually(t, "the killed child to be gone", func() bool { return !process.Alive(dead) })
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
