package terraform

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// changeOf decodes a change as ShowPlan does.
func changeOf(t testing.TB, fields string) *tfjson.Change {
	t.Helper()
	plan := tfjson.Plan{}
	plan.UseJSONNumber(true)
	text := `{"format_version":"1.2","resource_changes":[{"address":"a.b","mode":"managed","change":{` + fields + `}}]}`
	if err := plan.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return plan.ResourceChanges[0].Change
}

// shownAs writes changes one a word: path=before>after with what hides them.
func shownAs(changes []provision.AttributeChange) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		flags := ""
		for _, flag := range []struct {
			set bool
			as  string
		}{{c.Sensitive, "!"}, {c.Unknown, "?"}, {c.Long, "…"}, {c.Replaces, "#"}} {
			if flag.set {
				flags += flag.as
			}
		}
		words[i] = fmt.Sprintf("%s%s=%s>%s", c.Path, flags, c.Before, c.After)
	}
	return strings.Join(words, " ")
}

func TestAttributeChanges(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxPlanValue)
	for name, test := range map[string]struct{ change, want string }{
		"scalars":            {`"before":{"a":1,"b":"x","c":true,"d":null,"e":"<&>"},"after":{"a":2,"b":"x","c":null,"d":1.50,"e":""}`, `a=1>2 c=true> d=>1.50 e="<&>">""`},
		"nested":             {`"before":{"tags":{"name":"x","old":"o"}},"after":{"tags":{"name":"y","new":"n"}}`, `tags.name="x">"y" tags.new=>"n" tags.old="o">`},
		"odd names":          {`"before":{"tags":{"a.b":1,"":2}},"after":{"tags":{}}`, `tags[""]=2> tags["a.b"]=1>`},
		"lists":              {`"before":{"ports":[{"number":80},{"number":443}]},"after":{"ports":[{"number":81}]}`, `ports[0].number=80>81 ports[1]={"number":443}>`},
		"another type":       {`"before":{"v":{"a":1}},"after":{"v":[1]}`, `v={"a":1}>[1]`},
		"created":            {`"before":null,"after":{"a":1,"tags":{"x":"y"},"none":null},"after_unknown":{"id":true}`, `a=>1 id?=> tags=>{"x":"y"}`},
		"unknown":            {`"before":{"id":"i-1","l":["a","b"]},"after":{"l":["a",null]},"after_unknown":{"id":true,"l":[false,true]}`, `id?=> l[1]?=>`},
		"sensitive before":   {`"before":{"a":"s"},"after":{"a":"o"},"before_sensitive":{"a":true}`, `a!=>`},
		"sensitive after":    {`"before":{"a":"o"},"after":{"a":"s"},"after_sensitive":{"a":true}`, `a!=>`},
		"sensitive inside":   {`"before":null,"after":{"m":{"open":1,"pw":"s","in":[{"k":"s2"}]}},"after_sensitive":{"m":{"pw":true,"in":[{"k":true}]}}`, `m.in[0].k!=> m.open=>1 m.pw!=>`},
		"sensitive and same": {`"before":{"a":"s"},"after":{"a":"s"},"before_sensitive":{"a":true},"after_sensitive":{"a":true}`, ``},
		"becomes sensitive":  {`"before":{"a":"s"},"after":{"a":"s"},"after_sensitive":{"a":true}`, `a!=>`},
		"nothing, sensitive": {`"before":null,"after":{"a":null},"after_sensitive":{"a":true}`, ``},
		"all of it":          {`"before":{"a":1},"after":{"a":2},"after_sensitive":true`, `!=>`},
		"mask of false":      {`"before":{"l":[1]},"after":{"l":[2]},"before_sensitive":{"l":[false]},"after_sensitive":false`, `l[0]=1>2`},
		"mask does not fit":  {`"before":{"a":"s"},"after":{"a":"t"},"after_sensitive":{"a":{"b":true}}`, `a!=>`},
		"mask of a list":     {`"before":{"a":{"b":"s"}},"after":{"a":{"b":"t"}},"before_sensitive":{"a":[true]}`, `a!=>`},
		"mask turned over":   {`"before":{"a":{"b":"s"}},"after":{"a":"t"},"before_sensitive":{"a":{"b":true}}`, `a!=>`},
		"both":               {`"before":{"a":"s"},"after":{},"before_sensitive":{"a":true},"after_unknown":{"a":true}`, `a!=>`},
		"long":               {`"before":{"a":"short"},"after":{"a":"` + long + `"}`, `a…="short">`},
		"long inside":        {`"before":null,"after":{"m":{"a":"` + long + `","b":1}}`, `m.a…=> m.b=>1`},
		"vast":               {`"before":{"a":1},"after":{"a":1e999}`, `a…=1>`},
		"digits":             {`"before":{"a":12345678901234567890.5},"after":{"a":12345678901234567891.5}`, `a=12345678901234567890.5>12345678901234567891.5`},
		"long name":          {`"before":null,"after":{"m":{"` + long + `":1}}`, `m…=>`},
		"replaced by it":     {`"before":{"z":[1],"a":1},"after":{"z":[2],"a":2},"replace_paths":[["z"]]`, `z[0]#=1>2 a=1>2`},
		"replaced inside":    {`"before":{"z":{"p":"s"},"a":1},"after":{"z":{"p":"t"},"a":2},"after_sensitive":{"z":true},"replace_paths":[["z","p",0]]`, `z!#=> a=1>2`},
		"a name like it":     {`"before":{"zone":1},"after":{"zone":2},"replace_paths":[["zo"]]`, `zone=1>2`},
	} {
		got, truncated := attributeChanges(changeOf(t, test.change))
		if shownAs(got) != test.want || truncated != 0 {
			t.Errorf("%s: attributeChanges() = %s and %d more, want %s", name, shownAs(got), truncated, test.want)
		}
	}
}

