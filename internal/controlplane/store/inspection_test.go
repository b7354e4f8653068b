package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// The workspace in which an agent reads a template is none for people.
func TestInspectionsWorkspaceIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(t) // is online
	if err := w.operator.InspectTemplate(t.Context(), w.Org, "ssh://git@git.example/a/b.git", "v1", "./x/"); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "UPDATE public.template_inspections SET requested_at = now() - interval '2 minutes'")
	if got := w.Text(t, "SELECT tendril.hand_inspections()"); got != "1" {
		t.Fatalf("hand_inspections() = %s, want 1", got)
	}
	known, err := w.viewer.TemplateVariables(t.Context(), w.Org, "ssh://git@git.example/a/b", "v1", "x")
	if err != nil || known.Status != store.InspectionQueued || known.Number == nil {
		t.Errorf("TemplateVariables() = %+v, %v, want queued, with the run's number", known, err)
	}
	if _, err := w.viewer.Provision(t.Context(), w.Text(t, "SELECT id FROM public.provisions WHERE operation = 'inspect'")); err != nil {
		t.Errorf("Provision(of the inspection) = %v, want it to be read: it has a log", err)
	}
	page, _, err := w.viewer.ListWorkspaces(t.Context(), w.Org, uuid.Nil, store.WorkspaceKey{}, 10)
	if err != nil {
		t.Errorf("ListWorkspaces() = %v, want nil", err)
	}
	for _, s := range page {
		if strings.HasPrefix(s.Name, ".inspect/") {
			t.Errorf("a list of workspaces has %s, want it hidden", s.Name)
		}
	}
	if situations, _, err := w.viewer.Situations(t.Context(), w.Org, store.SituationFilter{}, 10); err != nil || len(situations) != 0 {
		t.Errorf("Situations() = %+v, %v, want none: it has no page", situations, err)
	}
	if o, err := w.viewer.Overview(t.Context(), w.Org); err != nil || o.Counts.Workspaces != 0 || o.Counts.Queued != 0 || len(o.Waiting) != 0 {
		t.Errorf("Overview() = %+v, %v, want no workspace, and nothing that waits for people's sake", o, err)
	}
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING', started_at = now() WHERE operation = 'inspect'")
	w.Exec(t, "UPDATE public.provisions SET status = 'FAILED', finished_at = now() WHERE operation = 'inspect'")
	if o, err := w.viewer.Overview(t.Context(), w.Org); err != nil || len(o.Failed) != 0 {
		t.Errorf("Overview().Failed = %+v, %v, want none: the template's page says so, and no deploy would mend it", o.Failed, err)
	}
	if _, err := w.viewer.WorkspaceByRef(t.Context(), uuid.Nil, uuid.Nil, w.Text(t, "SELECT id FROM public.workspaces WHERE hidden")); err == nil {
		t.Error("WorkspaceByRef(hidden) = nil, want a refusal")
	}
}

// What a hostile server says is stored without what no database takes, or else it
// would be looked at again for ever.
func TestHostileInspectionIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	database, err := store.Connect(t.Context(), w.URL, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	if err := w.operator.InspectTemplate(t.Context(), w.Org, "https://git.example/a/b.git", "v1", ""); err != nil {
		t.Fatal(err)
	}
	wanted, ok, err := database.ClaimInspection(t.Context(), time.Minute)
	if err != nil || !ok {
		t.Fatalf("ClaimInspection() = %v, %v, want one", ok, err)
	}
	if err := database.RecordTags(t.Context(), wanted, []store.Tag{{Tag: "v\x001"}, {Tag: strings.Repeat("v", 300)}, {Tag: "v1"}}); err != nil {
		t.Errorf("RecordTags() = %v, want nil", err)
	}
	if got := w.Text(t, "SELECT tags #>> '{0,tag}' || jsonb_array_length(tags) FROM public.template_tags"); got != "v11" {
		t.Errorf("tags and how many = %s, want v1 alone", got)
	}
	if err := database.SettleInspection(t.Context(), wanted, store.InspectionResult{Code: "checkout_failed", Problem: "it says \x00"}); err != nil {
		t.Errorf("SettleInspection() = %v, want nil", err)
	}
}
