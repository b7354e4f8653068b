package recorded_test

import (
	"encoding/json"
	"testing"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// The exchanges are only worth something if they can be told apart, say where
// they come from, and agree with the status table.
func TestExchangesAreWellFormed(t *testing.T) {
	t.Parallel()
	documented, _ := recorded.Documented(t)
	agent, _ := recorded.Agent(t)
	for group, exchanges := range map[string][]recorded.Exchange{"documented": documented, "agent": agent, "failures": recorded.Failures(t)} {
		seen := map[string]bool{}
		for _, e := range exchanges {
			if e.Name == "" || e.Source == "" || seen[e.Name] {
				t.Errorf("%s: %q from %q: want a name of its own, and a source", group, e.Name, e.Source)
			}
			seen[e.Name] = true
			if _, ok := postgrest.FunctionOf(e.Request.Path); group == "agent" && !ok {
				t.Errorf("%s: %q: FunctionOf(%q) = false, want true", group, e.Name, e.Request.Path)
			}
			checkStatus(t, group, e)
		}
		if len(exchanges) == 0 {
			t.Errorf("%s: no exchanges", group)
		}
	}
}

// checkStatus holds the status of what is an error of SQL to the table.
func checkStatus(t *testing.T, group string, e recorded.Exchange) {
	t.Helper()
	code := codeOf(t, e)
	if len(code) != 5 {
		return // none, or PostgREST's own
	}
	if got := postgrest.StatusOf(code); got != e.Response.Status {
		t.Errorf("%s: %q: StatusOf(%s) = %d, want %d", group, e.Name, code, got, e.Response.Status)
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got, want string
		same      bool
	}{
		{`{"a": 1, "b": [1, {"c": null}]}`, `{"b":[1,{"c":null}],"a":1}`, true},
		{`{"a": 1, "more": 2}`, `{"a": 1}`, true},
		{`{"more": 2}`, `{"a": null}`, false},
		{`[1, 2]`, `[1]`, false},
		{`[{"a": 1}]`, `[{"a": 2}]`, false},
		{`null`, `[]`, false},
		{``, `null`, false},
		{`3`, `"3"`, false},
	} {
		if err := recorded.Same([]byte(c.got), []byte(c.want)); (err == nil) != c.same {
			t.Errorf("Same(%s, %s) = %v, want same: %v", c.got, c.want, err, c.same)
		}
	}
}

func codeOf(t *testing.T, e recorded.Exchange) string {
	t.Helper()
	var body struct {
		Code string `json:"code"`
	}
	if e.Response.Status >= 400 && e.Response.Body != nil {
		if err := json.Unmarshal(e.Response.Body, &body); err != nil {
			t.Fatalf("%q: %v", e.Name, err)
		}
	}
	return body.Code
}
