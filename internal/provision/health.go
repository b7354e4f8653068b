package provision

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// HealthCheck says how a machine's health is checked. Times are in seconds.
type HealthCheck struct {
	// Kind is tcp, http or ssh.
	Kind string `json:"kind"`
	// Target is the machine's IP address.
	Target string `json:"target"`
	Port   int    `json:"port"`
	// Path is what http asks for.
	Path           string `json:"path,omitempty"`
	Interval       int    `json:"interval"`
	Timeout        int    `json:"timeout"`
	HealthyAfter   int    `json:"healthy_after"`
	UnhealthyAfter int    `json:"unhealthy_after"`
	// MAC is an agent's word, under the cluster's identity, that a run has asked for this
	// check of this machine; see Message.
	MAC []byte `json:"mac,omitempty"`
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
