package store_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// lose gives up the claim of an agent that has begun to apply.
func (w *world) lose(t *testing.T) {
	t.Helper()
	q, a := w.agent(t)
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing,
		Detail: provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40)}}); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'")
	w.Exec(t, "SELECT tendril.reap()")
}

func (w *world) waiting(t *testing.T, id uuid.UUID) string {
	t.Helper()
	return must[store.Provision](t, "Provision()")(w.viewer.Provision(t.Context(), id.String())).Waiting
}

func TestReleaseOfAHeldWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	w.lose(t)
	next := w.deploy(t)
	if got := w.waiting(t, next.ID); !strings.Contains(got, "the workspace is held by run 1: ") {
		t.Errorf("Waiting = %q, want the hold", got)
	}
	found := must[store.Workspace](t, "WorkspaceByRef()")(w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, "a"))
	for name, s := range map[string]*store.Store{"viewer": w.viewer, "operator": w.operator, "stranger": w.stranger} {
		wantRefused(t, "Release as "+name, s.Release(t.Context(), found.ID, ""), "PT404", "workspace_not_found")
	}
	if err := w.admin.Release(t.Context(), found.ID, "the node is gone"); err != nil {
		t.Fatalf("Release() = %v, want nil", err)
	}
	if got := w.waiting(t, next.ID); got != "" {
		t.Errorf("Waiting after the release = %q, want nothing in the way", got)
	}
	wantRefused(t, "Release twice", w.admin.Release(t.Context(), found.ID, ""), "PT409", "workspace_not_held")
}

func TestWaitingForTheAgentThatKeepsTheState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	q, a := w.agent(t)
	unsaved := true
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Failed,
		Detail: provision.Detail{ErrorCode: provision.CodeStateUnsaved, StateUnsaved: &unsaved}}); err != nil {
		t.Fatal(err)
	}
	next := w.deploy(t)
	if got := w.waiting(t, next.ID); got != "" {
		t.Errorf("Waiting = %q, want nothing: the agent is there", got)
	}
	for seen, online := range map[string]bool{"now()": true, "now() - interval '1 minute'": false, "now() + interval '1 hour'": false} {
		w.Exec(t, "UPDATE public.agents SET last_heartbeat_at = "+seen)
		got := w.waiting(t, next.ID)
		if told := strings.Contains(got, "one on one.example, last seen at "); told == online {
			t.Errorf("Waiting while the agent was heard of at %s = %q, want the agent named: %t", seen, got, !online)
		}
		if clusters := must[[]store.Cluster](t, "ListClusters()")(page(w.viewer.ListClusters(t.Context(), w.Org, "", 5))); clusters[0].Agents[0].Alive != online {
			t.Errorf("Alive of an agent heard of at %s = %t, want %t", seen, !online, online)
		}
	}
}

// A state that is a local file is told with the agent that has it.
func TestSituationTellsItsHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	q, a := w.agent(t)
	local := provision.Report{Status: provision.Processing, Detail: provision.Detail{LocalState: true}}
	if err := q.Report(t.Context(), a.ClaimID, local); err != nil {
		t.Fatal(err)
	}
	id := w.Text(t, "SELECT id::text FROM public.workspaces")
	found := must[store.Situation](t, "Situation()")(w.viewer.Situation(t.Context(), w.Org, id))
	if want := "one on one.example"; found.Home != want {
		t.Errorf("Home = %q, want %q", found.Home, want)
	}
	w.Exec(t, "DELETE FROM public.agents")
	found = must[store.Situation](t, "Situation()")(w.viewer.Situation(t.Context(), w.Org, id))
	if want := w.Text(t, "SELECT home_instance::text FROM public.workspaces"); found.Home != want {
		t.Errorf("Home on an agent that is not known = %q, want its instance, %q", found.Home, want)
	}
}

func TestWorkspaceByRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	found := must[store.Workspace](t, "WorkspaceByRef(a)")(w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, "a"))
	if found.Name != "a" || found.Cluster != "prod" {
		t.Errorf("WorkspaceByRef(a) = %+v, want a on cluster prod", found)
	}
	byID := must[store.Workspace](t, "WorkspaceByRef(id)")(w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, strings.ToUpper(found.ID.String())))
	if byID != found {
		t.Errorf("WorkspaceByRef(id) = %+v, want %+v", byID, found)
	}
	// A workspace may be named like another's id.
	named := strings.Replace(snapshot, `"workspace": "a"`, `"workspace": "`+found.ID.String()+`"`, 1)
	if _, err := w.operator.Deploy(t.Context(), w.Cluster, provision.OperationApply, []byte(named)); err != nil {
		t.Fatal(err)
	}
	byID = must[store.Workspace](t, "WorkspaceByRef(id and name)")(w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, found.ID.String()))
	if byID != found {
		t.Errorf("WorkspaceByRef(id and name) = %+v, want %+v: the id counts", byID, found)
	}
	wantRefused(t, "WorkspaceByRef(b)", second(w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, "b")), "PT404", "workspace_not_found")
	wantRefused(t, "WorkspaceByRef as a stranger", second(w.stranger.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, "a")), "PT404", "workspace_not_found")

	cluster, _ := w.NewCluster(t, "other")
	if _, err := w.operator.Deploy(t.Context(), cluster, provision.OperationApply, []byte(snapshot)); err != nil {
		t.Fatal(err)
	}
	_, err := w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, "a")
	wantRefused(t, "WorkspaceByRef of two", err, "PT422", "workspace_ambiguous")
	if err == nil || !strings.Contains(err.Error(), found.ID.String()+" (on cluster prod)") {
		t.Errorf("error = %v, want the ids to choose from", err)
	}
}

// What goes on in a workspace, in a word.
func TestListWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doing := func(want string) {
		t.Helper()
		found := must[[]store.Situation](t, "ListWorkspaces()")(page(w.viewer.ListWorkspaces(t.Context(), w.Org, uuid.Nil, store.WorkspaceKey{}, 10)))
		if len(found) != 1 || found[0].Cluster != "prod" || found[0].Doing != want || found[0].Number == nil {
			t.Errorf("ListWorkspaces() = %+v, want one on prod, %q", found, want)
		}
	}
	const again = `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "a", "max_attempts": 2}`
	d := must[store.Deployed](t, "Deploy()")(w.operator.Deploy(t.Context(), w.Cluster, provision.OperationApply, []byte(again)))
	doing("queued")
	q, a := w.agent(t)
	doing("running")
	failed := provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: "init_failed"}}
	if err := q.Report(t.Context(), a.ClaimID, failed); err != nil {
		t.Fatal(err)
	}
	doing("waiting to try again")
	w.Exec(t, "SELECT public.cancel_provision(id) FROM public.provisions WHERE retry_of = $1", d.ID)
	doing("")
	if found := must[[]store.Situation](t, "ListWorkspaces()")(page(w.stranger.ListWorkspaces(t.Context(), w.Org, uuid.Nil, store.WorkspaceKey{}, 10))); len(found) != 0 {
		t.Errorf("ListWorkspaces() as a stranger = %+v, want none", found)
	}
}

// The policy is the cluster's; an admin changes what they name.
func TestPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	always, admin, yes, hours := "always", "admin", true, "36h"
	want := store.Policy{Approval: "never", Approvers: "operator", ApprovalExpiry: "7 days"}
	if got := must[store.Policy](t, "Policy()")(w.viewer.Policy(t.Context(), w.Cluster)); got != want {
		t.Errorf("Policy() = %+v, want %+v", got, want)
	}
	want.Approval, want.FourEyes = always, yes
	if got := must[store.Policy](t, "SetPolicy()")(w.admin.SetPolicy(t.Context(), w.Cluster, store.PolicyChange{Approval: &always, FourEyes: &yes})); got != want {
		t.Errorf("SetPolicy() = %+v, want %+v", got, want)
	}
	want.Approvers, want.ApprovalExpiry = admin, "36:00:00"
	if got := must[store.Policy](t, "SetPolicy()")(w.admin.SetPolicy(t.Context(), w.Cluster, store.PolicyChange{Approvers: &admin, ApprovalExpiry: &hours})); got != want {
		t.Errorf("SetPolicy() = %+v, want %+v", got, want)
	}
	wantRefused(t, "SetPolicy() as operator", second(w.operator.SetPolicy(t.Context(), w.Cluster, store.PolicyChange{Approval: &always})), "PT404", "cluster_not_found")
	bad := "soon"
	wantRefused(t, "SetPolicy(approval soon)", second(w.admin.SetPolicy(t.Context(), w.Cluster, store.PolicyChange{Approval: &bad})), "PT422", "bad_policy")
	wantRefused(t, "SetPolicy(expiry soon)", second(w.admin.SetPolicy(t.Context(), w.Cluster, store.PolicyChange{ApprovalExpiry: &bad})), "PT422", "bad_policy")
}
