package apidocs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// document is the OpenAPI document that the page shows.
type document struct{ *huma.OpenAPI }

// jsonBody is what a request's body is in JSON; nil where it has none.
func jsonBody(op *huma.Operation) *huma.Schema {
	if op.RequestBody == nil || op.RequestBody.Content["application/json"] == nil {
		return nil
	}
	return op.RequestBody.Content["application/json"].Schema
}

// name is the type that a schema is, or is a list of; "" for one without a name.
func name(s *huma.Schema) string {
	if s.Items != nil {
		return name(s.Items)
	}
	return strings.TrimPrefix(s.Ref, "#/components/schemas/")
}

func (d document) resolve(s *huma.Schema) *huma.Schema {
	if s.Ref != "" {
		return d.Components.Schemas.SchemaFromRef(s.Ref)
	}
	return s
}

// kind says what a value is, in a few words.
func kind(s *huma.Schema) string {
	switch {
	case s.Ref != "":
		return name(s)
	case s.Items != nil:
		return "list of " + kind(s.Items)
	case len(s.Enum) > 0:
		words := make([]string, len(s.Enum))
		for i, e := range s.Enum {
			words[i] = fmt.Sprint(e)
		}
		return strings.Join(words, " | ")
	}
	kind := cmp.Or(s.Type, "any JSON")
	if s.Format == "uuid" || s.Format == "date-time" || s.Format == "uri" || s.Format == "binary" {
		kind = s.Format
	}
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		kind += fmt.Sprintf(", %.0f to %.0f", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		kind += fmt.Sprintf(", from %.0f", *s.Minimum)
	case s.MaxLength != nil:
		kind += fmt.Sprintf(", at most %d characters", *s.MaxLength)
	}
	if s.Default != nil {
		kind += fmt.Sprintf("; %v unless given", s.Default)
	}
	return kind
}

// example is a value that a schema could have.
func (d document) example(s *huma.Schema) any {
	described := d.resolve(s)
	switch {
	case len(described.Examples) > 0:
		return described.Examples[0]
	case len(described.Enum) > 0:
		return described.Enum[0]
	case described.Default != nil:
		return described.Default
	case len(described.Properties) > 0:
		made := map[string]any{}
		for name, p := range described.Properties {
			value := d.example(p)
			if slices.Contains(described.Required, name) || len(described.Required) == 0 && value != unsaid {
				made[name] = value
			}
		}
		return made
	}
	if described.Items != nil {
		if item := d.example(described.Items); item != unsaid {
			return []any{item}
		}
		return unsaid
	}
	switch kind(described) {
	case "boolean":
		return true
	case "integer", "number":
		return 1
	}
	return unsaid
}

// unsaid is the example of what the document has none for: a command line leaves
// it out where it may.
const unsaid = "…"

// curl is a command line that asks for it.
func (d document) curl(path string, op *huma.Operation) string {
	var query []string
	for _, p := range op.Parameters {
		switch {
		case p.In == "path":
			value := fmt.Sprint(d.example(p.Schema))
			if p.Schema.Format == "uuid" {
				value = "7d4d4b6e-0a86-4c52-8a0d-3c3a3a3c8a10"
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", value)
		case p.In == "query" && p.Required:
			query = append(query, p.Name+"="+fmt.Sprint(d.example(p.Schema)))
		}
	}
	if len(query) > 0 {
		path += "?" + strings.Join(query, "&")
	}
	lines := []string{`curl -H "Authorization: Bearer $TRELLIS_TOKEN"`}
	if op.Method != http.MethodGet {
		lines = append(lines, "-X "+op.Method)
	}
	if op.RequestBody != nil {
		if body := jsonBody(op); body != nil {
			text, err := json.MarshalIndent(d.example(body), "", "  ")
			if err == nil {
				lines = append(lines, "-H 'Content-Type: application/json'", "-d '"+strings.ReplaceAll(string(text), "'", `'\''`)+"'")
			}
		} else {
			lines = append(lines, "-H 'Content-Type: application/octet-stream'", "--data-binary @sealed.age")
		}
	}
	return strings.Join(append(lines, `"$TRELLIS_URL`+path+`"`), " \\\n  ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
