package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Machine is one machine as it was last reported.
type Machine struct {
	ID          uuid.UUID                 `json:"id" doc:"Its id."`
	Name        string                    `json:"name" doc:"Its name, unique within its workspace."`
	Workspace   string                    `json:"workspace" doc:"The name of its workspace."`
	WorkspaceID uuid.UUID                 `json:"workspace_id" doc:"The id of its workspace."`
	Cluster     string                    `json:"cluster" doc:"The name of the cluster that the workspace is on."`
	Status      string                    `json:"status" enum:"planned,reserved,creating,running,stopped,failed,unknown,gone" doc:"What it was doing when it was last reported; planned: it is drawn up and not there yet, reserved: it has a place in a pool and is not made yet, unknown: nobody could ask, gone: it is no longer there."`
	Address     *string                   `json:"address,omitempty" doc:"The address of its resource in the state, by which targets name it."`
	Pool        *string                   `json:"pool,omitempty" doc:"The pool that it belongs to."`
	Node        *string                   `json:"node,omitempty" doc:"The host that it runs on, or is to run on."`
	ExternalID  *string                   `json:"external_id,omitempty" doc:"What it is known by in its cloud."`
	IPAddresses []string                  `json:"ip_addresses,omitempty" doc:"Its IP addresses, the one to reach it at first."`
	SSHPort     *int                      `json:"ssh_port,omitempty" doc:"The port of its SSH server. Absent: 22."`
	SSHUser     *string                   `json:"ssh_user,omitempty" doc:"Who to sign in as."`
	Image       *string                   `json:"image,omitempty" doc:"What it was made from."`
	Cores       *int                      `json:"cores,omitempty" doc:"Its processor cores."`
	MemoryMiB   *int                      `json:"memory_mib,omitempty" doc:"Its memory in MiB."`
	DiskGiB     *int                      `json:"disk_gib,omitempty" doc:"Its disk in GiB."`
	Labels      map[string]string         `json:"labels" doc:"Its labels."`
	Actions     []provision.MachineAction `json:"actions" enum:"destroy,rebuild,refresh,power,reveal,rescue,unrescue" doc:"What a run can do to this machine alone."`
	Owner       *uuid.UUID                `json:"owner,omitempty" doc:"Who asked for the run that made it."`
	OwnerName   string                    `json:"owner_name,omitempty" doc:"Their name, else their e-mail address."`
	Number      *int64                    `json:"number,omitempty" doc:"The provision that last changed it, or that reserved its place."`
	Health      *string                   `json:"health,omitempty" enum:"healthy,unhealthy,unknown" doc:"How the last checks found it; unknown: nobody could ask. Absent: its template has no check, and it is on no bare-metal server."`
	HealthWhy   *string                   `json:"health_why,omitempty" doc:"Why it is not healthy."`
	HealthAt    *time.Time                `json:"health_at,omitempty" doc:"Since when its health is that."`
	Plan        json.RawMessage           `json:"plan,omitempty" doc:"What a planned machine is provisioned with: template_source, terraform_vars and workspace, as config_snapshot has them. Absent: it is not planned."`
	CreatedAt   time.Time                 `json:"created_at" doc:"When it was planned, got its place or was first reported."`
	UpdatedAt   time.Time                 `json:"updated_at" doc:"When something of this last changed."`
}

// Size is how large it is, in words; "" where nothing is known of that.
func (m Machine) Size() string {
	var parts []string
	for _, part := range []struct {
		value *int
		unit  string
	}{{m.Cores, "cores"}, {m.MemoryMiB, "MiB"}, {m.DiskGiB, "GiB disk"}} {
		if part.value != nil {
			parts = append(parts, strconv.Itoa(*part.value)+" "+part.unit)
		}
	}
	if m.Cores != nil && *m.Cores == 1 {
		parts[0] = "1 core"
	}
	return strings.Join(parts, ", ")
}

