package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/gittest"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

const tiny = "variable \"n\" {\n  type    = number\n  default = 1\n}\nresource \"terraform_data\" \"a\" { input = var.n }\n"

// What an agent refuses ends as FAILED with a code and a sentence, loses no
// line, and leaves the workspace free.
func TestRefusedProvisions(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo, _ := s.Git.Repo("tiny", gittest.Text(map[string]string{"main.tf": tiny}), "v1")
	links, _ := s.Git.Repo("links", gittest.Files{"main.tf": gittest.File(tiny), "out": gittest.Symlink("../../../etc")}, "v1")
	broken := s.Template("broken", map[string]string{"main.tf": "resource \"terraform_data\" {"})
	local := gittest.NewRepo(t)
	local.Tag("v1", local.Commit(gittest.Text(map[string]string{"main.tf": tiny})))
	s.NewAgent("one", 2, "").Start()

	with := func(old, replacement string) string {
		return strings.Replace(site.SnapshotOf(repo.URL, "w", nil), old, replacement, 1)
	}
	for name, test := range map[string]struct{ snapshot, code, says string }{
		"unknown variable":  {site.SnapshotOf(repo.URL, "w1", map[string]any{"m": 1}), "variables_invalid", "terraform_vars.m"},
		"ill-typed":         {site.SnapshotOf(repo.URL, "w2", map[string]any{"n": []int{1}}), "variables_invalid", "terraform_vars.n"},
		"not allowed":       {strings.Replace(with(`"w"`, `"w3"`), repo.URL, "https://elsewhere.example/x", 1), "repo_refused", "[policy] repos"},
		"file":              {strings.Replace(with(`"w"`, `"w4"`), repo.URL, local.FileURL(), 1), "repo_refused", "allow_file"},
		"no such tag":       {strings.Replace(with(`"w"`, `"w5"`), `"v1"`, `"v9"`, 1), "version_not_found", "v9"},
		"a branch":          {strings.Replace(with(`"w"`, `"w6"`), `"v1"`, `"main"`, 1), "version_not_found", "branch"},
		"out by symlink":    {strings.Replace(site.SnapshotOf(links.URL, "w7", nil), `"version"`, `"path":"out","version"`, 1), "path_refused", "out"},
		"no such directory": {strings.Replace(with(`"w"`, `"w8"`), `"version"`, `"path":"nowhere","version"`, 1), "path_refused", "nowhere"},
		"does not parse":    {site.SnapshotOf(broken, "w9", nil), "template_invalid", "main.tf"},
		"no such server":    {strings.Replace(with(`"w"`, `"w10"`), repo.URL, s.Git.URL+"/absent.git", 1), "checkout_failed", "absent"},
	} {
		id := s.DeploySnapshot(t, test.snapshot)
		if got := s.AwaitEnd(id); got != "FAILED/"+test.code {
			t.Errorf("%s: provision = %s: %s, want FAILED/%s", name, got, s.Message(id), test.code)
		}
		if got := s.Message(id); !strings.Contains(got, test.says) {
			t.Errorf("%s: message = %q, want it to name %q", name, got, test.says)
		}
		if log := s.Log(t, id); !strings.Contains(log, "Failed ("+test.code+")") {
			t.Errorf("%s: log = %q, want it to end with the reason", name, log)
		}
	}
	if got := s.Text(t, "SELECT count(*)::text FROM public.workspaces WHERE running_claim IS NOT NULL OR held_by_claim IS NOT NULL OR head_id IS NOT NULL"); got != "0" {
		t.Errorf("%s workspaces are not free after refused runs", got)
	}
}

func TestMovedTagIsRefused(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo, _ := s.Git.Repo("tiny", gittest.Text(map[string]string{"main.tf": tiny}), "v1")
	s.NewAgent("one", 1, "").Start()
	if got := s.AwaitEnd(s.DeployTemplate(repo.URL, "a", nil)); got != "SUCCESS" {
		t.Fatalf("first use = %s, want SUCCESS", got)
	}
	repo.Tag("v1", repo.Commit(gittest.Text(map[string]string{"main.tf": tiny + "# moved\n"})))
	// By the agent that knows the tag, and by one that never saw it.
	ids := []uuid.UUID{s.DeployTemplate(repo.URL, "a", nil)}
	if got := s.AwaitEnd(ids[0]); got != "FAILED/tag_moved" {
		t.Errorf("moved tag = %s: %s, want FAILED/tag_moved", got, s.Message(ids[0]))
	}
	fresh := s.NewAgent("two", 1, "").Start()
	s.Exec(t, "UPDATE public.workspaces SET home_instance = (SELECT instance_id FROM public.agents WHERE name = 'two')")
	s.Await("agent two", "SELECT EXISTS (SELECT FROM public.agents WHERE name = 'two')")
	s.Exec(t, "UPDATE public.workspaces SET home_instance = (SELECT instance_id FROM public.agents WHERE name = 'two')")
	id := s.DeployTemplate(repo.URL, "a", nil)
	if got := s.AwaitEnd(id); got != "FAILED/tag_moved" {
		t.Errorf("moved tag on an agent without memory = %s: %s, want FAILED/tag_moved", got, s.Message(id))
	}
	if got := s.Text(t, "SELECT a.name FROM tendril.claims c JOIN public.agents a USING (instance_id) WHERE c.provision_id = $1", id); got != fresh.Name {
		t.Errorf("the last one was run by %s, want %s", got, fresh.Name)
	}
}

