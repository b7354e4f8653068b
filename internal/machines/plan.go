package machines

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// Plan is what is to be done, and what it was made from. It holds settings that are
// hidden, so it is stored sealed; Summary is what people see.
type Plan struct {
	// Serial and Lineage are those of the state that the plan was made from.
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
	// Wanted are the machines that the template wants, and Obsolete those that exist beside
	// them. Both have ids.
	Wanted   []provisioner.Wanted `json:"wanted"`
	Obsolete []provisioner.Wanted `json:"obsolete,omitempty"`
	Changes  []Change             `json:"changes"`
	// Program is a provisioner's own plan, if it makes one.
	Program json.RawMessage `json:"program,omitempty"`
}

// Change is a change with the name of its machine.
type Change struct {
	provisioner.Change
	Name string `json:"name,omitempty"`
	// Rebuild says that a person asked for it, so that the program is told to rebuild this
	// machine instead of finding the change in its own plan.
	Rebuild bool `json:"rebuild,omitempty"`
}

// Asked is what a plan is made for.
type Asked struct {
	// Wanted are the machines of the template, without ids; for a destroy there are none.
	Wanted []provisioner.Wanted
	// Sensitive are the paths of settings, such as proxmox.password, whose values are hidden.
	Sensitive map[string]bool
	// Targets and Replace are names of machines. Where there are targets, nothing else is
	// changed.
	Targets, Replace []string
	// InPlace are the attributes, such as cores, that a machine can change and keep what is on
	// it. One that ends in a point stands for all that begin with it.
	InPlace []string
	// FirstStart is the kind of settings that a machine is told at its first start alone, so
	// that others make no machine another one; "" for none.
	FirstStart string
	// Resumes says that a machine whose making was interrupted can be asked for again.
	Resumes bool
}

func (a *Asked) inPlace(name string) bool {
	return slices.ContainsFunc(a.InPlace, func(one string) bool {
		return one == name || strings.HasSuffix(one, ".") && strings.HasPrefix(name, one)
	})
}

