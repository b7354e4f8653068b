package ironic

import (
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
)

// health is how a server is, by what Ironic's API says of it, and a sentence that says why. Ironic
// has no readings of sensors in its API: it sends them away as notifications.
func (n *node) health() (provision.ServerHealth, string) {
	s := stageOf(n.ProvisionState)
	switch {
	case n.Fault != "":
		return provision.ServerCritical, "Ironic reports the fault " + clean(n.Fault) + because(n.why())
	case n.PowerState == "error":
		return provision.ServerCritical, "Its power could not be switched" + because(n.LastError)
	case s.failed:
		return provision.ServerCritical, s.Label + because(n.LastError)
	case n.ProvisionState == "enroll" || n.ProvisionState == "verifying":
		return provision.ServerUnknown, s.Label + because(n.LastError)
	case n.PowerState == "":
		return provision.ServerUnknown, "Ironic does not know its power state, so its BMC does not answer" + because(n.LastError)
	case n.Maintenance && !strings.HasPrefix(n.MaintenanceReason, heldReason):
		return provision.ServerWarning, "It is in maintenance" + because(n.MaintenanceReason)
	case n.ProvisionState == "rescue":
		return provision.ServerWarning, s.Label + ", so the machine's own system does not run"
	case n.LastError != "":
		return provision.ServerWarning, "Ironic's last error about it" + because(n.LastError)
	}
	return provision.ServerOK, "Ironic knows of no fault"
}

// why is the reason of a fault.
func (n *node) why() string {
	if n.LastError != "" {
		return n.LastError
	}
	return n.MaintenanceReason
}
