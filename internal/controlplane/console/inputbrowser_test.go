package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// asksPerson has the agent leave its plan to a person.
func (r *run) asksPerson(t *testing.T, asked provision.InputRequest) {
	t.Helper()
	plan := []byte("sealed plan of " + r.number)
	digest := planbundle.Digest(plan)
	r.reports(t, provision.Processing, provision.Detail{Stage: provision.StagePlan, Plan: &provision.PlanSummary{Add: 1}})
	if err := r.scene.queue.PutBlob(t.Context(), r.claim, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, plan); err != nil {
		t.Fatal(err)
	}
	r.reports(t, provision.AwaitingInput, provision.Detail{PlanDigest: digest, Input: &asked})
}

// A person follows the instructions, fills the form in and says that it is done: what is
// secret leaves the browser sealed, and an answer that is refused is still there.
func TestWorkOfAPersonInABrowser(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "UPDATE public.clusters SET age_public_key = $1 WHERE id = $2", own.Public(), s.Cluster)
	r := s.begin(t, "acme/prod")
	r.asksPerson(t, provision.InputRequest{
		Instructions: "# Mount it\n\n1. Take **two** people.\n\n<script>document.title = 'owned'</script> [rules](javascript:alert(1)) \u202e\n",
		Outputs:      []provision.InputOutput{{Name: "rack", Type: "string", Description: "Where it stands."}, {Name: "units", Type: "number"}, {Name: "ok", Type: "bool"}, {Name: "ilo", Type: "string", Sensitive: true}},
		Machines:     []provision.InputMachine{{Name: "db-1", Action: "create", Cores: 8}, {Name: "old", Action: "destroy"}}, ExpiresSeconds: 3600,
	})
	viewer := s.enter(t, "viewer")
	viewer.Visit(s.wire.URL() + r.path())
	viewer.WaitText("An operator says here that it is done.")
	tab := s.enter(t, "operator")
	tab.Visit(s.wire.URL() + r.path())
	tab.WaitText("For a person to do")
	if html := browsertest.Eval[string](tab, `document.querySelector(".markdown").innerHTML`); !strings.Contains(html, "<strong>two</strong>") || strings.Contains(html, "<script") || strings.Contains(html, "javascript:") || strings.Contains(html, "\u202e") {
		t.Errorf("the instructions are %s", html)
	}
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("input")
	}
	tab.Fill("Comment, for the log", "the lift is broken")
	tab.Click("Add")
	tab.WaitText("The comment is in the log.")

	tab.Fill("rack", "B12")
	tab.Fill("units", "2")
	browsertest.Eval[bool](tab, `document.getElementById("output-ok").value = "false", true`)
	tab.Fill("ilo", "short")
	tab.Fill("Root password", "tr0ub4dor-and-3")
	tab.Click("It is done")
	tab.WaitText("too short to be masked")
	// What was typed, and what is wrong with it, stays when the page is renewed.
	renewed(tab, "run")
	if kept := browsertest.Eval[string](tab, `document.getElementById("output-rack").value + document.getElementById("output-ok").value + document.querySelector("[data-input-error]").textContent`); !strings.HasPrefix(kept, "B12false") || !strings.Contains(kept, "too short") {
		t.Errorf("after the page was renewed it has %q", kept)
	}
	tab.Fill("ilo", "correct-horse-battery")
	tab.Allow("422")
	tab.Click("It is done")
	tab.WaitText("Db-1: needs an address")
	if rack := browsertest.Eval[string](tab, `document.getElementById("output-rack").value`); rack != "B12" {
		t.Errorf("the rack after the answer was refused is %q, want what was typed", rack)
	}
	tab.Fill("IP address", "192.0.2.7")
	tab.Fill("ilo", "correct-horse-battery")
	tab.Fill("Root password", "tr0ub4dor-and-3")
	tab.Click("It is done")
	tab.WaitText("Thank you.")
	if got := s.Status(t, r.id); got != "QUEUED" {
		t.Fatalf("status = %s after the answer", got)
	}
	text := s.Text(t, "SELECT answer::text FROM public.provision_inputs WHERE provision_id = $1", r.id)
	var answer provision.Input
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	if !answer.Done || string(answer.Outputs["units"]) != "2" || answer.Machines["db-1"].Address != "192.0.2.7" || strings.Contains(text, "correct-horse") || strings.Contains(text, "tr0ub4dor") {
		t.Errorf("the answer is %s", text)
	}
	use := seal.Use{Cluster: s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster), Workspace: "acme/prod", Repo: "https://git.example/acme/envtempl"}
	for name, want := range map[string]string{"output.ilo": `"correct-horse-battery"`, "machine.db-1": `{"root_password":"tr0ub4dor-and-3"}`} {
		use.Name = name
		if got, err := own.OpenVariable(answer.Sealed[name], use); err != nil || string(got) != want {
			t.Errorf("the sealed %s opens to %s, %v, want %s", name, got, err, want)
		}
		use.Name = "ilo"
		if _, err := own.OpenVariable(answer.Sealed[name], use); err == nil {
			t.Errorf("the sealed %s opens as a variable", name)
		}
	}
	viewer.WaitText("that the work is done")
}

