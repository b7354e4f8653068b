package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// A plan comes, is looked at, and that very plan is approved, while the page goes on
// being renewed around who reads it.
func TestApproveInABrowser(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Exec(t, `SELECT public.set_cluster_policy($1, '{"approval": "always"}')`, s.Cluster)
	r := s.begin(t, "acme/prod")
	tab := s.enter(t, "operator")
	tab.Visit(s.wire.URL() + r.path())
	tab.Wait(viewer + `.state === "live"`)

	changes := []provision.PlannedChange{{Address: "terraform_data.old", Action: "delete"},
		{Address: "terraform_data.new", Action: "create", Attributes: []provision.AttributeChange{{Path: "input", After: json.RawMessage(`"x"`)}}}}
	for range 30 {
		changes = append(changes, provision.PlannedChange{Address: "terraform_data.many" + strings.Repeat("y", len(changes)), Action: "update"})
	}
	r.reaches(t, provision.StageCheckout)
	r.prints(t, provision.System, "Checking out\n")
	r.reaches(t, provision.StagePlan)
	r.prints(t, provision.Stdout, "planning\n")
	tab.Wait(`document.querySelectorAll(".log-stage").length === 2`)
	tab.WaitText("running for")
	r.reports(t, provision.Processing, provision.Detail{Plan: &provision.PlanSummary{Add: 1, Destroy: 1, Change: 30, Resources: changes}})
	digest := strings.Repeat("d", 64)
	if err := s.queue.PutBlob(t.Context(), r.claim, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, []byte("plan")); err != nil {
		t.Fatal(err)
	}
	r.reports(t, provision.AwaitingApproval, provision.Detail{PlanDigest: digest})
	tab.WaitText("This plan needs approval")
	tab.WaitText("terraform_data.old")
	for _, look := range []int{2, 0} { // a phone, then a desktop; end to end they are looked at and judged
		tab.Look(browsertest.Looks()[look])
		tab.NoOverflow()
	}

	// What the reader does is left alone by what happens meanwhile.
	tab.Fill("Filter by address", "terraform_data.new")
	tab.Wait(`[...document.querySelectorAll("[data-address]")].filter((e) => e.checkVisibility()).length === 1`)
	tab.Click("terraform_data.new")
	tab.Click("Configuration")
	tab.Fill("Reason for rejecting", "half a reas")
	const state = `JSON.stringify([document.activeElement.id, document.getElementById("reject-reason").value, scrollY, document.getElementById("request").open,
		document.querySelector("[data-address='terraform_data.new']").open, [...document.querySelectorAll("[data-address]")].filter((e) => e.checkVisibility()).length])`
	before := browsertest.Eval[string](tab, state)
	if !strings.HasPrefix(before, `["reject-reason","half a reas",`) || !strings.HasSuffix(before, `,true,true,1]`) {
		t.Fatalf("what the reader has done = %s, want a reason, an open request, an open resource and one in sight", before)
	}
	s.Exec(t, "UPDATE public.provisions SET engine = 'tofu', engine_version = '1.10.1' WHERE id = $1", r.id)
	s.Exec(t, "SELECT pg_notify('tendril_provision', $1::text)", r.id)
	tab.WaitText("with tofu 1.10.1")
	renewed(tab, "outcome", "inventory")
	if after := browsertest.Eval[string](tab, state); after != before {
		t.Errorf("what the reader has done, after the page was renewed = %s, want %s", after, before)
	}

	tab.Click("Approve and apply")
	tab.WaitText("Apply this plan to acme/prod?")
	tab.WaitText("1 to destroy, 30 to change, 1 to create. This can't be undone.")
	tab.Press(kb.Escape)
	if got := s.Status(t, r.id); got != "AWAITING_APPROVAL" {
		t.Fatalf("status after Escape = %s, want AWAITING_APPROVAL", got)
	}
	tab.Click("Approve and apply")
	tab.Wait(`document.getElementById("confirm").open`)
	tab.Click("Approve and apply")
	tab.WaitText("Approved.")
	if got := s.Text(t, "SELECT status || ' ' || approved_plan FROM public.provisions WHERE id = $1", r.id); got != "QUEUED "+digest {
		t.Errorf("the provision after the click = %s, want QUEUED with the digest that was shown", got)
	}
}

