package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/canonical"
)

// Use is where a sealed value may be used, and nowhere else. Age tells nobody who
// made a message, and anybody who may read a snapshot can copy one out of it: into
// another workspace, for another template, or into a variable that is printed. So
// all four are within the message, and the agent compares them with its run.
//
// The cluster goes by its name. A person types or reads it, while its id would
// have to be taken on the database's word; and its key is not enough, because two
// clusters may have been given the same identity.
type Use struct {
	Cluster   string `json:"cluster"`
	Workspace string `json:"workspace"` // its one spelling; a first deploy has no id yet
	Repo      string `json:"repo"`      // the template's repository, in canonical form
	Name      string `json:"name"`      // of the variable, or output.NAME or machine.NAME in an answer
}

// Variable is the value of a template's variable as it is sealed.
type Variable struct {
	Version int `json:"v"` // variableVersion
	Use
	Value json.RawMessage `json:"value"`
}

// variableVersion is the form of what is sealed. Version 1 was for any cluster and
// template, and for any workspace unless it named one.
const variableVersion = 2

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

// Both are without the length: a pattern that counts that far takes a fifth of a
// megabyte in every process that has it.
var (
	variableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_-]*|(output|machine)\.[A-Za-z0-9_][A-Za-z0-9._-]*)$`)
	clusterName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

const (
	maxVariableName = 200
	maxClusterName  = 63
)

// canonical returns the use with its repository in canonical form, or says what is
// missing or malformed in it. Its errors quote no repository: an address may hold
// credentials.
func (u Use) canonical() (Use, error) {
	if len(u.Name) > maxVariableName || !variableName.MatchString(u.Name) {
		return u, fmt.Errorf("%q is no name of a variable", u.Name)
	}
	if len(u.Cluster) > maxClusterName || !clusterName.MatchString(u.Cluster) {
		return u, fmt.Errorf("%q is no name of a cluster", u.Cluster)
	}
	if problem := canonical.WorkspaceProblem(u.Workspace); problem != "" {
		return u, fmt.Errorf("the workspace's name %q %s", u.Workspace, problem)
	}
	repo, err := canonical.ParseRepository(u.Repo)
	if err != nil {
		return u, fmt.Errorf("the address of the template's repository %w", err)
	}
	u.Repo = repo.String()
	return u, nil
}

// again says how to seal a value for this use.
func (u Use) again() string {
	return fmt.Sprintf("Seal the value again: trellis seal %s --cluster %s --workspace %s --repo %s", u.Name, u.Cluster, u.Workspace, u.Repo)
}

// differs says in what a message's use is not the run's; nil where it is the same.
func (u Use) differs(run Use) error {
	var was, is []string
	for _, part := range []struct{ what, was, is string }{
		{"cluster", u.Cluster, run.Cluster}, {"workspace", u.Workspace, run.Workspace},
		{"template repository", u.Repo, run.Repo}, {"variable", u.Name, run.Name},
	} {
		if part.was != part.is {
			was = append(was, "the "+part.what+" "+part.was)
			is = append(is, "the "+part.what+" "+part.is)
		}
	}
	if was == nil {
		return nil
	}
	return fmt.Errorf("it was sealed for %s, and this run is for %s. %s", strings.Join(was, " and "), strings.Join(is, " and "), run.again())
}

// Seal makes the armoured message of a variable, after the checks that the agent
// makes as well.
func (v Variable) Seal(to age.Recipient) (string, error) {
	var err error
	if v.Use, err = v.canonical(); err != nil {
		return "", err
	}
	v.Version = variableVersion
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

// OpenVariable opens the message that a deploy gives for a variable, if it was
// sealed for this very use. Its errors hold nothing of the value.
func (i Identities) OpenVariable(message string, run Use) (json.RawMessage, error) {
	if len(message) > MaxVariable {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(message), MaxVariable)
	}
	run, err := run.canonical()
	if err != nil {
		return nil, fmt.Errorf("it cannot be compared with this run: %w", err)
	}
	plain, err := i.Open([]byte(message), MaxVariable)
	if err != nil {
		return nil, err
	}
	v, err := parseVariable(plain)
	switch {
	case errors.Is(err, errOldForm):
		return nil, fmt.Errorf("%w. %s", err, run.again())
	case err != nil:
		return nil, err
	}
	if err := v.differs(run); err != nil {
		return nil, err
	}
	if err := CheckSecret(v.Value); err != nil {
		return nil, err
	}
	return v.Value, nil
}

var (
	errForm    = errors.New(`what is inside must be one JSON object with v, cluster, workspace, repo, name and value, each once and nothing else, as "trellis seal" makes it`)
	errOldForm = errors.New("it was sealed the old way, for no certain cluster, workspace and template")
)

// parseVariable refuses what it does not know, which might be a limit on the
// value's use, and what could be read in two ways.
func parseVariable(plain []byte) (Variable, error) {
	members, err := membersOf(plain)
	if err != nil {
		return Variable{}, err
	}
	v := Variable{Version: 1} // a bare object
	if raw, given := members["v"]; given && json.Unmarshal(raw, &v.Version) != nil {
		return v, errForm
	}
	switch {
	case v.Version == 1:
		return v, errOldForm
	case v.Version != variableVersion:
		return v, fmt.Errorf("it has version %d, and this agent knows %d; use a newer agent", v.Version, variableVersion)
	}
	into := map[string]any{"v": &v.Version, "cluster": &v.Cluster, "workspace": &v.Workspace, "repo": &v.Repo, "name": &v.Name, "value": &v.Value}
	if len(members) != len(into) {
		return v, errForm
	}
	for name, raw := range members {
		if into[name] == nil || json.Unmarshal(raw, into[name]) != nil {
			return v, errForm
		}
	}
	// What is quoted to people is well-formed, and is compared as it stands.
	if use, err := v.canonical(); err != nil || use != v.Use {
		return v, fmt.Errorf("what it says of its use is malformed: names and the repository's address must be in their canonical forms")
	}
	return v, nil
}

// membersOf reads one JSON object whose members have different names. What is no
// object was sealed the old way.
func membersOf(plain []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(plain))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return nil, errOldForm
	}
	members := map[string]json.RawMessage{}
	for decoder.More() {
		token, err := decoder.Token()
		name, isName := token.(string)
		var raw json.RawMessage
		if err != nil || !isName || decoder.Decode(&raw) != nil {
			return nil, errForm
		}
		if _, twice := members[name]; twice {
			return nil, errForm
		}
		members[name] = raw
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errForm
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("what is inside must be one JSON object and nothing after it")
	}
	return members, nil
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
