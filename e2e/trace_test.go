package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/otlptest"
)

// traced deploys within a trace, as a request through PostgREST with its header would.
func traced(t *testing.T, s *site.Site, traceparent, repo, workspace string, vars map[string]any) uuid.UUID {
	t.Helper()
	tx, err := s.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was committed
	var id uuid.UUID
	if _, err := tx.Exec(t.Context(), "SELECT set_config('request.headers', jsonb_build_object('traceparent', $1::text)::text, true)", traceparent); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", s.Cluster, site.SnapshotOf(repo, workspace, vars)).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return id
}

const (
	aTrace      = "0af7651916cd43dd8448eb211c80319c"
	aSpan       = "b7ad6b7169203331"
	traceparent = "00-" + aTrace + "-" + aSpan + "-01"
)

// wantOneTree fails the test unless all spans are of that trace, below one run whose parent is
// given, and returns that run and the spans by name.
func wantOneTree(t *testing.T, all []otlptest.Span, trace, parent string) (run otlptest.Span, byName map[string]otlptest.Span) {
	t.Helper()
	byName, known := map[string]otlptest.Span{}, map[string]bool{parent: true}
	for _, s := range all {
		if known[s.ID] {
			t.Errorf("two spans have the id %s", s.ID)
		}
		byName[s.Name], known[s.ID] = s, true
	}
	run = byName["run"]
	for _, s := range all {
		if s.Trace != trace || !known[s.Parent] || (s.Parent == parent) != (s.ID == run.ID) || s.Ended.Before(s.Began) {
			t.Errorf("span %+v: want one in the trace %s, below another, or the run below %q; all:\n%s", s, trace, parent, otlptest.Tree(all))
		}
	}
	return run, byName
}

func TestRunIsOneTrace(t *testing.T) {
	t.Parallel()
	s, collector := site.New(t), otlptest.New(t)
	repo := s.Template("hello", map[string]string{"main.tf": hello})
	agent := s.NewAgent("one", 2, "")
	agent.Env = append(agent.Env, collector.Environment()...)
	agent.Start()
	id := traced(t, s, traceparent, repo, "acme/traced", map[string]any{"name": "world-of-variables"})
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(id))
	}
	all := collector.Await(t, "run", 1)
	run, spans := wantOneTree(t, all, aTrace, aSpan)
	t.Logf("the trace:\n%s", otlptest.Tree(all))
	for name, parent := range map[string]string{
		"queue wait": "run", "checkout": "run", "validate": "run", "engine": "run", "init": "run", "plan": "run", "apply": "run", "log delivery": "run", "update_provision_status": "run",
		"process start": "checkout", "git resolve": "checkout", "git checkout": "checkout", "terraform init": "init", "terraform plan": "plan", "terraform show": "plan",
		"terraform apply": "apply", "terraform_data.hello": "apply", "terraform_data.hello local-exec": "apply",
	} {
		if got, ok := spans[name]; !ok || got.Parent != spans[parent].ID || got.Service != "tendril" {
			t.Errorf("the span %q is %+v, want one below %q", name, got, parent)
		}
	}
	number := s.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id)
	if got := fmt.Sprint(run.Attributes["tendril.run.number"], " ", run.Attributes["tendril.workspace"], " ", run.Attributes["tendril.run.status"], " ", run.Attributes["tendril.engine"]); got != number+" acme/traced SUCCESS terraform" {
		t.Errorf("the run's attributes are %v, want its number, workspace, status and engine", run.Attributes)
	}
	if text := fmt.Sprintf("%+v", all); strings.Contains(text, "world-of-variables") || strings.Contains(text, "s3cret") {
		t.Errorf("a variable's value is in the trace:\n%s", text)
	}
	if want := "trace_id=" + aTrace; !strings.Contains(agent.Out.String(), want) {
		t.Errorf("the agent's log says:\n%s\nwant %s in it", agent.Out, want)
	}
}

