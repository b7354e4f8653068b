package statechain

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
)

// Databases have both: a Meta that reads otherwise, or a MAC over another text, would
// make every state that is stored useless.
func TestFormatIsFixed(t *testing.T) {
	t.Parallel()
	workspace := uuid.MustParse("11111111-2222-4333-8444-555555555555")
	m := Meta{Format: 2, Serial: 7, Lineage: "l", Name: "acme/prod", Previous: "p", Chain: Ancestry{1, 2}, MAC: []byte{3}}
	encoded, err := json.Marshal(m)
	if want := `{"v":2,"serial":7,"lineage":"l","name":"acme/prod","previous":"p","chain":"AQI=","mac":"Aw=="}`; err != nil || string(encoded) != want {
		t.Errorf("JSON = %s, %v, want %s", encoded, err, want)
	}
	want := "state 2\nworkspace 11111111-2222-4333-8444-555555555555 \"acme/prod\"\nversion 9\nserial 7\nlineage \"l\"\ndigest d\nprevious \"p\"\nchain 0102\n"
	if got := string(m.message(workspace, 9, "d")); got != want {
		t.Errorf("message() = %q, want %q", got, want)
	}
	want = "state 1\nworkspace 11111111-2222-4333-8444-555555555555\nversion 9\nserial 7\nlineage \"l\"\ndigest d\n"
	if got := string(Meta{Serial: 7, Lineage: "l"}.message(workspace, 9, "d")); got != want {
		t.Errorf("message() of format 0 = %q, want %q", got, want)
	}
}

func TestSignedForOneVersionOfOneWorkspace(t *testing.T) {
	t.Parallel()
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	workspace := uuid.New()
	m := Meta{Format: Format, Serial: 1, Name: "acme/prod"}
	m.Sign(own, workspace, 3, "digest")
	renamed := m
	renamed.Name = "acme/dev"
	for what, tc := range map[string]struct {
		got, want bool
	}{
		"it":                  {m.Signed(own, workspace, 3, "digest"), true},
		"another version":     {m.Signed(own, workspace, 2, "digest"), false},
		"another state":       {m.Signed(own, workspace, 3, "other"), false},
		"another workspace's": {m.Signed(own, uuid.New(), 3, "digest"), false},
		"another name":        {renamed.Signed(own, workspace, 3, "digest"), false},
		"a stranger":          {m.Signed(stranger, workspace, 3, "digest"), false},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: Signed() = %t, want %t", what, tc.got, tc.want)
		}
	}
}

func TestAncestryForgetsTheOldest(t *testing.T) {
	t.Parallel()
	var a Ancestry
	for n := range MaxAncestors + 1 {
		a = a.With(fmt.Sprint(n))
	}
	m := Meta{Previous: "the last", Chain: a}
	for digest, want := range map[string]bool{"0": false, "1": true, fmt.Sprint(MaxAncestors): true, "the last": true, "none": false} {
		if got := m.Follows(digest); got != want {
			t.Errorf("Follows(%s) = %t, want %t", digest, got, want)
		}
	}
	if got := len(a); got != MaxAncestors*ancestorBytes {
		t.Errorf("the ancestry has %d bytes, want %d", got, MaxAncestors*ancestorBytes)
	}
}
