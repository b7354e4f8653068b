package terraform

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	tfjson "github.com/hashicorp/terraform-json"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// State is what a state records of what exists.
type State struct {
	Resources []provision.Resource // managed, sorted by address
	// Outputs of the root module; those that are null are not among them.
	Outputs map[string]OutputValue
	// Secrets are values that must never be shown, as SensitiveValues has them.
	Secrets []string
}

// errStateFormat is met where a state is not of the one format there has been
// since Terraform 0.12, or is encrypted.
var errStateFormat = errors.New("a state of another format than version 4")

// storedState is that format, as far as it is needed here.
type storedState struct {
	Version   int                    `json:"version"`
	Outputs   map[string]OutputValue `json:"outputs"`
	Resources []struct {
		Module    string           `json:"module"`
		Mode      string           `json:"mode"`
		Type      string           `json:"type"`
		Name      string           `json:"name"`
		Provider  string           `json:"provider"`
		Instances []storedInstance `json:"instances"`
	} `json:"resources"`
}

type storedInstance struct {
	IndexKey   any            `json:"index_key"`
	Status     string         `json:"status"`
	Deposed    string         `json:"deposed"`
	Attributes map[string]any `json:"attributes"`
	// Sensitive are paths. Before Terraform 1.11, and in OpenTofu, what a
	// provider says is sensitive is not among them; the plan has that.
	Sensitive [][]storedStep `json:"sensitive_attributes"`
}

type storedStep struct {
	Type  string `json:"type"`
	Value any    `json:"value"`
}

// ReadState reads a state as the engine stores it; an empty text is an empty
// state. It takes no engine process, and so no schema of a provider: what is
// sensitive by one is known from the plan that the state came from.
func ReadState(raw []byte, plan *tfjson.Plan) (State, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return State{Resources: []provision.Resource{}}, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var file storedState
	if err := decoder.Decode(&file); err != nil {
		return State{}, fmt.Errorf("read the state: %w", err)
	}
	if file.Version != 4 {
		return State{}, fmt.Errorf("read the state: %w", errStateFormat)
	}
	secrets, marked := make(secretSet), marksOf(plan)
	state := State{Resources: []provision.Resource{}, Outputs: file.Outputs}
	for _, output := range file.Outputs {
		if output.Sensitive {
			secrets.addJSON(output.Value)
		}
	}
	for _, r := range file.Resources {
		for _, instance := range r.Instances {
			address := instance.address(r.Module, r.Type, r.Name)
			secrets.addInstance(instance, marked[address])
			if r.Mode != string(tfjson.ManagedResourceMode) {
				continue
			}
			resource := describeResource(address, r.Type, instance.Attributes, instance.hides(marked, address))
			resource.Provider = providerSource(r.Provider)
			if instance.Status == "tainted" {
				resource.Status = statusTainted
			}
			if instance.Deposed != "" { // left of a replacement; it goes with the next apply
				resource.Address += fmt.Sprintf(" (deposed object %s)", instance.Deposed)
				resource.Status = statusTainted
			}
			state.Resources = append(state.Resources, resource)
		}
	}
	slices.SortFunc(state.Resources, func(a, b provision.Resource) int { return cmp.Compare(a.Address, b.Address) })
	state.Secrets = secrets.sorted()
	return state, nil
}

// address is written as the engine writes it.
func (i storedInstance) address(module, resourceType, name string) string {
	var b strings.Builder
	if module != "" {
		b.WriteString(module + ".")
	}
	b.WriteString(resourceType + "." + name)
	switch key := i.IndexKey.(type) {
	case json.Number:
		fmt.Fprintf(&b, "[%s]", key)
	case string:
		fmt.Fprintf(&b, "[%s]", hclwrite.TokensForValue(cty.StringVal(key)).Bytes())
	}
	return b.String()
}

