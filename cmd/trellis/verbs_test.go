package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// up starts everything and returns when it is there.
func up(t *testing.T, dir string, args ...string) *session {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no whole instance")
	}
	s := begin(t, append([]string{"up", "--data-dir", dir, "--listen", "127.0.0.1:0"}, args...)...)
	s.await(t, "Ctrl-C ends everything.")
	return s
}

func (r result) want(t *testing.T, what string, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("%s: exit code %d, want %d\nstdout: %s\nstderr: %s", what, r.code, code, r.out, r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.stderr, text) {
			t.Errorf("%s: no %q\nstdout: %s\nstderr: %s", what, text, r.out, r.stderr)
		}
	}
	if strings.Contains(r.out+r.stderr, "\x1b") {
		t.Errorf("%s: escape codes although there is no TTY: %q", what, r.out+r.stderr)
	}
}

func status(t *testing.T, dir, ref string) wire.Provision {
	t.Helper()
	r := trellis(t, "status", ref, "-o", "json", "--data-dir", dir)
	var p wire.Provision
	if err := json.Unmarshal([]byte(r.out), &p); err != nil || r.code != exitOK {
		t.Fatalf("status %s: exit code %d, %v\n%s%s", ref, r.code, err, r.out, r.stderr)
	}
	return p
}

