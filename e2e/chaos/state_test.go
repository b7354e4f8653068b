package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// What happens in the middle of an apply.
const (
	killed  = "the agent is killed"
	twice   = "the agent is killed, and again while it settles that"
	away    = "the database goes away"
	long    = "the database is away for longer than a lease"
	both    = "both, and the agent is killed again"
	startup = "the database goes away as a run begins"
)

// Whatever happens in the middle of an apply, afterwards the managed state in the
// database lists what was made, and the next deploy makes the rest, and nothing
// twice. Agents take turns: none has a state of its own.
func TestManagedStateAfterFaults(t *testing.T) {
	t.Parallel()
	w, own := ownWorks(t, pgtest.Durable())
	w.shortLeases()
	identity := w.IdentityFile()
	agents := []*site.Agent{w.agent("one", 1, ""), w.agent("two", 1, "")}
	for _, a := range agents {
		a.ManageState(identity)
	}
	fates := []string{both, long, twice, away, killed, startup}
	for n := range times(2, 36) {
		m := w.many(t, fmt.Sprint("many", n), identity)
		if full() && n/len(fates)%2 == 1 {
			m.engine = "tofu"
		}
		fate := fates[n%len(fates)]
		a, other := agents[n%2], agents[(n+1)%2]
		a.Start()
		id := m.suffer(fate, a, own)
		status := w.AwaitEnd(id)
		if (fate == away || fate == long || fate == startup) && status != "SUCCESS" {
			t.Errorf("%s: the run = %s: %s, want SUCCESS, for it needs the agent alone", fate, status, w.Message(id))
		}
		a.Terminate()
		other.Start()
		m.finish(fate)
		other.Terminate()
		w.countLeftovers(a)
		counted.add("faults in a 60-resource apply with a managed state: "+fate, 1)
	}
	w.countRows()
}

// suffer deploys, and lets it happen.
func (m *many) suffer(fate string, a *site.Agent, own *pgtest.Own) uuid.UUID {
	t := m.t
	t.Helper()
	if fate == startup {
		id := m.deploy()
		m.Await("the claim", "SELECT status = 'PROCESSING' FROM public.provisions WHERE id = $1", id)
		<-time.After(rand.N(100 * time.Millisecond))
		own.Crash(t)
		<-time.After(rand.N(2 * time.Second))
		m.back(own)
		return id
	}
	id := m.queue("apply", map[string]any{"stop": map[bool]int{true: 30, false: 60}[fate == long]})
	m.awaitMade(1 + rand.N(29))
	switch fate {
	case long:
		own.Crash(t)
		<-time.After(shortLease() + time.Second)
		m.goOn()
		m.awaitMade(60)
		m.back(own)
	case away:
		own.Crash(t)
		m.awaitMade(60)
		m.back(own)
	case both:
		own.Crash(t)
		a.Kill()
		a.Start()
		a.AwaitOutput("cannot register with the database")
		a.Kill()
		a.Start()
		m.back(own)
	case twice:
		a.Kill()
		for range 2 {
			a.Start()
			<-time.After(rand.N(600 * time.Millisecond))
			a.Kill()
		}
		a.Start()
	default:
		a.Kill()
		a.Start()
	}
	return id
}

// back has the database come back.
func (m *many) back(own *pgtest.Own) {
	m.t.Helper()
	own.Start(m.t)
	m.reconnect()
}
