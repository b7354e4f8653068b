package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// places are where the machines go that Terraform makes: the database chooses, as it does for
// those that the agent makes, and the template gets the answer as a variable.
type places struct {
	*task
	variable string
	wants    []provision.PlaceWanted
	file     string // for the variable
}

// newPlaces is nil for a template that has no machines placed.
func (t *terraformRun) newPlaces(template *tfvars.Template, given tfvars.Given) (*places, error) {
	if t.file.PlacementVariable == "" {
		return nil, nil
	}
	values, err := template.Values(given)
	if err != nil {
		return nil, err
	}
	wants, err := t.file.Places(values, nil)
	if err != nil {
		return nil, err
	}
	p := &places{task: t.task, variable: t.file.PlacementVariable, file: t.files.places, wants: wants}
	return p, nil
}

// write has the machines placed, and returns the file with the variable; "" where none is.
func (p *places) write(ctx context.Context) (string, error) {
	if p == nil {
		return "", nil
	}
	type place struct {
		Node    string  `json:"node"`
		VMID    *int    `json:"vmid"`
		Address *string `json:"address"`
	}
	all := map[string]place{}
	if len(p.wants) > 0 {
		placed, err := p.session.places(ctx, p.wants)
		if err != nil {
			return "", err
		}
		for _, one := range placed {
			next := place{Node: one.Node}
			if one.VMID > 0 {
				next.VMID = &one.VMID
			}
			if one.Address != "" {
				next.Address = &one.Address
			}
			all[one.Name] = next
			p.log.System("%s goes to %s: %s", machines.Address(one.Name), one.Node, oneLine(one.Why))
		}
	}
	text, err := json.Marshal(map[string]any{p.variable: all})
	if err == nil {
		err = os.WriteFile(p.file, text, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("write the places of machines: %w", err)
	}
	return p.file, nil
}
