package sql_test

import (
	"fmt"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// lose lets a lease run out, and often somebody see it: the timer, or another
// agent's heartbeat.
func (m *model) lose(rt *rapid.T) {
	applying := rapid.Bool().Draw(rt, "one that applies")
	id := m.drawClaim(rt, func(c *claimRow) bool { return c.State == "running" && (c.ApplyBegun || !applying) })
	m.exec(rt, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", id)
	m.state.Claims[id].Expired = true
	if !rapid.Bool().Draw(rt, "is seen") {
		return
	}
	var n int
	want(rt, "reap", m.call(rt, &n, "SELECT tendril.reap()"), "")
	want(rt, "claims given up", n, m.reap())
}

// timePasses moves the stamps, for a test cannot move the clock.
func (m *model) timePasses(rt *rapid.T) {
	switch rapid.IntRange(0, 4).Draw(rt, "how") {
	case 0: // the database was away
		m.exec(rt, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '1 hour'")
		m.pulse = stale
	case 1: // the clock was an hour ahead and is put right
		m.seen["clock set back"]++
		m.exec(rt, fmt.Sprintf(`UPDATE tendril.pulse SET stamped_at = clock_timestamp() + %s;
			UPDATE tendril.claims SET lease_until = lease_until + %[1]s WHERE state = 'running';
			UPDATE public.agents SET last_heartbeat_at = last_heartbeat_at + %[1]s`, ahead))
		m.pulse = future
		for _, a := range m.agents {
			a.heard = future
		}
		for _, c := range m.state.Claims {
			c.Expired = false
		}
	case 2: // the database was away for half a lease
		m.exec(rt, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '5 minutes'")
		m.pulse = gap
	default: // the lease for which reaping was put off
		m.exec(rt, "UPDATE tendril.pulse SET reap_not_before = '-infinity'")
		m.putOff = false
	}
}

// beat is the pulse: it says whether leases may be reaped.
func (m *model) beat() bool {
	switch m.pulse {
	case fresh:
		return !m.putOff
	case gap: // it is added to the leases that run
		m.pulse = fresh
		m.cutFuture()
		for _, c := range m.state.Claims {
			if c.Expired {
				m.seen["a lease that an outage ended lives on"]++
			}
			c.Expired = false
		}
		return !m.putOff
	}
	m.pulse, m.putOff = fresh, true
	m.cutFuture()
	return false
}

// cutFuture is what each late stamp does with heartbeats that a clock has left in the future.
func (m *model) cutFuture() {
	for _, a := range m.agents {
		if a.heard == future {
			a.heard = fresh
		}
	}
}

// reap gives up the claims whose lease has run out and counts them.
func (m *model) reap() (n int) {
	if !m.beat() {
		return 0
	}
	for _, id := range m.claims {
		c := m.state.Claims[id]
		if !c.Expired {
			continue
		}
		n++
		c.Expired = false
		if !c.Cancel && c.Detachable && m.state.Provisions[c.Provision].Stored {
			m.seen["set down by a lost lease"]++
			m.setDown(id, "its lease ran out. What this run began continues")
			continue
		}
		if m.takenUpInVain(id, "agent_lost") {
			continue
		}
		c.State = "lost"
		w := m.state.Workspaces[c.Workspace]
		w.Running = uuid.Nil
		if c.ApplyBegun {
			w.Held = id
			m.seen["lost while applying"]++
		} else {
			m.endReservation(c.Workspace, c.Provision)
		}
		m.end(c.Provision, "FAILED", "agent_lost")
		m.systemLine(c.Provision, "is lost: its lease ran out")
		m.refreshHead(c.Workspace)
	}
	return n
}
