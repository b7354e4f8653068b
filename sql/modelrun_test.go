package sql_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func (m *model) heartbeat(rt *rapid.T) {
	a, boot := m.drawAgent(rt)
	for _, id := range m.claims { // rather one that runs what was released
		for _, owner := range m.agents {
			if m.released[id] && owner.instance == m.state.Claims[id].Instance && rapid.Bool().Draw(rt, "the released one's") {
				a, boot = owner, owner.boot()
			}
		}
	}
	claims := []uuid.UUID{}
	for _, id := range m.claims {
		// Of those that have ended, an agent may still run what was released.
		often := 1
		if m.state.Claims[id].State != "ended" || m.released[id] {
			often = 6
		}
		if rapid.IntRange(0, 7).Draw(rt, "named") < often {
			claims = append(claims, id)
		}
	}
	var reply []byte
	reason := m.call(rt, &reply, "SELECT public.agent_heartbeat($1, $2, $3, $4)", m.clusters[a.cluster].tokenHash, a.instance, boot, claims)
	if boot != a.boot() {
		want(rt, "heartbeat of an old boot", reason, "agent_superseded")
		return
	}
	want(rt, "heartbeat", reason, "")
	var p pulse
	if err := json.Unmarshal(reply, &p); err != nil {
		rt.Fatalf("heartbeat = %s: %v", reply, err)
	}
	a.heard = fresh
	for _, id := range claims {
		c := m.state.Claims[id]
		mine := c.Instance == a.instance
		want(rt, fmt.Sprintf("claim %s told lost", id), slices.Contains(p.Lost, id), !mine || c.State != "running")
		want(rt, fmt.Sprintf("claim %s told to be cancelled", id), slices.Contains(p.Cancel, id), mine && c.Cancel)
		if m.released[id] && c.State == "ended" && mine {
			m.seen["told to stop after its end"]++
		}
		if mine {
			c.Expired = false
		}
	}
	m.reap()
}

// log sends lines, some of them stored before or too early.
func (m *model) log(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	c := m.state.Claims[id]
	first := max(1, c.NextChunk+rapid.IntRange(-2, 1).Draw(rt, "from"))
	chunks := make([]map[string]any, rapid.IntRange(0, 4).Draw(rt, "chunks"))
	for i := range chunks {
		m.sent++ // a chunk that is sent again has another text, and must not be stored
		stream := []string{"STDOUT", "STDERR"}[m.sent%2]
		chunks[i] = map[string]any{"stream": stream, "text": fmt.Sprintf("line %d\n", m.sent), "at": time.Now()}
	}
	encoded, err := json.Marshal(chunks)
	if err != nil {
		rt.Fatal(err)
	}
	cluster := m.drawCluster(rt, id)
	var next int
	reason := m.call(rt, &next, "SELECT public.insert_provision_log($1, $2, $3, $4)", m.clusters[cluster].tokenHash, id, first, encoded)
	followed := slices.ContainsFunc(m.claims, func(o uuid.UUID) bool {
		return m.state.Claims[o].Provision == c.Provision && m.state.Claims[o].Number > c.Number
	})
	if cluster != m.clusterOf(id) || c.State != "running" && followed {
		want(rt, "lines", reason, "claim_lost")
		return
	}
	want(rt, "lines", reason, "")
	if skip := c.NextChunk - first; skip >= 0 && skip < len(chunks) {
		for _, chunk := range chunks[skip:] {
			m.addLine(c.Provision, chunk["stream"].(string), chunk["text"].(string))
		}
		c.NextChunk = first + len(chunks)
	}
	want(rt, "chunk expected next", next, c.NextChunk)
}

// drawCluster is usually the claim's own.
func (m *model) drawCluster(rt *rapid.T, claim uuid.UUID) int {
	own := m.clusterOf(claim)
	if rapid.IntRange(0, 15).Draw(rt, "another cluster") == 15 {
		return 1 - own
	}
	return own
}

