package seal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"filippo.io/age"
)

// Variable is the value of a template's variable as it is sealed. Age tells
// nobody who made a message, so whoever may write a deploy could put one that
// belongs to a password into a variable that a template prints. The name, and
// if it is given the workspace, are therefore within the message.
type Variable struct {
	Version int    `json:"v"` // variableVersion
	Name    string `json:"name"`
	// Workspace is the only one in which the value may be used; "" leaves that
	// open.
	Workspace string          `json:"workspace,omitempty"`
	Value     json.RawMessage `json:"value"`
}

const variableVersion = 1

// Limits on sealed variables.
const (
	// MaxVariable is the most bytes of one, armoured; MaxVariables is how many a
	// deploy has at most.
	MaxVariable  = 16 << 10
	MaxVariables = 100
	// MinSecret is the fewest bytes that a text or number must have to be kept
	// out of a log: shorter ones are in every second word of it.
	MinSecret = 8
)

// variableName is that of one, but for its length: a pattern that counts that far
// takes a fifth of a megabyte in every process that has it.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

const maxVariableName = 200

// Seal makes the armoured message of a variable, after the checks that the agent
// makes as well.
func (v Variable) Seal(to age.Recipient) (string, error) {
	v.Version = variableVersion
	if len(v.Name) > maxVariableName || !variableName.MatchString(v.Name) {
		return "", fmt.Errorf("%q is no name of a variable", v.Name)
	}
	if err := CheckSecret(v.Value); err != nil {
		return "", err
	}
	plain, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("the value is not JSON")
	}
	message, err := Armoured(to, plain)
	if err == nil && len(message) > MaxVariable {
		err = fmt.Errorf("the value is too long: sealed it has %d bytes, at most %d are allowed", len(message), MaxVariable)
	}
	if err != nil {
		return "", err
	}
	return message, nil
}

// OpenVariable opens the message that a deploy gives for a variable of that name
// in a workspace. Its errors hold nothing of what is inside.
func (i Identities) OpenVariable(message, name, workspace string) (json.RawMessage, error) {
	if len(message) > MaxVariable {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(message), MaxVariable)
	}
	plain, err := i.Open([]byte(message), MaxVariable)
	if err != nil {
		return nil, err
	}
	v, err := parseVariable(plain)
	if err != nil {
		return nil, err
	}
	switch {
	case v.Name != name:
		// Not which name it is: a message may say so to whom it was not meant for.
		return nil, fmt.Errorf("it was sealed for a variable of another name; seal a value for this one")
	case v.Workspace != "" && v.Workspace != workspace:
		return nil, fmt.Errorf("it was sealed for another workspace only; seal a value for this one, or for any (without --workspace)")
	}
	if err := CheckSecret(v.Value); err != nil {
		return nil, err
	}
	return v.Value, nil
}

// parseVariable refuses what it does not know: it might be a limit on the
// value's use.
func parseVariable(plain []byte) (v Variable, err error) {
	decoder := json.NewDecoder(bytes.NewReader(plain))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil || v.Version == 0 || v.Name == "" || v.Value == nil {
		return v, fmt.Errorf(`what is inside must be {"v": 1, "name": "NAME", "value": VALUE} and nothing else but, if wanted, "workspace": a value by itself could be put into any variable`)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return v, fmt.Errorf("what is inside must be one JSON object and nothing after it")
	}
	if v.Version != variableVersion {
		return v, fmt.Errorf("it has version %d, and this agent knows %d; use a newer agent", v.Version, variableVersion)
	}
	return v, nil
}

// CheckSecret refuses a value of which a part could not be kept out of logs: each
// text and number in it needs MinSecret bytes, and a boolean is none. It names
// the place and never the value; names of members are not taken for secret.
func CheckSecret(value json.RawMessage) error {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var decoded any
	if err := decoder.Decode(&decoded); err != nil {
		return fmt.Errorf("the value is not JSON") // whose error would quote it
	}
	leaves := 0
	if err := checkLeaves("the value", decoded, &leaves); err != nil {
		return err
	}
	if leaves == 0 {
		return fmt.Errorf("the value is empty: there is nothing in it to be kept secret")
	}
	return nil
}

func checkLeaves(at string, value any, leaves *int) error {
	*leaves++
	short := func(kind string, length int) error {
		if length >= MinSecret {
			return nil
		}
		return fmt.Errorf("%s is a %s of less than %d bytes, too short to be masked in a log, so it cannot be sealed: "+
			"make it longer, or give it as a variable of its own that is not sealed", at, kind, MinSecret)
	}
	switch value := value.(type) {
	case string:
		return short("text", len(strings.TrimSpace(value)))
	case json.Number:
		return short("number", len(value.String()))
	case bool:
		return fmt.Errorf("%s is a boolean, which cannot be masked in a log, so it cannot be sealed: give it as a variable of its own that is not sealed", at)
	case nil:
		*leaves--
	case []any:
		*leaves--
		for i, element := range value {
			if err := checkLeaves(fmt.Sprintf("%s[%d]", at, i), element, leaves); err != nil {
				return err
			}
		}
	case map[string]any:
		*leaves--
		for i, key := range slices.Sorted(maps.Keys(value)) {
			place := fmt.Sprintf("%s: its member %d of %d by name", at, i+1, len(value))
			if err := checkLeaves(place, value[key], leaves); err != nil {
				return err
			}
		}
	}
	return nil
}
