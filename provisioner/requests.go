package provisioner

import "encoding/json"

// Message is one line of a conversation, in either direction.
type Message interface {
	// Type is the line's field "type".
	Type() string
}

// Request is the first line that a program reads.
type Request interface {
	Message
	// Job is what the request is about. It is nil for describe.
	Job() *Work
}

// Describe asks a program what it is and what it can do.
type Describe struct {
	// Protocols are the versions that the agent speaks. The program picks one.
	Protocols []string `json:"protocols"`
}

// Work is what all requests but describe have in common.
type Work struct {
	// Protocol is the version that the program picked in its answer to describe.
	Protocol string `json:"protocol"`
	// Run is the id of the run. A repeated request of one run has the same id.
	Run string `json:"run"`
	// Workspace is what the machines belong to.
	Workspace Workspace `json:"workspace"`
	// Mode is apply where the machines are wanted, and destroy where none is.
	Mode Mode `json:"mode"`
	// Variables are the template's variables with their values. Some are secret.
	Variables map[string]json.RawMessage `json:"variables"`
	// Machines are the machines that the template declares.
	Machines []Wanted `json:"machines"`
	// Obsolete are machines that exist, as far as Tendril knows, and that the template no
	// longer declares.
	Obsolete []Wanted `json:"obsolete,omitempty"`
	// Targets are names of machines. Where it isn't empty, every other machine is left alone.
	Targets []string `json:"targets,omitempty"`
	// Intents are the acknowledged intents of which Tendril never learned the outcome.
	// Their machines may exist.
	Intents []Intent `json:"intents,omitempty"`
	// State is the last state that the program gave for this workspace, or null.
	State json.RawMessage `json:"state"`
}

// Workspace names a workspace.
type Workspace struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Mode is what a run wants of its machines.
type Mode string

// The modes.
const (
	ModeApply   Mode = "apply"
	ModeDestroy Mode = "destroy"
)

// Wanted is a machine as the template declares it.
type Wanted struct {
	// ID marks the machine. Write it on what you create, and find it by that again.
	ID string `json:"id"`
	// Name is unique within the workspace and doesn't change.
	Name string `json:"name"`
	// ExternalID is the machine's id in its cloud, where Tendril knows it.
	ExternalID string `json:"external_id,omitempty"`
	// Pool is where the machine belongs, for a program that serves several.
	Pool string `json:"pool,omitempty"`
	// Node is the host that the machine is on, or the one that Tendril chose.
	Node string `json:"node,omitempty"`
	// Address is the IP address that Tendril reserved, if it reserved one.
	Address string `json:"address,omitempty"`
	Image   string `json:"image,omitempty"`
	Cores   int    `json:"cores,omitempty"`
	// Memory is in MiB.
	Memory int `json:"memory,omitempty"`
	// Disk is in GiB.
	Disk    int               `json:"disk,omitempty"`
	SSHKeys []string          `json:"ssh_keys,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Settings are what only one kind of pool has, as the template says it.
	Settings map[string]json.RawMessage `json:"settings,omitempty"`
}

// Plan asks what apply, or destroy, would do. Nothing is changed.
type Plan struct {
	Work
}

// Apply asks to carry out a plan that was approved.
type Apply struct {
	Work
	// Plan is what the program gave as its plan, unchanged.
	Plan json.RawMessage `json:"plan,omitempty"`
	// Changes are the approved changes. Nothing else may be done.
	Changes []Change `json:"changes"`
	// Resume says that an earlier program began this request, and has detached or was killed.
	// Changes has only what it did not complete.
	Resume bool `json:"resume,omitempty"`
}

// Destroy is Apply for a plan of the mode destroy.
type Destroy struct {
	Work
	Plan    json.RawMessage `json:"plan,omitempty"`
	Changes []Change        `json:"changes"`
	Resume  bool            `json:"resume,omitempty"`
}

// Refresh asks how the machines are now. Nothing is changed.
type Refresh struct {
	Work
}

// Power asks to start, stop or restart one machine, or to boot it from a rescue system.
type Power struct {
	Work
	// Machine is the machine's id.
	Machine string      `json:"machine"`
	Action  PowerAction `json:"action"`
}

// PowerAction is what to do with a machine's power.
type PowerAction string

// The actions on a machine's power. The last two are asked only of a program that has the action
// rescue: it makes a password for the rescue system, which is the credential RescuePassword.
const (
	PowerStart    PowerAction = "start"
	PowerStop     PowerAction = "stop"
	PowerRestart  PowerAction = "restart"
	PowerRescue   PowerAction = "rescue"
	PowerUnrescue PowerAction = "unrescue"
)

// Rebuild asks to make one machine again from its image, with the same id and name.
type Rebuild struct {
	Work
	// Machine is the machine's id.
	Machine string `json:"machine"`
	Resume  bool   `json:"resume,omitempty"`
}

// Health asks whether one machine is healthy.
type Health struct {
	Work
	// Machine is the machine's id.
	Machine string `json:"machine"`
}

// Cancel asks the program to stop at the next safe point, and to answer with a result.
type Cancel struct{}

// Detach asks a program that is detachable to leave its work going on, to report what exists
// and to answer with the code detached. A later request has Resume and takes the work up.
type Detach struct{}

// Ack answers an intent.
type Ack struct {
	// ID is the intent's id.
	ID string `json:"id"`
	// OK says that the intent is recorded. Where it is false, don't do it.
	OK bool `json:"ok"`
	// Message says why not.
	Message string `json:"message,omitempty"`
}

// Type implements [Message].
func (*Describe) Type() string { return "describe" }

// Type implements [Message].
func (*Plan) Type() string { return "plan" }

// Type implements [Message].
func (*Apply) Type() string { return "apply" }

// Type implements [Message].
func (*Destroy) Type() string { return "destroy" }

// Type implements [Message].
func (*Refresh) Type() string { return "refresh" }

// Type implements [Message].
func (*Power) Type() string { return "power" }

// Type implements [Message].
func (*Rebuild) Type() string { return "rebuild" }

// Type implements [Message].
func (*Health) Type() string { return "health" }

// Type implements [Message].
func (*Cancel) Type() string { return "cancel" }

// Type implements [Message].
func (*Detach) Type() string { return "detach" }

// Type implements [Message].
func (*Ack) Type() string { return "ack" }

// Job implements [Request].
func (*Describe) Job() *Work { return nil }

// Job implements [Request] for every type that embeds Work.
func (w *Work) Job() *Work { return w }

// Targeted reports whether a run may touch the machine of this name.
func (w *Work) Targeted(name string) bool {
	for _, target := range w.Targets {
		if target == name {
			return true
		}
	}
	return len(w.Targets) == 0
}

// Find returns the machine with this id, wanted or obsolete, and nil where there is none.
func (w *Work) Find(id string) *Wanted {
	for _, list := range [][]Wanted{w.Machines, w.Obsolete} {
		for i := range list {
			if list[i].ID == id {
				return &list[i]
			}
		}
	}
	return nil
}
