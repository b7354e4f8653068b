package agentcmd

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMainAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"--help", "TENDRIL_API_TOKEN", ExitOK},
		{"", "Available Commands:", ExitOK},
		{"run --help", "Ctrl-C", ExitOK},
		{"version", fmt.Sprintf("contract %d, go1.", queue.Contract), ExitOK},
		{"version -o json", fmt.Sprintf(`"contract": %d,`, queue.Contract), ExitOK},
		{"version -o xml", "it is text or json", ExitUsage},
		{"rnu", `unknown command "rnu"`, ExitUsage},
		{"run more", `unknown command "more"`, ExitUsage},
		{"run --slot 3", "unknown flag: --slot\nSee \"tendril run --help\".", ExitUsage},
		{"run --slots many", `invalid argument "many"`, ExitUsage},
	} {
		var out bytes.Buffer
		if code := Main(nil, strings.Fields(c.args), &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("tendril %s = %d, %q, want %d and %q", c.args, code, out.String(), c.code, c.says)
		}
		if strings.Contains(out.String(), "exec ") {
			t.Errorf("tendril %s shows the hidden verb exec:\n%s", c.args, out.String())
		}
	}
}

// The program itself has what each verb has: examples, the table of exit codes, and
// no file of the directory where Tab is pressed.
func TestProgram(t *testing.T) {
	t.Parallel()
	var help bytes.Buffer
	if code := Main(nil, []string{"--help"}, &help, &help); code != ExitOK || !strings.Contains(help.String(), "Examples:\n  tendril join https://") {
		t.Errorf("tendril --help = %d, want examples:\n%s", code, &help)
	}
	for _, m := range exitcode.Table {
		if line := fmt.Sprintf("%-5d%s\n", m.Code, m.Text); !strings.Contains(help.String(), line) {
			t.Errorf("tendril --help has no %q", line)
		}
	}
	for words, want := range map[string]string{"run ": ":4\n", "run --config ": ":0\n", "run --data-dir ": ":16\n", "run --name ": ":4\n", "doctor -o ": "text\njson\n:4\n", "": "doctor\t"} {
		var out, stderr bytes.Buffer
		if code := Main(nil, append([]string{"__complete"}, strings.Split(words, " ")...), &out, &stderr); code != ExitOK || !strings.Contains(out.String(), want) {
			t.Errorf("completion of %q = %d %q, want %q", words, code, &out, want)
		}
	}
	for line := range strings.Lines(help.String()) {
		if len([]rune(line)) > 81 {
			t.Errorf("tendril --help has a line of more than 80 columns: %s", line)
		}
	}
}

func TestRunRefusesABadConfiguration(t *testing.T) {
	t.Parallel()
	out, code := tendril(t, nil, "run", "--slots", "99")
	if code != ExitUsage || !strings.Contains(out, "queue.url: missing") || !strings.Contains(out, "99") || strings.Contains(out, "--help") {
		t.Errorf("tendril run = %d, %q, want 2 and all that is wrong", code, out)
	}
	out, code = tendril(t, nil, "run", "--config", "/nowhere/agent.toml")
	if code != ExitUsage || !strings.Contains(out, "/nowhere/agent.toml") {
		t.Errorf("tendril run = %d, %q, want 2 and the file's name", code, out)
	}
}

func TestRunWithAWrongToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	out, code := tendril(t, []string{"TENDRIL_QUEUE_URL=" + w.URL, "TENDRIL_API_TOKEN=tnd_" + strings.Repeat("x", 43)}, "run", "--data-dir", pgtest.Dir(t)+"/data")
	if code != ExitFailure || !strings.Contains(out, "Error: the agent token is unknown, revoked or expired") {
		t.Errorf("tendril run = %d, %q, want 1 and what is wrong with the token", code, out)
	}
}

