package console

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// change is one difference from what was applied last.
type change struct {
	Action string // create, update or delete
	Name   string
	// Was and Now are what people may see of both: a sealed or sensitive value is
	// never shown.
	Was, Now string
}

// longestShown is how much of a value a change shows.
const longestShown = 400

// compare says what differs between the newest snapshot that was applied and what
// is asked for now.
func compare(applied json.RawMessage, asked provision.Snapshot, declared []provision.Variable) (found []change) {
	was, err := provision.ParseSnapshot(applied)
	if err != nil {
		return nil // of an older contract: it cannot be compared, and nothing depends on it
	}
	add := func(name, before, now string) {
		switch {
		case before == now:
		case before == "":
			found = append(found, change{"create", name, "", now})
		case now == "":
			found = append(found, change{"delete", name, before, ""})
		default:
			found = append(found, change{"update", name, before, now})
		}
	}
	add("version", was.TemplateSource.Version, asked.TemplateSource.Version)
	add("engine", engineOf(was), engineOf(asked))
	secret := map[string]bool{}
	for _, v := range declared {
		secret[v.Name] = v.Sensitive
	}
	names := map[string]bool{}
	for _, s := range []provision.Snapshot{was, asked} {
		for name := range s.TerraformVars {
			names[name] = true
		}
		for name := range s.SealedVars {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, now := shown(was, name, secret[name]), shown(asked, name, secret[name])
		if before == now && valueOf(was, name) != valueOf(asked, name) {
			now = "another " + now // sealed, hidden, or longer than what is shown
		}
		add(name, before, now)
	}
	return found
}

const (
	sealedValue = "sealed value"
	hiddenValue = "hidden value"
)

// valueOf is a variable's value in one form, to be compared.
func valueOf(s provision.Snapshot, name string) string {
	if message, ok := s.SealedVars[name]; ok {
		return message
	}
	return plainText(s.TerraformVars[name], "")
}

// shown is what people may see of a variable's value; "" where it has none.
func shown(s provision.Snapshot, name string, secret bool) string {
	value, plain := s.TerraformVars[name]
	_, isSealed := s.SealedVars[name]
	switch {
	case isSealed:
		return sealedValue
	case !plain:
		return ""
	case secret:
		return hiddenValue
	}
	text := []rune(plainText(value, "  "))
	if len(text) > longestShown {
		return string(text[:longestShown]) + "…"
	}
	return string(text)
}

// plainText writes a value in one form, its names sorted and its numbers as they
// are.
func plainText(raw json.RawMessage, indent string) string {
	if raw == nil {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if d.Decode(&value) != nil {
		return string(raw)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	_ = e.Encode(value) // what was decoded can be encoded
	return string(bytes.TrimSpace(out.Bytes()))
}

func engineOf(s provision.Snapshot) string {
	text := s.Terraform.Engine
	if s.Terraform.Version != "" {
		text += " " + s.Terraform.Version
	}
	return text
}
