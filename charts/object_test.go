package charts

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// object is one rendered Kubernetes object.
type object map[string]any

// decode takes a stream of YAML documents apart.
func decode(t *testing.T, stream string) (all objects) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(stream))
	for {
		var o map[string]any // not an object: maps within would be of that type too
		switch err := decoder.Decode(&o); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("what was rendered is no YAML: %v\n%s", err, stream)
		case o != nil:
			all = append(all, o)
		}
	}
}

// objects are what one rendering made.
type objects []object

// find returns the object of a kind and name; its absence ends the test.
func (all objects) find(t *testing.T, kind, name string) object {
	t.Helper()
	for _, o := range all {
		if o.get("kind") == kind && o.get("metadata", "name") == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s among %v", kind, name, all.names())
	return nil
}

// one returns the only object of a kind.
func (all objects) one(t *testing.T, kind string) object {
	t.Helper()
	found := all.of(kind)
	if len(found) != 1 {
		t.Fatalf("there are %d objects of kind %s, want one, among %v", len(found), kind, all.names())
	}
	return found[0]
}

// of returns the objects of a kind.
func (all objects) of(kind string) (found objects) {
	for _, o := range all {
		if o.get("kind") == kind {
			found = append(found, o)
		}
	}
	return found
}

func (all objects) names() (names []string) {
	for _, o := range all {
		names = append(names, fmt.Sprintf("%v/%v", o.get("kind"), o.get("metadata", "name")))
	}
	return names
}

// get follows keys and, in lists, indexes or the name of an element: nil where
// there is nothing.
func (o object) get(path ...any) any { return follow(map[string]any(o), path...) }

func follow(at any, path ...any) any {
	for _, step := range path {
		switch in := at.(type) {
		case map[string]any:
			at = in[fmt.Sprint(step)]
		case []any:
			at = element(in, step)
		default:
			return nil
		}
	}
	return at
}

// element is that of an index, or the one called so.
func element(list []any, step any) any {
	if i, ok := step.(int); ok {
		if i < len(list) {
			return list[i]
		}
		return nil
	}
	for _, e := range list {
		if follow(e, "name") == step {
			return e
		}
	}
	return nil
}

// want holds what stands at a path against a value, both in the words of YAML.
func (o object) want(t *testing.T, value any, path ...any) {
	t.Helper()
	if got := o.get(path...); yamlOf(got) != yamlOf(value) {
		t.Errorf("%v %v has at %v:\n%swant:\n%s", o.get("kind"), o.get("metadata", "name"), path, yamlOf(got), yamlOf(value))
	}
}

func yamlOf(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