// A person who can't do the work says which machines exist all the same: those are in the
// answer with what is secret of them sealed, and the others are not.
func TestMachineThatExistsThoughTheWorkFailed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "UPDATE public.clusters SET age_public_key = $1 WHERE id = $2", own.Public(), s.Cluster)
	r := s.begin(t, "acme/prod")
	r.asksPerson(t, provision.InputRequest{
		Instructions: "Mount them.", ExpiresSeconds: 3600, Outputs: []provision.InputOutput{},
		Machines: []provision.InputMachine{{Name: "db-1", Action: "create"}, {Name: "db-2", Action: "create"}, {Name: "old", Action: "destroy"}},
	})
	tab := s.enter(t, "operator")
	tab.Visit(s.wire.URL() + r.path())
	tab.WaitText("For a person to do")
	if boxes := browsertest.Eval[int](tab, `document.querySelectorAll("input[type=checkbox][name$='.exists']").length`); boxes != 2 {
		t.Errorf("%d machines can be said to exist, want the two that are made", boxes)
	}
	typed := func(id, value string) {
		t.Helper()
		browsertest.Eval[bool](tab, fmt.Sprintf(`document.getElementById(%q).value = %q, true`, id, value))
	}
	browsertest.Eval[bool](tab, `document.getElementsByName("machine.db-1.exists")[0].click(), true`)
	typed("input-reason", "no free rack")
	renewed(tab, "run")
	tab.Allow("422")
	tab.Click("It can't be done") // the box is still ticked after the page was renewed
	tab.WaitText("Db-1: needs an address")
	if kept := browsertest.Eval[bool](tab, `document.getElementsByName("machine.db-1.exists")[0].checked && !document.getElementsByName("machine.db-2.exists")[0].checked`); !kept {
		t.Error("after the answer was refused the boxes are not as the person left them")
	}
	typed("machine-db-1-external", "asset-1")
	typed("machine-db-1-password", "tr0ub4dor-and-3")
	typed("machine-db-2-external", "asset-2") // typed, and not said to exist
	typed("machine-db-2-password", "short")
	tab.Click("It can't be done")
	tab.WaitText("Thank you.")
	text := s.Text(t, "SELECT answer::text FROM public.provision_inputs WHERE provision_id = $1", r.id)
	var answer provision.Input
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Done || answer.Reason != "no free rack" || len(answer.Machines) != 1 || answer.Machines["db-1"].ExternalID != "asset-1" || len(answer.Sealed) != 1 {
		t.Errorf("the answer is %s", text)
	}
	use := seal.Use{Cluster: s.Text(t, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster), Workspace: "acme/prod", Repo: "https://git.example/acme/envtempl", Name: "machine.db-1"}
	if got, err := own.OpenVariable(answer.Sealed["machine.db-1"], use); err != nil || string(got) != `{"root_password":"tr0ub4dor-and-3"}` {
		t.Errorf("the sealed credentials open to %s, %v", got, err)
	}
}