// Every verb against one instance, in the order a newcomer meets them.
func TestVerbs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(pgtest.Dir(t), "it+is(here)")
	instance := up(t, dir)
	at := []string{"--data-dir", dir}
	run := func(args ...string) result { return trellis(t, append(args, at...)...) }

	trellis(t, "up", "--data-dir", dir, "--listen", "127.0.0.1:0").want(t, "a second up", exitFailed, "trellis up runs already on "+dir)
	run("status").want(t, "status of nothing", exitOK, "Nothing has been deployed yet.")

	r := run("deploy", "--template", "hello", "--workspace", "demo/one", "--var", `name=O'Neil`, "--var", "steps=2", "--var", "pause_seconds=0.1", "--var-json", `labels={"team":"core"}`, "--follow")
	r.want(t, "deploy --follow", exitOK, "step 2 of 2: growing\n", "Run 1 succeeded", `message = "Hello, O'Neil!"`, `labels = {"team":"core"}`, "token = (sensitive)")
	if strings.Contains(r.out, "Run 1") || !strings.Contains(r.out, "growing") {
		t.Errorf("stdout of deploy --follow = %q, want the log alone", r.out)
	}
	if logs := run("logs", "1"); logs.out != r.out || logs.code != exitOK {
		t.Errorf("logs = %d %q, want what was followed", logs.code, logs.out)
	}
	run("logs", "1", "--follow").want(t, "logs --follow of one that has ended", exitOK, "Run 1 succeeded")
	run("status").want(t, "status", exitOK, "NUMBER", "SUCCESS", "demo/one", "hello v1")
	run("status", "#1").want(t, "status #1", exitOK, "Run 1: SUCCESS", "terraform 1.", "2 to add", "token = (sensitive)")

	run("deploy", "--template", "hello", "--workspace", "demo/one", "--var", "nam=x", "--var", "name=y", "-f").
		want(t, "deploy of an unknown variable", exitFailed, "Run 2 failed", "variables_invalid", "nam")
	run("status").want(t, "status", exitOK, "FAILED", "variables_invalid")

	// A value that only the agent can read.
	sealed := filepath.Join(t.TempDir(), "passphrase.age")
	seals := command(t, nil, append([]string{"seal", "passphrase", "--workspace", "demo/one", "--template", "hello"}, at...)...)
	seals.Stdin = strings.NewReader("a-sealed-passphrase\n")
	if message, err := seals.Output(); err != nil || os.WriteFile(sealed, message, 0o600) != nil {
		t.Fatalf("seal = %v: %s", err, message)
	}
	run("deploy", "--template", "hello", "--workspace", "demo/one", "--var", "name=y", "--var", "steps=1", "--sealed-var", "passphrase="+sealed, "-f").
		want(t, "deploy of a sealed variable", exitOK, "succeeded")
	run("deploy", "--template", "hello", "--workspace", "demo/one", "--var", "name=y", "--var", "passphrase=in-plain-sight", "-f").
		want(t, "deploy of a sensitive variable in plain", exitFailed, "variables_invalid", "trellis seal passphrase")
	run("clusters", "list").want(t, "clusters list", exitOK, "SHA256:")

	// One that goes on, followed, let go, and cancelled.
	queued := run("deploy", "--template", "hello", "--workspace", "demo/long", "--var", "name=Ada", "--var", "steps=1000", "-o", "json")
	var deployed wire.QueuedAnswer
	if err := json.Unmarshal([]byte(queued.out), &deployed); err != nil || deployed.Number != 5 || deployed.Workspace != "demo/long" {
		t.Fatalf("deploy -o json = %q, %v, want number 5", queued.out, err)
	}
	follower := begin(t, append([]string{"logs", "5", "--follow"}, at...)...)
	follower.await(t, "step 1 of 1000")
	follower.signal(os.Interrupt)
	if code := follower.end(t); code != exitInterrupted {
		t.Errorf("Ctrl-C while following: exit code %d, want %d", code, exitInterrupted)
	}
	follower.await(t, "run 5 goes on. Stop it with: ")
	if p := status(t, dir, "5"); p.Status != provision.Processing {
		t.Errorf("a provision that is no longer followed is %s, want PROCESSING", p.Status)
	}
	follower = begin(t, append([]string{"logs", deployed.ID.String(), "--follow"}, at...)...)
	run("cancel", "5").want(t, "cancel", exitOK, "Run 5 is asked to stop")
	if code := follower.end(t); code != exitFailed {
		t.Errorf("following one that is cancelled: exit code %d, want %d", code, exitFailed)
	}
	follower.await(t, "Run 5 was cancelled")
	run("cancel", "5").want(t, "cancel twice", exitOK, "Run 5 is cancelled.")

	run("deploy", "--template", "fleet", "--workspace", "demo/fleet", "--var", "ships=3", "--var", "pause_seconds=0", "--follow").
		want(t, "fleet", exitOK, `names = ["ship-001","ship-002","ship-003"]`)

	run("clusters", "list").want(t, "clusters list", exitOK, "local", "ONLINE", "2 slots")
	run("clusters", "create", "other").want(t, "clusters create", exitOK, "tnd_", "shown only now")
	run("clusters", "create", "other").want(t, "clusters create twice", exitFailed, "a cluster named")
	run("deploy", "--template", "hello", "--workspace", "a", "--var", "name=x").want(t, "deploy with two clusters", exitFailed, "say which one with --cluster")
	run("deploy", "--template", "hello", "--workspace", "a", "--var", "name=x", "--cluster", "other").want(t, "deploy without an agent", exitOK, "Watch it:  ", "--data-dir '"+dir+"' logs 7 --follow")
	run("status", "7").want(t, "status of one that waits", exitOK, "Cluster other has never had an agent.", "clusters list")
	run("cancel", "7").want(t, "cancel of one that waits", exitOK, "Run 7 is cancelled.")
	run("plan", "--template", "hello", "--workspace", "demo/two", "--cluster", "local", "--var", "name=y", "--sealed-var", "passphrase="+sealed, "-f").
		want(t, "plan of a variable that was sealed for another workspace", exitFailed, "sealed_invalid", "sealed for the workspace demo/one, and this run is for the workspace demo/two")
	run("destroy", "demo/one", "--yes", "--sealed-var", "passphrase="+sealed, "--sealed-var", "other="+sealed, "-f").
		want(t, "destroy with a value sealed for another variable", exitFailed, "sealed_vars.other: it was sealed for the variable passphrase")
	run("destroy", "demo/one", "--yes", "--sealed-var", "passphrase="+sealed, "-f").want(t, "destroy with a value sealed again", exitOK, "succeeded")
	run("migrate").want(t, "migrate", exitOK, "up to date")
	cloud := filepath.Join(pgtest.Dir(t), "cloud")
	if err := errors.Join(os.Mkdir(cloud, 0o700), os.Chmod(cloud, 0o777)); err != nil { // each run writes there, and may have a uid of its own
		t.Fatal(err)
	}
	run("deploy", "--template", "script-vm", "--workspace", "demo/machines", "--cluster", "local", "--var-json", `names=["ada"]`, "--var", "cloud="+cloud, "--follow").
		want(t, "machines of a script", exitOK, "+ machine.ada", "memory = 2048", "machine.ada is made: vm-", "192.0.2.10")
	testPlannedMachines(t, run)
	run("machines", "rebuild", "ada", "--yes", "-f").want(t, "rebuild of a machine", exitOK, "-/+ machine.ada (it was asked for)", "succeeded")
	run("machines", "reveal", "ada").want(t, "reveal to a key that the agent does not know", exitFailed, "operation_refused", "does not name the key")
	run("machines", "rebuild", "ada").want(t, "rebuild of a machine, to be approved", exitOK, "Watch it:")
	run("machines", "stop", "ada").want(t, "stop of a machine whose script can't", exitFailed, "its provisioner can't stop one machine")

	testInput(t, dir, run)

	for _, tt := range []struct{ args, want string }{
		{"deploy", "say what to deploy"},
		{"deploy --template helo --workspace a --cluster local", `did you mean "hello"?`},
		{"deploy --template hello --cluster local", "--workspace is missing"},
		{"deploy --repo https://x/y --workspace a", "--version is missing"},
		{"deploy --repo http://x/y --version v1 --workspace a --cluster local", "config_snapshot.template_source.repo"},
		{"deploy --template hello --var-file /nowhere", "/nowhere"},
		{"deploy --template hello --follow -o json", "does not go with -o json"},
		{"logs banana", "neither a run's number nor its id"},
	} {
		run(strings.Fields(tt.args)...).want(t, tt.args, exitUsage, tt.want)
	}
	run("logs", "99").want(t, "logs of none", exitFailed, "there is no run 99")

	testEnv(t, dir)

	instance.signal(syscall.SIGTERM)
	if code := instance.end(t); code != exitOK {
		t.Errorf("up after SIGTERM: exit code %d, want 0\n%s", code, instance.said)
	}
	run("status").want(t, "status after the end", exitUnreachable, "trellis up is not running")
	nothingLives(t, dir)
}

