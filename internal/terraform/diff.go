package terraform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Bounds on what a summary shows of one resource. What is beyond them is left
// out whole, never cut: half a secret is not recognised when the rest is masked.
const (
	maxPlanValue  = 1 << 10  // bytes of one value as JSON
	maxPlanPath   = 512      // bytes of one path
	maxAttributes = 16 << 10 // bytes of all attributes of a resource
	maxPlanDepth  = 32
)

// attributeChanges lists what changes within a resource, what makes it be
// replaced first, and how many changes are left out. A value is shown if neither
// side of it is sensitive or unknown; which those are, the plan says in masks of
// the values' shape.
func attributeChanges(change *tfjson.Change) (shown []provision.AttributeChange, truncated int) {
	d := differ{replaces: replacePaths(change.ReplacePaths)}
	d.walk("", 0, side{change.Before, change.BeforeSensitive}, side{change.After, change.AfterSensitive}, change.AfterUnknown)
	slices.SortStableFunc(d.found, func(a, b provision.AttributeChange) int {
		if a.Replaces == b.Replaces {
			return 0
		} else if a.Replaces {
			return -1
		}
		return 1
	})
	size := 0
	for i, attribute := range d.found {
		size += len(attribute.Path) + len(attribute.Before) + len(attribute.After) + 64 // names and quotes
		if i == provision.MaxPlanAttributes || size > maxAttributes {
			return d.found[:i:i], len(d.found) - i
		}
	}
	return d.found, 0
}

// side is a value before or after, and which parts of it are sensitive.
type side struct{ value, sensitive any }

func (s side) key(name string) side { return side{ofKey(s.value, name), ofKey(s.sensitive, name)} }
func (s side) at(i int) side        { return side{ofIndex(s.value, i), ofIndex(s.sensitive, i)} }

type differ struct {
	replaces []string
	found    []provision.AttributeChange
}

func (d *differ) walk(path string, depth int, before, after side, unknown any) {
	hidden := marks(before.sensitive) || marks(after.sensitive)
	same := reflect.DeepEqual(before.value, after.value)
	switch {
	case same && !marks(unknown) && (before.value == nil || reflect.DeepEqual(before.sensitive, after.sensitive)):
		return
	case before.sensitive == true || after.sensitive == true:
		d.add(provision.AttributeChange{Path: path, Sensitive: true})
		return
	case unknown == true:
		d.add(provision.AttributeChange{Path: path, Unknown: true})
		return
	}
	open := !hidden && !marks(unknown)
	if path != "" && open && (before.value == nil || after.value == nil) && d.show(path, before.value, after.value) {
		return // new or gone, as a whole
	}
	shape := shapeOf(before.value, after.value, before.sensitive, after.sensitive, unknown)
	fits := depth < maxPlanDepth
	switch shape {
	case object:
		names := slices.Sorted(maps.Keys(keysOf(before.value, after.value, unknown)))
		for _, name := range names {
			fits = fits && len(below(path, name)) <= maxPlanPath
		}
		if !fits {
			break
		}
		for _, name := range names {
			d.walk(below(path, name), depth+1, before.key(name), after.key(name), ofKey(unknown, name))
		}
		return
	case list:
		if !fits || len(path) > maxPlanPath-16 {
			break
		}
		for i := range max(length(before.value), length(after.value), length(unknown)) {
			d.walk(path+"["+strconv.Itoa(i)+"]", depth+1, before.at(i), after.at(i), ofIndex(unknown, i))
		}
		return
	}
	switch {
	case same && open:
	case hidden:
		d.add(provision.AttributeChange{Path: path, Sensitive: true})
	case !open:
		d.add(provision.AttributeChange{Path: path, Unknown: true})
	case !d.show(path, before.value, after.value):
		d.add(provision.AttributeChange{Path: path, Before: shownValue(before.value), After: shownValue(after.value), Long: true})
	}
}

// show adds a change with both values, unless one is too long for that.
func (d *differ) show(path string, before, after any) bool {
	change := provision.AttributeChange{Path: path, Before: shownValue(before), After: shownValue(after)}
	if before != nil && change.Before == nil || after != nil && change.After == nil {
		return false
	}
	d.add(change)
	return true
}

func (d *differ) add(change provision.AttributeChange) {
	change.Replaces = slices.ContainsFunc(d.replaces, func(path string) bool {
		return within(change.Path, path) || within(path, change.Path)
	})
	d.found = append(d.found, change)
}

// shownValue is a value as JSON; nil for null and for what is too long, or a
// number so vast that the database would not take it.
func shownValue(value any) json.RawMessage {
	if value == nil || hasVastNumber(value) {
		return nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // as long as it looks
	if err := e.Encode(value); err != nil || b.Len() > maxPlanValue {
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

// replacePaths are the paths that force a replacement, written as in changes.
func replacePaths(raw []any) []string {
	var paths []string
	for _, steps := range raw {
		steps, _ := steps.([]any)
		path := ""
		for _, step := range steps {
			switch step := step.(type) {
			case string:
				path = below(path, step)
			default: // a number, whose type depends on who decoded the plan
				path += fmt.Sprintf("[%v]", step)
			}
		}
		paths = append(paths, path)
	}
	return paths
}

// below is the path of a member: a.b, or a["b c"] where b is no name.
func below(path, name string) string {
	switch {
	case !hclsyntax.ValidIdentifier(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// within reports whether a path is another or inside it.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (rest == "" || other == "" || rest[0] == '.' || rest[0] == '[')
}
