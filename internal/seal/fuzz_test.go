package seal_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/seal"
)

// FuzzOpenVariable looks for what opens although it is for another use, and for
// errors that show the value.
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
		`{"v": 2, "cluster": "prod", "workspace": "acme/prod", "repo": "https://git.example/acme/app", "name": "password", "value": "hunter2-hunter2"}`,
		`{"v": 2, "cluster": "prod", "workspace": "acme/prod", "repo": "https://git.example/acme/app", "name": "password", "NAME": "motd", "value": {"k": ["hunter2-hunter2", 1]}}`,
		`{"v": 1, "name": "password", "value": "hunter2-hunter2"}`, `{"v": 1, "name": "password", "workspace": "a", "value": {"k": ["hunter2-hunter2", 1]}}`,
		`"hunter2-hunter2"`, `{"name": "password"}`, `{"v": 2, "NAME": "password", "value": null}`, `hunter2-hunter2`, ``,
	} {
		f.Add(inside, "prod", "acme/prod", "https://git.example/acme/app", "password")
	}
	f.Fuzz(func(t *testing.T, inside, cluster, workspace, repo, name string) {
		message, err := seal.Armoured(to, []byte(inside))
		if err != nil {
			t.Fatal(err)
		}
		run := seal.Use{Cluster: cluster, Workspace: workspace, Repo: repo, Name: name}
		value, err := own.OpenVariable(message, run)
		var v seal.Variable
		decoded := json.Unmarshal([]byte(inside), &v) == nil
		if err != nil {
			if value != nil {
				t.Errorf("OpenVariable(%q) = %s with the error %v", inside, value, err)
			}
			// What it is for may be quoted, and that may be anything here.
			quoted := decoded && strings.Contains(v.Cluster+v.Workspace+v.Repo+v.Name+cluster+workspace+repo+name, "hunter2")
			if strings.Contains(err.Error(), "hunter2") && !quoted {
				t.Errorf("OpenVariable(%q) = %v, which shows what is inside", inside, err)
			}
			return
		}
		// The same value, sealed for that use, says the same of its use.
		again, err := seal.Variable{Use: run, Value: value}.Seal(to)
		if err != nil {
			t.Fatalf("OpenVariable(%q) = %s for %+v, which nothing can be sealed for: %v", inside, value, run, err)
		}
		if _, err := own.OpenVariable(again, v.Use); !decoded || err != nil || v.Version != 2 {
			t.Errorf("OpenVariable(%q) = %s for %+v, want it refused: %v", inside, value, run, err)
		}
	})
}