// testInput has a person do the work of a manual template.
func testInput(t *testing.T, dir string, run func(args ...string) result) {
	t.Helper()
	asks := run("deploy", "--template", "hand-made", "--workspace", "demo/rack", "--cluster", "local", "--var", "name=db-1", "--follow")
	asks.want(t, "deploy of what a person does", exitAwaits, "+ machine.db-1", "waits for a person to do its work")
	number := regexp.MustCompile(`input (\d+)`).FindStringSubmatch(asks.stderr)[1]
	run("input", number).want(t, "input", exitOK, "# Mount db-1 at the small hall", "create db-1, 8 cores, 16384 MiB", "units (number)", "--set rack=… --set units=… --machine db-1=ADDRESS")
	run("input", number, "-o", "json").want(t, "input as JSON", exitOK, `"instructions": "# Mount db-1`)
	run("status", number).want(t, "status of what a person does", exitOK, "AWAITING_INPUT", "A person is to do what its template says before")
	run("assign", number, "nobody@example.com").want(t, "assign to nobody", exitFailed, "nobody@example.com")
	run("assign", number).want(t, "assign to anybody", exitOK, "Anybody may do the work")
	run("comment", number, "the lift is broken").want(t, "comment", exitOK, "has your comment")
	run("input", number, "--set", "rack=B12", "--machine", "db-1=192.0.2.7").want(t, "an answer that lacks something", exitFailed, "outputs.units: missing")
	run("input", number, "--set", "rack").want(t, "an output without a value", exitUsage, "write NAME=VALUE")
	file := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(file, []byte(`{"machines": {"db-1": {"credentials": {"root_password": "tr0ub4dor-and-3"}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run("input", number, "--set", "rack=B12", "--set", "units=2", "--machine", "db-1=192.0.2.7", "--answer-file", file, "--follow").
		want(t, "an answer", exitOK, "the lift is broken", "says that the work is done.", "was carried out by a person", `rack = "B12"`, "units = 2", "succeeded")
	run("input", number).want(t, "input of one that is answered", exitOK, "said that it is done.")
	run("machines", "show", "db-1").want(t, "the machine", exitOK, "192.0.2.7")
	if out := run("logs", number); strings.Contains(out.out, "tr0ub4dor") {
		t.Error("the log has the password")
	}
	run("deploy", "--template", "hand-made", "--workspace", "demo/rack", "--cluster", "local", "--var", "name=db-1", "--follow").want(t, "a deploy of what is done", exitOK, "No changes")
	asks = run("destroy", "demo/rack", "--yes", "--follow")
	asks.want(t, "destroy of what a person has made", exitAwaits, "- machine.db-1", "waits for a person")
	number = regexp.MustCompile(`input (\d+)`).FindStringSubmatch(asks.stderr)[1]
	run("input", number).want(t, "input of a destroy", exitOK, "To be undone", "destroy db-1", "(now 192.0.2.7")
	run("input", number, "--failed", "the key is lost", "--follow").want(t, "what can't be done", exitFailed, "manual_failed", "The key is lost.")
	run("machines", "show", "db-1").want(t, "the machine that could not be destroyed", exitOK, "running")
	run("input", "1").want(t, "input of a run that asks nothing", exitFailed, "asks nothing of a person")
}

// testEnv lets a shell read the exports and asks with them.
func testEnv(t *testing.T, dir string) {
	t.Helper()
	script := `set -eu
eval "$("$1" env --data-dir "$2")"
test -n "$TRELLIS_URL" && test -n "$TENDRIL_QUEUE_URL"
case "$TENDRIL_API_TOKEN" in tnd_*) ;; *) exit 9 ;; esac
"$1" status --data-dir /nowhere`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", binary(t), dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("status by what env exports: %v\n%s", err, out)
	}
}

// ownServer migrates a database of the test's own by hand, serves it, and returns
// the database's URL and what the environment of who asks it has.
func ownServer(t *testing.T) (url string, env []string) {
	t.Helper()
	url = pgtest.OwnServer(t).URL
	owner := []string{"TRELLIS_DATABASE_URL=" + url}
	trellisEnv(t, owner, "migrate").want(t, "migrate", exitOK, "migrations were applied")
	trellisEnv(t, owner, "admin", "init").want(t, "admin init", exitOK, "Made the first organisation")
	token := trellisEnv(t, owner, "admin", "token")
	if token.code != exitOK || !strings.HasPrefix(token.out, "trt_") || strings.Count(token.out, "\n") != 1 {
		t.Fatalf("admin token = %d %q %q, want the token alone on stdout", token.code, token.out, token.stderr)
	}
	s := begin(t, "serve", "--database-url", url, "--listen", "127.0.0.1:0")
	s.await(t, "serving people and agents")
	server := regexp.MustCompile(`http://[0-9.:]+`).FindString(s.said.String())
	return url, []string{"TRELLIS_URL=" + server, "TRELLIS_TOKEN=" + strings.TrimSpace(token.out)}
}

