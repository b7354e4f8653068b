package logstream

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// maskDetail hides secrets in all that a report says in words, names and values.
// What is one of a few fixed words, a digest or a version stays, and so do the
// names of outputs, which stand in the template. The caller's slices and maps
// stay as they are.
func (s *secrets) maskDetail(d provision.Detail) provision.Detail {
	d.ErrorMessage, d.SetAside = s.maskString(d.ErrorMessage), s.maskString(d.SetAside)
	d.Events = masked(d.Events, func(e *provision.Event) {
		e.Address, e.Message = s.maskString(e.Address), s.maskString(e.Message)
	})
	d.Running = masked(d.Running, func(r *provision.Running) { r.Address = s.maskString(r.Address) })
	d.Drift = masked(d.Drift, s.maskChange)
	if d.StateLock != nil {
		lock := *d.StateLock
		for _, text := range []*string{&lock.ID, &lock.Who, &lock.Operation, &lock.Created} {
			*text = s.maskString(*text)
		}
		d.StateLock = &lock
	}
	if d.Plan != nil {
		plan := *d.Plan
		plan.Resources = masked(plan.Resources, s.maskChange)
		d.Plan = &plan
	}
	d.Resources = masked(d.Resources, func(r *provision.Resource) {
		for _, text := range []*string{&r.Address, &r.Type, &r.Provider, &r.ExternalID} {
			*text = s.maskString(*text)
		}
		// Half an address is none.
		r.IPAddresses = slices.DeleteFunc(slices.Clone(r.IPAddresses), func(ip string) bool { return s.maskString(ip) != ip })
	})
	d.Outputs = s.maskOutputs(d.Outputs)
	d.Variables = masked(d.Variables, func(v *provision.Variable) {
		for _, text := range []*string{&v.Name, &v.Type, &v.Description} {
			*text = s.maskString(*text)
		}
		v.TypeJSON, v.Default = s.maskJSON(v.TypeJSON), s.maskJSON(v.Default)
	})
	return d
}

// masked returns a copy whose elements are masked.
func masked[T any](all []T, mask func(*T)) []T {
	all = slices.Clone(all)
	for i := range all {
		mask(&all[i])
	}
	return all
}

func (s *secrets) maskChange(c *provision.PlannedChange) {
	for _, text := range []*string{&c.Address, &c.From, &c.ID, &c.Reason} {
		*text = s.maskString(*text)
	}
	c.Attributes = masked(c.Attributes, func(a *provision.AttributeChange) {
		a.Path = s.maskString(a.Path)
		a.Before, a.After = s.maskJSON(a.Before), s.maskJSON(a.After)
	})
}

// maskOutputs hides known secrets in what the template shows openly. Tokens that
// only look like one are left: what an author has put out is there to be used.
func (s *secrets) maskOutputs(outputs map[string]provision.Output) map[string]provision.Output {
	if outputs == nil {
		return nil
	}
	known := &secrets{find: newPatterns(s.pieces, nil)}
	all := make(map[string]provision.Output, len(outputs))
	for name, o := range outputs {
		o.Value, o.Type = known.maskJSON(o.Value), known.maskJSON(o.Type)
		all[name] = o
	}
	return all
}

// maskJSON hides the secrets in the strings, names and numbers of a JSON value,
// which stays one. What is no JSON is dropped, for a report could not be encoded
// with it; what has no secret stays as it is, byte for byte.
func (s *secrets) maskJSON(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return raw
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil || decoder.More() {
		return nil
	}
	value, changed := s.maskValue(value)
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

func (s *secrets) maskValue(value any) (_ any, changed bool) {
	switch v := value.(type) {
	case string:
		out := s.maskString(v)
		return out, out != cleanString(v)
	case json.Number:
		if out := s.maskString(v.String()); out != v.String() {
			return out, true
		}
	case []any:
		for i := range v {
			element, other := s.maskValue(v[i])
			v[i], changed = element, changed || other
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, element := range v {
			element, other := s.maskValue(element)
			shown := s.maskString(name)
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

// maskString hides the secrets of a text that is complete.
func (s *secrets) maskString(text string) string {
	text = cleanString(text)
	if text == "" {
		return ""
	}
	m := masker{find: s.patterns()}
	return string(m.release([]byte(text), m.scan([]byte(text), true)))
}

// Redact returns a text that is no run's log as one would show it.
func Redact(text string, values ...string) string {
	var s secrets
	s.add(values...)
	return s.maskString(text)
}
