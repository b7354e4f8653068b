package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var contract = queuetest.Migrated

func migrate(t *testing.T, url string) error {
	t.Helper()
	_, err := tendrilsql.Migrate(t.Context(), url)
	return err
}

func TestDeployIsSeenByMembersOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	if d.Number < 1 || d.Workspace != "a" {
		t.Errorf("Deploy() = %+v, want a number and workspace a", d)
	}

	for _, ref := range []string{d.ID.String(), "1", "#1"} {
		p := must[store.Provision](t, "Provision("+ref+")")(w.viewer.Provision(t.Context(), ref))
		if p.ID != d.ID || p.Status != provision.Queued || p.Cluster != "prod" || p.Workspace != "a" ||
			p.Template != (store.Source{Repo: "https://git.example/acme/envtempl", Version: "v1"}) || p.Engine != nil {
			t.Errorf("Provision(%s) = %+v, want the one queued", ref, p)
		}
		if p.Waiting != "cluster prod has never had an agent" {
			t.Errorf("Provision(%s).Waiting = %q, want to hear that there is no agent", ref, p.Waiting)
		}
		var asked map[string]any
		if err := json.Unmarshal(p.Snapshot, &asked); err != nil || asked["workspace"] != "a" {
			t.Errorf("Provision(%s).Snapshot = %s, %v, want what was deployed", ref, p.Snapshot, err)
		}
	}
	if list := must[[]store.Provision](t, "ListProvisions()")(page(w.viewer.ListProvisions(t.Context(), w.Org, store.ProvisionFilter{}, 0, 5))); len(list) != 1 || list[0].ID != d.ID || list[0].Snapshot != nil {
		t.Errorf("ListProvisions() = %+v, want the one queued without its snapshot", list)
	}

	wantRefused(t, "Provision as a stranger", second(w.stranger.Provision(t.Context(), d.ID.String())), "PT404", "provision_not_found")
	if list := must[[]store.Provision](t, "ListProvisions()")(page(w.stranger.ListProvisions(t.Context(), w.Org, store.ProvisionFilter{}, 0, 5))); len(list) != 0 {
		t.Errorf("ListProvisions() as a stranger = %+v, want none", list)
	}
	wantRefused(t, "LogPage as a stranger", second(w.stranger.LogPage(t.Context(), d.ID, 0, 10, 1<<20)), "PT404", "provision_not_found")
	if end := must[int64](t, "LogEnd()")(w.stranger.LogEnd(t.Context(), d.ID)); end != 0 {
		t.Errorf("LogEnd() as a stranger = %d, want 0", end)
	}
	if clusters := must[[]store.Cluster](t, "ListClusters()")(page(w.stranger.ListClusters(t.Context(), w.Org, "", 5))); len(clusters) != 0 {
		t.Errorf("ListClusters() as a stranger = %+v, want none", clusters)
	}
}

func TestRolesDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	for name, s := range map[string]*store.Store{"viewer": w.viewer, "stranger": w.stranger} {
		_, err := s.Deploy(t.Context(), w.Cluster, provision.OperationApply, json.RawMessage(snapshot))
		wantRefused(t, "Deploy as "+name, err, "PT404", "cluster_not_found")
		wantRefused(t, "Cancel as "+name, second(s.Cancel(t.Context(), d.ID)), "PT404", "provision_not_found")
	}
	wantRefused(t, "CreateCluster as operator", second(w.operator.CreateCluster(t.Context(), w.Org, "mine")), "PT404", "org_not_found")
	made := must[store.NewCluster](t, "CreateCluster as admin")(w.admin.CreateCluster(t.Context(), w.Org, "mine"))
	if !strings.HasPrefix(made.Token, "tnd_") {
		t.Errorf("CreateCluster().Token = %q, want tnd_…", made.Token)
	}
	wantRefused(t, "CreateCluster twice", second(w.admin.CreateCluster(t.Context(), w.Org, "mine")), "PT409", "cluster_exists")
}

func TestBadSnapshotIsNamedByItsPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.operator.Deploy(t.Context(), w.Cluster, provision.OperationApply, json.RawMessage(`{"template_source": {"version": "v1"}}`))
	wantRefused(t, "Deploy", err, "PT422", "bad_snapshot")
	e, ok := errors.AsType[*store.RefusedError](err)
	if !ok {
		t.FailNow()
	}
	for _, want := range []string{"config_snapshot.template_source.repo: missing", "config_snapshot.workspace: missing"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("Deploy() = %q, want it to say %q", e.Message, want)
		}
	}
	if e.Status() != 422 {
		t.Errorf("Status() = %d, want 422", e.Status())
	}
	for _, bad := range []string{"{", `{"workspace": "a\u0000"}`} {
		_, err := w.operator.Deploy(t.Context(), w.Cluster, provision.OperationApply, json.RawMessage(bad))
		if refused, ok := errors.AsType[*store.RefusedError](err); !ok || !strings.HasPrefix(refused.Code, "22") {
			t.Errorf("Deploy(%q) = %v, want it refused", bad, err)
		}
	}
}

func TestCancelQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	if status := must[provision.Status](t, "Cancel()")(w.operator.Cancel(t.Context(), d.ID)); status != provision.Cancelled {
		t.Errorf("Cancel() = %s, want CANCELLED", status)
	}
	if status := must[provision.Status](t, "Cancel()")(w.operator.Cancel(t.Context(), d.ID)); status != provision.Cancelled {
		t.Errorf("Cancel() twice = %s, want CANCELLED: the reply may have been lost", status)
	}
	logs := must[[]store.LogRow](t, "LogPage()")(w.operator.LogPage(t.Context(), d.ID, 0, 10, 1<<20))
	if len(logs) != 1 || logs[0].Stream != provision.System || logs[0].Seq != 1 {
		t.Errorf("LogPage() = %+v, want one SYSTEM row", logs)
	}
}

func TestRunningProvision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	next := w.deploy(t)
	q, a := w.agent(t)
	percent := 40
	reports := []provision.Report{
		{Status: provision.Processing, Detail: provision.Detail{Stage: provision.StagePlan, Commit: strings.Repeat("a", 40), Engine: "terraform", EngineVersion: "1.11.4", Percent: &percent}},
		{Status: provision.Processing, Detail: provision.Detail{Plan: &provision.PlanSummary{Add: 2},
			Outputs: map[string]provision.Output{"url": {Value: json.RawMessage(`"http://x"`)}, "key": {Value: json.RawMessage(`"s3cret"`), Sensitive: true}}}},
	}
	for _, r := range reports {
		if err := q.Report(t.Context(), a.ClaimID, r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("one\n"), line("two\n"), line("three\n")}); err != nil {
		t.Fatal(err)
	}

	p := must[store.Provision](t, "Provision()")(w.viewer.Provision(t.Context(), d.ID.String()))
	if p.Status != provision.Processing || *p.Stage != provision.StagePlan || *p.Percent != 40 || *p.Engine != "terraform 1.11.4" ||
		*p.Commit != strings.Repeat("a", 40) || p.Plan.Add != 2 || p.StartedAt == nil || p.Waiting != "" {
		t.Errorf("Provision() = %+v, want what was reported", p)
	}
	if key := p.Outputs["key"]; !key.Sensitive || key.Value != nil {
		t.Errorf("output key = %+v, want a marker without a value", key)
	}
	if p := must[store.Provision](t, "Provision()")(w.viewer.Provision(t.Context(), next.ID.String())); !strings.HasPrefix(p.Waiting, fmt.Sprintf("run %d has been running in this workspace since ", d.Number)) {
		t.Errorf("Waiting = %q, want that another one runs", p.Waiting)
	}

	logs := must[[]store.LogRow](t, "LogPage()")(w.viewer.LogPage(t.Context(), d.ID, 1, 1, 1<<20))
	if len(logs) != 1 || logs[0].Text != "two\n" || logs[0].Seq != 2 {
		t.Errorf("LogPage(after 1, limit 1) = %+v, want the second row", logs)
	}

	clusters := must[[]store.Cluster](t, "ListClusters()")(page(w.viewer.ListClusters(t.Context(), w.Org, "", 5)))
	if len(clusters) != 1 || clusters[0].Connectivity != "ONLINE" || len(clusters[0].Agents) != 1 || clusters[0].Agents[0].Name != "one" || !clusters[0].Agents[0].Alive {
		t.Errorf("ListClusters() = %+v, want one online with its agent", clusters)
	}
}