// After a failure the first error is a click away, and the keys of the log do what
// they say.
func TestFirstErrorAndKeys(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := s.begin(t, "acme/prod")
	r.reaches(t, provision.StageCheckout)
	r.prints(t, provision.Stdout, strings.Repeat("much is printed before\n", 500))
	r.reaches(t, provision.StagePlan, provision.StageApply)
	r.prints(t, provision.Stdout, "\x1b[33mwarning\x1b[0m\n")
	r.prints(t, provision.Stderr, "\nError: creating ship: no water\n\n  on main.tf line 3:\n")
	r.prints(t, provision.System, "Failed (apply_failed): creating ship: no water\n")
	r.reports(t, provision.Failed, provision.Detail{ErrorCode: provision.CodeApplyFailed, ErrorMessage: "creating ship: no water"})
	tab := s.enter(t, "operator")
	tab.Visit(s.wire.URL() + r.path())
	tab.WaitText("The apply failed")
	waitLines(tab, 506)
	for _, look := range []int{2, 0} { // a phone, then a desktop; end to end they are looked at and judged
		tab.Look(browsertest.Looks()[look])
		tab.NoOverflow()
	}
	tab.Click("Show in log")
	tab.Wait(`document.querySelector(".log-selected .log-text")?.textContent === "Error: creating ship: no water" && /^#L\d+\.\d+$/.test(location.hash)`)
	link := browsertest.Eval[string](tab, "location.hash")

	// The log has the focus now.
	line := func(n string) string { return `document.querySelector('[data-line="` + n + `"]')` }
	tab.Press("g")
	tab.Wait(line("1"))
	tab.Press("G")
	tab.Wait(line("506") + " && " + viewer + ".view.following")
	tab.Press("/")
	tab.Wait(`document.activeElement.dataset.log === "search"`)
	tab.Fill("Search the log", "PRINTED")
	tab.WaitText("500 matches")
	tab.Press(kb.Enter) // from what is in sight on
	tab.Wait(viewer + ".search.current > 400")
	current := browsertest.Eval[int](tab, viewer+".search.current")
	tab.Press(kb.Enter)
	tab.WaitText(fmt.Sprintf("%d of 500", current+2))
	tab.Press(kb.Escape)
	tab.Wait(`document.activeElement.dataset.log === "lines"`)
	tab.Press("e")
	tab.Wait(line("503"))
	tab.Click("Only errors")
	tab.Wait(`[...document.querySelectorAll(".log-row")].map((e) => e.dataset.line).join() === "502,503,504,505,506"`)
	tab.Click("Only errors")
	tab.Press("g")
	tab.Wait(line("1"))
	tab.Click("Checkout")
	tab.Wait(`document.querySelector(".log-stage")?.getAttribute("aria-expanded") === "false" && ` + line("506"))
	if browsertest.Eval[bool](tab, `document.querySelector('[data-line="2"]') !== null || document.querySelectorAll(".log-row").length !== 7`) {
		t.Error("a folded stage shows lines, want its head and the other stages")
	}
	tab.Visit("about:blank")
	tab.Visit(s.wire.URL() + r.path() + link)
	tab.Wait(`[...document.querySelectorAll(".log-selected .log-text")].map((e) => e.textContent).join() === "Error: creating ship: no water"`)
	tab.Visit("about:blank")
	tab.Visit(s.wire.URL() + r.path() + "#L10-L12")
	tab.Wait(`document.querySelectorAll(".log-selected").length === 3`)
}
