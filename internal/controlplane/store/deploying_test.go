package store_test

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// Two clicks at once make one provision, and somebody else who has learnt the id
// gets nothing by it.
func TestDeployAsMakesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := uuid.New()
	numbers := make([]int64, 4)
	var clicks sync.WaitGroup
	for i := range numbers {
		clicks.Go(func() {
			d, err := w.operator.DeployAs(t.Context(), id, w.Cluster, provision.OperationApply, json.RawMessage(snapshot))
			if err != nil || d.ID != id || d.Workspace != "a" {
				t.Errorf("DeployAs() = %+v, %v, want the provision %s in a", d, err, id)
			}
			numbers[i] = d.Number
		})
	}
	clicks.Wait()
	for _, n := range numbers {
		if n != numbers[0] {
			t.Errorf("DeployAs() = %v, want one number", numbers)
		}
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.provisions"); got != "1" {
		t.Errorf("%s provisions, want 1", got)
	}
	if d, err := w.admin.DeployAs(t.Context(), id, w.Cluster, provision.OperationApply, json.RawMessage(snapshot)); err == nil {
		t.Errorf("DeployAs() by another = %+v, want an error", d)
	}
}

func TestTargetsAndUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const repo = "https://git.example/acme/envtempl"
	if target, err := w.operator.FindTarget(t.Context(), w.Cluster, "a"); target != nil || err != nil {
		t.Errorf("FindTarget(none) = %+v, %v, want nil", target, err)
	}
	w.deploy(t)
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING'")
	w.Exec(t, "UPDATE public.provisions SET status = 'SUCCESS'")
	w.Exec(t, "UPDATE public.workspaces SET repo = tendril.plain_repo($1), path = ''", repo) // as a claim does
	target, err := w.viewer.FindTarget(t.Context(), w.Cluster, "a")
	if err != nil || target == nil || target.Number == nil || len(target.Snapshot) == 0 {
		t.Fatalf("FindTarget(a) = %+v, %v, want the newest apply", target, err)
	}
	if target, err := w.stranger.FindTarget(t.Context(), w.Cluster, "a"); target != nil || err != nil {
		t.Errorf("FindTarget() by a stranger = %+v, %v, want nil", target, err)
	}
	used := must[[]store.Usage](t, "UsedBy()")(w.viewer.UsedBy(t.Context(), w.Org, repo+".git", "./", 10))
	if len(used) != 1 || used[0].Name != "a" || *used[0].Version != "v1" {
		t.Errorf("UsedBy() = %+v, want the workspace a at v1", used)
	}
	if other := must[[]store.Usage](t, "UsedBy()")(w.viewer.UsedBy(t.Context(), w.Org, repo, "other", 10)); len(other) != 0 {
		t.Errorf("UsedBy(other path) = %+v, want none", other)
	}
	names := must[[]string](t, "WorkspaceNames()")(w.viewer.WorkspaceNames(t.Context(), w.Cluster, repo, "", 10))
	if len(names) != 1 || names[0] != "a" {
		t.Errorf("WorkspaceNames() = %v, want a", names)
	}
	if places := must[[]store.Place](t, "Places()")(w.viewer.Places(t.Context(), w.Org)); len(places) != 1 || places[0].Approval != "never" {
		t.Errorf("Places() = %+v, want the cluster with its policy", places)
	}
}

func TestCatalogueIsForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entry := store.Template{Name: "app", Repo: "https://git.example/acme/app", Version: "v1", Path: "live", Description: "An app.", Approval: "always"}
	if _, err := w.operator.SaveTemplate(t.Context(), w.Org, entry); err == nil {
		t.Error("SaveTemplate() by an operator = nil, want a refusal")
	}
	id := must[uuid.UUID](t, "SaveTemplate()")(w.admin.SaveTemplate(t.Context(), w.Org, entry))
	for _, ref := range []string{"app", id.String()} {
		got := must[store.Template](t, "TemplateByRef()")(w.viewer.TemplateByRef(t.Context(), w.Org, ref))
		entry.ID, entry.OrgID, entry.CreatedAt = id, w.Org, got.CreatedAt
		if got != entry {
			t.Errorf("TemplateByRef(%s) = %+v, want %+v", ref, got, entry)
		}
	}
	_, err := w.stranger.TemplateByRef(t.Context(), w.Org, "app")
	wantRefused(t, "TemplateByRef() by a stranger", err, "PT404", "template_not_found")
	if all := must[[]store.Template](t, "Catalogue()")(w.viewer.Catalogue(t.Context(), w.Org)); len(all) != 1 {
		t.Errorf("Catalogue() = %+v, want one", all)
	}
	if gone, err := w.admin.RemoveTemplate(t.Context(), w.Org, "app"); !gone || err != nil {
		t.Errorf("RemoveTemplate() = %t, %v, want true", gone, err)
	}
}
