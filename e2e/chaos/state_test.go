package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/pgtest"
)

// sixty is a template of sixty resources, each of which writes down that it was
// made.
const sixty = `
variable "journal" { type = string }
resource "terraform_data" "each" {
  for_each = toset([for n in range(60) : tostring(n)])
  provisioner "local-exec" {
    command = "umask 0; sleep 0.03; echo ${each.key} >> ${var.journal}"
  }
}
`

// many is a workspace of the template, and the file where it is written down
// what was made.
type many struct {
	*works
	t        *testing.T
	repo     string
	name     string
	identity string
	journal  string
}

func (m *many) deploy() uuid.UUID {
	m.t.Helper()
	return m.DeployTemplate(m.repo, m.name, map[string]any{"journal": m.journal})
}

// made is how often each resource was made.
func (m *many) made() map[string]int {
	m.t.Helper()
	text, err := os.ReadFile(m.journal)
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	times := map[string]int{}
	for _, name := range strings.Fields(string(text)) {
		times[name]++
	}
	return times
}

// awaitMade waits until so many were made.
func (m *many) awaitMade(n int) {
	m.t.Helper()
	for limit := time.Now().Add(site.Patience); len(m.made()) < n; {
		if time.Now().After(limit) {
			m.t.Fatalf("timed out waiting for %d resources: %v", n, m.made())
		}
		<-time.After(2 * time.Millisecond) // between two looks
	}
}

// compare fails the test unless the state in the database lists exactly what was
// made. Of what was being made when its engine was interrupted nobody can say
// more than that it may be there: the state has it tainted.
func (m *many) compare(when string) (tainted []string) {
	m.t.Helper()
	state, made := m.ManagedState(m.t, m.name, m.identity), m.made()
	for name := range made {
		if _, listed := state[name]; !listed {
			m.t.Errorf("%s: %s was made, and the state does not list it", when, name)
		}
	}
	for name, instance := range state {
		if instance.Tainted {
			tainted = append(tainted, name)
		} else if made[name] == 0 {
			m.t.Errorf("%s: the state lists %s, which was not made", when, name)
		}
	}
	return tainted
}

// Whatever happens in the middle of an apply, afterwards the managed state in the
// database lists what was made, and the next deploy makes the rest, and nothing
// twice: the agent is killed, the database goes away, or both. Agents take turns:
// none has a state of its own.
func TestManagedStateAfterFaults(t *testing.T) {
	t.Parallel()
	w, own := ownWorks(t, pgtest.Durable())
	identity := w.IdentityFile()
	agents := []*site.Agent{w.agent("one", 1, ""), w.agent("two", 1, "")}
	for _, a := range agents {
		a.ManageState(identity)
	}
	repo := w.Template("sixty", map[string]string{"main.tf": sixty})
	const killed, away, both = "the agent is killed", "the database goes away", "both"
	fates := []string{both, away, killed}
	for n := range times(2, 45) {
		m := &many{works: w, t: t, repo: repo, name: fmt.Sprint("many", n), identity: identity, journal: filepath.Join(w.journal, fmt.Sprint("many", n))}
		fate := fates[n%len(fates)]
		a, other := agents[n%2], agents[(n+1)%2]
		a.Start()
		id := m.deploy()
		m.awaitMade(5 + rand.N(40))
		if fate != killed {
			own.Crash(t)
		}
		if fate == away {
			m.awaitMade(60)
		} else {
			a.Kill()
			a.Start()
		}
		if fate != killed {
			own.Start(t)
			w.reconnect()
		}
		status := w.AwaitEnd(id)
		if fate == away && status != "SUCCESS" {
			t.Errorf("%s: the run = %s: %s, want SUCCESS, for an apply needs no database", fate, status, w.Message(id))
		}
		tainted := m.compare(fate)
		a.Terminate()
		other.Start()
		if next := m.deploy(); w.AwaitEnd(next) != "SUCCESS" {
			t.Errorf("%s: the next deploy = %s: %s, want SUCCESS", fate, w.Status(t, next), w.Message(next))
		}
		if tainted := m.compare("after the next deploy"); len(tainted) > 0 {
			t.Errorf("after the next deploy the state has %v tainted, want none", tainted)
		}
		for name, times := range m.made() {
			if times > 1 && !slices.Contains(tainted, name) {
				t.Errorf("%s: %s was made %d times", fate, name, times)
			}
		}
		if got := len(m.made()); got != 60 {
			t.Errorf("%s: made %d of 60", fate, got)
		}
		other.Terminate()
		counted.add("faults in a 60-resource apply with a managed state: "+fate, 1)
	}
}
