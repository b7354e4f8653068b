package sql_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/tendril-run/tendril/internal/queue"
)

func (m *model) register(rt *rapid.T, a *modelAgent) string {
	about, err := json.Marshal(map[string]any{
		"instance_id": a.instance, "boot_id": a.boot(), "name": a.name, "host": a.host, "version": "test", "contract": queue.Contract, "slots": 2,
	})
	if err != nil {
		rt.Fatal(err)
	}
	var reply []byte
	return m.call(rt, &reply, "SELECT public.register_agent($1, $2)", m.clusters[a.cluster].tokenHash, about)
}

// nameTaken reports whether another instance of that name is alive.
func (m *model) nameTaken(a *modelAgent) bool {
	return slices.ContainsFunc(m.agents, func(b *modelAgent) bool {
		return b.instance != a.instance && b.cluster == a.cluster && b.name == a.name && b.heard == fresh
	})
}

// samePlace reports whether two hosts are one place. One without a directory is
// an agent of an older contract: it may be the same one.
func samePlace(a, b string) bool {
	hostA, directoryA, _ := strings.Cut(a, ":")
	hostB, directoryB, _ := strings.Cut(b, ":")
	return hostA == hostB && (directoryA == directoryB || directoryA == "" || directoryB == "")
}

// restart is a new boot, in the same place or in another one.
func (m *model) restart(rt *rapid.T) {
	a := rapid.SampledFrom(m.agents).Draw(rt, "agent")
	moves := rapid.IntRange(0, 3).Draw(rt, "moves") == 0
	next := *a
	next.boots = append(slices.Clone(a.boots), uuid.New())
	if moves {
		next.host = a.name + rapid.SampledFrom([]string{".example", ".example:/a", ".example:/b", ".elsewhere:/a"}).Draw(rt, "to")
	}
	reason := m.register(rt, &next)
	switch {
	case m.nameTaken(&next):
		want(rt, "register", reason, "agent_name_taken")
	case !samePlace(a.host, next.host) && a.heard == fresh:
		want(rt, "register in another place", reason, "agent_instance_elsewhere")
	default:
		want(rt, "register", reason, "")
		*a = next
		a.heard = fresh
	}
}

// registerAgain repeats a registration whose reply was lost, or tries one of a
// boot that a later one has superseded.
func (m *model) registerAgain(rt *rapid.T) {
	a := rapid.SampledFrom(m.agents).Draw(rt, "agent")
	i := rapid.IntRange(0, len(a.boots)-1).Draw(rt, "boot")
	again := *a
	again.boots = a.boots[:i+1]
	reason := m.register(rt, &again)
	switch {
	case m.nameTaken(a):
		want(rt, "register", reason, "agent_name_taken")
	case i < len(a.boots)-1:
		want(rt, "register a superseded boot", reason, "agent_superseded")
	default:
		want(rt, "register again", reason, "")
		a.heard = fresh
	}
}

// registerName is another instance with a name that is there already.
func (m *model) registerName(rt *rapid.T) {
	a := *rapid.SampledFrom(m.agents).Draw(rt, "agent")
	if len(m.agents) == 5 {
		rt.Skip("agents enough")
	}
	a.instance, a.boots, a.heard = uuid.New(), []uuid.UUID{uuid.New()}, fresh
	reason := m.register(rt, &a)
	if m.nameTaken(&a) {
		want(rt, "register a name twice", reason, "agent_name_taken")
		return
	}
	want(rt, "register the name of an agent that is gone", reason, "")
	m.agents = append(m.agents, &a)
}

