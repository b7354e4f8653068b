package site

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// Agent is one tendril run.
type Agent struct {
	Site   *Site
	Name   string
	Dir    string   // its data directory
	Config string   // its TOML file
	Env    []string // all of its environment
	// Verb replaces the agent's verb run, with its arguments.
	Verb []string
	// Wrap is put before its command line, such as unshare with options.
	Wrap []string
	// Binary is the program; the one that watches for races unless a test
	// wants another.
	Binary string

	// uid is whom the agent runs as, 0 for the test's own user.
	uid uint32

	Cmd *exec.Cmd
	Out *outputtest.Buffer
	// Done is closed when the process has ended.
	Done chan struct{}
}

// NewAgent configures an agent; extra is TOML that goes to the end of its file.
func (s *Site) NewAgent(name string, slots int, extra string) *Agent {
	s.T.Helper()
	a := &Agent{Site: s, Name: name, Dir: filepath.Join(pgtest.Dir(s.T), "data"), Binary: Program("tendril")}
	a.Config = filepath.Join(s.T.TempDir(), "tendril.toml")
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
%s`, name, a.Dir, slots, s.Git.URL+"/**", s.Git.CAFile, extra)
	if err := os.WriteFile(a.Config, []byte(content), 0o600); err != nil {
		s.T.Fatal(err)
	}
	a.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.T.TempDir(),
		// Else each process that the race detector watches sleeps a second at
		// its end.
		"GORACE=atexit_sleep_ms=0",
		"TENDRIL_QUEUE_URL=" + s.QueueURL,
	}
	if s.ByKey {
		a.Set("TENDRIL_JOIN_TOKEN", s.Text(s.T, "SELECT token FROM public.create_join_token($1)", s.Cluster))
	} else {
		a.Set("TENDRIL_API_TOKEN", s.Token)
	}
	if s.Gateway != nil {
		a.Set("TENDRIL_QUEUE_CA_FILE", s.Git.CAFile) // the same certificate
	}
	return a
}

// Wire has the agent reach its queue by way of a proxy. It is called before Start.
func (a *Agent) Wire() *wiretest.Proxy {
	s := a.Site
	s.T.Helper()
	var wire *wiretest.Proxy
	if s.Gateway != nil {
		wire = wiretest.NewHTTPS(s.T, s.Gateway.Address)
	} else {
		wire = wiretest.New(s.T, s.QueueURL)
	}
	a.Set("TENDRIL_QUEUE_URL", wire.URL(s.QueueURL))
	return wire
}

// Start starts the agent and ends it with the test.
func (a *Agent) Start() *Agent {
	t := a.Site.T
	t.Helper()
	a.Out = &outputtest.Buffer{}
	verb := a.Verb
	if verb == nil {
		verb = []string{"run"}
	}
	argv := slices.Concat(a.Wrap, []string{a.Binary}, verb, []string{"--config", a.Config})
	a.Cmd = exec.Command(argv[0], argv[1:]...)
	a.Cmd.Env, a.Cmd.Stdout, a.Cmd.Stderr = a.Env, a.Out, a.Out
	a.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.uid != 0 {
		a.Cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.uid}
	}
	if err := a.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, done, out := a.Cmd, make(chan struct{}), a.Out
	a.Done = done
	go func() {
		_ = cmd.Wait() // the exit code is read from cmd.ProcessState
		close(done)
	}()
	t.Cleanup(func() {
		if !end(cmd, done) {
			t.Errorf("agent %s does not end", a.Name)
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("log of agent %s:\n%s", a.Name, out.String())
		}
		if strings.Contains(out.String(), "DATA RACE") {
			t.Errorf("agent %s has a data race:\n%s", a.Name, out.String())
		}
	})
	return a
}

// end sends SIGTERM until the process has ended: the second means at once, and
// two that come together count as one.
func end(cmd *exec.Cmd, done <-chan struct{}) bool {
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	limit := patience.After(Patience)
	for {
		_ = cmd.Process.Signal(syscall.SIGTERM) // one that has ended needs none
		select {
		case <-done:
			return true
		case <-again.C:
		case <-limit:
			return false
		}
	}
}

// RunAs has the agent run as another user, to whom its files are given. It is
// called by root, before Start and after what configures the agent.
func (a *Agent) RunAs(uid int) {
	t := a.Site.T
	t.Helper()
	home := filepath.Dir(a.Dir)
	config, err := os.ReadFile(a.Config)
	if err == nil {
		a.Config = filepath.Join(home, "tendril.toml")
		err = os.WriteFile(a.Config, config, 0o600)
	}
	if err == nil {
		err = filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, uid, uid))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	a.uid = uint32(uid)
	a.Set("HOME", home)
}

// Kill is kill -9.
func (a *Agent) Kill() {
	a.Site.T.Helper()
	if err := a.Cmd.Process.Kill(); err != nil {
		a.Site.T.Fatal(err)
	}
	<-a.Done
}

// Terminate sends SIGTERM and waits for the end.
func (a *Agent) Terminate() {
	a.Site.T.Helper()
	if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.Site.T.Fatal(err)
	}
	select {
	case <-a.Done:
	case <-patience.After(Patience):
		a.Site.T.Fatalf("agent %s does not end on SIGTERM", a.Name)
	}
}

// Exit waits for an agent that ends by itself and returns its exit code and output.
func (a *Agent) Exit() (int, string) {
	a.Site.T.Helper()
	select {
	case <-a.Done:
	case <-patience.After(Patience):
		a.Site.T.Fatalf("agent %s goes on, want it to end by itself:\n%s", a.Name, a.Out)
	}
	return a.Cmd.ProcessState.ExitCode(), a.Out.String()
}

// AwaitOutput waits for a text in the agent's own log.
func (a *Agent) AwaitOutput(text string) {
	a.Site.T.Helper()
	limit := patience.Begin(Patience)
	for !strings.Contains(a.Out.String(), text) {
		if limit.Over() {
			a.Site.T.Fatalf("agent %s does not say %q", a.Name, text)
		}
		limit.Pause()
	}
}

// Set sets a variable of the agent's environment.
func (a *Agent) Set(key, value string) { a.Env = append(a.Env, key+"="+value) }

// Configure appends TOML to the agent's configuration.
func (a *Agent) Configure(text string) {
	a.Site.T.Helper()
	content, err := os.ReadFile(a.Config)
	if err == nil {
		err = os.WriteFile(a.Config, append(content, text...), 0o600)
	}
	if err != nil {
		a.Site.T.Fatal(err)
	}
}

// Spools lists the files of claims that the agent has not done with.
func (a *Agent) Spools() []string {
	a.Site.T.Helper()
	found, err := filepath.Glob(filepath.Join(a.Dir, "spool", "*"))
	if err != nil {
		a.Site.T.Fatal(err)
	}
	return found
}

// AwaitNoSpools waits until the agent has done with all claims.
func (a *Agent) AwaitNoSpools() {
	a.Site.T.Helper()
	a.Await("to have done with its claims", func() bool { return len(a.Spools()) == 0 })
}

// AwaitSpool waits until a file of a claim has a text.
func (a *Agent) AwaitSpool(text string) {
	a.Site.T.Helper()
	a.Await(fmt.Sprintf("to have %q in a spool", text), func() bool {
		for _, path := range a.Spools() {
			if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), text) {
				return true
			}
		}
		return false
	})
}

// Await waits until something is so.
func (a *Agent) Await(what string, is func() bool) {
	a.Site.T.Helper()
	limit := patience.Begin(Patience)
	for !is() {
		if limit.Over() {
			a.Site.T.Fatalf("timed out waiting for agent %s %s", a.Name, what)
		}
		limit.Pause()
	}
}

// PeakMemory is the most resident memory a process has had, in bytes; 0 for one
// that is not there.
func PeakMemory(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, ok := strings.Cut(string(text), "VmHWM:")
	if !ok {
		return 0 // a zombie has none
	}
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