func TestTagMayBeUsedAgain(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo, _ := s.Git.Repo("tiny", gittest.Text(map[string]string{"main.tf": tiny}), "v1")
	s.NewAgent("one", 1, "").Start()
	for range 2 {
		id := s.DeployTemplate(repo.URL, "a", nil)
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, s.Message(id))
		}
	}
	if r := s.Git.Requests(); r.Packs != 1 {
		t.Errorf("packs fetched for one commit deployed twice = %d, want 1", r.Packs)
	}
}

// A workspace whose state is a file belongs to the agent that has it.
func TestLocalStateStaysAtHome(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo := s.Template("tiny", map[string]string{"main.tf": tiny})
	home := s.NewAgent("home", 1, "").Start()
	if got := s.AwaitEnd(s.DeployTemplate(repo, "a", nil)); got != "SUCCESS" {
		t.Fatalf("first use = %s, want SUCCESS", got)
	}
	home.Terminate()
	s.NewAgent("other", 1, "").Start()
	other := s.DeployTemplate(repo, "b", nil) // proves that the other agent works
	waiting := s.DeployTemplate(repo, "a", nil)
	if got := s.AwaitEnd(other); got != "SUCCESS" {
		t.Errorf("another workspace = %s, want SUCCESS", got)
	}
	if got := s.Status(t, waiting); got != "QUEUED" {
		t.Errorf("the workspace of the agent that is away = %s, want QUEUED", got)
	}
	home.Start()
	if got := s.AwaitEnd(waiting); got != "SUCCESS" {
		t.Errorf("the same when it is back = %s, want SUCCESS", got)
	}
}

func TestAgentsThatCannotStart(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	running := s.NewAgent("running", 1, "").Start()
	s.Await("the running agent", "SELECT EXISTS (SELECT FROM public.agents WHERE name = 'running')")
	for name, test := range map[string]struct {
		change func(*site.Agent)
		code   int
		says   []string
	}{
		"wrong token":         {func(a *site.Agent) { a.Set("TENDRIL_API_TOKEN", "tnd_"+strings.Repeat("x", 43)) }, 1, []string{"TENDRIL_API_TOKEN", "revoked"}},
		"no token":            {func(a *site.Agent) { a.Set("TENDRIL_API_TOKEN", "") }, 2, []string{"TENDRIL_API_TOKEN"}},
		"no queue":            {func(a *site.Agent) { a.Set("TENDRIL_QUEUE_URL", "") }, 2, []string{"TENDRIL_QUEUE_URL"}},
		"unknown key":         {func(a *site.Agent) { a.Configure("[polcy]\nrepos = []\n") }, 2, []string{"polcy", "policy"}},
		"bad value":           {func(a *site.Agent) { a.Set("TENDRIL_SLOTS", "many") }, 2, []string{"TENDRIL_SLOTS", "many"}},
		"same name":           {func(a *site.Agent) { a.Set("TENDRIL_NAME", "running") }, 1, []string{"running", "another name"}},
		"same data directory": {func(a *site.Agent) { a.Set("TENDRIL_DATA_DIR", running.Dir) }, 1, []string{running.Dir}},
	} {
		t.Run(name, func(t *testing.T) {
			own := *s
			own.T = t
			a := own.NewAgent(strings.ReplaceAll(name, " ", "-"), 1, "")
			test.change(a)
			code, out := a.Start().Exit()
			if code != test.code {
				t.Errorf("exit code = %d, want %d:\n%s", code, test.code, out)
			}
			for _, want := range test.says {
				if !strings.Contains(out, want) {
					t.Errorf("output = %q, want it to name %q", out, want)
				}
			}
			if strings.Contains(out, strings.Repeat("x", 43)) || strings.Contains(out, s.Token) || strings.Contains(out, "goroutine") {
				t.Errorf("output = %q, want neither the token nor a stack trace", out)
			}
		})
	}
}

