package seal_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/seal"
)

// FuzzOpenVariable looks for what opens although its name is another one, and for
// errors that show what is inside.
func FuzzOpenVariable(f *testing.F) {
	own, err := seal.Generate()
	if err != nil {
		f.Fatal(err)
	}
	to, err := seal.ParseRecipient(own.Public())
	if err != nil {
		f.Fatal(err)
	}
	for _, inside := range []string{
		`{"v": 1, "name": "password", "value": "hunter2-hunter2"}`, `{"v": 1, "name": "password", "workspace": "a", "value": {"k": ["hunter2-hunter2", 1]}}`,
		`"hunter2-hunter2"`, `{"name": "password"}`, `{"v": 1, "NAME": "password", "value": null}`, `hunter2-hunter2`, ``,
	} {
		f.Add(inside, "password", "acme/prod")
	}
	f.Fuzz(func(t *testing.T, inside, name, workspace string) {
		message, err := seal.Armoured(to, []byte(inside))
		if err != nil {
			t.Fatal(err)
		}
		value, err := own.OpenVariable(message, name, workspace)
		if err != nil {
			if value != nil {
				t.Errorf("OpenVariable(%q) = %s with the error %v", inside, value, err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("OpenVariable(%q) = %v, which shows what is inside", inside, err)
			}
			return
		}
		var v seal.Variable
		if json.Unmarshal([]byte(inside), &v) != nil || v.Name != name || v.Workspace != "" && v.Workspace != workspace || seal.CheckSecret(value) != nil {
			t.Errorf("OpenVariable(%q, %q, %q) = %s, want it refused", inside, name, workspace, value)
		}
	})
}
