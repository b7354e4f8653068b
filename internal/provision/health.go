package provision

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// HealthCheck says how a machine's health is checked. Times are in seconds.
type HealthCheck struct {
	// Kind is tcp, http, ssh or CheckCommand.
	Kind string `json:"kind"`
	// Target is the machine's IP address. For a command it may be "", and Port is the
	// machine's SSH port.
	Target string `json:"target"`
	Port   int    `json:"port"`
	// Path is what http asks for.
	Path string `json:"path,omitempty"`
	// Command says whose command asks, where one does.
	Command        *CommandCheck `json:"command,omitempty"`
	Interval       int           `json:"interval"`
	Timeout        int           `json:"timeout"`
	HealthyAfter   int           `json:"healthy_after"`
	UnhealthyAfter int           `json:"unhealthy_after"`
	// MAC is an agent's word, under the cluster's identity, that a run has asked for this
	// check of this machine; see Message.
	MAC []byte `json:"mac,omitempty"`
}

// CheckCommand is the kind of a check by a command of the template.
const CheckCommand = "command"

// CommandCheck is the template whose command asks how a machine is, at the commit that a run
// has had, and what the command is told of the machine. The command is named by the template's
// own tendril.hcl.
type CommandCheck struct {
	Repo    string `json:"repo"`
	Version string `json:"version"`
	Path    string `json:"path,omitempty"`
	Commit  string `json:"commit"`
	// Workspace is its name.
	Workspace string `json:"workspace"`
	// ID is the machine's mark, "" for one that Terraform has made.
	ID         string `json:"id,omitempty"`
	ExternalID string `json:"external_id,omitempty"`
	Pool       string `json:"pool,omitempty"`
	// Made is when the run asked for the check, in milliseconds since 1970. Agents remember the
	// newest of each workspace, and do none that is older.
	Made int64 `json:"made,omitempty"`
}

// Message is what an agent authenticates of a check: all of it, and of which machine of which
// workspace it is. A row can neither aim it elsewhere nor give it to another machine.
func (c HealthCheck) Message(workspace uuid.UUID, machine string) []byte {
	c.MAC = nil
	message, err := json.Marshal(struct {
		Workspace uuid.UUID   `json:"workspace"`
		Machine   string      `json:"machine"`
		Check     HealthCheck `json:"check"`
	}{workspace, machine, c})
	if err != nil {
		panic(err) // of such texts and numbers there is always JSON
	}
	return message
}

// Limit is how long one check may take.
func (c HealthCheck) Limit() time.Duration { return time.Duration(c.Timeout) * time.Second }

// MachineHealth is what a check finds.
type MachineHealth string

// What a check finds.
const (
	Healthy       MachineHealth = "healthy"
	Unhealthy     MachineHealth = "unhealthy"
	HealthUnknown MachineHealth = "unknown" // the agent could not ask
)
