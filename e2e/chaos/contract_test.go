package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// The contract goes away in the middle of an apply and comes back: what a restore,
// a failed migration or a mistake looks like. That says nothing about the run, so
// its states wait on the disk, also when the agent is killed meanwhile, and nothing
// is made twice.
func TestContractMissingDuringAnApply(t *testing.T) {
	t.Parallel()
	const schema, back = "ALTER SCHEMA tendril RENAME TO tendril_away", "ALTER SCHEMA tendril_away RENAME TO tendril"
	const function, found = "ALTER FUNCTION public.put_blob RENAME TO put_blob_away", "ALTER FUNCTION public.put_blob_away RENAME TO put_blob"
	type missing struct {
		name, away, back string
		https, restart   bool
	}
	for _, tc := range some(
		missing{name: "schema, direct, killed", away: schema, back: back, restart: true},
		missing{name: "schema, over HTTPS", away: schema, back: back, https: true},
		missing{name: "one function, direct", away: function, back: found},
	) {
		name := tc.name
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := site.New(t)
			if tc.https && s.Gateway == nil {
				s.Serve()
			}
			w := newWorks(s)
			identity := w.IdentityFile()
			a := w.agent("one", 1, "")
			a.ManageState(identity)
			a.Start()
			m := w.many(t, "many", identity)
			id := m.queue("apply", map[string]any{"stop": 20})
			m.awaitMade(20)
			w.Exec(t, tc.away)
			m.goOn()
			m.awaitMade(60)
			awaitResult(t, a)
			if tc.restart {
				a.Kill()
				a.Start()
				a.AwaitOutput("cannot register with the database")
			}
			w.Exec(t, tc.back)
			if got := w.AwaitEnd(id); got != "SUCCESS" {
				t.Errorf("the run = %s: %s, want SUCCESS", got, w.Message(id))
			}
			if listed, tainted := m.compare(name); listed != 60 || tainted > 0 {
				t.Errorf("the state lists %d, %d of them tainted, want 60 and none", listed, tainted)
			}
			m.finish(name)
			for _, trouble := range []string{"cannot reach the database", "cannot register with the database"} {
				if said := strings.Count(a.Out.String(), trouble); said > 1 {
					t.Errorf("the agent's log says %d times that it %s, want it once", said, trouble)
				}
			}
			a.Terminate()
			w.countLeftovers(a)
			counted.add("faults: the contract is missing during an apply", 1)
		})
	}
}

// awaitResult waits until a run's process has told its end: into the spool, wherever
// that is.
func awaitResult(t *testing.T, a *site.Agent) {
	t.Helper()
	await(t, "the run's result on the disk", func() bool {
		spools, _ := filepath.Glob(filepath.Join(a.Dir, "*", "*.ndjson"))
		for _, path := range spools {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), `"status":"SUCCESS"`) {
				return true
			}
		}
		return false
	})
}