// NewPlan gives each machine its id and says what is to be done to it: machines are made,
// replaced where the template wants another one, and destroyed. The error is a Failure
// where an interrupted run has left a machine of which nobody knows whether it exists.
func NewPlan(s *State, asked Asked) (*Plan, error) {
	p := &Plan{Serial: s.Serial, Lineage: s.Lineage, Changes: []Change{}}
	targeted := func(name string) bool { return len(asked.Targets) == 0 || slices.Contains(asked.Targets, name) }
	var unknown, imported []string // that nobody can be asked for
	names := map[string]bool{}
	for _, wanted := range asked.Wanted {
		names[wanted.Name] = true
		known := s.Named(wanted.Name)
		if known == nil {
			wanted.ID = uuid.NewString()
			if p.Wanted = append(p.Wanted, wanted); targeted(wanted.Name) {
				p.add(wanted, provisioner.ActionCreate, "", differences(provisioner.Wanted{}, wanted, asked.Sensitive))
			}
			continue
		}
		wanted.ID, wanted.ExternalID, wanted.Node = known.ID, known.ExternalID, known.Node
		if p.Wanted = append(p.Wanted, wanted); !targeted(wanted.Name) {
			continue
		}
		hidden := maps.Clone(asked.Sensitive)
		for _, name := range known.Hidden { // also what the template has hidden before
			if hidden == nil {
				hidden = map[string]bool{}
			}
			hidden[name] = true
		}
		differs := slices.DeleteFunc(differences(known.Wanted, wanted, hidden), func(a provisioner.Attribute) bool {
			return asked.FirstStart != "" && strings.HasPrefix(a.Name, asked.FirstStart+".")
		})
		switch {
		case known.Importing:
			imported = append(imported, wanted.Name)
		case known.Intent != nil && !asked.Resumes:
			unknown = append(unknown, wanted.Name)
		case known.Intent != nil && known.Intent.Action == provisioner.ActionDestroy:
			p.add(wanted, provisioner.ActionReplace, "a run was interrupted while it destroyed this machine", differs)
		case known.Intent != nil && known.Intent.Action == provisioner.ActionReplace && asked.FirstStart != "":
			// What is there may be the machine of before.
			p.add(wanted, provisioner.ActionReplace, "a run was interrupted while it replaced this machine", differs)
		case known.InDoubt():
			// For the same machine as before: one of another size would be recorded, and not be
			// there. The next plan replaces it.
			again := known.Wanted
			again.ExternalID, again.Node = known.ExternalID, known.Node
			p.Wanted[len(p.Wanted)-1] = again
			p.add(again, provisioner.ActionCreate, "it is not known whether this machine exists, and it is asked for again", nil)
		case slices.Contains(asked.Replace, wanted.Name):
			p.add(wanted, provisioner.ActionReplace, "it was asked for", differs)
		case known.Status == provisioner.StatusFailed || known.Unfinished:
			p.add(wanted, provisioner.ActionReplace, "its making was not completed", differs)
		case len(differs) > 0 && !slices.ContainsFunc(differs, func(a provisioner.Attribute) bool { return !asked.inPlace(a.Name) }):
			p.add(wanted, provisioner.ActionChange, "the template wants another one", differs)
		case len(differs) > 0:
			p.add(wanted, provisioner.ActionReplace, "the template wants another one", differs)
		}
	}
	for _, m := range s.Machines {
		if names[m.Wanted.Name] {
			continue
		}
		was := m.Wanted
		was.ExternalID, was.Node = m.ExternalID, m.Node
		if p.Obsolete = append(p.Obsolete, was); !targeted(was.Name) {
			continue
		}
		switch {
		case m.Importing:
			imported = append(imported, was.Name)
		case m.Intent != nil && m.ExternalID == "" && !asked.Resumes:
			unknown = append(unknown, was.Name)
		default:
			p.add(was, provisioner.ActionDestroy, "", nil)
		}
	}
	if imported != nil {
		return nil, provision.Fail(provision.CodePlanFailed, fmt.Sprintf(
			"The import of %s was interrupted, and nobody knows whether it is taken over. Import it again (trellis state import WORKSPACE machine.%s NODE/ID), or give that up (trellis state rm WORKSPACE machine.%s). Then try again.",
			list(imported), imported[0], imported[0]), nil)
	}
	if unknown != nil {
		return nil, provision.Fail(provision.CodePlanFailed, fmt.Sprintf(
			"A run ended while it was at work on %s, and nobody knows whether it exists: the script can't be asked for it again (idempotent = false). Look for it in its cloud. If it exists, import it (trellis state import WORKSPACE machine.%s EXTERNAL_ID); if it doesn't, forget it (trellis state rm WORKSPACE machine.%s). Then deploy again.",
			list(unknown), unknown[0], unknown[0]), nil)
	}
	return p, nil
}

// AsRecorded is a plan of the machines as they are recorded, in which nothing is changed.
func AsRecorded(s *State) *Plan {
	p := &Plan{Serial: s.Serial, Lineage: s.Lineage, Changes: []Change{}}
	for _, m := range s.Machines {
		was := m.Wanted
		was.ExternalID, was.Node = m.ExternalID, m.Node
		p.Wanted = append(p.Wanted, was)
	}
	return p
}

func (p *Plan) add(m provisioner.Wanted, action provisioner.Action, why string, attributes []provisioner.Attribute) {
	p.Changes = append(p.Changes, Change{Name: m.Name, Change: provisioner.Change{Machine: m.ID, Action: action, Why: why, Attributes: attributes}})
}

// list names machines in a sentence.
func list(names []string) string {
	if len(names) == 1 {
		return "the machine " + names[0]
	}
	return "the machines " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// differences are the attributes in which a machine is to be another one.
func differences(was, is provisioner.Wanted, sensitive map[string]bool) []provisioner.Attribute {
	before, after := attributes(was, sensitive), attributes(is, sensitive)
	names := slices.Sorted(maps.Keys(after))
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, stays := after[name]; !stays {
			names = append(names, name)
		}
	}
	var differ []provisioner.Attribute
	for _, name := range names {
		if !bytes.Equal(before[name], after[name]) {
			differ = append(differ, provisioner.Attribute{Name: name, Before: before[name], After: after[name], Sensitive: hides(sensitive, name)})
		}
	}
	return differ
}

// hides reports whether an attribute, or what it is a member of, is hidden.
func hides(hidden map[string]bool, name string) bool {
	for ; name != ""; name = name[:max(strings.LastIndexByte(name, '.'), 0)] {
		if hidden[name] {
			return true
		}
	}
	return false
}