// report sends a report with what detail has, and sometimes with its number
// and a word on the state.
func (m *model) report(rt *rapid.T, id uuid.UUID, status string, detail map[string]any) (reason string, ownCluster bool) {
	if n := m.state.Claims[id].LastReport + rapid.IntRange(-1, 2).Draw(rt, "report"); n > 0 && rapid.Bool().Draw(rt, "numbered") {
		detail["n"] = n
	}
	if rapid.IntRange(0, 3).Draw(rt, "tells of the state") == 3 {
		detail["state_unsaved"] = rapid.Bool().Draw(rt, "unsaved")
	}
	cluster := m.drawCluster(rt, id)
	encoded, err := json.Marshal(detail)
	if err != nil {
		rt.Fatal(err)
	}
	var void any
	reason = m.call(rt, &void, "SELECT public.update_provision_status($1, $2, $3, $4)::text", m.clusters[cluster].tokenHash, id, status, encoded)
	return reason, cluster == m.clusterOf(id)
}

// take records what a report that was accepted says.
func (m *model) take(c *claimRow, detail map[string]any) {
	if n, ok := detail["n"].(int); ok {
		c.LastReport = n
	}
	if plan, ok := detail["plan"].(map[string]any); ok {
		m.state.Provisions[c.Provision].Plan = []string{"calm", "destroys"}[plan["destroy"].(int)]
	}
	w := m.state.Workspaces[c.Workspace]
	switch unsaved, told := detail["state_unsaved"].(bool); {
	case told && unsaved:
		w.Unsaved = c.Instance
		m.seen["state unsaved"]++
	case told && w.Unsaved == c.Instance:
		w.Unsaved = uuid.Nil
	}
}

func (m *model) progress(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	c := m.state.Claims[id]
	detail := map[string]any{}
	applies := rapid.IntRange(0, 3).Draw(rt, "only tells") < 3
	if applies {
		detail["stage"], detail["commit"] = "apply", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		detail["plan_digest"] = aPlan
		if rapid.IntRange(0, 2).Draw(rt, "goes on by itself") > 0 || m.state.Provisions[c.Provision].SetDown {
			detail["detachable"] = true
			if !m.state.Provisions[c.Provision].Stored && rapid.IntRange(0, 7).Draw(rt, "stored before") > 0 {
				m.store(rt, id)
			}
		}
	}
	if rapid.Bool().Draw(rt, "of the plan") {
		detail["plan"] = map[string]any{"destroy": rapid.IntRange(0, 1).Draw(rt, "destroys")}
	}
	reason, own := m.report(rt, id, "PROCESSING", detail)
	n, numbered := detail["n"].(int)
	holds := m.state.Workspaces[c.Workspace].Held == id
	begins := applies && !c.ApplyBegun
	switch {
	case !own:
		want(rt, "progress by another cluster", reason, "claim_lost")
	case c.State == "ended", c.State == "lost" && (!c.ApplyBegun || applies || !m.state.newest(id)):
		want(rt, "progress of a claim that is "+c.State, reason, "claim_lost")
	case applies && c.Cancel:
		want(rt, "apply", reason, "cancel_requested")
	case applies && c.Expired:
		want(rt, "apply", reason, "lease_expired")
	case begins && m.refusesApply(c, detail) != "":
		want(rt, "apply", reason, m.refusesApply(c, detail))
		m.seen["approval needed"]++
	case numbered && n <= c.LastReport:
		want(rt, "progress told again", reason, "")
	default:
		want(rt, "progress", reason, "")
		if begins {
			c.ApplyBegun = true
			c.Detachable = detail["detachable"] == true
			if c.Detachable && m.state.Provisions[c.Provision].SetDown {
				m.seen["taken up"]++
			}
			m.seen["apply begun"]++
			if m.state.Provisions[c.Provision].Approved {
				m.seen["applied what was approved"]++
			}
		}
		if c.State == "lost" && !holds {
			delete(detail, "state_unsaved") // the workspace was released
		}
		m.take(c, detail)
	}
}

// settle reports how a run has ended.
func (m *model) settle(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	status := rapid.SampledFrom([]string{"SUCCESS", "FAILED", "CANCELLED"}).Draw(rt, "status")
	detail, code := map[string]any{}, map[string]string{"CANCELLED": "cancelled"}[status]
	if status == "FAILED" {
		code = rapid.SampledFrom([]string{"apply_failed", "plan_failed", "init_failed", "internal", "plan_stale"}).Draw(rt, "code")
	}
	if code != "" {
		detail["error_code"] = code
	}
	reason, own := m.report(rt, id, status, detail)
	m.settled(rt, id, status, code, detail, reason, own)
}