// SSH answers where ssh finds the machine. The error says what of it is missing or odd.
func (m Machine) SSH() (provision.SSH, error) {
	switch m.Status {
	case "gone": // its address may be another's by now
		return provision.SSH{}, fmt.Errorf("machine %q is gone", m.Name)
	case Planned:
		return provision.SSH{}, fmt.Errorf("machine %q is planned: it is not there yet", m.Name)
	case Reserved:
		return provision.SSH{}, fmt.Errorf("machine %q is reserved: no run has made it yet", m.Name)
	}
	if len(m.IPAddresses) == 0 {
		return provision.SSH{}, fmt.Errorf("machine %q has no IP address: no run has reported one", m.Name)
	}
	port, user := 0, ""
	if m.SSHPort != nil {
		port = *m.SSHPort
	}
	if m.SSHUser != nil {
		user = *m.SSHUser
	}
	s, err := provision.NewSSH(m.IPAddresses[0], port, user)
	if err != nil {
		return s, fmt.Errorf("machine %q: %w", m.Name, err)
	}
	return s, nil
}

// Act is something that a person can have done to one machine.
type Act string

// The acts, in the order in which they are offered.
const (
	ActStart    Act = "start"
	ActStop     Act = "stop"
	ActRestart  Act = "restart"
	ActRescue   Act = "rescue"
	ActUnrescue Act = "unrescue"
	ActRefresh  Act = "refresh"
	ActRebuild  Act = "rebuild"
	ActReveal   Act = "reveal" // its credentials; for admins
	ActDestroy  Act = "destroy"
)

// acts says which operation carries an act out, and which action of the machine it is.
var acts = map[Act]struct {
	operation provision.Operation
	action    provision.MachineAction
}{
	ActStart:    {provision.OperationPower, provision.MachinePowers},
	ActStop:     {provision.OperationPower, provision.MachinePowers},
	ActRestart:  {provision.OperationPower, provision.MachinePowers},
	ActRescue:   {provision.OperationPower, provision.MachineRescues},
	ActUnrescue: {provision.OperationPower, provision.MachineUnrescues},
	ActRefresh:  {provision.OperationRefresh, provision.MachineRefreshes},
	ActRebuild:  {provision.OperationApply, provision.MachineRebuilds},
	ActReveal:   {provision.OperationState, provision.MachineReveals},
	ActDestroy:  {provision.OperationDestroy, provision.MachineDestroys},
}

// Ask answers what to queue to have something done to this machine alone. approve is whether
// a person is to see the plan first, of an act that has one, whatever the cluster wants. The
// error says why it can't be done.
func (m Machine) Ask(do Act, approve bool) (provision.Operation, func(*provision.Snapshot), error) {
	by, known := acts[do]
	switch {
	case !known:
		return "", nil, fmt.Errorf("a machine can't be told to %s", do)
	case m.Status == "gone":
		return "", nil, fmt.Errorf("machine %s of workspace %s is gone", m.Name, m.Workspace)
	case m.Status == Planned:
		return "", nil, fmt.Errorf("machine %s of workspace %s is planned: provision it first", m.Name, m.Workspace)
	case m.Status == Reserved:
		return "", nil, fmt.Errorf("machine %s of workspace %s is reserved: no run has made it yet", m.Name, m.Workspace)
	case m.Address == nil:
		return "", nil, fmt.Errorf("machine %s of workspace %s: its template doesn't say which resource it is (resource in the output machines), so nothing can be done to it alone", m.Name, m.Workspace)
	case !slices.Contains(m.Actions, by.action):
		switch do {
		case ActReveal:
			return "", nil, fmt.Errorf("machine %s of workspace %s: no credentials are recorded of it", m.Name, m.Workspace)
		case ActUnrescue:
			return "", nil, fmt.Errorf("machine %s of workspace %s is not in rescue", m.Name, m.Workspace)
		}
		return "", nil, fmt.Errorf("machine %s of workspace %s: its provisioner can't %s one machine", m.Name, m.Workspace, do)
	}
	return by.operation, func(asked *provision.Snapshot) {
		if do == ActReveal {
			asked.State = &provision.StateCommand{Command: "reveal", Args: []string{*m.Address}}
			return
		}
		asked.Targets = []string{*m.Address}
		switch do {
		case ActStart, ActStop, ActRestart, ActRescue, ActUnrescue:
			asked.Power = provision.Power(do)
		case ActRebuild:
			asked.Replace = asked.Targets
		}
		if approve && (do == ActRebuild || do == ActDestroy) {
			asked.Approval = provision.ApprovalAlways
		}
	}, nil
}