// hides says of which attributes nothing may be shown: those that are sensitive
// somewhere within; all of them, where nobody knows.
func (i storedInstance) hides(marked map[string]any, address string) func(string) bool {
	marks, known := marked[address]
	return func(attribute string) bool {
		return !known || marksIn(marks, attribute) || slices.ContainsFunc(i.Sensitive, func(path []storedStep) bool {
			return len(path) == 0 || path[0].Value == attribute
		})
	}
}

// addInstance adds what an instance holds that is sensitive, by the state and by
// the plan's marks.
func (s secretSet) addInstance(i storedInstance, marks any) {
	for _, path := range i.Sensitive {
		var value any = i.Attributes
		for _, step := range path {
			value = step.in(value)
		}
		s.addLong(withoutTypes(value))
	}
	members, _ := marks.(map[string]any)
	for name, mark := range members {
		s.addMarked(withoutTypes(i.Attributes[name]), mark)
	}
}

// in follows one step into a value. Where it leads nowhere it stays: more is
// hidden then.
func (s storedStep) in(value any) any {
	key := s.Value
	if index, ok := key.(map[string]any); ok { // {"value": "k", "type": "string"}
		key = index["value"]
	}
	value = unwrapped(value)
	switch key := key.(type) {
	case string:
		if members, ok := value.(map[string]any); ok {
			return members[key]
		}
	case json.Number:
		if i, err := key.Int64(); err == nil && i >= 0 && int(i) < length(value) {
			return ofIndex(value, int(i))
		}
	}
	return value
}

// unwrapped is a value without what a state says about its type, where its
// provider does not: {"value": …, "type": …}.
func unwrapped(value any) any {
	members, _ := value.(map[string]any)
	if _, typed := members["type"]; !typed || len(members) != 2 {
		return value
	}
	if inner, ok := members["value"]; ok {
		return inner
	}
	return value
}

// withoutTypes is unwrapped for a value and all in it: "string" is no secret.
func withoutTypes(value any) any {
	switch v := unwrapped(value).(type) {
	case map[string]any:
		members := make(map[string]any, len(v))
		for name, member := range v {
			members[name] = withoutTypes(member)
		}
		return members
	case []any:
		elements := make([]any, len(v))
		for i, element := range v {
			elements[i] = withoutTypes(element)
		}
		return elements
	default:
		return v
	}
}

// providerSource is the provider's address in provider["ADDRESS"].alias.
func providerSource(text string) string {
	if _, rest, ok := strings.Cut(text, `["`); ok {
		text, _, _ = strings.Cut(rest, `"]`)
	}
	return text
}

// marksOf collects, by address, what a plan says is sensitive in what it leaves.
func marksOf(plan *tfjson.Plan) map[string]any {
	marked := make(map[string]any)
	if plan == nil {
		return marked
	}
	if plan.PriorState != nil && plan.PriorState.Values != nil {
		marksOfModule(marked, plan.PriorState.Values.RootModule)
	}
	for _, change := range plan.ResourceChanges {
		if change == nil || change.Change == nil || change.DeposedKey != "" {
			continue
		}
		if change.Change.After == nil && change.Change.AfterSensitive != true {
			marked[change.Address] = change.Change.BeforeSensitive // what may be left of it
			continue
		}
		marked[change.Address] = change.Change.AfterSensitive
	}
	return marked
}

func marksOfModule(marked map[string]any, module *tfjson.StateModule) {
	if module == nil {
		return
	}
	for _, r := range module.Resources {
		if r == nil {
			continue
		}
		var marks any
		unmarshalLoose(r.SensitiveValues, &marks)
		marked[r.Address] = marks
	}
	for _, child := range module.ChildModules {
		marksOfModule(marked, child)
	}
}

// marksIn reports whether a resource's mask has anything within an attribute.
func marksIn(mask any, attribute string) bool {
	if members, ok := mask.(map[string]any); ok {
		return marks(members[attribute])
	}
	return marks(mask)
}
