package provision

import (
	"encoding/json"
	"maps"
	"slices"
)

// InputRequest is what a run asks a person to do.
type InputRequest struct {
	// Instructions are Markdown, at most 64 KiB.
	Instructions string `json:"instructions"`
	// Destroys says that what the instructions made is to be undone.
	Destroys bool           `json:"destroys,omitempty"`
	Outputs  []InputOutput  `json:"outputs"`
	Machines []InputMachine `json:"machines"`
	// ExpiresSeconds is how long the run waits for the answer.
	ExpiresSeconds int `json:"expires_seconds,omitempty"`
}

// InputOutput is a value that a person fills in.
type InputOutput struct {
	Name string `json:"name"`
	// Type is string, number or bool.
	Type        string `json:"type"`
	Description string `json:"description,omitempty"`
	Sensitive   bool   `json:"sensitive,omitempty"`
}

// InputMachine is a machine that a person makes, changes or destroys.
type InputMachine struct {
	Name string `json:"name"`
	// Action is create, change, replace or destroy.
	Action  string `json:"action"`
	Pool    string `json:"pool,omitempty"`
	Image   string `json:"image,omitempty"`
	Address string `json:"address,omitempty"`
	Cores   int    `json:"cores,omitempty"`
	// Memory is in MiB, Disk in GiB.
	Memory int `json:"memory_mib,omitempty"`
	Disk   int `json:"disk_gib,omitempty"`
	// Known is what is recorded of a machine that exists.
	Known *InputFacts `json:"known,omitempty"`
}

// InputFacts are what a person says of a machine.
type InputFacts struct {
	// ExternalID is the id that it has where it is; its address serves as one.
	ExternalID string   `json:"external_id,omitempty"`
	Address    string   `json:"address,omitempty"`
	Addresses  []string `json:"addresses,omitempty"`
	SSHPort    int      `json:"ssh_port,omitempty"`
}

// Input is a person's answer, as give_input() has checked it.
type Input struct {
	Done bool `json:"done"`
	// Reason is why it could not be done.
	Reason   string                     `json:"reason,omitempty"`
	Outputs  map[string]json.RawMessage `json:"outputs,omitempty"`
	Machines map[string]InputFacts      `json:"machines,omitempty"`
	// Sealed are values sealed to the cluster, each for its use: see SealedOutput and
	// SealedMachine.
	Sealed map[string]string `json:"sealed,omitempty"`
}

// SealedNames are the names of what is sealed in the answer, sorted.
func (i *Input) SealedNames() []string {
	if i == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(i.Sealed))
}

// SealedOutput is for what a sensitive output of an answer is sealed. No variable has such
// a name, so the one can't be taken for the other.
func SealedOutput(name string) string { return "output." + name }

// SealedMachine is for what the credentials of a machine in an answer are sealed.
func SealedMachine(name string) string { return "machine." + name }