// RevealAll asks for the credentials of all machines of a workspace.
func RevealAll(asked *provision.Snapshot) { asked.State = &provision.StateCommand{Command: "reveal"} }

// Offers are the acts that make sense for the machine as it is.
func (m Machine) Offers() (offered []Act) {
	for _, do := range []Act{ActStart, ActStop, ActRestart, ActRescue, ActUnrescue, ActRefresh, ActReveal, ActRebuild, ActDestroy} {
		_, _, err := m.Ask(do, false)
		idle := do == ActStart && m.Status == "running" || (do == ActStop || do == ActRestart) && m.Status == "stopped"
		if err == nil && !idle {
			offered = append(offered, do)
		}
	}
	return offered
}

// The statuses of machines that are not there yet.
const (
	Planned  = "planned"  // drawn up
	Reserved = "reserved" // a run has a place for it
)

// PlanMachinesBody draws up machines.
type PlanMachinesBody struct {
	Cluster  string           `json:"cluster" maxLength:"100" minLength:"1" doc:"Where they are to be, by the cluster's name or id." example:"prod"`
	Snapshot json.RawMessage  `json:"config_snapshot" doc:"What they are to be provisioned with: template_source, and terraform_vars and workspace if they are known. Nothing secret: every member can read it."`
	Machines []PlannedMachine `json:"machines" minItems:"1" maxItems:"500" doc:"The machines."`
}

// PlannedMachine is what a person says of a machine beforehand. Only the name is required.
type PlannedMachine struct {
	ID        *uuid.UUID        `json:"id,omitempty" doc:"The planned machine that this one replaces, to change its name. Absent: the one of that name, if it is planned already."`
	Name      string            `json:"name" minLength:"1" maxLength:"200" doc:"Its name, as the template will report it." example:"ada"`
	Pool      *string           `json:"pool,omitempty" maxLength:"600" doc:"The pool that it is to be in."`
	Image     *string           `json:"image,omitempty" maxLength:"600" doc:"What it is to be made from." example:"debian-13"`
	Cores     *int              `json:"cores,omitempty" minimum:"1" maximum:"1000000000" doc:"Its processor cores." example:"2"`
	MemoryMiB *int              `json:"memory_mib,omitempty" minimum:"1" maximum:"1000000000" doc:"Its memory in MiB." example:"2048"`
	DiskGiB   *int              `json:"disk_gib,omitempty" minimum:"1" maximum:"1000000000" doc:"Its disk in GiB." example:"20"`
	Labels    map[string]string `json:"labels,omitempty" doc:"Its labels."`
}

// PlannedAnswer says what was planned.
type PlannedAnswer struct {
	IDs []uuid.UUID `json:"ids" doc:"The machines' ids, in the order in which they were given."`
}

// ProvisionMachinesBody provisions planned machines.
type ProvisionMachinesBody struct {
	Workspace string             `json:"workspace" minLength:"1" maxLength:"200" doc:"The workspace that they are planned in, by its name or id." example:"acme/lab"`
	Machines  []string           `json:"machines,omitempty" maxItems:"500" doc:"Those to provision, by name or id. None: all that are planned there."`
	Approval  provision.Approval `json:"approval,omitempty" enum:"never,destructive,always" doc:"When a person is to approve the plan; never less than the cluster wants."`
}

// MachineEvent is what a machine became, and when.
type MachineEvent struct {
	Status string    `json:"status" enum:"planned,creating,running,stopped,failed,unknown,gone" doc:"What it was from then on."`
	At     time.Time `json:"at" doc:"When."`
	Number *int64    `json:"number,omitempty" doc:"The provision that reported it. Absent: it is deleted, or only the health has changed."`
	Health *string   `json:"health,omitempty" enum:"healthy,unhealthy,unknown" doc:"How it was from then on. Absent: its status has changed."`
	Why    *string   `json:"why,omitempty" doc:"Why it was not healthy."`
}
