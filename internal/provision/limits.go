package provision

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// What the database takes, in one table. Fit brings a report within it before it is
// sent; sql/functions has the same numbers, for agents that don't.
//
//	what                          limit                       beyond it
//	a report's detail             MaxDetail bytes             it isn't written
//	a chunk of a log              MaxChunk bytes              it is no record of a spool
//	chunks of one call            MaxBatchChunks, MaxBatch    they go in several
//	an address (key of an index)  MaxAddress characters       its beginning and a digest
//	nesting of a JSON value       MaxNesting levels           the value is left out
//	a number in a JSON value      1e400, 400 digits           the value is left out
//	half a surrogate pair         none                        U+FFFD
//	a time                        1970 to 9999                the report's own time
//	percent                       0 to 100                    the nearest
const (
	// MaxDetail is the most bytes of JSON the database takes as a detail.
	MaxDetail = 1 << 20
	// MaxMachineName is the most characters that the name of a machine has.
	MaxMachineName = 200
	// MaxAddress is how many characters of a resource's address are kept as they
	// are: four bytes each at most, so that it fits into an index's 2,704 bytes.
	MaxAddress = 600
	// MaxNesting is how deep arrays and objects of a value may be in each other.
	MaxNesting = 100
	// maxExponent bounds numbers: 1e131071 takes ten bytes of JSON, and 131 KB
	// written out.
	maxExponent = 400
)

