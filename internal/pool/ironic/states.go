package ironic

import (
	"slices"
	"time"
)

// stage is one state of Ironic's machine of states, as people are told of it. docs/MACHINES.md has
// the same table.
type stage struct {
	// State is Ironic's provision_state.
	State string
	// Label is what a person reads while a server is in it.
	Label string
	// Percent is how far a deployment is when it gets there; 0: it is no part of one.
	Percent int
	// Do is what a person does about it; "": nothing.
	Do string
	// ends says that Ironic does nothing more by itself.
	ends bool
	// failed says that something went wrong, which last_error tells.
	failed bool
	// limit is how long a server may stay in it while somebody waits.
	limit time.Duration
}

// Limits of states where a template says nothing. Ironic itself gives up on a server that does
// not call back after 30 minutes; ours is longer, so that Ironic's reason is the one that is told.
const (
	deployLimit = time.Hour
	deleteLimit = 30 * time.Minute
	cleanLimit  = 20 * time.Hour
	powerLimit  = 10 * time.Minute
)

// stages are all states that Ironic has.
var stages = []stage{
	{State: "enroll", Label: "Enrolled, and not verified yet", Do: "Verify it: `baremetal node manage SERVER`, then `provide`", ends: true},
	{State: "verifying", Label: "Checking the BMC's address and credentials", limit: powerLimit},
	{State: "manageable", Label: "Managed, and not offered yet", Do: "Offer it: `baremetal node provide SERVER`", ends: true},
	{State: "inspecting", Label: "Reading the server's hardware", limit: deployLimit},
	{State: "inspect wait", Label: "Waiting for the server to report its hardware", limit: deployLimit},
	{State: "inspect failed", Label: "Reading the hardware failed", Do: "Read the last error, fix it, then inspect it again", ends: true, failed: true},
	{State: "available", Label: "Ready to be deployed", Percent: 2, ends: true},
	{State: "deploying", Label: "Writing the image", Percent: 10, limit: deployLimit},
	{State: "wait call-back", Label: "Waiting for the server to boot and call back", Percent: 30, limit: deployLimit},
	{State: "deploy hold", Label: "Held by a deploy step", Percent: 50, Do: "Release it: `baremetal node unhold SERVER`", limit: deployLimit},
	{State: "deploy failed", Label: "Deploying failed", Do: "Read the last error, fix it, then deploy again", ends: true, failed: true},
	{State: "active", Label: "Deployed", Percent: 100, ends: true},
	{State: "deleting", Label: "Undeploying", limit: deleteLimit},
	{State: "error", Label: "Undeploying failed", Do: "Read the last error, fix it, then destroy the machine again", ends: true, failed: true},
	{State: "cleaning", Label: "Cleaning the disks", limit: cleanLimit},
	{State: "clean wait", Label: "Waiting for the server to clean its disks", limit: cleanLimit},
	{State: "clean hold", Label: "Held by a clean step", Do: "Release it: `baremetal node unhold SERVER`", limit: cleanLimit},
	{State: "clean failed", Label: "Cleaning failed", Do: "Read the last error, fix it, then run `baremetal node maintenance unset SERVER`, `manage` and `provide`", ends: true, failed: true},
	{State: "adopting", Label: "Taking over a server that is in use", limit: powerLimit},
	{State: "adopt failed", Label: "Taking over failed", Do: "Read the last error, then adopt or manage it again", ends: true, failed: true},
	{State: "rescuing", Label: "Booting the rescue image", limit: deployLimit},
	{State: "rescue wait", Label: "Waiting for the rescue image to call back", limit: deployLimit},
	{State: "rescue", Label: "In rescue", Do: "Leave it: `baremetal node unrescue SERVER`", ends: true},
	{State: "rescue failed", Label: "Rescuing failed", Do: "Read the last error, then rescue or unrescue it", ends: true, failed: true},
	{State: "unrescuing", Label: "Leaving rescue", limit: deployLimit},
	{State: "unrescue failed", Label: "Leaving rescue failed", Do: "Read the last error, then unrescue it again", ends: true, failed: true},
	{State: "servicing", Label: "Running service steps", limit: cleanLimit},
	{State: "service wait", Label: "Waiting for a service step", limit: cleanLimit},
	{State: "service hold", Label: "Held by a service step", Do: "Release it: `baremetal node unhold SERVER`", limit: cleanLimit},
	{State: "service failed", Label: "A service step failed", Do: "Read the last error, then abort or repeat the service", ends: true, failed: true},
}

// stageOf is a state's; of one that only a newer Ironic has it is what can be said of any.
func stageOf(state string) stage {
	if at := slices.IndexFunc(stages, func(s stage) bool { return s.State == state }); at >= 0 {
		return stages[at]
	}
	return stage{State: state, Label: "In the state " + clean(state), limit: deployLimit}
}

// deployed are the states in which a machine is there.
var deployed = []string{"active", "rescue", "rescuing", "rescue wait", "rescue failed", "unrescuing", "unrescue failed", "servicing", "service wait", "service hold", "service failed"}

// The share of a deployment, in percent, that the steps after the call-back have.
const stepsFrom, stepsTo = 40, 99

// percent is how far a deployment is. back says that the server has called back already.
func percent(n *node, back bool) int {
	p := stageOf(n.ProvisionState).Percent
	if n.ProvisionState != "deploying" && n.ProvisionState != "wait call-back" {
		return p
	}
	if done, total := n.steps(); total > 0 && len(n.DeployStep) > 0 {
		return max(p, stepsFrom+(stepsTo-stepsFrom)*done/total)
	}
	if back && n.ProvisionState == "deploying" {
		return stepsFrom
	}
	return p
}
