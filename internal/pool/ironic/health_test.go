package ironic

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// A server's health is the worst of what Ironic says of it.
func TestHealth(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		n    node
		want provision.ServerHealth
		says string
	}{
		"free":           {node{ProvisionState: "available", PowerState: "power off"}, provision.ServerOK, "no fault"},
		"deployed":       {node{ProvisionState: "active", PowerState: "power on"}, provision.ServerOK, "no fault"},
		"being cleaned":  {node{ProvisionState: "available", PowerState: "power off", Maintenance: true, MaintenanceReason: held("1")}, provision.ServerOK, "no fault"},
		"in maintenance": {node{ProvisionState: "active", PowerState: "power on", Maintenance: true, MaintenanceReason: "a fan is broken"}, provision.ServerWarning, "It is in maintenance: a fan is broken"},
		"in rescue":      {node{ProvisionState: "rescue", PowerState: "power on"}, provision.ServerWarning, "In rescue"},
		"a last error":   {node{ProvisionState: "active", PowerState: "power on", LastError: "IPMI call failed."}, provision.ServerWarning, "IPMI call failed"},
		"BMC away":       {node{ProvisionState: "active", LastError: "Redfish connection failed"}, provision.ServerUnknown, "its BMC does not answer: Redfish connection failed"},
		"not verified":   {node{ProvisionState: "enroll"}, provision.ServerUnknown, "not verified yet"},
		"power":          {node{ProvisionState: "active", PowerState: "error", LastError: "no"}, provision.ServerCritical, "could not be switched: no"},
		"deploy failed":  {node{ProvisionState: "deploy failed", PowerState: "power on", LastError: "no image", Maintenance: true}, provision.ServerCritical, "Deploying failed: no image"},
		"a fault": {
			node{ProvisionState: "active", Fault: "power failure", Maintenance: true, MaintenanceReason: "During sync_power_state, max retries exceeded."},
			provision.ServerCritical, "the fault power failure: During sync_power_state, max retries exceeded",
		},
	} {
		if got, why := one.n.health(); got != one.want || !strings.Contains(why, one.says) {
			t.Errorf("%s: %s (%s), want %s with %q", name, got, why, one.want, one.says)
		}
	}
}
