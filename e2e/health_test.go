package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// A machine's health is followed from the template to the row: by an agent, at the address
// that a run has reported, and nowhere else.
func TestHealthOfAMachine(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	l := site.Accepting(t)
	health := fmt.Sprintf("health {\n  tcp = %d\n  interval = 10\n  timeout = 5\n  unhealthy_after = 1\n}\n", l.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
	repo := s.Template("outputs", map[string]string{"tendril.hcl": health, "main.tf": `
output "machines" {
  value = { web = { address = "127.0.0.1", status = "running" }, idle = { status = "running" } }
}
`})
	s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second'")
	a := s.NewAgent("one", 1, "")
	a.Set("TENDRIL_POLICY_CHECK_RANGES", "127.0.0.0/8")
	a.Start()
	if got := s.AwaitEnd(s.DeployTemplate(repo, "a", nil)); got != "SUCCESS" {
		t.Fatalf("deploy = %s", got)
	}
	is := func(health, why string) {
		t.Helper()
		s.Await("that the machine is "+health, "SELECT EXISTS (SELECT FROM public.machines WHERE name = 'web' AND health = $1 AND coalesce(health_why, '') LIKE $2)", health, why)
	}
	is("healthy", "")
	_ = l.Close()
	is("unhealthy", "%connection refused")
	// A row that aims the check elsewhere.
	s.Exec(t, `UPDATE tendril.machine_checks SET spec = jsonb_set(spec, '{target}', '"127.0.0.2"')`)
	is("unknown", "%deploy again%")
	if n := s.Text(t, "SELECT count(*)::text FROM tendril.machine_checks"); n != "1" {
		t.Errorf("%s machines are checked, want the one with an address", n)
	}
}

const checkedTemplate = `provisioner "script" {
  speak     = "once"
  provision = ["./machine"]
  terminate = ["./machine"]
  machine { name = "web" }
}
health {
  command         = ["./health"]
  interval        = 10
  timeout         = 5
  unhealthy_after = 1
}
`

// A command of the template says how a machine is: in a process that has nothing of a run's,
// that is gone afterwards, and that no row aims elsewhere or has run more often.
func TestHealthByACommand(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	at := func(name string) string { return filepath.Join(s.Keep, name) }
	files := func(then string) gittest.Files {
		files := gittest.Text(map[string]string{"variables.tf": "variable \"password\" {\n  sensitive = true\n  default = \"correct horse\"\n}\n", "tendril.hcl": checkedTemplate})
		files["machine"] = gittest.Executable("#!/bin/sh\necho '{\"success\": true, \"instance\": {\"external_id\": \"vm-1\", \"root_password\": \"hunter2hunter2\"}}'\n")
		files["health"] = gittest.Executable("#!/bin/sh\ncd " + s.Keep + "\n" + then)
		return files
	}
	// The directory is whose anybody is: what is written must be read by another uid.
	repo, _ := s.Git.Repo("checked", files(`umask 0
date +%s.%N >> asked
{ env; id -u; } > env.new && mv env.new env
sleep 1000 > /dev/null 2>&1 & echo $! > left
[ ! -e sick ] || { echo "out of order"; exit 1; }
`), "v1")
	evil := repo.Commit(files("touch evil\n"))
	repo.Tag("v2", evil)
	s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second'")
	a := s.NewAgent("one", 1, "")
	a.ManageState(s.IdentityFile())
	a.Set("AWS_SECRET_ACCESS_KEY", "secret-of-a-cloud")
	a.Set("TEST_PASSED", "secret-of-the-operator")
	a.Start()
	id := s.DeployTemplate(repo.URL, "a", nil)
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("deploy = %s: %s", got, s.Message(id))
	}
	is := func(health, why string) {
		t.Helper()
		s.Await("that the machine is "+health, "SELECT EXISTS (SELECT FROM public.machines WHERE name = 'web' AND health = $1 AND coalesce(health_why, '') LIKE $2)", health, why)
	}
	is("healthy", "")
	text, err := os.ReadFile(at("env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"secret-of", "correct horse", "hunter2", s.Token, "TENDRIL_API_TOKEN", "TENDRIL_RUN="} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the command knows %s:\n%s", secret, text)
		}
	}
	if os.Geteuid() == 0 && strings.Contains(string(text), "\n0\n") {
		t.Errorf("the command is root:\n%s", text)
	}
	gone := func() bool {
		left, err := os.ReadFile(at("left"))
		if err != nil {
			return false
		}
		_, err = os.Stat("/proc/" + strings.TrimSpace(string(left)))
		return err != nil
	}
	a.Await("what the command left running to be ended", gone)
	workspace := s.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'a'")
	a.Await("nothing to be left of the check", func() bool {
		for _, kind := range []string{"work", "state"} {
			entries, err := os.ReadDir(filepath.Join(a.Dir, kind))
			if err != nil || len(entries) != 1 || entries[0].Name() != workspace {
				return false
			}
		}
		return true
	})
	if err := os.WriteFile(at("sick"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	is("unhealthy", "./health: exit status 1: out of order")
	if err := os.Remove(at("sick")); err != nil {
		t.Fatal(err)
	}
	is("healthy", "")

	// Rows that aim it elsewhere.
	genuine := s.Text(t, "SELECT spec::text FROM tendril.machine_checks")
	for _, change := range []string{
		`'{command,commit}', '"` + evil + `"'`, `'{command,version}', '"v2"'`, `'{command,repo}', '"https://git.example/other"'`, `'{command,path}', '"sub"'`,
		`'{command,workspace}', '"prod"'`, `'{command,id}', '"other"'`, `'{command,external_id}', '"vm-2"'`, `'{target}', '"192.0.2.1"'`,
		`'{interval}', '11'`, `'{timeout}', '6'`, `'{kind}', '"tcp"'`, `'{command}', 'null'`, `'{mac}', '"bm9uZQ=="'`,
	} {
		s.Exec(t, "UPDATE public.machines SET health = NULL, health_why = NULL WHERE name = 'web'")
		s.Exec(t, "UPDATE tendril.machine_checks SET spec = jsonb_set($1::jsonb, "+change+"), due_at = now() - interval '1 hour'", genuine)
		is("unknown", "%deploy again%")
	}
	if _, err := os.Stat(at("evil")); err == nil {
		t.Error("a row had another commit's command run")
	}
	// A row that is due all the time.
	count := func() []string {
		text, err := os.ReadFile(at("asked"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	s.Exec(t, "UPDATE tendril.machine_checks SET spec = $1::jsonb", genuine)
	before := len(count())
	a.Await("two more checks", func() bool {
		s.Exec(t, "UPDATE tendril.machine_checks SET due_at = now() - interval '1 hour'")
		return len(count()) >= before+2
	})
	times := count()[before-1:]
	for i := range times[1:] {
		earlier, err := strconv.ParseFloat(times[i], 64)
		later, err2 := strconv.ParseFloat(times[i+1], 64)
		if err != nil || err2 != nil || later-earlier < 4 { // half of the interval, but for how long a process takes to begin
			t.Errorf("asked %.1f s after the last time, want half of the interval of 10 s at least", later-earlier)
		}
	}

	// A row that brings back what was genuine before a later deploy.
	fixed := repo.Commit(files("umask 0\ntouch fixed\n"))
	repo.Tag("v3", fixed)
	if got := s.AwaitEnd(s.DeploySnapshot(t, strings.Replace(site.SnapshotOf(repo.URL, "a", nil), `"v1"`, `"v3"`, 1))); got != "SUCCESS" {
		t.Fatalf("deploy = %s", got)
	}
	a.Await("the check of the later deploy", func() bool { _, err := os.Stat(at("fixed")); return err == nil })
	before = len(count())
	newer := s.Text(t, "SELECT spec::text FROM tendril.machine_checks")
	replay := func(spec string) {
		t.Helper()
		s.Exec(t, "UPDATE public.machines SET health = NULL, health_why = NULL WHERE name = 'web'")
		s.Exec(t, "UPDATE tendril.machine_checks SET spec = $1::jsonb, due_at = now() - interval '1 hour'", spec)
	}
	replay(genuine)
	is("unknown", "%knows a newer one of this workspace%deploy again%")
	if n := len(count()); n != before {
		t.Errorf("the older command was run %d times more", n-before)
	}
	replay(newer)
	is("healthy", "")
}