// settled is what a result leads to.
func (m *model) settled(rt *rapid.T, id uuid.UUID, status, code string, detail map[string]any, reason string, own bool) {
	c := m.state.Claims[id]
	p, w := m.state.Provisions[c.Provision], m.state.Workspaces[c.Workspace]
	switch {
	case !own:
		want(rt, "result from another cluster", reason, "claim_lost")
		return
	case c.InVain:
		want(rt, "result of what is queued again", reason, "")
		return
	case c.State == "ended" && p.Status == status && p.Code == code:
		want(rt, "result told again", reason, "")
		return
	case c.State == "ended", c.State == "lost" && !m.state.newest(id):
		want(rt, "result of a claim that is "+c.State, reason, "claim_lost")
		return
	}
	want(rt, "result", reason, "")
	if c.State == "lost" {
		m.seen["settled late"]++
		m.systemLine(c.Provision, "reported after all: "+status)
		if m.released[id] {
			delete(detail, "state_unsaved")
			m.seen["settled after a release"]++
		}
	}
	m.take(c, detail)
	if status == "FAILED" && c.State == "running" && m.takenUpInVain(id, code) {
		return
	}
	m.end(c.Provision, status, code)
	m.endClaim(id, w)
}

// reportSetDown ends a run for another agent to take up.
func (m *model) reportSetDown(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	if rapid.IntRange(0, 3).Draw(rt, "whatever") < 3 {
		id = m.drawClaim(rt, func(c *claimRow) bool { return c.Detachable && c.State != "ended" })
		if rapid.IntRange(0, 7).Draw(rt, "cancelled meanwhile") == 0 {
			m.cancelProvision(rt, m.state.Claims[id].Provision)
		}
	}
	c := m.state.Claims[id]
	told := map[string]any{}
	reason, own := m.report(rt, id, "SET_DOWN", told)
	switch {
	case own && c.SetDown:
		want(rt, "set down again", reason, "")
	case !own || c.State != "running":
		m.settled(rt, id, "FAILED", "agent_drained", told, reason, own)
	case !c.Detachable:
		want(rt, "set down what does not go on by itself", reason, "not_detachable")
	case c.Cancel:
		m.seen["cancelled instead of set down"]++
		m.settled(rt, id, "CANCELLED", "cancelled", told, reason, own)
	default:
		want(rt, "set down", reason, "")
		m.seen["set down"]++
		m.setDown(id, "Set down by agent")
	}
}

func (m *model) setDown(id uuid.UUID, line string) {
	c := m.state.Claims[id]
	c.SetDown = true
	m.state.Provisions[c.Provision].SetDown = true
	m.planned[c.Provision] = true
	m.queueAgain(id, line, false)
}

// queueAgain ends a claim, and queues its run before anything else of the workspace.
func (m *model) queueAgain(id uuid.UUID, line string, later bool) {
	c := m.state.Claims[id]
	w := m.state.Workspaces[c.Workspace]
	m.state.Provisions[c.Provision].Status = "QUEUED"
	m.systemLine(c.Provision, line)
	m.endClaim(id, w)
	w.Reserved, w.Due = c.Provision, later
	m.refreshHead(c.Workspace)
}

// takenUpInVain queues a run again that was set down and that a claim could not take up; false
// where it ends.
func (m *model) takenUpInVain(id uuid.UUID, code string) bool {
	c := m.state.Claims[id]
	p := m.state.Provisions[c.Provision]
	if !p.SetDown || !p.Stored || c.ApplyBegun || c.Cancel || code == "plan_stale" {
		return false
	}
	tries := 1
	claims := m.state.claimsOf(c.Workspace)
	slices.Reverse(claims)
	for _, before := range claims {
		b := m.state.Claims[before]
		if b.Provision != c.Provision {
			continue
		}
		if b.SetDown {
			break
		}
		if b.InVain {
			tries++
		}
	}
	if tries >= 5 {
		m.seen["taken up in vain to the end"]++
		return false
	}
	m.seen["taken up in vain"]++
	c.InVain = true
	m.queueAgain(id, "could not take it up ("+code, true)
	return true
}

func (m *model) endClaim(id uuid.UUID, w *workspaceRow) {
	c := m.state.Claims[id]
	c.State, c.Expired = "ended", false
	if w.Running == id {
		w.Running = uuid.Nil
	}
	if w.Held == id {
		w.Held = uuid.Nil
	}
	m.endReservation(c.Workspace, c.Provision)
	m.refreshHead(c.Workspace)
}
