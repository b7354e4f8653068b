package chaos

import (
	"encoding/json"
	"strconv"

	"github.com/google/uuid"
)

// act is one provision that a life asks for.
type act struct {
	id        uuid.UUID
	operation string
	priority  int
	resources int
	snapshot  string
}

// firstOne is the address of a resource that most applies make.
const firstOne = `terraform_data.each["r0"]`

// newAct is a provision as it is asked for most simply.
func (o *life) newAct(operation, version string) *act {
	return o.actWith(operation, version, nil)
}

func (o *life) actWith(operation, version string, more map[string]any) *act {
	a := &act{id: uuid.New(), operation: operation, resources: 1 + o.random.IntN(3)}
	snapshot := map[string]any{
		"template_source": map[string]any{"repo": o.repo, "version": version}, "workspace": o.workspace,
		"terraform_vars": map[string]any{
			"journal": o.journal, "n": a.resources, "word": strconv.Itoa(o.random.IntN(3)), "pause": o.pick("0", "0", "0.05", "0.3"),
		},
	}
	for name, value := range more {
		snapshot[name] = value
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		panic(err) // strings, numbers and lists of them
	}
	a.snapshot = string(text)
	return a
}

// randomAct is whatever somebody may ask for.
func (o *life) randomAct() *act {
	operation := o.pick("apply", "apply", "apply", "apply", "apply", "apply", "destroy", "destroy", "plan", "refresh", "unlock", "state", "state")
	version := works1
	if o.chance(15) {
		version = o.pick(failsPlan, failsInit, failsApply)
	}
	more := map[string]any{}
	switch operation {
	case "unlock":
		more["lock_id"] = uuid.NewString()
	case "state":
		more["state"] = o.stateCommand(more)
	default:
		more["max_attempts"] = 1 + o.random.IntN(3)
		more["approval"] = o.pick("never", "destructive", "always", "always")
		if o.chance(10) {
			more["targets"] = []string{firstOne}
		}
		if o.chance(15) && (operation == "plan" || operation == "apply") {
			more["replace"] = []string{firstOne}
		}
		if o.chance(3) {
			more["timeout_seconds"] = 1
		}
	}
	a := o.actWith(operation, version, more)
	a.priority = o.random.IntN(11) - 5
	return a
}

func (o *life) stateCommand(more map[string]any) map[string]any {
	switch command := o.pick("list", "pull", "rm", "rm", "rollback"); command {
	case "rm":
		return map[string]any{"command": command, "args": []string{firstOne}}
	case "pull":
		more["requester_key"] = o.requester
		return map[string]any{"command": command}
	case "rollback":
		return map[string]any{"command": command, "version": 1 + o.random.IntN(3)}
	default:
		return map[string]any{"command": command}
	}
}

func (o *life) pick(from ...string) string { return from[o.random.IntN(len(from))] }

// chance is true so often in a hundred.
func (o *life) chance(percent int) bool { return o.random.IntN(100) < percent }
