package apidocs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// openAPI is what the page needs of a document.
type openAPI struct {
	Info       struct{ Version string }
	Tags       []struct{ Name, Description string }
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID, Summary, Description string
	Tags                              []string
	Parameters                        []struct {
		Name, In, Description string
		Required              bool
		Schema                schema
	}
	RequestBody *struct{ Content map[string]media }
	Responses   map[string]struct {
		Description string
		Content     map[string]media
	}
}

type media struct{ Schema schema }

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format, Description  string
	Properties           map[string]schema
	Required             []string
	Items                *schema
	Enum, Examples       []any
	Default              any
	Minimum, Maximum     *float64
	MinLength, MaxLength *int
	AdditionalProperties json.RawMessage
}

// name is the type that a schema is, or is a list of; "" for one without a name.
func (s schema) name() string {
	if s.Items != nil {
		return s.Items.name()
	}
	return strings.TrimPrefix(s.Ref, "#/components/schemas/")
}

func (d openAPI) resolve(s schema) schema {
	if s.Ref != "" {
		return d.Components.Schemas[s.name()]
	}
	return s
}

// kind says what a value is, in a few words.
func (s schema) kind() string {
	switch {
	case s.Ref != "":
		return s.name()
	case s.Items != nil:
		return "list of " + s.Items.kind()
	case len(s.Enum) > 0:
		words := make([]string, len(s.Enum))
		for i, e := range s.Enum {
			words[i] = fmt.Sprint(e)
		}
		return strings.Join(words, " | ")
	}
	kind := "any JSON"
	switch t := s.Type.(type) {
	case string:
		kind = t
	case []any:
		kind = fmt.Sprint(t[0])
	}
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
func (d openAPI) example(s schema) any {
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
		if item := d.example(*described.Items); item != unsaid {
			return []any{item}
		}
		return unsaid
	}
	switch described.kind() {
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
func (d openAPI) curl(method, path string, op operation) string {
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
	if method != "GET" {
		lines = append(lines, "-X "+method)
	}
	if op.RequestBody != nil {
		if body, ok := op.RequestBody.Content["application/json"]; ok {
			text, err := json.MarshalIndent(d.example(body.Schema), "", "  ")
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