func TestTemplatesOfTheOrganisation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'hello', 'file:///x', 'v2')", w.Org)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) SELECT id, 'other', 'file:///y', 'v1' FROM public.orgs WHERE name = 'elsewhere'")
	got := must[[]store.Template](t, "ListTemplates()")(page(w.viewer.ListTemplates(t.Context(), w.Org, "", 5)))
	if len(got) != 1 || got[0].Name != "hello" || got[0].Version != "v2" {
		t.Errorf("ListTemplates() = %+v, want hello only", got)
	}
	if got := must[[]store.Template](t, "ListTemplates()")(page(w.stranger.ListTemplates(t.Context(), w.Org, "", 5))); len(got) != 0 {
		t.Errorf("ListTemplates() as a stranger = %+v, want none", got)
	}
}

func TestNeitherIDNorNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.viewer.Provision(t.Context(), "p.number")
	if _, ok := errors.AsType[*store.NotProvisionError](err); !ok {
		t.Errorf("Provision(p.number) = %v, want a NotProvisionError", err)
	}
}

func second[T any](_ T, err error) error { return err }

func wantRefused(t *testing.T, what string, err error, code, reason string) {
	t.Helper()
	refused, ok := errors.AsType[*store.RefusedError](err)
	if !ok || refused.Code != code || refused.Reason != reason {
		t.Errorf("%s = %v, want %s %s", what, err, code, reason)
	}
}

// What lists leave out, one provision has: when each stage began and ended, what is
// being worked on, and all that keeps it waiting.
func TestHowFarAndWhyNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	next := w.deploy(t)
	q, a := w.agent(t)
	for _, detail := range []provision.Detail{
		{Stage: provision.StagePlan, Commit: strings.Repeat("a", 40), Plan: &provision.PlanSummary{Add: 1, Resources: []provision.PlannedChange{{Address: "a.b", Action: "create"}}}},
		{Stage: provision.StageApply},
		{Running: []provision.Running{{Address: "a.b", Action: "create", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}},
	} {
		if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: detail}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}}); err != nil { // shows what was held back
		t.Fatal(err)
	}
	w.Exec(t, `UPDATE public.workspaces SET state_lock = '{"id": "12ab", "who": "ada", "number": 7, "at": "2026-01-02T03:04:05Z"}'`)
	p := must[store.Provision](t, "Provision()")(w.viewer.Provision(t.Context(), d.ID.String()))
	if p.StateLock == nil || p.StateLock.ID != "12ab" || p.StateLock.Who != "ada" || p.StateLock.Number != 7 {
		t.Errorf("StateLock = %+v, want the one that is known", p.StateLock)
	}
	var stages []string
	for _, s := range p.Stages {
		stages = append(stages, fmt.Sprintf("%d %s %t", s.Attempt, s.Stage, s.EndedAt != nil))
	}
	if got, want := strings.Join(stages, ", "), "1 queued true, 1 checkout true, 1 plan true, 1 apply false"; got != want {
		t.Errorf("Stages = %s, want %s", got, want)
	}
	if len(p.Running) != 1 || p.Running[0].Address != "a.b" || p.Running[0].Since.Year() != 2026 {
		t.Errorf("Running = %+v, want what was told", p.Running)
	}
	if p.AsOf.Before(*p.StartedAt) || len(p.Why) != 0 {
		t.Errorf("AsOf = %s, Why = %+v, want a time after the start and no reason", p.AsOf, p.Why)
	}
	list := must[[]store.Provision](t, "ListProvisions()")(page(w.viewer.ListProvisions(t.Context(), w.Org, store.ProvisionFilter{}, 0, 5)))
	if p.Plan == nil || len(p.Plan.Resources) != 1 || list[1].Plan == nil || list[1].Plan.Add != 1 || len(list[1].Plan.Resources) != 0 {
		t.Errorf("Plan = %+v and %+v in a list, want its resources there and only their number here", p.Plan, list[1].Plan)
	}
	if list[0].ID != next.ID || list[0].Stages != nil || list[1].Stages != nil {
		t.Errorf("ListProvisions() = %+v, want both without stages", list)
	}
	why := list[0].Why
	var about struct {
		Number int64
		Stage  provision.Stage
	}
	if len(why) != 1 || why[0].Reason != "workspace_busy" || why[0].Message != list[0].Waiting || json.Unmarshal(why[0].Detail, &about) != nil ||
		about.Number != d.Number || about.Stage != provision.StageApply {
		t.Errorf("Why = %+v, about %+v, want that provision %d applies", why, about, d.Number)
	}
}