// The scheme decides how the queue is reached, and a wrong key of the project is
// not taken for a wrong token.
func TestRunWithAWrongAPIKey(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 8)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"message":"Invalid API key"}`)) // as Supabase answers
	}))
	defer server.Close()
	out, code := tendril(t, []string{"SUPABASE_URL=" + server.URL, "SUPABASE_ANON_KEY=sb_publishable_hidden", "TENDRIL_API_TOKEN=tnd_hidden"},
		"run", "--data-dir", pgtest.Dir(t)+"/data")
	if code != ExitFailure || !strings.Contains(out, "does not accept the API key: Invalid API key") || strings.Contains(out, "hidden") {
		t.Errorf("tendril run = %d, %q, want 1 and that it is the key", code, out)
	}
	if got := <-paths; got != "/rest/v1/rpc/register_agent" || len(paths) > 0 {
		t.Errorf("requests = %s and %d more, want one to register", got, len(paths))
	}
}

func TestExecByHand(t *testing.T) {
	t.Parallel()
	if out, code := tendril(t, nil, "exec"); code != ExitFailure || !strings.HasPrefix(out, "Error: ") {
		t.Errorf("tendril exec = %d, %q, want 1 and an error", code, out)
	}
}

// The agent's policy allows no repository, so the child gets as far as that:
// it is started by the right arguments, reads its job, and its result arrives.
func TestRunStartsItselfForAProvision(t *testing.T) {
	t.Parallel()
	for _, mount := range [][]string{nil, {"agents"}} {
		t.Run(fmt.Sprint(mount), func(t *testing.T) {
			t.Parallel()
			w := queuetest.NewWorld(t)
			id := w.Deploy(t, "prod")
			config := filepath.Join(t.TempDir(), "agent.toml")
			if err := os.WriteFile(config, []byte("name = \"from-file\"\nslots = 1\nlog_format = \"json\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, out := command(t, []string{"TENDRIL_QUEUE_URL=" + w.URL, "TENDRIL_API_TOKEN=" + w.Token, "TENDRIL_CONFIG=" + config},
				append(mount, "run", "--data-dir", pgtest.Dir(t)+"/data", "--slots", "3")...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			awaitStatus(t, w, func() bool { return w.Status(t, id) == "FAILED/repo_refused" })
			if got := w.Text(t, "SELECT name || ' ' || slots FROM public.agents"); got != "from-file 3" {
				t.Errorf("agent = %q, want its name from the file and the slots from the flag", got)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("tendril run = %v, want nil after SIGTERM; it said:\n%s", err, out)
			}
			if strings.Contains(out.String(), w.Token) || !strings.Contains(out.String(), `"msg":"registered"`) {
				t.Errorf("log = %s, want JSON without the token", out)
			}
		})
	}
}

// Where runs share a uid and plans are approved, the agent takes one run at a time.
func TestRunOneAtATime(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	cmd, out := command(t, []string{"TENDRIL_QUEUE_URL=" + w.URL, "TENDRIL_API_TOKEN=" + w.Token, "TENDRIL_RUN_UIDS=off", "TENDRIL_POLICY_APPROVAL=always"},
		"run", "--name", "shared", "--data-dir", pgtest.Dir(t)+"/data", "--slots", "3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, w, func() bool { return w.Text(t, "SELECT count(*)::text FROM public.agents") == "1" })
	if got := w.Text(t, "SELECT name || ' ' || slots FROM public.agents"); got != "shared 1" {
		t.Errorf("agent = %q, want one slot", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "this agent runs one provision at a time") || !strings.Contains(out.String(), "share uid") {
		t.Errorf("tendril run = %v, want nil and why it takes one at a time; it said:\n%s", err, out)
	}
}

// command prepares a process with this environment and nothing of ours.
func command(t *testing.T, env []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0"}, env...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// tendril runs a command to its end.
func tendril(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	cmd, out := command(t, env, args...)
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func awaitStatus(t *testing.T, w *queuetest.World, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := patience.Begin(time.Minute); !holds(); <-tick.C {
		if limit.Over() {
			t.Fatalf("timed out; the provision is %s", w.Text(t, "SELECT coalesce(string_agg(status || ' ' || coalesce(error_code || ': ' || error_message, ''), ', '), 'not there') FROM public.provisions"))
		}
	}
}
