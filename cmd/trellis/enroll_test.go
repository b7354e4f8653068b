package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool/serverlist"
	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// What a second list of servers does to those of the first.
func TestEnrollVariables(t *testing.T) {
	t.Parallel()
	b := before{
		vars:     map[string]json.RawMessage{"pool": json.RawMessage(`"metal"`), "servers": json.RawMessage(`{"a": {"driver":"ipmi","address":"old"}, "b": {"driver":"ipmi","address":"b"}, "removed": {}}`), "more": json.RawMessage(`1`)},
		machines: []string{"a", "b"},
	}
	list := []serverlist.Server{{Name: "a", Driver: "ipmi", Address: "new", Password: "hunter2hunter2"}, {Name: "c", Driver: "ipmi", Address: "c"}}
	const a, c = `"a":{"driver":"ipmi","address":"new"}`, `"c":{"driver":"ipmi","address":"c"}`
	for _, tt := range []struct {
		before  before
		pool    string
		replace bool
		servers string
		kept    int
		says    string
	}{
		{before{}, "metal", false, `{` + a + `,` + c + `}`, 0, ""},
		{b, "metal", false, `{` + a + `,"b":{"driver":"ipmi","address":"b"},` + c + `}`, 1, ""},
		{b, "metal", true, `{` + a + `,` + c + `}`, 0, ""},
		{b, "other", false, "", 0, `are in the pool "metal"`},
		{before{vars: b.vars, machines: []string{"x"}}, "metal", false, "", 0, "the server x is there"},
		{before{vars: b.vars, machines: []string{"x"}}, "metal", true, `{` + a + `,` + c + `}`, 0, ""},
		{before{vars: map[string]json.RawMessage{"servers": json.RawMessage(`[]`)}, machines: []string{"x"}}, "metal", false, "", 0, "is no object"},
	} {
		vars, kept, err := enrollVariables(tt.before, tt.pool, list, tt.replace)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("enrollVariables(%s) = %v, want %q", tt.pool, err, tt.says)
			}
			continue
		}
		if err != nil || string(vars["servers"]) != tt.servers || kept != tt.kept || string(vars["pool"]) != `"metal"` || len(tt.before.vars) > 0 && string(vars["more"]) != "1" {
			t.Errorf("enrollVariables = %s, %d, %v, want %s, %d", vars, kept, err, tt.servers, tt.kept)
		}
	}
}

// A list that can't be enrolled is refused before anybody is asked, and no cell of it is quoted.
func TestEnrollRefusesLists(t *testing.T) {
	t.Parallel()
	for list, says := range map[string]string{
		"name,drivr\n":          `did you mean "driver"?`,
		"name,driver,address\n": "has no server",
		"name,driver,address,password\nR1,ipmi,b,hunter2x\n": "name R1: use lowercase letters",
		"name,driver,address,password\na,ipmi,b,hunter2\n":   "the password of a has less than 8 bytes",
		"name,driver,address,password\na,ipmi,,hunter2x\n":   "line 2: address is missing",
	} {
		file := filepath.Join(t.TempDir(), "rack.csv")
		if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		r := trellisEnv(t, []string{"TRELLIS_URL=http://127.0.0.1:1", "TRELLIS_TOKEN=x"}, typed(pages.Code(t, "docs/GUIDE.md", "trellis pools enroll POOL FILE", "POOL", "metal", "FILE", file))...)
		if r.want(t, list, exitUsage, says); strings.Contains(r.out+r.stderr, "hunter2") {
			t.Errorf("%q is quoted in %s", list, r.stderr)
		}
	}
	trellisEnv(t, []string{"TRELLIS_URL=http://127.0.0.1:1", "TRELLIS_TOKEN=x"}, "pools", "enroll", "metal").want(t, "no file", exitUsage, "give two arguments")
}
