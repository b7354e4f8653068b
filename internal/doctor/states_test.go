package doctor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/doctor"
)

// A state that is on this disk alone is listed, with what becomes of it.
func TestStates(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T, p *patient, name, content string) {
		t.Helper()
		path := filepath.Join(p.Config.DataDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const claim = "spool/01a2067b-5fa3-76d9-9b79-c83b5a620de6"
	faults{
		"none": {func(t *testing.T, p *patient) {
			put(t, p, claim+".state0", "") // the slot of a run that has written none
			put(t, p, "state/01a2067b-581f-74f7-a293-a891b4f42122/terraform.tfstate", "{}")
		}, "states", doctor.OK, []string{"every state is stored"}},
		"not delivered": {func(t *testing.T, p *patient) {
			put(t, p, claim+".state1", "sealed")
			put(t, p, claim+".json", `{"number": 12, "workspace_name": "acme/prod"}`)
		}, "states", doctor.Warn, []string{`run #12 of workspace "acme/prod"`, "6 bytes", "start the agent"}},
		"of a spool that does not say whose": {func(t *testing.T, p *patient) { put(t, p, claim+".state1", "sealed") },
			"states", doctor.Warn, []string{"claim 01a2067b-5fa3-76d9-9b79-c83b5a620de6"}},
		"not stored by the engine": {func(t *testing.T, p *patient) {
			put(t, p, "state/01a2067b-581f-74f7-a293-a891b4f42122/errored.tfstate", "{}")
		}, "states", doctor.Warn, []string{"workspace 01a2067b-581f-74f7-a293-a891b4f42122", "backend"}},
		"refused": {func(t *testing.T, p *patient) { put(t, p, "rejected/01a2067b.state.age", "sealed") },
			"states", doctor.Warn, []string{"rejected/01a2067b.state.age", "trellis state versions"}},
	}.run(t, machine)
}