// attributes are what makes a machine another one. Labels, keys and the node that was
// chosen for it do not. Where a member of a setting is hidden, each of its members is an
// attribute, so that people see the others.
func attributes(m provisioner.Wanted, hidden map[string]bool) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	put := func(name string, value any, is bool) {
		if text, err := json.Marshal(value); is && err == nil {
			all[name] = text
		}
	}
	put("pool", m.Pool, m.Pool != "")
	put("image", m.Image, m.Image != "")
	put("cores", m.Cores, m.Cores != 0)
	put("memory", m.Memory, m.Memory != 0)
	put("disk", m.Disk, m.Disk != 0)
	put("address", m.Address, m.Address != "")
	for kind, raw := range m.Settings {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			put(kind, raw, true)
			continue
		}
		for name, value := range members {
			var inner map[string]json.RawMessage
			if !deeper(hidden, kind+"."+name) || json.Unmarshal(value, &inner) != nil || inner == nil {
				put(kind+"."+name, value, true)
				continue
			}
			for member, value := range inner {
				put(kind+"."+name+"."+member, value, string(value) != "null")
			}
		}
	}
	return all
}

// deeper reports whether something within an attribute is hidden.
func deeper(hidden map[string]bool, name string) bool {
	for one := range hidden {
		if strings.HasPrefix(one, name+".") {
			return true
		}
	}
	return false
}

// ErrStale is the error of a plan whose state has moved on.
var ErrStale = errors.New("the machines have changed since the plan was made")

// ReadPlan reads a plan that was approved, for a run that may have begun to apply it.
func ReadPlan(text []byte, s *State, run string) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	if s.Begun(run) && (p.Lineage == s.Lineage || p.Serial == 0) {
		return &p, nil
	}
	if p.Serial != s.Serial || p.Lineage != s.Lineage && s.Serial > 0 {
		return nil, ErrStale
	}
	return &p, nil
}

// Of returns the machine that a change is about.
func (p *Plan) Of(c Change) provisioner.Wanted {
	for _, m := range slices.Concat(p.Wanted, p.Obsolete) {
		if m.ID == c.Machine {
			return m
		}
	}
	return provisioner.Wanted{ID: c.Machine, Name: c.Name}
}

// Summary is what people see and approve.
func (p *Plan) Summary() provision.PlanSummary {
	var s provision.PlanSummary
	for _, c := range p.Changes {
		var action string
		switch c.Action {
		case provisioner.ActionCreate:
			s.Add++
			action = "create"
		case provisioner.ActionChange:
			s.Change++
			action = "update"
		case provisioner.ActionReplace:
			s.Replace++
			action = "replace"
		case provisioner.ActionDestroy:
			s.Destroy++
			action = "delete"
		default:
			continue
		}
		change := provision.PlannedChange{Address: c.Address(), Action: action, Reason: c.Why}
		for _, a := range c.Attributes {
			if len(change.Attributes) == provision.MaxPlanAttributes {
				change.Truncated++
				continue
			}
			shown := provision.AttributeChange{Path: a.Name, Before: a.Before, After: a.After, Sensitive: a.Sensitive, Replaces: c.Action == provisioner.ActionReplace}
			if a.Sensitive {
				shown.Before, shown.After = nil, nil
			}
			change.Attributes = append(change.Attributes, shown)
		}
		if len(s.Resources) == provision.MaxPlanResources {
			s.Truncated++
			continue
		}
		s.Resources = append(s.Resources, change)
	}
	return s
}

// Address is what a change is about, as people read and write it.
func (c Change) Address() string { return cmp.Or(Address(c.Name), c.Resource) }

// Address is how people write a machine's name where resources are named.
func Address(name string) string {
	if name == "" {
		return ""
	}
	return "machine." + name
}

// Name is the name in an address; a bare name is one.
func Name(address string) string { return strings.TrimPrefix(address, "machine.") }

// Resources are the machines as a run reports what exists.
func (s *State) Resources(by string) []provision.Resource {
	exist := make([]provision.Resource, 0, len(s.Machines))
	for _, m := range s.Machines {
		r := provision.Resource{Address: Address(m.Wanted.Name), Type: "machine", Provider: by, ExternalID: m.ExternalID, IPAddresses: reachable(m.Address, m.Addresses), Status: "created"}
		if m.InDoubt() || m.Status == provisioner.StatusFailed {
			r.Status = "tainted"
		}
		exist = append(exist, r)
	}
	return exist
}
