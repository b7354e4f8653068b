package agentcmd

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/version"
)

// inspection is what doctor prints by -o json.
type inspection struct {
	Status, Version string
	Checks          []struct{ Name, Status, Message, Action string }
}

// inspect runs doctor and reads what it prints.
func inspect(t *testing.T, env []string, args ...string) (found map[string]string, code int) {
	t.Helper()
	cmd, _ := command(t, env, append([]string{"doctor", "-o", "json"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	var r inspection
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("tendril doctor -o json printed no JSON (%v):\n%s%s", err, &stdout, &stderr)
	}
	found = map[string]string{}
	for _, check := range r.Checks {
		found[check.Name] = strings.Join([]string{check.Status, check.Message, check.Action}, "|")
	}
	return found, cmd.ProcessState.ExitCode()
}

func wantCheck(t *testing.T, found map[string]string, name, status string, words ...string) {
	t.Helper()
	for _, word := range append(words, status+"|") {
		if !strings.Contains(found[name], word) {
			t.Errorf("%s = %q, want %s, and %q in it", name, found[name], status, words)
			return
		}
	}
}

// Names and fields are for programs to go by: they stay.
func TestDoctorsJSON(t *testing.T) {
	t.Parallel()
	names := []string{"configuration", "data_dir", "identity", "disk", "caches", "states", "queue", "token", "contract", "clock", "name", "publications", "wakes", "health", "engine",
		"allowlist", "git", "backend", "secrets", "templates", "metadata"}
	cmd, _ := command(t, []string{"TENDRIL_QUEUE_URL=postgres://agent:s3cret-word@127.0.0.1:1/none", "TENDRIL_API_TOKEN=tnd_" + strings.Repeat("x", 43)}, "doctor", "-o", "json")
	cmd.Stdout, cmd.Stderr = nil, io.Discard
	out, err := cmd.Output()
	if err == nil || cmd.ProcessState.ExitCode() != ExitFailure {
		t.Errorf("tendril doctor = %v, want exit code %d", err, ExitFailure)
	}
	var r map[string]any
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("tendril doctor -o json = %s: %v", out, err)
	}
	if len(r) != 3 || r["status"] != "fail" || r["version"] != version.String() {
		t.Errorf("report = %v, want status, version and checks", r)
	}
	var got []string
	for _, check := range r["checks"].([]any) {
		fields := check.(map[string]any)
		got = append(got, fields["name"].(string))
		_, acts := fields["action"]
		if status := fields["status"].(string); !slices.Contains([]string{"ok", "warn", "fail", "skipped"}, status) ||
			fields["message"] == "" || acts != (status == "warn" || status == "fail") || len(fields) > 4 {
			t.Errorf("check = %v, want name, status, message, and action where there is something to do", fields)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("checks = %q, want %q", got, names)
	}
	help, _ := tendril(t, nil, "doctor", "--help")
	if all := strings.Join(strings.Fields(help), " "); !strings.Contains(all, strings.Join(names, ", ")) {
		t.Errorf("tendril doctor --help = %s, want the names of all checks", help)
	}
}

func TestDoctorIsAskedInTheWrongWay(t *testing.T) {
	t.Parallel()
	if out, code := tendril(t, nil, "doctor", "-o", "yaml"); code != ExitUsage || !strings.Contains(out, "text or json") {
		t.Errorf("tendril doctor -o yaml = %d, %q, want %d and what may stand there", code, out, ExitUsage)
	}
	out, code := tendril(t, nil, "doctor", "--slots", "99")
	if code != ExitFailure || !strings.Contains(out, "queue.url: missing") || !strings.Contains(out, "99") || strings.Contains(out, "\x1b") {
		t.Errorf("tendril doctor = %d, %q, want %d, all that is wrong, and no colour", code, out, ExitFailure)
	}
}

func TestDoctorTellsNoSecret(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	url := strings.Replace(w.AgentURL(t), ":test@", ":s3cret-word@", 1)
	sum := sha256.Sum256([]byte(w.Token))
	for _, output := range []string{"text", "json"} {
		out, code := tendril(t, []string{"TENDRIL_QUEUE_URL=" + url, "TENDRIL_API_TOKEN=" + w.Token, "TENDRIL_ENGINE_MIRROR_URL=http://me:s3cret-word@127.0.0.1:1"},
			"doctor", "-o", output, "--data-dir", pgtest.Dir(t))
		if code != ExitFailure || !strings.Contains(out, "user and password") {
			t.Errorf("tendril doctor = %d, %s, want %d and the password refused", code, out, ExitFailure)
		}
		for _, secret := range []string{"s3cret-word", w.Token, hex.EncodeToString(sum[:])} {
			if strings.Contains(out, secret) {
				t.Errorf("tendril doctor -o %s shows %q:\n%s", output, secret, out)
			}
		}
	}
}

// The agent at work goes on under its boot; doctor finds nothing wrong.
func TestDoctorBesideAnAgentAtWork(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	env := []string{"TENDRIL_QUEUE_URL=" + w.AgentURL(t), "TENDRIL_API_TOKEN=" + w.Token, "TENDRIL_NAME=one",
		"TENDRIL_DATA_DIR=" + filepath.Join(pgtest.Dir(t), "data"), "TENDRIL_POLICY_REPOS=https://git.example/else/*"}
	agent, log := command(t, env, "run")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, w, func() bool { return w.Text(t, "SELECT count(*)::text FROM public.agents") == "1" })
	boot := w.Text(t, "SELECT boot_id::text FROM public.agents")
	found, code := inspect(t, env)
	wantCheck(t, found, "data_dir", "ok", "in use by a running agent")
	wantCheck(t, found, "name", "ok", "no other agent")
	wantCheck(t, found, "token", "ok", `"prod"`)
	wantCheck(t, found, "wakes", "ok", "arrive")
	if code != ExitOK {
		t.Errorf("tendril doctor = %d, want %d: %v", code, ExitOK, found)
	}
	id := w.Deploy(t, "prod")
	awaitStatus(t, w, func() bool { return w.Status(t, id) == "FAILED/repo_refused" })
	if got := w.Text(t, "SELECT boot_id || ' ' || cardinality(past_boots) FROM public.agents"); got != boot+" 0" {
		t.Errorf("agent = %q, want the boot that it had and none before", got)
	}
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("tendril run = %v, want nil after SIGTERM; it said:\n%s", err, log)
	}
}