func (m *model) fallSilent(rt *rapid.T) {
	a := rapid.SampledFrom(m.agents).Draw(rt, "agent")
	m.exec(rt, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '20 minutes' WHERE instance_id = $1", a.instance)
	a.heard = stale
}

// drawAgent draws an agent and one of its boots, usually the one that counts.
func (m *model) drawAgent(rt *rapid.T) (*modelAgent, uuid.UUID) {
	a := rapid.SampledFrom(m.agents).Draw(rt, "agent")
	if len(a.boots) > 1 && rapid.IntRange(0, 5).Draw(rt, "old boot") == 5 {
		return a, rapid.SampledFrom(a.boots).Draw(rt, "boot")
	}
	return a, a.boot()
}

// drawClaim draws one of the claims that fit, or passes over the action.
func (m *model) drawClaim(rt *rapid.T, fits func(*claimRow) bool) uuid.UUID {
	fitting := slices.DeleteFunc(slices.Clone(m.claims), func(c uuid.UUID) bool { return !fits(m.state.Claims[c]) })
	if len(fitting) == 0 {
		rt.Skip("no such claim")
	}
	return rapid.SampledFrom(fitting).Draw(rt, "claim")
}

// drawAnyClaim prefers those that have not ended.
func (m *model) drawAnyClaim(rt *rapid.T) uuid.UUID {
	ended := rapid.IntRange(0, 3).Draw(rt, "ended too") == 3
	return m.drawClaim(rt, func(c *claimRow) bool { return ended || c.State != "ended" })
}

func (m *model) clusterOf(claim uuid.UUID) int {
	id := m.state.Workspaces[m.state.Claims[claim].Workspace].Cluster
	return slices.IndexFunc(m.clusters, func(c modelCluster) bool { return c.id == id })
}

func (m *model) fetch(rt *rapid.T, a *modelAgent, boot, claim uuid.UUID) (answer, reason string) {
	reason = m.call(rt, &answer, "SELECT (to_jsonb(f) - ARRAY['pinned_commit', 'approval', 'approved_plan', 'attempt', 'queued_seconds'])::text FROM public.fetch_next_provision($1, $2, $3, $4) f",
		m.clusters[a.cluster].tokenHash, a.instance, boot, claim)
	return answer, reason
}

// next is the workspace whose head an agent should get.
func (m *model) next(a *modelAgent) (next uuid.UUID) {
	for id, w := range m.state.Workspaces {
		if w.Cluster != m.clusters[a.cluster].id || w.Head == uuid.Nil || w.Running != uuid.Nil || w.Held != uuid.Nil ||
			w.Unsaved != uuid.Nil && w.Unsaved != a.instance || w.Locked != "" {
			continue
		}
		if next == uuid.Nil || before(m.state.Provisions[w.Head], m.state.Provisions[m.state.Workspaces[next].Head]) {
			next = id
		}
	}
	return next
}

func (m *model) claimNew(rt *rapid.T) {
	a, boot := m.drawAgent(rt)
	id := uuid.New()
	answer, reason := m.fetch(rt, a, boot, id)
	if boot != a.boot() {
		want(rt, "claim by an old boot", reason, "agent_superseded")
		return
	}
	want(rt, "claim", reason, "")
	next := m.next(a)
	if next == uuid.Nil {
		want(rt, "claim", answer, "")
		return
	}
	w := m.state.Workspaces[next]
	if !strings.Contains(answer, fmt.Sprintf(`"provision_id": %q`, w.Head)) {
		rt.Fatalf("claim = %q, want run %s", answer, w.Head)
	}
	m.seen["claimed"]++
	for _, other := range m.state.Claims { // can never settle now
		if other.Workspace == next && other.State == "lost" {
			other.State, other.Expired = "ended", false
		}
	}
	m.claims = append(m.claims, id)
	m.answers[id] = answer
	m.state.Claims[id] = &claimRow{
		Number: len(m.claims), Provision: w.Head, Workspace: next, Instance: a.instance, Boot: boot, Host: a.host, State: "running", NextChunk: 1,
	}
	m.state.Provisions[w.Head].Status = "PROCESSING"
	if m.state.Provisions[w.Head].SetDown {
		m.systemLine(w.Head, "Taken up by agent")
	}
	w.Running = id
	m.refreshHead(next)
}

// claimAgain repeats a claim whose reply was lost, or tries somebody else's.
func (m *model) claimAgain(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	c := m.state.Claims[id]
	a, boot := m.drawAgent(rt)
	for _, owner := range m.agents {
		if owner.instance == c.Instance && rapid.Bool().Draw(rt, "by its owner") {
			a, boot = owner, owner.boot()
		}
	}
	answer, reason := m.fetch(rt, a, boot, id)
	switch {
	case boot != a.boot():
		want(rt, "claim by an old boot", reason, "agent_superseded")
	case a.instance != c.Instance || boot != c.Boot || c.State != "running":
		want(rt, "claim of a used id", reason, "claim_lost")
	default:
		want(rt, "claim again", reason, "")
		want(rt, "claim again", answer, m.answers[id])
	}
}
