package console

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// The console, in one stack: it takes seconds to start. First what runs, side by
// side, for most of it is Terraform's time; then all pages, of which each is
// looked at by then.
func TestConsole(t *testing.T) {
	h := up(t)
	side := func(name string, tests map[string]func(*testing.T, *house)) {
		t.Run(name, func(t *testing.T) {
			for name, test := range tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, h)
				})
			}
		})
	}
	side("runs", map[string]func(*testing.T, *house){"story": story, "live": liveLog, "hostile": hostileTemplate, "key": browserKey})
	side("pages", map[string]func(*testing.T, *house){"runs": runPages, "estate": estatePages, "once": oncePages})
	t.Run("all", h.seen.all)
}

// story is the whole of it, by clicking: deploy from a template, look at the plan,
// approve it, watch the log, see what exists, and destroy it with the name typed.
func story(t *testing.T, h *house) {
	const workspace, name = "demo/story", `Ada <b>&"`
	tab := h.signIn(t, h.Runtime().BrowserURL)
	tab.Click("Deploy")
	tab.WaitText("Choose a cluster")
	h.seen.page(tab, "deploy-cluster")
	tab.Click("local")
	tab.WaitText("Choose a template")
	h.seen.page(tab, "deploy-template")
	tab.Click("hello")
	tab.Wait(`document.querySelector("#fields:not([hidden]) input")`)
	tab.Fill("Workspace", workspace)
	tab.Fill("name", name)
	tab.Fill("steps", "40") // for there to be time to look at it while it runs
	tab.Fill("pause_seconds", "0.5")
	h.seen.page(tab, "deploy-configure")
	tab.Click("Review")
	tab.WaitText("Summary")
	h.seen.page(tab, "deploy-review")
	tab.Click("Create plan")

	tab.Wait(`location.pathname.startsWith("/provisions/")`)
	tab.WaitText("This plan needs approval")
	tab.WaitText("2 to create")
	tab.Wait(`document.getElementById("plan")?.open`) // what is to be approved is not folded
	h.seen.page(tab, "provision-approval")
	tab.Click("Approve and apply")
	tab.Wait(`document.querySelector("dialog:modal")`)
	h.seen.page(tab, "confirm")
	tab.Click("Approve and apply") // in the dialog

	// Live: a line is there long before the run is over.
	tab.WaitText("step 2 of 40")
	if browsertest.Eval[bool](tab, `Boolean(document.querySelector("#run[data-over]"))`) {
		t.Error("the first lines of the log came when the run was over")
	}
	tab.Screenshot("provision-running")
	tab.Wait(`document.querySelector("#run[data-over]")`)
	tab.WaitText("terraform_data.greeting")
	tab.WaitText("done")
	tab.WaitText("Hello, " + name + "!") // among the outputs, as it is
	if text := tab.Text(); strings.Count(text, "step 1 of 40: growing") > 1 {
		t.Errorf("the page shows a line twice:\n%s", text)
	}
	h.seen.page(tab, "provision-success")

	tab.Click("Destroy this workspace")
	tab.Click("Destroy")
	tab.Wait(`document.querySelector("dialog:modal")`)
	const yes = `document.querySelector("dialog:modal [value=yes]")`
	tab.Press("not its name")
	if !browsertest.Eval[bool](tab, yes+".disabled") {
		t.Error("a destroy can be confirmed with another name")
	}
	browsertest.Eval[bool](tab, `document.querySelector("dialog:modal input").select() || true`)
	tab.Press(workspace)
	h.seen.page(tab, "destroy-confirm")
	tab.Click("Destroy")
	tab.WaitText("Destroy " + workspace)
	tab.Wait(`document.querySelector("#run[data-over]")`)
	tab.WaitText("No resources")
	h.seen.page(tab, "provision-destroyed")
	if status := newest(t, h, workspace); status != "destroy SUCCESS" {
		t.Errorf("the newest run of %s = %s, want a destroy that succeeded", workspace, status)
	}
}

// newest is what the database says of a workspace's newest run. The log of one that has
// failed goes to the test's.
func newest(t *testing.T, h *house, workspace string) string {
	t.Helper()
	for _, p := range h.runs(t, 50) {
		if p.Workspace == workspace {
			if p.Status == provision.Failed {
				t.Logf("the log of run %d:\n%s", p.Number, h.log(t, p.ID))
			}
			return string(p.Operation) + " " + string(p.Status)
		}
	}
	return "none"
}
