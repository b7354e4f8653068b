package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// object is a JSON Schema, or a part of one.
type object map[string]any

// schemaOfType is the JSON Schema of a variable's values.
func (m marks) schemaOfType(v provision.Variable) json.RawMessage {
	schema := m.typed(v.TypeJSON)
	if v.Nullable {
		schema = orNull(schema)
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return json.RawMessage(`{}`)
	}
	if len(text) > mostText {
		if text, err = json.Marshal(object{"type": schema["type"], "$comment": "too large to show; a person sees it on the form"}); err != nil {
			return json.RawMessage(`{}`)
		}
	}
	return text
}

// orNull is a schema whose values may be null as well.
func orNull(schema object) object {
	if kind, ok := schema["type"].(string); ok {
		schema["type"] = []string{kind, "null"}
	}
	return schema
}

// typed is the schema of a type in Terraform's JSON notation. A type of a later version is
// any value. Names that its author has given are marked where they are no plain words.
func (m marks) typed(ty json.RawMessage) object {
	var name string
	if json.Unmarshal(ty, &name) == nil {
		switch name {
		case "string", "number":
			return object{"type": name}
		case "bool":
			return object{"type": "boolean"}
		}
		return object{}
	}
	var parts []json.RawMessage
	if json.Unmarshal(ty, &parts) != nil || len(parts) < 2 || json.Unmarshal(parts[0], &name) != nil {
		return object{}
	}
	switch name {
	case "list":
		return object{"type": "array", "items": m.typed(parts[1])}
	case "set":
		return object{"type": "array", "items": m.typed(parts[1]), "uniqueItems": true}
	case "map":
		return object{"type": "object", "additionalProperties": m.typed(parts[1])}
	case "tuple":
		var items []json.RawMessage
		if json.Unmarshal(parts[1], &items) != nil {
			return object{"type": "array"}
		}
		each := []object{}
		for _, item := range items {
			each = append(each, m.typed(item))
		}
		return object{"type": "array", "prefixItems": each, "minItems": len(items), "maxItems": len(items)}
	case "object":
		var members map[string]json.RawMessage
		if json.Unmarshal(parts[1], &members) != nil {
			return object{"type": "object"}
		}
		var optional []string
		if len(parts) > 2 {
			_ = json.Unmarshal(parts[2], &optional) // none of another form
		}
		properties, required := object{}, []string{}
		for _, member := range slices.Sorted(maps.Keys(members)) {
			name := m.name(member) // which may be any text, in quotes
			properties[name] = m.typed(members[member])
			if slices.Contains(optional, member) {
				properties[name] = orNull(m.typed(members[member]))
			} else {
				required = append(required, name)
			}
		}
		return object{"type": "object", "properties": properties, "required": required}
	}
	return object{}
}

// asksForVariables is the name of the one thing that a client is asked for.
const asksForVariables = "variables"

// variables checks what a model gives to a template, and returns it complete. What is
// required and missing is asked of the person where the client can do that. The error names
// every problem, and what to give instead.
func (c *call) variables(ctx context.Context, t wire.Template, declared wire.Inspection, given map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	if !declared.Inspected {
		if len(given) == 0 {
			return nil, nil
		}
		return nil, sentence(`Version %s of template %s was not scanned yet%s, so that nobody can say which variables are secrets. Call "template" in some seconds, or give the person %s`,
			c.name(t.Version), c.name(t.Name), c.problem(declared.Problem), c.form(t, ""))
	}
	given = maps.Clone(given)
	if given == nil {
		given = map[string]json.RawMessage{}
	}
	known := map[string]provision.Variable{}
	var names, problems, secret []string
	for _, v := range declared.Variables {
		known[v.Name] = v
		names = append(names, v.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v, ok := known[name]
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("variable %s is unknown; allowed: %s", c.name(name), strings.Join(c.names(names), ", ")))
		case v.Sensitive:
			secret = append(secret, name)
		}
	}
	if len(secret) > 0 {
		problems = append(problems, fmt.Sprintf("variable %s is sensitive and can't be given by a tool: leave it out, and have the person deploy at %s, where they fill it in", strings.Join(c.names(secret), ", "), c.form(t, "")))
	}
	if len(problems) > 0 {
		return nil, several(problems)
	}
	missing := c.lacking(declared.Variables, given)
	if len(missing) > 0 {
		answered, err := c.elicited(missing, given)
		if err != nil {
			return nil, err
		}
		if answered {
			missing = c.lacking(declared.Variables, given)
		}
	}
	var plain []provision.Variable
	for _, v := range missing {
		if v.Sensitive {
			problems = append(problems, fmt.Sprintf("variable %s is missing and sensitive: no tool takes it. Have the person deploy at %s, where they fill it in", c.name(v.Name), c.form(t, "")))
			continue
		}
		plain = append(plain, v)
		problems = append(problems, fmt.Sprintf("variable %s is missing; allowed: %s%s", c.name(v.Name), c.allowed(v), c.described(v)))
	}
	for _, v := range declared.Variables {
		if raw, ok := given[v.Name]; ok && !fits(v, raw) {
			problems = append(problems, fmt.Sprintf("variable %s does not fit its type; allowed: %s", c.name(v.Name), c.allowed(v)))
		}
	}
	switch {
	case len(problems) == 0:
		return given, nil
	case len(plain) == len(missing) && len(missing) == len(problems) && c.canAsk() && c.answers[asksForVariables] == nil:
		if form := c.formFor(t, plain); form != nil {
			return nil, &asksError{asksForVariables, form}
		}
	}
	if len(plain) > 0 {
		problems = append(problems, "Ask the person for what you can't know, then call again.")
	}
	return nil, several(problems)
}

