package provision

import "encoding/json"

// Variable is a declared variable of a template, as a form needs to know it.
type Variable struct {
	Name string `json:"name"`
	// Type as the template writes it; "" where it writes none.
	Type string `json:"type,omitempty"`
	// TypeJSON is the same type in Terraform's JSON notation, such as
	// ["list","string"]; "dynamic" stands for any.
	TypeJSON    json.RawMessage `json:"type_json"`
	Description string          `json:"description,omitempty"`
	// Default is never given for a sensitive variable; see Required.
	Default json.RawMessage `json:"default,omitempty"`
	// Required is true when neither a default nor one of the template's own
	// tfvars files gives a value.
	Required  bool `json:"required"`
	Sensitive bool `json:"sensitive"`
	Nullable  bool `json:"nullable"`
	Ephemeral bool `json:"ephemeral"`
}
