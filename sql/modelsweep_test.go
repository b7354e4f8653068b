package sql_test

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// leftBehind reports whether an agent's start should sweep a claim.
func leftBehind(c *claimRow, a *modelAgent, boot uuid.UUID) bool {
	return c.State != "ended" && c.Instance == a.instance && c.Boot != boot && samePlace(c.Host, a.host)
}

func (m *model) sweep(rt *rapid.T) {
	a, boot := m.drawAgent(rt)
	for _, other := range m.agents { // rather one that has something to sweep
		for _, c := range m.state.Claims {
			if leftBehind(c, other, other.boot()) {
				a, boot = other, other.boot()
			}
		}
	}
	except := []*uuid.UUID{}
	for _, id := range m.claims { // children that still live
		if rapid.Bool().Draw(rt, "left out") {
			except = append(except, &id)
		}
	}
	if rapid.IntRange(0, 7).Draw(rt, "null in it") == 0 {
		except = append(except, nil)
	}
	var swept []uuid.UUID
	reason := m.call(rt, &swept, "SELECT coalesce(array_agg(s), '{}') FROM public.fail_orphaned_provisions($1, $2, $3, $4) s",
		m.clusters[a.cluster].tokenHash, a.instance, boot, except)
	if boot != a.boot() {
		want(rt, "sweep by an old boot", reason, "agent_superseded")
		return
	}
	want(rt, "sweep", reason, "")
	expected := 0
	for _, id := range m.claims {
		c := m.state.Claims[id]
		if !leftBehind(c, a, boot) {
			continue
		}
		if slices.ContainsFunc(except, func(e *uuid.UUID) bool { return e != nil && *e == id }) {
			m.seen["left out of a sweep"]++
			continue
		}
		m.seen["swept"]++
		if c.State == "running" {
			expected++
			want(rt, fmt.Sprintf("run %s swept", c.Provision), slices.Contains(swept, c.Provision), true)
			if c.Cancel && !c.ApplyBegun {
				m.systemLine(c.Provision, "Cancelled: the agent was restarted")
				m.end(c.Provision, "CANCELLED", "cancelled")
			} else if p := m.state.Provisions[c.Provision]; !c.Cancel && c.Detachable && p.Stored {
				m.seen["set down by a sweep"]++
				m.setDown(id, "was restarted. What this run began continues")
				continue
			} else if m.takenUpInVain(id, "agent_restarted") {
				continue
			} else if !c.ApplyBegun && p.SetDown {
				m.systemLine(c.Provision, "had set this run down, and what it began may continue")
				m.end(c.Provision, "FAILED", "agent_restarted")
			} else {
				m.systemLine(c.Provision, "was restarted during stage")
				m.end(c.Provision, "FAILED", "agent_restarted")
			}
		}
		m.endClaim(id, m.state.Workspaces[c.Workspace])
	}
	want(rt, "provisions swept", len(swept), expected)
}