func TestAttributeChangesAreBounded(t *testing.T) {
	t.Parallel()
	var many, large []string
	for i := range 500 {
		many = append(many, fmt.Sprintf(`"k%03d":%d`, i, i))
	}
	for i := range 50 {
		large = append(large, fmt.Sprintf(`"k%03d":%q`, i, strings.Repeat("x", maxPlanValue-2-1)))
	}
	got, truncated := attributeChanges(changeOf(t, `"before":null,"after":{`+strings.Join(many, ",")+`},"replace_paths":[["k499"]]`))
	if len(got) != provision.MaxPlanAttributes || truncated != 400 || got[0].Path != "k499" {
		t.Errorf("attributeChanges(500 attributes) = %d from %s and %d more, want %d from k499 and 400", len(got), got[0].Path, truncated, provision.MaxPlanAttributes)
	}
	got, truncated = attributeChanges(changeOf(t, `"before":null,"after":{`+strings.Join(large, ",")+`}`))
	encoded, _ := json.Marshal(got)
	if len(encoded) > maxAttributes || len(got) < 10 || len(got)+truncated != 50 {
		t.Errorf("attributeChanges(50 KB) = %d in %d bytes and %d more, want at least 10 in %d bytes, and 50 in all", len(got), len(encoded), truncated, maxAttributes)
	}
	deep := strings.Repeat(`[`, 5000) + `"s3cret"` + strings.Repeat(`]`, 5000)
	mask := strings.Repeat(`[`, 5000) + `true` + strings.Repeat(`]`, 5000)
	got, _ = attributeChanges(changeOf(t, `"before":null,"after":{"a":`+deep+`},"after_sensitive":{"a":`+mask+`}`))
	if len(got) != 1 || !got[0].Sensitive || got[0].After != nil {
		t.Errorf("attributeChanges(a secret 5,000 lists deep) = %s, want it hidden", shownAs(got))
	}
}

// grown makes values with the masks that belong to them: what is sensitive says
// so in its text, and is marked somewhere at or above its place.
type grown struct {
	rand  *rand.Rand
	count int
}

func (g *grown) value(depth int, secret bool) (value, mask any) {
	if !secret && g.rand.IntN(5) == 0 {
		value, _ = g.value(depth, true)
		switch _, members := value.(map[string]any); {
		case g.rand.IntN(2) == 0 || value == nil:
			return value, true
		case members: // a mask of another shape covers the whole
			return value, []any{map[string]any{"k0": true}}
		default:
			return value, map[string]any{"k0": []any{nil, true}}
		}
	}
	switch kind := g.rand.IntN(6); {
	case depth > 0 && kind < 2:
		values, masks := map[string]any{}, map[string]any{}
		for range g.rand.IntN(4) {
			name := fmt.Sprintf("k%d", g.rand.IntN(4))
			values[name], masks[name] = g.value(depth-1, secret)
		}
		return values, masks
	case depth > 0 && kind < 4:
		values, masks := []any{}, []any{}
		for range g.rand.IntN(4) {
			v, m := g.value(depth-1, secret)
			values, masks = append(values, v), append(masks, m)
		}
		return values, masks
	case kind == 4:
		return nil, nil
	}
	g.count++
	if secret {
		return fmt.Sprintf("secret-%d", g.count), false
	}
	return fmt.Sprintf("open-%d", g.rand.IntN(3)), false
}

// FuzzAttributeChanges grows changes from a number: nothing sensitive is shown,
// whatever the shapes, and no change is overlooked.
func FuzzAttributeChanges(f *testing.F) {
	for seed := range uint64(400) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := &grown{rand: rand.New(rand.NewPCG(seed, 1))}
		before, beforeMask := g.value(4, false)
		after, afterMask := g.value(4, false)
		_, unknown := g.value(2, false)
		change := &tfjson.Change{Before: before, After: after, BeforeSensitive: beforeMask, AfterSensitive: afterMask}
		if seed%2 == 0 {
			change.AfterUnknown = unknown
		}
		got, truncated := attributeChanges(change)
		encoded, err := json.Marshal(got)
		if err != nil || strings.Contains(string(encoded), "secret-") {
			t.Errorf("attributeChanges(%+v) = %s, %v, want nothing sensitive", change, encoded, err)
		}
		if len(got)+truncated == 0 && !reflect.DeepEqual(bare(before), bare(after)) {
			t.Errorf("attributeChanges(%v to %v) = none, want some", before, after)
		}
		same, _ := attributeChanges(&tfjson.Change{Before: before, After: before, BeforeSensitive: beforeMask, AfterSensitive: beforeMask})
		if len(same) != 0 {
			t.Errorf("attributeChanges(%v to itself) = %s, want none", before, shownAs(same))
		}
		paths := make(map[string]bool)
		for _, c := range got {
			if paths[c.Path] {
				t.Errorf("attributeChanges(%v to %v) = %s, want each path once", before, after, shownAs(got))
			}
			paths[c.Path] = true
		}
	})
}

// bare is a value without its nulls: null, and a member that is null or missing,
// are the same to a resource.
func bare(value any) any {
	switch v := value.(type) {
	case map[string]any:
		members := map[string]any{}
		for name, member := range v {
			if member = bare(member); member != nil {
				members[name] = member
			}
		}
		if len(members) == 0 {
			return nil
		}
		return members
	case []any:
		var elements []any
		for _, element := range v {
			elements = append(elements, bare(element))
		}
		for len(elements) > 0 && elements[len(elements)-1] == nil {
			elements = elements[:len(elements)-1]
		}
		if len(elements) == 0 {
			return nil
		}
		return elements
	}
	return value
}
