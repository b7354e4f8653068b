package trust

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// Workspaces says for which workspaces something is: a pattern of names, "*"
// within a segment and "**" for any number of segments, and, if it is pinned, the
// id that the workspace must have. A name is what a row says; an id is in what
// agents authenticate.
type Workspaces struct {
	Pattern string
	ID      uuid.UUID // uuid.Nil: any
}

// All is every workspace.
var All = Workspaces{Pattern: "**"}

var pattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(\*\*|[A-Za-z0-9*][A-Za-z0-9._*-]*)(/(\*\*|[A-Za-z0-9._*-]+))*$`)
})

// ParseWorkspaces reads PATTERN or "PATTERN id=UUID".
func ParseWorkspaces(text string) (Workspaces, error) {
	name, rest, pinned := strings.Cut(strings.TrimSpace(text), " ")
	w := Workspaces{Pattern: name}
	if !pattern().MatchString(name) {
		return w, fmt.Errorf("%q is no pattern of workspace names such as acme/prod, acme/* or acme/**", name)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if strings.Contains(segment, "**") && segment != "**" {
			return w, fmt.Errorf(`%q: "**" must be a whole segment`, name)
		}
	}
	if !pinned {
		return w, nil
	}
	id, is := strings.CutPrefix(strings.TrimSpace(rest), "id=")
	var err error
	if w.ID, err = uuid.Parse(id); !is || err != nil || w.ID == uuid.Nil || len(id) != 36 {
		return w, fmt.Errorf("%q: after the pattern comes id= and a workspace's id", text)
	}
	return w, nil
}

// Match reports whether a workspace is meant.
func (w Workspaces) Match(name string, id uuid.UUID) bool {
	return (w.ID == uuid.Nil || w.ID == id) && matches(strings.Split(w.Pattern, "/"), strings.Split(name, "/"))
}

func (w Workspaces) String() string {
	if w.ID == uuid.Nil {
		return w.Pattern
	}
	return w.Pattern + " id=" + w.ID.String()
}

func matches(patterns, segments []string) bool {
	if len(patterns) == 0 {
		return len(segments) == 0
	}
	if patterns[0] == "**" {
		for skip := range len(segments) + 1 {
			if matches(patterns[1:], segments[skip:]) {
				return true
			}
		}
		return false
	}
	if len(segments) == 0 {
		return false
	}
	ok, err := path.Match(patterns[0], segments[0]) // a name has no other wildcards
	return ok && err == nil && matches(patterns[1:], segments[1:])
}
