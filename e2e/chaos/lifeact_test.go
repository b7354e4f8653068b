package chaos

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/trust"
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
func (o *life) randomAct() (*act, error) {
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
		command, err := o.stateCommand(more)
		if err != nil {
			return nil, err
		}
		more["state"] = command
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
	return a, nil
}

func (o *life) stateCommand(more map[string]any) (map[string]any, error) {
	switch command := o.pick("list", "pull", "rm", "rm", "rollback"); command {
	case "rm":
		more["approval"] = o.pick("never", "destructive", "always")
		return map[string]any{"command": command, "args": []string{firstOne}}, nil
	case "pull":
		more["requester_key"] = o.requester.Recipient()
		return map[string]any{"command": command}, nil
	case "rollback":
		more["approval"] = o.pick("never", "destructive", "always")
		return o.rollback()
	default:
		return map[string]any{"command": command}, nil
	}
}

// rollback is signed by somebody whom the agents trust, over what is the newest state
// while they ask; a run that comes between makes the order void.
func (o *life) rollback() (map[string]any, error) {
	var now struct {
		ID      uuid.UUID
		Version int64
	}
	if _, err := o.ask(o.t, &now, "SELECT jsonb_build_object('id', id, 'version', coalesce(state_version, 0)) FROM public.workspaces WHERE name = $1", o.workspace); err != nil {
		return nil, err
	}
	if now.ID == uuid.Nil { // nothing has been asked for there yet
		return map[string]any{"command": "list"}, nil
	}
	order := trust.Order{
		Workspace: now.ID, Name: o.workspace, Command: "rollback", Over: now.Version, Version: 1 + o.random.Int64N(3), Until: time.Now().Add(time.Hour),
	}
	signed, err := o.requester.Order(order)
	return map[string]any{"command": order.Command, "version": order.Version, "order": signed}, err
}

func (o *life) pick(from ...string) string { return from[o.random.IntN(len(from))] }

// chance is true so often in a hundred.
func (o *life) chance(percent int) bool { return o.random.IntN(100) < percent }
