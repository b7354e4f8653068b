package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/pgtest"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// command is one shell block of the README.
type command struct {
	text string
	// until is what a block that goes on until Ctrl-C prints when it is ready.
	until string
}

// commands returns the README's shell blocks; a block that people only read is
// not marked as shell.
func commands(t *testing.T) []command {
	t.Helper()
	readme := readFile(t, filepath.Join("..", "README.md"))
	var found []command
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readme, -1) {
		c := command{text: m[1]}
		switch {
		case strings.Contains(c.text, "make up"):
			c.until = "Ctrl-C"
		case strings.Contains(c.text, "tendril run"):
			c.until = "registered"
		}
		found = append(found, c)
	}
	return found
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Every command of the README, as a newcomer types them: in order, in one
// checkout, those that go on in a terminal of their own.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	blocks := commands(t)
	if len(blocks) < 5 {
		t.Fatalf("found %d shell blocks in the README, want at least 5", len(blocks))
	}
	home := pgtest.Dir(t)
	env := append(os.Environ(),
		"HOME="+home, "GOCACHE="+goEnv(t, "GOCACHE"), "GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOPATH="+goEnv(t, "GOPATH"),
		// Away from what may run on this machine already.
		"TRELLIS_DATA_DIR="+filepath.Join(home, "data"), "TRELLIS_LISTEN=127.0.0.1:0",
		"GIT_AUTHOR_NAME=me", "GIT_AUTHOR_EMAIL=me@example.com", "GIT_COMMITTER_NAME=me", "GIT_COMMITTER_EMAIL=me@example.com")
	up := func() {}
	for _, c := range blocks {
		switch {
		case strings.TrimSpace(c.text) == "make test":
			// We are in it: make may only say what it would do.
			c.text = "make --dry-run test"
			shell(t, env, c.text)
		case strings.Contains(c.text, "make up"):
			up() // the README has it ended before it is started again
			up = terminal(t, env, c)
		case c.until != "":
			terminal(t, env, c)
		default:
			out := shell(t, env, c.text)
			t.Logf("$ %s%s", c.text, out)
		}
	}

	out := shell(t, env, `eval "$(bin/trellis env)" && psql "$TRELLIS_DATABASE_URL" -At -c "SELECT string_agg(status, ' ') FROM provisions"`)
	if strings.TrimSpace(out) != strings.Repeat(" SUCCESS", 7)[1:] {
		t.Errorf("provisions after the README's commands = %s, want seven times SUCCESS", out)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// compiling is how long a block may take that builds the programs, on a machine
// that has not compiled anything yet.
const compiling = 10 * time.Minute

// shell runs a block to its end, which must be a success.
func shell(t *testing.T, env []string, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), compiling)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = "..", env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the README's command fails: %v\n$ %s\n%s", err, text, out)
	}
	return string(out)
}

// terminal runs a block that goes on, and waits until it says that it is ready. It ends
// by what Ctrl-C sends: with the test, or when end is called.
func terminal(t *testing.T, env []string, c command) (end func()) {
	t.Helper()
	out := &site.Output{}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", c.text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "..", env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ended by a signal, or shown by what is printed
		close(done)
	}()
	end = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case <-done:
		case <-patience.After(site.Patience):
			t.Errorf("%q does not end on Ctrl-C:\n%s", c.text, out)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
	})
	t.Cleanup(end)
	limit := time.Now().Add(compiling)
	for !strings.Contains(out.String(), c.until) {
		select {
		case <-done:
			t.Fatalf("%q ends by itself:\n%s", c.text, out)
		case <-time.After(50 * time.Millisecond): // between two looks
		}
		if time.Now().After(limit) {
			t.Fatalf("%q does not say %q:\n%s", c.text, c.until, out)
		}
	}
	return end
}

// The configuration reference is generated; TENDRIL_TEST_UPDATE_README=1 writes it.
func TestReadmeHasTheConfigurationReference(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- configuration reference: begin -->\n", "<!-- configuration reference: end -->"
	path := filepath.Join("..", "README.md")
	readme := readFile(t, path)
	before, rest, ok := strings.Cut(readme, begin)
	reference, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the README has no place for the configuration reference")
	}
	if reference == config.Reference() {
		return
	}
	if os.Getenv("TENDRIL_TEST_UPDATE_README") == "" {
		t.Fatal("the configuration reference in the README is not config.Reference(); run: TENDRIL_TEST_UPDATE_README=1 go test ./e2e -run Reference")
	}
	var updated bytes.Buffer
	updated.WriteString(before + begin + config.Reference() + end + after)
	if err := os.WriteFile(path, updated.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