// A database that was migrated by hand, without trellis up.
func TestMigratedDatabase(t *testing.T) {
	t.Parallel()
	url, env := ownServer(t)
	owner := []string{"TRELLIS_DATABASE_URL=" + url}
	trellisEnv(t, owner, "migrate").want(t, "migrate twice", exitOK, "up to date.")
	trellisEnv(t, owner, "migrate", "-o", "json").want(t, "migrate as JSON", exitOK, `"migrations_applied": 0`)
	trellisEnv(t, owner, "admin", "init").want(t, "admin init twice", exitOK, "nothing was changed")
	trellisEnv(t, env, "clusters", "list").want(t, "clusters list", exitOK, "no cluster yet")
	r := trellisEnv(t, env, "clusters", "create", "prod")
	r.want(t, "clusters create", exitOK, "shown only now")
	if !strings.HasPrefix(r.out, "tnd_") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("stdout of clusters create = %q, want the token alone", r.out)
	}
	t.Run("Release", func(t *testing.T) { testRelease(t, url, env, strings.TrimSpace(r.out)) })
	t.Run("ReleaseOfALocalState", func(t *testing.T) { testReleaseOfALocalState(t, url, env) })
	t.Run("FollowOfALostRun", func(t *testing.T) { testFollowOfALostRun(t, url, env) })
	// A new token of that name ends the one before.
	trellisEnv(t, owner, "admin", "token").want(t, "admin token", exitOK, "trt_")
	trellisEnv(t, env, "status").want(t, "status by a token that has ended", exitFailed, "does not know you", "trellis login http://127.0.0.1")
}