// A revoked token stops the claiming; running work is not lost.
func TestRevokedTokenLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("direct", func(t *testing.T) {
		t.Parallel()
		testRevokedToken(t, site.New(t))
	})
	t.Run("over HTTPS", func(t *testing.T) {
		t.Parallel()
		s := site.New(t)
		s.Serve()
		testRevokedToken(t, s)
	})
}

func testRevokedToken(t *testing.T, s *site.Site) {
	t.Helper()
	gate := site.Meeting(t)
	repo := s.Template("slow", map[string]string{"main.tf": slowApply(gate)})
	a := s.NewAgent("one", 2, "").Start()
	id := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(id, "applying")
	s.Exec(t, "SELECT public.revoke_cluster_token($1)", s.Cluster)
	later := s.DeployTemplate(repo, "b", nil)
	release(t, gate)
	a.AwaitOutput("revoked")
	if got := s.Status(t, later); got != "QUEUED" {
		t.Errorf("the one queued after the revocation = %s, want QUEUED", got)
	}
	// With a valid token, what was kept is delivered.
	a.Terminate()
	token := s.Text(t, "SELECT token FROM public.rotate_cluster_token($1)", s.Cluster)
	a.Set("TENDRIL_API_TOKEN", token)
	a.Start()
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Errorf("the run of the time of the revocation = %s: %s, want SUCCESS", got, s.Message(id))
	}
	if log := s.Log(t, id); !strings.Contains(log, "released") || !strings.HasSuffix(log, "Done.\n") {
		t.Error("lines of the time of the revocation are missing")
	}
	if got := s.AwaitEnd(later); got != "SUCCESS" {
		t.Errorf("the next = %s, want SUCCESS", got)
	}
}

// The token and the database's URL reach no child: not its environment, not
// its arguments, nor those of any process.
func TestTemplateSeesNoSecret(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	found := filepath.Join(site.Meeting(t), "found")
	repo, _ := s.Git.Repo("nosy", gittest.Files{
		"look.sh": gittest.File("env\nfor p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null\n"),
		"main.tf": gittest.File("resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"sh look.sh > " + found + "\"\n  }\n}\n"),
	}, "v1")
	a := s.NewAgent("one", 1, "")
	secrets := []string{s.Token, s.QueueURL, "supabase-s3cret", "postgres-s3cret", "unrelated-s3cret"}
	a.Set("SUPABASE_ANON_KEY", "supabase-s3cret")
	a.Set("PGPASSWORD", "postgres-s3cret")
	a.Set("UNRELATED", "unrelated-s3cret")
	a.Set("AWS_REGION", "eu-central-1")
	a.Set("TEST_PASSED", "passed-by-policy")
	a.Start()
	id := s.DeployTemplate(repo.URL, "a", nil)
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(id))
	}
	content, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"AWS_REGION=eu-central-1", "TEST_PASSED=passed-by-policy", "HOME=", "tendril exec"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the template does not see %s, which it should", want)
		}
	}
	for _, secret := range secrets {
		if strings.Contains(string(content), secret) {
			t.Errorf("the template finds %s", secret)
		}
	}
}

// A template of the agent's own user can write to the spool; what it writes
// there is not the run's result.
func TestTemplateCannotForgeItsResult(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	a := s.NewAgent("one", 1, `uids = "off"`)
	forged := `{"n":99,"report":{"status":"SUCCESS","detail":{"outputs":{"forged":{"type":"string","value":"yes"}}}}}`
	repo, _ := s.Git.Repo("forger", gittest.Files{
		"forge.sh": gittest.File("for spool in " + a.Dir + "/spool/*.ndjson; do echo '" + forged + "' >> $spool; done\nsleep 1\necho after\nexit 3\n"),
		"main.tf":  gittest.File("resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"sh forge.sh\"\n  }\n}\n"),
	}, "v1")
	a.Start()
	id := s.DeployTemplate(repo.URL, "a", nil)
	if got := s.AwaitEnd(id); got != "FAILED/apply_failed" {
		t.Errorf("provision = %s, want FAILED/apply_failed", got)
	}
	if got := s.Text(t, "SELECT coalesce(outputs::text, 'none') FROM public.provisions WHERE id = $1", id); got != "none" {
		t.Errorf("outputs = %s, want none", got)
	}
	if log := s.Log(t, id); !runlog.Says(log, "(local-exec): after") {
		t.Error("lines printed after the forged result are missing")
	}
}
