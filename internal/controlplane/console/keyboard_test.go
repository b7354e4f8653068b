package console_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// focused is what has the focus: its name, and why that cannot be seen, "" if it
// can.
const focused = `(() => {
	const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
	const name = (e.getAttribute("aria-label") || e.labels?.[0]?.innerText || e.innerText || e.tagName).replace(/\s+/g, " ").trim();
	if (e === document.body) return {name: "", unseen: ""}; // between the last and the first
	if (!e.matches(":focus-visible") || style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1) return {name, unseen: "it has no outline"};
	const top = Math.max(box.top, 0), bottom = Math.min(box.bottom, innerHeight), left = Math.max(box.left, 0), right = Math.min(box.right, innerWidth);
	if (bottom - top < Math.min(box.height, 12) || right - left < Math.min(box.width, 12)) return {name, unseen: "it is outside of the window"};
	const over = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
	return {name, unseen: over && (e.contains(over) || over.contains(e) || [...(e.labels || [])].some((l) => l.contains(over))) ? "" : "it is covered by " + (over ? over.outerHTML.slice(0, 100) : "nothing")};
})()`

type focus struct{ Name, Unseen string }

// tabTo presses Tab until what has that name has the focus, and wants it seen all
// the way.
func tabTo(t *testing.T, tab *browsertest.Tab, name string) {
	t.Helper()
	var way []string
	for range 60 {
		tab.Press(kb.Tab)
		at := browsertest.Eval[focus](tab, focused)
		if at.Unseen != "" {
			t.Errorf("the focus on %q, on the way to %q, is not to be seen: %s", at.Name, name, at.Unseen)
		}
		if at.Name == name || strings.HasPrefix(at.Name, name+" ") {
			return
		}
		way = append(way, at.Name)
	}
	t.Fatalf("Tab does not lead to %q, but by %q", name, way)
}

// Without a mouse: deploy, review, watch, approve, and destroy, by Tab, Enter and
// Escape.
func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.NewCluster(t, "another")
	s.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'hello', 'https://git.example/hello', 'v1')", s.Org)
	s.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables) VALUES ($1, 'https://git.example/hello', 'v1', '', 'https://git.example/hello', 'done', $2)
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET variables = EXCLUDED.variables, status = 'done'`, s.Org,
		`[{"name": "whom", "type": "string", "type_json": "string", "required": true}, {"name": "loud", "type": "bool", "type_json": "bool", "default": false}]`)
	tab := s.enter(t, "operator")
	enter := func(name string) {
		t.Helper()
		tabTo(t, tab, name)
		tab.Press(kb.Enter)
	}
	enter("Deploy")
	tab.WaitText("Choose a cluster")
	enter("prod")
	tab.WaitText("Choose a template")
	enter("hello")
	tab.Wait(`document.querySelector("#fields:not([hidden]) input")`)
	tabTo(t, tab, "Workspace")
	tab.Press("demo/keys")
	tabTo(t, tab, "whom")
	tab.Press("Ada")
	enter("Review")
	tab.WaitText("Summary")
	enter("Create plan")
	tab.Wait(`location.pathname.startsWith("/provisions/") && document.getElementById("log")?.viewer`)

	newest := func() *run {
		t.Helper()
		return s.take(t, uuid.MustParse(s.Text(t, "SELECT id::text FROM public.provisions ORDER BY number DESC LIMIT 1")))
	}
	r := newest()
	r.reaches(t, provision.StageCheckout, provision.StagePlan)
	tab.WaitText("running for")
	digest := strings.Repeat("d", 64)
	if err := s.queue.PutBlob(t.Context(), r.claim, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, []byte("plan")); err != nil {
		t.Fatal(err)
	}
	r.reports(t, provision.AwaitingApproval, provision.Detail{PlanDigest: digest, Plan: &provision.PlanSummary{Add: 1, Resources: []provision.PlannedChange{{Address: "terraform_data.a", Action: "create"}}}})
	tab.WaitText("This plan needs approval")

	const open = `document.querySelector("dialog:modal")`
	back := func(name string) { // the focus, to where the dialog was asked for
		t.Helper()
		tab.Wait(`!` + open)
		if at := browsertest.Eval[focus](tab, focused); !strings.HasPrefix(at.Name, name) || at.Unseen != "" {
			t.Errorf("after Escape the focus is on %q (%s), want it on %q", at.Name, at.Unseen, name)
		}
	}
	enter("Approve and apply")
	tab.Wait(open)
	tab.Press(kb.Escape)
	back("Approve and apply")
	if got := s.Status(t, r.id); got != "AWAITING_APPROVAL" {
		t.Fatalf("the provision after Escape is %s, want AWAITING_APPROVAL", got)
	}
	tab.Press(kb.Enter)
	tab.Wait(open)
	enter("Approve and apply") // in the dialog
	tab.WaitText("Approved.")
	r = newest()
	r.reaches(t, provision.StageCheckout)
	r.reports(t, provision.Processing, provision.Detail{Stage: provision.StageApply, PlanDigest: digest})
	r.reports(t, provision.Success, provision.Detail{Resources: []provision.Resource{{Address: "terraform_data.a", Type: "terraform_data"}}})
	tab.WaitText("Succeeded")
	tab.Wait(`!document.querySelector(".flash")`) // it is not about to be applied any more
	tab.Wait(`document.getElementById("danger")`)

	enter("Destroy this workspace")
	enter("Destroy")
	tab.Wait(open)
	tab.Press("demo/other")
	tab.Press(kb.Enter) // and nothing is done, nor lost
	if got := browsertest.Eval[string](tab, open+`?.querySelector("input").value`); got != "demo/other" {
		t.Errorf("after Enter on another name the dialog has %q, want it open, with what was typed", got)
	}
	tab.Press(kb.Escape)
	back("Destroy")
	if got := s.Text(t, "SELECT count(*)::text FROM public.provisions"); got != "1" {
		t.Fatalf("there are %s provisions after Escape, want the one", got)
	}
	tab.Press(kb.Enter)
	tab.Wait(open)
	tab.Press("demo/keys")
	tab.Press(kb.Enter)
	tab.WaitText("Destroy demo/keys")
	if got := s.Text(t, "SELECT operation FROM public.provisions ORDER BY number DESC LIMIT 1"); got != "destroy" {
		t.Errorf("the newest provision is one to %s, want to destroy", got)
	}
}