// A run whose agent dies is told by the agent's next start, as one tree.
func TestTraceOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	s, collector := site.New(t), otlptest.New(t)
	repo := s.Template("slow", map[string]string{"main.tf": `resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo begun; sleep 600" }
}`})
	agent := s.NewAgent("one", 2, "")
	agent.Env = append(agent.Env, collector.Environment()...)
	agent.Start()
	id := s.DeployTemplate(repo, "acme/killed", map[string]any{})
	s.AwaitLine(id, "begun")
	agent.Kill()
	agent.Start()
	if got := s.AwaitEnd(id); got != "FAILED/agent_restarted" {
		t.Fatalf("provision = %s, want FAILED/agent_restarted", got)
	}
	all := collector.Await(t, "run", 1)
	// Nobody gave a trace, so the run has its own, by its id.
	run, spans := wantOneTree(t, all, strings.ReplaceAll(id.String(), "-", ""), "")
	if code := s.Text(t, "SELECT error_code FROM public.provisions WHERE id = $1", id); run.Failed != code {
		t.Errorf("the run's span failed with %q, want %q; all:\n%s", run.Failed, code, otlptest.Tree(all))
	}
	for name, parent := range map[string]string{"plan": "run", "apply": "run", "terraform plan": "plan"} {
		if got, ok := spans[name]; !ok || got.Parent != spans[parent].ID {
			t.Errorf("the span %q is %+v, want one below %q, from before the kill; all:\n%s", name, got, parent, otlptest.Tree(all))
		}
	}
	if strings.Count(otlptest.Tree(all), ": run (") != 1 {
		t.Errorf("the run is told more than once:\n%s", otlptest.Tree(all))
	}
}

// A collector that is away, or hangs, costs no run anything.
func TestRunsGoOnWithoutTheCollector(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo := s.Template("hello", map[string]string{"main.tf": hello})
	agent := s.NewAgent("one", 2, "")
	agent.Set("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9") // discard: nobody listens
	agent.Set("OTEL_BSP_SCHEDULE_DELAY", "50")
	agent.Start()
	for i := range 3 {
		if id := s.DeployTemplate(repo, "acme/untraced", map[string]any{"name": fmt.Sprint(i)}); s.AwaitEnd(id) != "SUCCESS" {
			t.Fatalf("run %d: %s", i, s.Message(id))
		}
	}
	agent.AwaitOutput("traces could not be sent")
	if got := strings.Count(agent.Out.String(), "traces could not be sent"); got != 1 {
		t.Errorf("the agent says %d times that traces could not be sent, want once:\n%s", got, agent.Out)
	}
	agent.Terminate()
}

// From a person's command to each resource: one trace, also where a plan waits for approval in
// between and another agent applies it.
func TestTraceBeginsAtTheRequest(t *testing.T) {
	t.Parallel()
	s, collector := newApprovals(t), otlptest.New(t)
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	gateway := s.Serve("--trace-url", "https://jaeger.example/trace/{trace_id}")
	gateway.Env = collector.Environment()
	gateway.Replace()
	agent := s.agent("one", managed)
	agent.Env = append(agent.Env, collector.Environment()...)
	agent.Start()
	people := append(s.People(), "TRACEPARENT="+traceparent)
	must := func(out string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	must(trellisAs(t, people, "deploy", "--repo", s.repo, "--version", "v1", "--workspace", "asked", "--approval", "always", "--var", "seen="+s.seen("asked"), "--reason", "a-reason-for-nobody"))
	id := uuid.MustParse(s.Text(t, "SELECT id::text FROM public.provisions"))
	s.awaits(id)
	agent.Terminate()
	agent.Start()
	must(trellisAs(t, people, "approve", "1", "--yes"))
	s.wantSuccess(id)

	all := collector.Await(t, "run", 2)
	t.Logf("the trace:\n%s", otlptest.Tree(all))
	known := map[string]otlptest.Span{}
	for _, s := range all {
		known[s.ID] = s
	}
	seen := map[string]int{}
	for _, span := range all {
		seen[span.Name]++
		parent, below := known[span.Parent]
		switch {
		case span.Trace != aTrace, !below && span.Parent != aSpan:
			t.Errorf("span %+v: want one in the trace of the command, below another; all:\n%s", span, otlptest.Tree(all))
		case span.Name == "run" || span.Name == "approval":
			if parent.Name != "POST /api/v1/provisions" || parent.Service != "trellis" || !parent.Server {
				t.Errorf("the span %q is below %+v, want the request that asked for the run", span.Name, parent)
			}
		case span.Name == "POST /api/v1/provisions" && span.Parent != aSpan:
			t.Errorf("the request is below %s, want the command's span", span.Parent)
		}
	}
	for name, want := range map[string]int{"run": 2, "queue wait": 2, "approval": 1, "POST /api/v1/provisions": 1, "terraform plan": 1, "terraform apply": 1} {
		if seen[name] != want {
			t.Errorf("%d spans %q, want %d; all:\n%s", seen[name], name, want, otlptest.Tree(all))
		}
	}
	if text := fmt.Sprintf("%+v", all); strings.Contains(text, "a-reason-for-nobody") || strings.Contains(text, "s3cret") || strings.Contains(text, s.seen("asked")) {
		t.Errorf("what somebody has typed is in the trace:\n%s", text)
	}
}