// Key returns a text that identifies something, no longer than a key may be: where
// it is longer its end gives way to a digest of all of it, so that two keys that
// begin alike stay two.
func Key(text string) string {
	if len(text) <= MaxAddress || utf8.RuneCountInString(text) <= MaxAddress {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	digest := "~sha256:" + hex.EncodeToString(sum[:])
	kept := MaxAddress - utf8.RuneCountInString(digest)
	end := 0
	for range kept {
		_, size := utf8.DecodeRuneInString(text[end:])
		end += size
	}
	return text[:end] + digest
}

// Fit returns a detail that the database takes. at stands for times that aren't ones.
// What it was given stays as it is.
func (d Detail) Fit(at time.Time) Detail {
	if d.Percent != nil {
		percent := min(max(*d.Percent, 0), 100)
		d.Percent = &percent
	}
	d.Running = fitted(d.Running, func(r *Running) {
		r.Address, r.Since, r.Step = Key(r.Address), fitTime(r.Since, at), shortened(r.Step, MaxStepLabel)
		if r.Percent != nil {
			percent := min(max(*r.Percent, 0), 100)
			r.Percent = &percent
		}
	})
	d.Events = fitted(d.Events, func(e *Event) { e.Address, e.At = Key(e.Address), fitTime(e.At, at) })
	d.Resources = fitted(d.Resources, func(r *Resource) { r.Address = Key(r.Address) })
	d.Machines = fitted(d.Machines, fitMachine)
	if d.About != nil {
		about := *d.About
		about.Title, about.Description, about.Icon = shortened(about.Title, 100), shortened(about.Description, 4000), shortened(about.Icon, 40)
		if len(about.File) > MaxTemplateFile || !utf8.ValidString(about.File) || strings.ContainsRune(about.File, 0) {
			about.File = ""
		}
		if len(about.Readme) > MaxReadme || !utf8.ValidString(about.Readme) || strings.ContainsRune(about.Readme, 0) {
			about.Readme = ""
		}
		d.About = &about
	}
	d.Drift = fitted(d.Drift, fitChange)
	if d.Plan != nil {
		plan := *d.Plan
		plan.Resources = fitted(plan.Resources, fitChange)
		d.Plan = &plan
	}
	d.Variables = fitted(d.Variables, func(v *Variable) {
		var ok bool
		if v.TypeJSON, ok = fitJSON(v.TypeJSON); !ok {
			v.TypeJSON = json.RawMessage(`"dynamic"`)
		}
		v.Default, _ = fitJSON(v.Default)
	})
	if d.Outputs != nil {
		outputs := make(map[string]Output, len(d.Outputs))
		for name, o := range d.Outputs {
			var ok bool
			if o.Value, ok = fitJSON(o.Value); !ok {
				o.Omitted = true
			}
			if o.Type, ok = fitJSON(o.Type); !ok {
				o.Type = json.RawMessage(`"dynamic"`)
			}
			outputs[name] = o
		}
		d.Outputs = outputs
	}
	return d
}

// Fit returns a chunk that the database takes. A time that isn't one is the epoch:
// the database says what it makes of that.
func (c LogChunk) Fit() LogChunk {
	c.EmittedAt = fitTime(c.EmittedAt, time.Unix(0, 0).UTC())
	return c
}

// What a machine's addresses and labels may take together, in bytes.
const (
	maxMachineAddresses = 4 << 10
	maxMachineLabels    = 16 << 10
)

func fitMachine(m *Machine) {
	for _, text := range []*string{&m.Address, &m.Pool, &m.Node, &m.ExternalID, &m.SSHUser, &m.Image} {
		*text = Key(*text)
	}
	m.Name = shortened(m.Name, MaxMachineName)
	size := 0
	for i, address := range m.IPAddresses {
		if size += len(address) + 1; size > maxMachineAddresses {
			m.IPAddresses = m.IPAddresses[:i]
			break
		}
	}
	size = 2
	for name, value := range m.Labels {
		quoted, err := json.Marshal([]string{name, value})
		if size += len(quoted) + 4; err != nil || size > maxMachineLabels {
			m.Labels = nil
			break
		}
	}
}

// shortened is a text of at most so many characters.
func shortened(text string, most int) string {
	if characters := []rune(text); len(characters) > most {
		return string(characters[:most])
	}
	return text
}

func fitChange(c *PlannedChange) {
	c.Address, c.From = Key(c.Address), Key(c.From)
	c.Attributes = fitted(c.Attributes, func(a *AttributeChange) {
		before, ok1 := fitJSON(a.Before)
		after, ok2 := fitJSON(a.After)
		a.Before, a.After, a.Long = before, after, a.Long || !ok1 || !ok2
	})
}

// fitted returns a copy whose elements are fitted.
func fitted[T any](all []T, fit func(*T)) []T {
	if len(all) == 0 {
		return all // nil and empty are two things
	}
	all = append([]T(nil), all...)
	for i := range all {
		fit(&all[i])
	}
	return all
}

// fitTime returns a time that every reader of the database can read.
func fitTime(t, instead time.Time) time.Time {
	if year := t.UTC().Year(); year < 1970 || year > 9998 {
		return instead
	}
	return t
}

// fitJSON returns a JSON value that the database takes; nil and false for one that
// it doesn't. An absent one is nil and true.
func fitJSON(raw json.RawMessage) (json.RawMessage, bool) {
	if len(raw) == 0 {
		return raw, true
	}
	depth, halves := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			end, half := stringEnd(raw[i:])
			i, halves = i+end, halves || half
		case c == '[', c == '{':
			if depth++; depth > MaxNesting {
				return nil, false
			}
		case c == ']', c == '}':
			depth--
		case c == '-', c >= '0' && c <= '9':
			end := i + 1
			for end < len(raw) && strings.IndexByte("0123456789+-.eE", raw[end]) >= 0 {
				end++
			}
			if isVast(string(raw[i:end])) {
				return nil, false
			}
			i = end - 1
		}
	}
	if !halves {
		return raw, true
	}
	// Go's decoder puts U+FFFD where half of a pair stands alone.
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil, false
	}
	whole, err := json.Marshal(value)
	return whole, err == nil
}

// stringEnd returns where the JSON string at the start of a text ends, and whether
// it has the escape of a surrogate that isn't one of a pair.
func stringEnd(text []byte) (end int, half bool) {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i, half
		case '\\':
			if r, ok := escaped(text[i:]); ok && r >= 0xd800 && r < 0xe000 {
				next, pair := escaped(text[min(i+6, len(text)):])
				if r < 0xdc00 && pair && next >= 0xdc00 && next < 0xe000 {
					i += 6
				} else {
					half = true
				}
				i += 4 // and the two below
			}
			i++
		}
	}
	return len(text), half
}

// escaped reads \uXXXX.
func escaped(text []byte) (uint64, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return r, err == nil
}

// isVast reports whether a JSON number takes more than maxExponent digits on either
// side of the point when it is written out. Zero counts as well: 0e-16383 is one.
func isVast(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(number, "-")), "e")
	shift := 0
	if exponent != "" {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift > 1<<20 || shift < -1<<20 {
			return true
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if len(fraction)-shift > maxExponent {
		return true
	}
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return false
	}
	return len(digits)-len(fraction)+shift > maxExponent
}