// Over HTTPS each thing is asked as an agent there asks it.
func TestDoctorOverHTTPS(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	gateway := gatewaytest.Serve(t, w)
	env := func(key, token string) []string {
		return []string{"SUPABASE_URL=" + gateway.URL, "SUPABASE_ANON_KEY=" + key, "TENDRIL_API_TOKEN=" + token, "TENDRIL_QUEUE_CA_FILE=" + gateway.CAFile,
			"TENDRIL_DATA_DIR=" + pgtest.Dir(t), "TENDRIL_POLICY_REPOS=https://git.example/else/*"}
	}
	found, code := inspect(t, env(gateway.APIKey, w.Token))
	for name, word := range map[string]string{"queue": "answers within", "token": `"prod"`, "contract": "both speak", "clock": "clock", "name": "no other", "wakes": "polled"} {
		wantCheck(t, found, name, "ok", word)
	}
	if code != ExitOK {
		t.Errorf("tendril doctor = %d, want %d: %v", code, ExitOK, found)
	}
	found, _ = inspect(t, env(gateway.APIKey, "tnd_"+strings.Repeat("x", 43)))
	wantCheck(t, found, "token", "fail", "unknown, revoked or expired")
	wantCheck(t, found, "clock", "skipped", "token")
	w.Exec(t, "DROP FUNCTION public.check_agent")
	found, _ = inspect(t, env(gateway.APIKey, w.Token))
	wantCheck(t, found, "token", "ok", "older")
}

// An ordinary user's agent shares its uid with templates, which is said.
func TestDoctorAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	secret := filepath.Join(dir, "token")
	token := "tnd_" + rand.Text()
	if err := os.WriteFile(secret, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, _ := command(t, []string{"TENDRIL_QUEUE_URL=postgres://127.0.0.1:1/none", "TENDRIL_QUEUE_TOKEN_FILE=" + secret, "TENDRIL_DATA_DIR=" + data, "AWS_SECRET_ACCESS_KEY=s3cret-word"}, "doctor", "-o", "json")
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.Path = filepath.Join(dir, "tendril") // where it can get at it
		// Written by another process: what another test starts meanwhile would
		// inherit our descriptor, and the program be busy.
		if out, err := exec.Command("install", "-m", "755", cmd.Args[0], cmd.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, path := range []string{secret, data} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	// What starts an agent may show the token that the agent hides.
	starter := exec.Command("sleep", "600")
	starter.Env, starter.SysProcAttr = []string{"TENDRIL_API_TOKEN=" + token}, cmd.SysProcAttr
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = starter.Process.Kill(); _ = starter.Wait() }()
	cmd.Stdout = nil
	out, _ := cmd.Output() // the queue is away
	var r inspection
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("tendril doctor -o json = %s: %v", out, err)
	}
	found := map[string]string{}
	for _, check := range r.Checks {
		found[check.Name] = check.Status + "|" + check.Message
	}
	wantCheck(t, found, "templates", "warn", "own uid", secret, fmt.Sprintf("environment of process %d", starter.Process.Pid), "AWS_SECRET_ACCESS_KEY")
	wantCheck(t, found, "data_dir", "ok", data)
}

// A proxy of the environment is gone through, and blamed when it is to blame.
func TestDoctorBehindAProxy(t *testing.T) {
	t.Parallel()
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := refusing.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = refusing.Close(); <-over })
	for name, c := range map[string]struct{ proxy, says string }{
		"away":    {"http://127.0.0.1:1", "127.0.0.1:1"},
		"refuses": {"http://me:s3cret-word@" + refusing.Addr().String(), "Proxy Authentication Required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, code := inspect(t, []string{"TENDRIL_QUEUE_URL=https://queue.example", "TENDRIL_API_TOKEN=tnd_" + strings.Repeat("x", 43),
				"HTTPS_PROXY=" + c.proxy, "TENDRIL_DATA_DIR=" + pgtest.Dir(t)})
			wantCheck(t, found, "queue", "fail", "proxy", c.says)
			if strings.Contains(found["queue"], "s3cret") || code != ExitFailure {
				t.Errorf("tendril doctor = %d, %s, want %d and no password", code, found["queue"], ExitFailure)
			}
		})
	}
}
