package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Every command of the README and of the guide's first sections, as a newcomer types
// them: in order, in one checkout, those that go on in a terminal of their own.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	home := pgtest.Dir(t)
	me := typist{t: t, dir: "..", env: append(os.Environ(),
		"HOME="+home, "GOCACHE="+goEnv(t, "GOCACHE"), "GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOPATH="+goEnv(t, "GOPATH"),
		// Away from what may run on this machine already.
		"TRELLIS_DATA_DIR="+filepath.Join(home, "data"), "TRELLIS_LISTEN=127.0.0.1:0",
		"GIT_AUTHOR_NAME=me", "GIT_AUTHOR_EMAIL=me@example.com", "GIT_COMMITTER_NAME=me", "GIT_COMMITTER_EMAIL=me@example.com")}

	end := me.start(pages.Block(t, "README.md", "make up"), "Ctrl-C")
	// We are in it: make may only say what it would do.
	me.run(pages.Block(t, "README.md", "make test", "make test", "make --dry-run test"))
	me.run(pages.Block(t, "README.md", "bin/trellis deploy --template hello"))
	me.run(pages.Block(t, "README.md", "git init"))
	end()
	me.start(pages.Block(t, "README.md", "make up ARGS"), "Ctrl-C")
	me.run(pages.Block(t, "README.md", "bin/trellis deploy --repo"))

	me.run(pages.Block(t, "docs/GUIDE.md", "bin/trellis plan"))
	me.run(pages.Block(t, "docs/GUIDE.md", "psql"))
	me.run(pages.Block(t, "docs/GUIDE.md", "curl"))
	if out := me.run(pages.Block(t, "docs/GUIDE.md", "bin/trellis machines")); !strings.Contains(out, `"ansible_host": "192.0.2.10"`) || !strings.Contains(out, "ssh 192.0.2.10") || !strings.Contains(out, `"ada","192.0.2.10","22","root","`) {
		t.Errorf("the guide's commands about machines print %s, want the machines' address", out)
	}
	if out := me.run(pages.Block(t, "docs/GUIDE.md", "bin/trellis input")); !strings.Contains(out, "Mount db-1 at the small hall") || !strings.Contains(out, "rack = \"B12\"") {
		t.Errorf("the guide's commands about a person's work print %s, want the instructions and the output", out)
	}
	programs := pgtest.Dir(t)
	if err := os.WriteFile(filepath.Join(programs, "ssh"), []byte("#!/bin/sh\necho ssh to \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := me.with("PATH=" + programs + ":" + os.Getenv("PATH")).run(pages.Code(t, "docs/GUIDE.md", "trellis machines ssh NAME", "trellis", "bin/trellis", "NAME", "ada")); !strings.Contains(out, "ssh to 192.0.2.10") {
		t.Errorf("trellis machines ssh runs %s, want ssh with the machine's address", out)
	}
	me.run(pages.Code(t, "docs/TEMPLATES.md", "trellis state import WORKSPACE machine.NAME EXTERNAL_ID",
		"trellis", "bin/trellis", "WORKSPACE", "demo/machines", "NAME", "grace", "EXTERNAL_ID", "vm-1"))
	me.run(pages.Code(t, "docs/TEMPLATES.md", "trellis state rm WORKSPACE machine.NAME", "trellis", "bin/trellis", "WORKSPACE", "demo/machines", "NAME", "grace") + " --yes")
	end = me.start(pages.Block(t, "docs/GUIDE.md", "bin/tendril run"), "registered")
	end() // it keeps no managed states, and would take runs of workspaces that have them
	me.start(pages.Block(t, "docs/GUIDE.md", "bin/trellis up", "--data-dir look", "--data-dir "+filepath.Join(home, "look"), "127.0.0.1:8081", "127.0.0.1:0"), "Ctrl-C")

	out := me.run(`eval "$(bin/trellis env)" && psql "$TRELLIS_DATABASE_URL" -At -c "SELECT string_agg(status, ' ') FROM provisions"`)
	if strings.TrimSpace(out) != strings.Repeat(" SUCCESS", 16)[1:] {
		t.Errorf("provisions after the commands of README.md and docs/GUIDE.md = %s, want sixteen times SUCCESS", out)
	}
	me.run(pages.Block(t, "templates/hello/README.md", "trellis deploy", "trellis", "bin/trellis"))
	me.run(pages.Block(t, "templates/script-vm/README.md", "trellis deploy", "trellis", "bin/trellis"))
	me.run(pages.Block(t, "templates/hand-made/README.md", "trellis deploy", "trellis", "bin/trellis", "--follow", ""))
	me.run(pages.Block(t, "templates/fleet/README.md", "trellis deploy --template fleet --workspace demo/fleet --follow", "trellis", "bin/trellis"))
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

// typist types a page's commands into a shell, in a directory.
type typist struct {
	t   *testing.T
	dir string
	env []string
}

// newTypist has the programs, and a home and directory of their own.
func newTypist(t *testing.T, env ...string) typist {
	t.Helper()
	dir := pgtest.Dir(t)
	return typist{t, dir, env}.with("PATH="+filepath.Dir(site.Program("trellis"))+":"+os.Getenv("PATH"), "HOME="+dir, "GORACE=atexit_sleep_ms=0")
}

// with is the same with more in the environment.
func (p typist) with(env ...string) typist {
	p.env = slices.Concat(p.env, env)
	return p
}

// run runs a block to its end, which must be a success. What is typed into its
// programs is input.
func (p typist) run(text string, input ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), compiling)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env, cmd.Stdin = p.dir, p.env, strings.NewReader(strings.Join(input, "\n"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("a documented command fails: %v\n$ %s\n%s", err, text, out)
	}
	p.t.Logf("$ %s\n%s", strings.TrimSpace(text), out)
	return string(out)
}

// start runs a block that goes on, and waits until it says that it is ready. It ends
// by what Ctrl-C sends: with the test, or when end is called.
func (p typist) start(text, until string) (end func()) {
	t := p.t
	t.Helper()
	out := &outputtest.Buffer{}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, out, out
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
		select {
		case <-done: // and its process id may belong to another process
			return
		default:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		}
		select {
		case <-done:
		case <-patience.After(site.Patience):
			t.Errorf("%q does not end on Ctrl-C:\n%s", text, out)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
	})
	t.Cleanup(end)
	limit := time.Now().Add(compiling)
	for !strings.Contains(out.String(), until) {
		select {
		case <-done:
			t.Fatalf("%q ends by itself:\n%s", text, out)
		case <-time.After(50 * time.Millisecond): // between two looks
		}
		if time.Now().After(limit) {
			t.Fatalf("%q does not say %q:\n%s", text, until, out)
		}
	}
	return end
}