// several is an error of several lines, the first mostReasons of them.
func several(problems []string) error {
	if more := len(problems) - mostReasons; more > 0 {
		problems = append(problems[:mostReasons:mostReasons], fmt.Sprintf("and %d more problems", more))
	}
	return errors.New(strings.Join(problems, "\n"))
}

// lacking are the variables that must be given and are not.
func (c *call) lacking(declared []provision.Variable, given map[string]json.RawMessage) (missing []provision.Variable) {
	for _, v := range declared {
		raw, ok := given[v.Name]
		if v.Required && (!ok || string(bytes.TrimSpace(raw)) == "null" && !v.Nullable) {
			missing = append(missing, v)
		}
	}
	return missing
}

// allowed says in words what a variable takes.
func (m marks) allowed(v provision.Variable) string {
	words := map[string]string{`"string"`: "a text", `"number"`: "a number", `"bool"`: "true or false", `"dynamic"`: "any value"}
	if text, ok := words[string(bytes.TrimSpace(v.TypeJSON))]; ok {
		return text
	}
	return "JSON that fits the schema " + string(m.schemaOfType(v))
}

func (c *call) described(v provision.Variable) string {
	if v.Description == "" {
		return ""
	}
	return " (" + c.short(v.Description, mostName) + ")"
}

// fits reports whether a value is one of a variable's, by the rules of Terraform.
func fits(v provision.Variable, raw json.RawMessage) bool {
	_, _, err := tfvars.Partly([]tfvars.Variable{v}, map[string]json.RawMessage{v.Name: raw}, nil)
	return err == nil
}

// canAsk reports whether the client shows its person a form.
func (c *call) canAsk() bool {
	if c.can == nil || c.can.Elicitation == nil {
		return false
	}
	return c.can.Elicitation.Form != nil || c.can.Elicitation.URL == nil
}

// elicited takes what a person has answered to the form; false where nobody was asked.
func (c *call) elicited(missing []provision.Variable, given map[string]json.RawMessage) (bool, error) {
	answer, ok := c.answers[asksForVariables].(*mcp.ElicitResult)
	if !ok {
		return false, nil
	}
	if answer.Action != "accept" {
		return false, sentence("The person did not fill in what is missing (%s). Ask them what they want before you call again", answer.Action)
	}
	for _, v := range missing {
		value, ok := answer.Content[v.Name]
		if !ok || v.Sensitive {
			continue
		}
		raw, err := json.Marshal(value)
		if err != nil {
			return false, fmt.Errorf("encode the value of variable %s: %w", c.name(v.Name), err)
		}
		given[v.Name] = raw
	}
	return true, nil
}

// formFor is the form that asks a person for variables; nil where one of them has no place
// in a form: it may have texts, numbers and switches alone.
func (c *call) formFor(t wire.Template, missing []provision.Variable) *mcp.ElicitParams {
	properties, required := object{}, []string{}
	for _, v := range missing {
		schema := c.typed(v.TypeJSON)
		if kind, _ := schema["type"].(string); kind != "string" && kind != "number" && kind != "boolean" {
			return nil
		}
		schema["title"] = c.name(v.Name)
		if v.Description != "" {
			schema["description"] = c.short(v.Description, mostName)
		}
		properties[v.Name] = schema
		required = append(required, v.Name)
	}
	return &mcp.ElicitParams{
		Mode: "form", Message: fmt.Sprintf("Template %s needs these values. Give no password or other secret here.", c.name(t.Name)),
		RequestedSchema: object{"type": "object", "properties": properties, "required": required},
	}
}