// testPlannedMachines plans machines beside ada, which is there, and provisions them.
func testPlannedMachines(t *testing.T, run func(args ...string) result) {
	t.Helper()
	lab := []string{"--template", "script-vm", "--workspace", "demo/machines", "--cluster", "local"}
	file := filepath.Join(t.TempDir(), "lab.csv")
	if err := os.WriteFile(file, []byte("name,labels\nalan,class=a\nalonzo,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(append([]string{"machines", "plan", "grace", "--cores", "2", "--memory", "2048"}, lab...)...).want(t, "a plan", exitOK, "1 machine is planned in workspace demo/machines.", "machines provision --workspace demo/machines")
	run(append([]string{"machines", "import", file, "--cores", "2"}, lab...)...).want(t, "an import", exitOK, "2 machines are planned")
	run(append([]string{"machines", "plan", "ada"}, lab...)...).want(t, "a plan of a machine that is there", exitFailed, `machine "ada" of workspace "demo/machines" is there already: it is running`)
	run("machines", "list", "--status", "planned").want(t, "planned machines", exitOK, "alan ", "alonzo ", "grace ", "2 cores, 2048 MiB")
	run("machines", "show", "alan").want(t, "a planned machine", exitOK, "planned", "class=a", "template", "script-vm")
	run("machines", "start", "alan").want(t, "start of a planned machine", exitFailed, "is planned: provision it first")
	run("machines", "ssh", "alan").want(t, "ssh to a planned machine", exitFailed, "is planned: it is not there yet")
	run("machines", "delete", "alonzo").want(t, "a deletion", exitOK, "Machine alonzo is no longer planned.")
	run("machines", "delete", "ada").want(t, "a deletion of a machine that is there", exitFailed, "its plan is not deleted")
	run("machines", "provision", "nobody", "--workspace", "demo/machines").want(t, "provision of a machine that is not planned", exitFailed, `there is no planned machine "nobody"`)
	run("machines", "provision", "alan", "--workspace", "demo/machines", "-f").want(t, "provision of one machine", exitOK, "+ machine.alan", "machine.alan is made", "succeeded")
	run("machines", "provision", "--workspace", "demo/machines", "-f").want(t, "provision of the others", exitOK, "+ machine.grace", "succeeded")
	run("machines", "list", "--workspace", "demo/machines").want(t, "all machines", exitOK, "ada ", "alan ", "grace ")
	run("machines", "list", "--status", "planned").want(t, "no planned machine", exitOK, "No machines match.")
}
