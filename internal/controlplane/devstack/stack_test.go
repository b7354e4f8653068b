package devstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func healthOf(t *testing.T, s *Stack) (int, health) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Runtime().URL+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("GET /healthz: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	var h health
	if err := json.NewDecoder(response.Body).Decode(&h); err != nil {
		t.Fatalf("GET /healthz: %v", err)
	}
	return response.StatusCode, h
}

func deploy(t *testing.T, as *store.Store, workspace string, vars string) store.Deployed {
	t.Helper()
	cluster, err := as.ClusterByRef(t.Context(), uuid.Nil, ClusterName)
	if err != nil {
		t.Fatal(err)
	}
	org, err := as.FindOrg(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	samples, _, err := as.ListTemplates(t.Context(), org.ID, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range samples {
		if sample.Name == "hello" {
			snapshot := fmt.Sprintf(`{"template_source": {"repo": %q, "version": %q}, "workspace": %q, "terraform_vars": %s}`, sample.Repo, sample.Version, workspace, vars)
			d, err := as.Deploy(t.Context(), cluster.ID, provision.OperationApply, json.RawMessage(snapshot))
			if err != nil {
				t.Fatalf("Deploy() = %v, want nil", err)
			}
			return d
		}
	}
	t.Fatalf("templates = %+v, want hello among them", samples)
	return store.Deployed{}
}

func status(t *testing.T, as *store.Store, d store.Deployed) store.Provision {
	t.Helper()
	p, err := as.Provision(t.Context(), d.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// outcome is a provision's status and what it ended with, for messages.
func outcome(p store.Provision) string {
	text := string(p.Status)
	for _, part := range []*string{p.ErrorCode, p.ErrorMessage} {
		if part != nil {
			text += " " + *part
		}
	}
	return text
}

func TestUpDeploysAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	o, report := options(t, filepath.Join(pgtest.Dir(t), "data"))
	s := start(t, o)
	if code, h := healthOf(t, s); code != http.StatusOK || h.Status != "ok" || !h.Database.OK || !h.Agent.OK || h.Version != "test" {
		t.Errorf("GET /healthz = %d %+v, want 200 and all well", code, h)
	}
	for _, want := range []string{"PostgreSQL: 1", "Migrations: ", "templates hello v1, fleet v1, script-vm v1", "Agent: up-"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("the report says no %q:\n%s", want, report)
		}
	}
	for _, name := range []string{"runtime.json", "token", "agent-login.json", "tendril.toml", "agent.log"} {
		if info, err := os.Stat(filepath.Join(o.DataDir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want a 0600 file", name, info, err)
		}
	}

	// Nobody need inspect the samples: no agent gets a run for it, however slow all is.
	known := query(t, s.Runtime().DatabaseURL, `SELECT string_agg(i.status || ' ' || jsonb_array_length(i.variables) || ' ' || jsonb_array_length(g.tags) || ' ' || (p.commit = i.commit), ', ' ORDER BY i.repo)
		FROM public.template_inspections i JOIN public.template_tags g USING (org_id, repo) JOIN public.template_pins p USING (org_id, repo, version)`)
	if want := "done 3 1 true, done 4 1 true, done 6 1 true, done 4 1 true"; known != want {
		t.Errorf("what is known of the samples = %q, want %q", known, want)
	}

	as := localStore(t, s)
	d := deploy(t, as, "demo/hello", `{"name": "Ada", "steps": 1, "pause_seconds": 0}`)
	patience.Await(t, "the provision's end", func() bool { return status(t, as, d).Status.Terminal() })
	if p := status(t, as, d); p.Status != provision.Success || string(p.Outputs["message"].Value) != `"Hello, Ada!"` {
		t.Fatalf("provision = %s, outputs %v, want SUCCESS with the greeting\n%s", outcome(p), p.Outputs, agentLogOf(o))
	}

	// The agent says what it grants, and what is due is done without anybody asking.
	pgxExec(t, s.Runtime().DatabaseURL, "DO $$ BEGIN ASSERT (SELECT operations @> '{apply,refresh}' FROM public.agents), 'agents.operations is not what the agent grants'; END $$")
	pgxExec(t, s.Runtime().DatabaseURL, "UPDATE public.workspaces SET drift_every = '1 day', drift_due_at = now()")
	pgxExec(t, s.Runtime().DatabaseURL, "UPDATE tendril.claims SET ended_at = ended_at - interval '9 days'")
	pgxExec(t, s.Runtime().DatabaseURL, "UPDATE public.provisions SET finished_at = finished_at - interval '9 days' WHERE number = 1")
	patience.Await(t, "the look for drift", func() bool {
		p, err := as.Provision(t.Context(), "2")
		return err == nil && p.Operation == provision.OperationRefresh && p.Status.Terminal()
	})
	pgxExec(t, s.Runtime().DatabaseURL, "DO $$ BEGIN ASSERT (SELECT drift = '[]' AND drift_count = 0 FROM public.workspaces), 'the drift of an apply just made is not none'; END $$")

	patience.Await(t, "the archive of what is old", func() bool {
		return query(t, s.Runtime().DatabaseURL, "SELECT count(*)::text FROM public.provision_log_archives a JOIN public.provisions p ON p.id = a.provision_id WHERE p.number = 1") == "1"
	})

	before := s.Runtime()
	stop(t, s)
	if _, err := instance.ReadRuntime(o.DataDir); !isNotRunning(err) {
		t.Errorf("ReadRuntime() after the end = %v, want a NotRunningError", err)
	}

	s = start(t, o)
	after := s.Runtime()
	if after.Token != before.Token || after.QueueURL != before.QueueURL {
		t.Error("token or queue URL changed over a restart")
	}
	as = localStore(t, s)
	if p := status(t, as, d); p.Status != provision.Success {
		t.Errorf("after a restart the provision is %s, want SUCCESS", p.Status)
	}
	// On the state of the first one: the same agent instance, the same tag.
	again := deploy(t, as, "demo/hello", `{"name": "Bob", "steps": 1, "pause_seconds": 0}`)
	patience.Await(t, "the second provision's end", func() bool { return status(t, as, again).Status.Terminal() })
	if p := status(t, as, again); p.Status != provision.Success || p.Plan == nil || p.Plan.Replace == 0 {
		t.Errorf("provision = %s, plan %+v, want SUCCESS that replaces what the first one made", outcome(p), p.Plan)
	}
	for _, thing := range []string{"public.orgs", "public.clusters", "tendril.cluster_tokens", "public.agents"} {
		if n := query(t, after.DatabaseURL, "SELECT count(*)::text FROM "+thing); n != "1" {
			t.Errorf("%s has %s rows after a restart, want 1", thing, n)
		}
	}
}

func isNotRunning(err error) bool {
	_, ok := errors.AsType[*instance.NotRunningError](err)
	return ok
}

func TestOneStackADirectory(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	s := start(t, o)
	again, _ := options(t, o.DataDir)
	_, err := Start(t.Context(), again)
	if in, ok := errors.AsType[*InUseError](err); !ok || in.Holder.PID != os.Getpid() {
		t.Errorf("second Start() = %v, want an InUseError with our pid", err)
	}
	if r, err := instance.ReadRuntime(o.DataDir); err != nil || r != s.Runtime() {
		t.Errorf("ReadRuntime() = %+v, %v, want that of the one that runs", r, err)
	}
}

// The agent may call what it needs and see nothing.
func TestAgentLoginIsNoOwner(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	s := start(t, o)
	conn, err := pgx.Connect(t.Context(), s.Runtime().QueueURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var timeout string
	if err := conn.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&timeout); err != nil || timeout != "15s" {
		t.Errorf("statement_timeout = %s, %v, want 15s", timeout, err)
	}
	for _, statement := range []string{"SELECT FROM public.provisions", "SELECT FROM tendril.cluster_tokens", "SET ROLE authenticated"} {
		if _, err := conn.Exec(t.Context(), statement); err == nil {
			t.Errorf("the agent's login may %s", statement)
		}
	}
}

func TestAgentIsStartedAgain(t *testing.T) {
	t.Parallel()
	o, report := options(t, pgtest.Dir(t))
	s := start(t, o)
	first, err := s.boot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.agent.signal(syscall.SIGKILL)
	patience.Await(t, "another boot of the agent", func() bool {
		boot, err := s.boot(t.Context())
		return err == nil && boot != first
	})
	if !strings.Contains(report.String(), "The agent ended (signal: killed)") {
		t.Errorf("the report says nothing of the agent's end:\n%s", report)
	}
	if code, h := healthOf(t, s); code != http.StatusOK {
		t.Errorf("GET /healthz = %d %+v, want 200", code, h)
	}
}

func TestStopLetsRunsFinishOrNot(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	s := start(t, o)
	as := localStore(t, s)
	finishes := deploy(t, as, "a", `{"name": "Ada", "steps": 10, "pause_seconds": 0.5}`)
	patience.Await(t, "the run's apply", func() bool {
		p := status(t, as, finishes)
		return p.Stage != nil && *p.Stage == provision.StageApply
	})
	if running, err := s.Running(t.Context()); err != nil || len(running) != 1 || running[0] != "#1 a" {
		t.Errorf("Running() = %v, %v, want #1 a", running, err)
	}
	stop(t, s)

	s = start(t, o)
	as = localStore(t, s)
	if p := status(t, as, finishes); p.Status != provision.Success {
		t.Errorf("a run that was let finish is %s, want SUCCESS", outcome(p))
	}
	ended := deploy(t, as, "b", `{"name": "Ada", "steps": 1000, "pause_seconds": 1}`)
	patience.Await(t, "the second run's apply", func() bool {
		p := status(t, as, ended)
		return p.Stage != nil && *p.Stage == provision.StageApply
	})
	stopNow(t, s)

	s = start(t, o)
	as = localStore(t, s)
	if p := status(t, as, ended); p.Status != provision.Failed || *p.ErrorCode != string(provision.CodeAgentDrained) {
		t.Errorf("a run that was ended at once is %s, want FAILED agent_drained", outcome(p))
	}
}

func TestHealthWithoutAgent(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	s := start(t, o)
	query(t, s.Runtime().DatabaseURL, "UPDATE tendril.settings SET agent_alive = '0 seconds' RETURNING 'x'")
	if code, h := healthOf(t, s); code != http.StatusServiceUnavailable || !h.Database.OK || h.Agent.OK {
		t.Errorf("GET /healthz = %d %+v, want 503 for the agent alone", code, h)
	}
}

func TestDatabaseDeathBreaksTheStack(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	s := start(t, o)
	if s.Err() != nil {
		t.Errorf("Err() = %v while all is well, want nil", s.Err())
	}
	pgxExec(t, s.Runtime().DatabaseURL, "COPY (SELECT 1) TO PROGRAM 'kill -QUIT $(head -1 "+s.options.path("postgres", "data", "postmaster.pid")+")'")
	<-s.Done()
	if s.Err() == nil || !strings.Contains(s.Err().Error(), "PostgreSQL") {
		t.Errorf("Err() = %v, want to hear of PostgreSQL's end", s.Err())
	}
	if code, h := healthOf(t, s); code != http.StatusServiceUnavailable || h.Database.OK {
		t.Errorf("GET /healthz = %d %+v, want 503", code, h)
	}
	stopNow(t, s)
}

// Two data directories, one database of the user's own.
func TestDatabaseOfOnesOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o, _ := options(t, pgtest.Dir(t))
	o.DatabaseURL = db.URL
	s := start(t, o)
	if got := s.Runtime().DatabaseURL; got != db.URL {
		t.Errorf("DatabaseURL = %s, want the one given", got)
	}
	if _, err := os.Stat(s.options.path("postgres")); err == nil {
		t.Error("a private PostgreSQL was made as well")
	}
	first := s.Runtime().Token
	stop(t, s)

	o, _ = options(t, pgtest.Dir(t))
	o.DatabaseURL = db.URL
	s = start(t, o)
	if s.Runtime().Token == first {
		t.Error("the second data directory has the first one's token, which it cannot know")
	}
	if n := query(t, db.URL, "SELECT count(*)::text FROM tendril.cluster_tokens WHERE revoked_at IS NULL AND expires_at IS NULL"); n != "2" {
		t.Errorf("%s tokens are valid, want both", n)
	}
}

func TestFailedStartsLeaveNothing(t *testing.T) {
	t.Parallel()
	o, _ := options(t, pgtest.Dir(t))
	o.Listen = takenPort(t)
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("Start(taken port) = %v, want to hear of --listen", err)
	}

	o.Listen = "127.0.0.1:0"
	o.DatabaseURL = "postgres://me:s3cret@127.0.0.1:1/none"
	_, err := Start(t.Context(), o)
	if _, ok := errors.AsType[*store.UnreachableError](err); !ok || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Start(no database) = %v, want an UnreachableError without the password", err)
	}

	o.DatabaseURL = ""
	o.AgentCommand = []string{o.AgentCommand[0], "run", "--nonsense"}
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "unknown flag: --nonsense") {
		t.Errorf("Start(broken agent) = %v, want what the agent said", err)
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, "runtime.json")); err == nil {
		t.Error("a failed start left runtime.json")
	}

	good, _ := options(t, o.DataDir)
	start(t, good)
}

// The state of a workspace stays in use when its data directory moves: the sample
// templates are at another address then.
func TestMovedDataDirectory(t *testing.T) {
	t.Parallel()
	top := pgtest.Dir(t)
	o, _ := options(t, filepath.Join(top, "before"))
	s := start(t, o)
	as := localStore(t, s)
	d := deploy(t, as, "moved/one", `{"name": "Ada", "steps": 1, "pause_seconds": 0}`)
	patience.Await(t, "the first deploy succeeds", func() bool { return status(t, as, d).Status == provision.Success })
	stop(t, s)
	o.DataDir = filepath.Join(top, "after")
	if err := instance.MoveDataDir(filepath.Join(top, "before"), o.DataDir); err != nil {
		t.Fatal(err)
	}
	s = start(t, o)
	as = localStore(t, s)
	d = deploy(t, as, "moved/one", `{"name": "Eve", "steps": 1, "pause_seconds": 0}`)
	patience.Await(t, "the second deploy succeeds", func() bool {
		p := status(t, as, d)
		if p.Status == provision.Failed {
			t.Fatalf("the second deploy failed: %s", deref(p.ErrorMessage))
		}
		return p.Status == provision.Success
	})
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
