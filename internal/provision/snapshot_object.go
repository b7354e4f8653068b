package provision

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// snapshotObject is one JSON object of a snapshot while it is read. Problems
// are gathered, not returned, so that a person sees all of them at once.
type snapshotObject struct {
	path     string
	members  map[string]json.RawMessage
	known    []string
	problems *[]string
}

// newSnapshotObject reads the outermost object; without it there is nothing
// more to check.
func newSnapshotObject(path string, data []byte) (*snapshotObject, error) {
	o := &snapshotObject{path: path, problems: new([]string)}
	if !json.Valid(data) {
		var value any
		cause := json.Unmarshal(data, &value)
		return nil, Fail(CodeBadSnapshot, fmt.Sprintf("%s: not JSON: %v", path, cause), cause)
	}
	if err := json.Unmarshal(data, &o.members); err != nil || o.members == nil {
		return nil, Fail(CodeBadSnapshot, fmt.Sprintf("%s: must be an object, not %s", path, kindOf(data)), nil)
	}
	return o, nil
}

// fail notes a problem with the member called name.
func (o *snapshotObject) fail(name, problem string) {
	*o.problems = append(*o.problems, fmt.Sprintf("%s.%s: %s", o.path, name, problem))
}

// take returns the member called name and notes that it is known. An absent
// one and a null are the same.
func (o *snapshotObject) take(name string, required bool) (json.RawMessage, bool) {
	o.known = append(o.known, name)
	raw, ok := o.members[name]
	if ok && kindOf(raw) != "null" {
		return raw, true
	}
	if required {
		o.fail(name, "missing")
	}
	return nil, false
}

// object reads a member that is an object. What comes back is never nil; where
// there is no object, reading from it finds nothing and complains of nothing.
func (o *snapshotObject) object(name string, required bool) *snapshotObject {
	child := &snapshotObject{path: o.path + "." + name, problems: o.problems}
	raw, ok := o.take(name, required)
	if ok && json.Unmarshal(raw, &child.members) != nil {
		o.fail(name, "must be an object, not "+kindOf(raw))
		ok = false
	}
	if !ok {
		child.members, child.problems = nil, new([]string)
	}
	return child
}

// text reads a member that is a string and passes it to check, which answers
// what is wrong with it or "".
func (o *snapshotObject) text(name string, required bool, check func(string) string) string {
	raw, ok := o.take(name, required)
	if !ok {
		return ""
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		o.fail(name, "must be a string, not "+kindOf(raw))
		return ""
	}
	if problem := check(value); problem != "" {
		o.fail(name, problem)
	}
	return value
}

// refuseUnknown names the members that nothing has taken. Synonyms are names
// that people bring from other tools.
func (o *snapshotObject) refuseUnknown(synonyms map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(o.members)) {
		if slices.Contains(o.known, name) {
			continue
		}
		hint := DidYouMean(name, o.known)
		if meant, ok := synonyms[fold(name)]; ok {
			hint = fmt.Sprintf("; did you mean %q?", meant)
		}
		o.fail(quoteUnlessPlain(name), "unknown"+hint)
	}
}

// quoteUnlessPlain keeps a stranger's key from breaking the line it is named in.
func quoteUnlessPlain(name string) string {
	const longest = 80
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	if checkVariableName(name) == "" {
		return name
	}
	return strconv.Quote(name)
}

// kindOf says what a valid JSON text is, in the words of a message.
func kindOf(raw json.RawMessage) string {
	for _, c := range raw {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '{':
			return "an object"
		case '[':
			return "a list"
		case '"':
			return "a string"
		case 't', 'f':
			return "a boolean"
		case 'n':
			return "null"
		default:
			return "a number"
		}
	}
	return "nothing"
}
