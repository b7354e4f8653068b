package console

import (
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
)

// Somebody without a hypervisor deploys a class from the console into the simulated cluster, as
// docs/MACHINES.md says, and sees its machines.
func TestClassOfASimulatedCluster(t *testing.T) {
	t.Parallel()
	h := up(t, func(o *devstack.Options) { o.Sample, o.PVESim = false, true })
	tab := h.signIn(t, h.Runtime().BrowserURL)
	tab.Visit(h.Runtime().BrowserURL + "/pools")
	tab.WaitText("pve-sim")
	tab.Visit(h.Runtime().BrowserURL + "/deploy")
	tab.WaitText("Choose a template")
	tab.Click("class")
	tab.Wait(`document.querySelector("#fields:not([hidden]) input")`)
	tab.Fill("Workspace", "demo/class")
	tab.Fill("class", "net")
	tab.Fill("pool", "pve-sim")
	tab.Fill("image", "debian")
	tab.Fill("student_count", "3")
	h.seen.page(tab, "class-configure")
	tab.Click("Review")
	tab.WaitText("Summary")
	tab.Click("Create plan")
	tab.Wait(`location.pathname.startsWith("/provisions/")`)
	tab.WaitText("This plan needs approval")
	tab.WaitText("4 to create")
	tab.Click("Approve and apply")
	tab.Wait(`document.querySelector("dialog:modal")`)
	tab.Click("Approve and apply") // in the dialog
	tab.Wait(`document.querySelector("#run[data-over]")`)
	if got := newest(t, h, "demo/class"); got != "apply SUCCESS" {
		t.Errorf("the run = %s, want an apply that succeeded", got)
	}
	tab.Visit(h.Runtime().BrowserURL + "/machines")
	for _, text := range []string{"net-teacher", "net-student-01", "net-student-03", "192.0.2.10", "Running"} {
		tab.WaitText(text)
	}
	h.seen.page(tab, "class-machines")
}
