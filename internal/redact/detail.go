package redact

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// detailMasker masks the parts of a report, each of which is a complete text.
type detailMasker struct{ find *patterns }

// detail masks a report but for its outputs. Fixed words, digests and versions
// stay, and so do the names of outputs, which stand in the template. The
// caller's slices and maps stay as they are.
func (m detailMasker) detail(d provision.Detail) provision.Detail {
	d.ErrorMessage, d.SetAside = m.text(d.ErrorMessage), m.text(d.SetAside)
	d.Events = masked(d.Events, func(e *provision.Event) {
		e.Address, e.Action, e.Message = m.text(e.Address), m.text(e.Action), m.text(e.Message)
	})
	if d.Input != nil {
		input := *d.Input
		input.Instructions = m.text(input.Instructions)
		input.Outputs = masked(input.Outputs, func(o *provision.InputOutput) {
			o.Name, o.Type, o.Description = m.text(o.Name), m.text(o.Type), m.text(o.Description)
		})
		input.Machines = masked(input.Machines, func(w *provision.InputMachine) {
			for _, text := range []*string{&w.Name, &w.Action, &w.Pool, &w.Image, &w.Address} {
				*text = m.text(*text)
			}
			if w.Known != nil {
				w.Known = &provision.InputFacts{
					ExternalID: m.text(w.Known.ExternalID), Address: m.text(w.Known.Address), Addresses: m.addresses(w.Known.Addresses), SSHPort: w.Known.SSHPort,
				}
			}
		})
		d.Input = &input
	}
	d.Running = masked(d.Running, func(r *provision.Running) {
		r.Address, r.Action, r.Step = m.text(r.Address), m.text(r.Action), m.text(r.Step)
	})
	d.Drift = masked(d.Drift, m.change)
	d.Marks = masked(d.Marks, func(mark *provision.Mark) { mark.Name = m.text(mark.Name) })
	if d.StateLock != nil {
		lock := *d.StateLock
		for _, text := range []*string{&lock.ID, &lock.Who, &lock.Operation, &lock.Created} {
			*text = m.text(*text)
		}
		d.StateLock = &lock
	}
	if d.Places != nil {
		places := *d.Places
		places.Wants = masked(places.Wants, func(w *provision.PlaceWanted) {
			for _, text := range []*string{&w.Name, &w.Pool, &w.Image, &w.Node, &w.Spread, &w.Together, &w.Address} {
				*text = m.text(*text)
			}
			w.Avoid = masked(w.Avoid, func(node *string) { *node = m.text(*node) })
			w.Labels = m.labels(w.Labels)
		})
		places.Release = masked(places.Release, func(name *string) { *name = m.text(*name) })
		d.Places = &places
	}
	if d.Plan != nil {
		plan := *d.Plan
		plan.Resources = masked(plan.Resources, m.change)
		d.Plan = &plan
	}
	d.Resources = masked(d.Resources, func(r *provision.Resource) {
		for _, text := range []*string{&r.Address, &r.Type, &r.Provider, &r.ExternalID} {
			*text = m.text(*text)
		}
		r.IPAddresses = m.addresses(r.IPAddresses)
	})
	if d.About != nil {
		about := *d.About
		for _, text := range []*string{&about.Title, &about.Description, &about.Icon, &about.Provisioner, &about.File, &about.Readme} {
			*text = m.text(*text)
		}
		d.About = &about
	}
	named := map[string]bool{}
	d.Machines = masked(d.Machines, func(r *provision.Machine) {
		for _, text := range []*string{&r.Name, &r.Address, &r.Pool, &r.Node, &r.ExternalID, &r.SSHUser, &r.Image} {
			*text = m.text(*text)
		}
		for named[r.Name] {
			r.Name += "*" // two names that differ in their secrets only
		}
		named[r.Name] = true
		r.IPAddresses = m.addresses(r.IPAddresses)
		r.Labels = m.labels(r.Labels)
		if r.Check != nil {
			check := *r.Check
			check.Kind, check.Target, check.Path = m.text(check.Kind), m.text(check.Target), m.text(check.Path)
			if check.Command != nil {
				command := *check.Command
				for _, text := range []*string{&command.Repo, &command.Version, &command.Path, &command.Commit, &command.Workspace, &command.ID, &command.ExternalID, &command.Pool} {
					*text = m.text(*text)
				}
				check.Command = &command
			}
			r.Check = &check
		}
		r.Actions = slices.DeleteFunc(slices.Clone(r.Actions), func(a provision.MachineAction) bool { return !slices.Contains(provision.MachineActions, a) })
	})
	d.Variables = masked(d.Variables, func(v *provision.Variable) {
		for _, text := range []*string{&v.Name, &v.Type, &v.Description} {
			*text = m.text(*text)
		}
		v.TypeJSON, v.Default = m.json(v.TypeJSON), m.json(v.Default)
	})
	return d
}

// labels keeps apart two whose names differ in their secrets only.
func (m detailMasker) labels(all map[string]string) map[string]string {
	labels := make(map[string]string, len(all))
	for name, value := range all {
		shown := m.text(name)
		for _, taken := labels[shown]; taken; _, taken = labels[shown] {
			shown += "*"
		}
		labels[shown] = m.text(value)
	}
	return labels
}

// addresses leaves out what has a secret in it: half an address is none.
func (m detailMasker) addresses(ips []string) []string {
	return slices.DeleteFunc(slices.Clone(ips), func(ip string) bool { return m.text(ip) != ip })
}

// masked returns a copy whose elements are masked.
func masked[T any](all []T, mask func(*T)) []T {
	all = slices.Clone(all)
	for i := range all {
		mask(&all[i])
	}
	return all
}

func (m detailMasker) change(c *provision.PlannedChange) {
	for _, text := range []*string{&c.Address, &c.From, &c.ID, &c.Reason} {
		*text = m.text(*text)
	}
	c.Attributes = masked(c.Attributes, func(a *provision.AttributeChange) {
		a.Path = m.text(a.Path)
		a.Before, a.After = m.json(a.Before), m.json(a.After)
	})
}

// outputs masks values of a template's outputs. Text that only looks like a token
// is left, so m has no patterns of tokens: an author put it out for use.
func (m detailMasker) outputs(outputs map[string]provision.Output) map[string]provision.Output {
	all := make(map[string]provision.Output, len(outputs))
	for name, o := range outputs {
		o.Value, o.Type = m.json(o.Value), m.json(o.Type)
		all[name] = o
	}
	return all
}

// json masks the strings, names and numbers of a JSON value, which stays JSON.
// Anything else is dropped, for a report could not be encoded with it. A value
// without secrets stays as it is, byte for byte.
func (m detailMasker) json(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return raw
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil || decoder.More() {
		return nil
	}
	value, changed := m.value(value)
	if !changed {
		return raw
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return nil
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func (m detailMasker) value(value any) (_ any, changed bool) {
	switch v := value.(type) {
	case string:
		out := m.text(v)
		return out, out != cleanString(v)
	case json.Number:
		if out := m.text(v.String()); out != v.String() {
			return out, true
		}
	case []any:
		for i := range v {
			element, other := m.value(v[i])
			v[i], changed = element, changed || other
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, element := range v {
			element, other := m.value(element)
			shown := m.text(name)
			changed = changed || other || shown != cleanString(name)
			for _, taken := out[shown]; taken; _, taken = out[shown] {
				shown += "*" // two names that differ in their secrets only
			}
			out[shown] = element
		}
		return out, changed
	}
	return value, changed
}

func (m detailMasker) text(text string) string { return maskText(m.find, text) }
