package sql_test

import (
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// rule says when a provision's plan must be approved: the stricter of what its
// snapshot and its cluster say.
func (m *model) rule(p *provisionRow) string {
	strict := []string{"", "never", "destructive", "always"}
	cluster := m.rules[slices.IndexFunc(m.clusters, func(c modelCluster) bool { return c.id == m.state.Workspaces[p.Workspace].Cluster })]
	return strict[max(1, slices.Index(strict, p.Approval), slices.Index(strict, cluster))]
}

// refusesApply is the reason for which an apply must not begin.
func (m *model) refusesApply(c *claimRow, detail map[string]any) string {
	p := m.state.Provisions[c.Provision]
	calm := p.Plan == "calm"
	if plan, told := detail["plan"].(map[string]any); told {
		calm = plan["destroy"] == 0
	}
	rule := m.rule(p)
	switch {
	case p.Operation != "apply" && p.Operation != "destroy":
		return "operation_refused"
	case p.SetDown && !p.Stored:
		return "plan_missing"
	case !p.Approved && !p.SetDown && (rule == "always" || rule == "destructive" && (p.Operation == "destroy" || !calm)):
		return "approval_needed"
	case detail["detachable"] == true && !p.Stored:
		return "plan_missing"
	}
	return ""
}

func (m *model) setPolicy(rt *rapid.T) {
	i := rapid.IntRange(0, len(m.clusters)-1).Draw(rt, "cluster")
	m.rules[i] = rapid.SampledFrom([]string{"never", "never", "destructive", "always"}).Draw(rt, "approval")
	var void any
	want(rt, "set policy", m.call(rt, &void, "SELECT public.set_cluster_policy($1, jsonb_build_object('approval', $2::text))::text", m.clusters[i].id, m.rules[i]), "")
}

// storePlan stores the bundle of a plan, mostly before it is told of.
func (m *model) storePlan(rt *rapid.T) {
	m.store(rt, m.drawAnyClaim(rt))
}

func (m *model) store(rt *rapid.T, id uuid.UUID) {
	c := m.state.Claims[id]
	p := m.state.Provisions[c.Provision]
	cluster := m.drawCluster(rt, id)
	var void any
	reason := m.call(rt, &void, "SELECT public.put_blob($1, $2, 'plan', 0, 1, 1, $3, '{}', $4)::text",
		m.clusters[cluster].tokenHash, id, aPlan, base64.StdEncoding.EncodeToString([]byte("a plan")))
	switch {
	case cluster != m.clusterOf(id), c.State != "running":
		want(rt, "store a plan", reason, "claim_lost")
	case p.Approved || p.SetDown:
		want(rt, "store another plan", reason, "plan_approved")
	default:
		want(rt, "store a plan", reason, "")
		p.Stored = true
	}
}

// await is the end of a run whose plan wants approval.
func (m *model) await(rt *rapid.T) {
	id := m.drawAnyClaim(rt)
	if rapid.IntRange(0, 3).Draw(rt, "whatever") < 3 {
		id = m.drawClaim(rt, func(c *claimRow) bool {
			p := m.state.Provisions[c.Provision]
			return c.State == "running" && !c.ApplyBegun && !p.Approved && !p.SetDown && (p.Operation == "apply" || p.Operation == "destroy")
		})
		m.store(rt, id)
		if rapid.IntRange(0, 7).Draw(rt, "cancelled meanwhile") == 0 {
			m.cancelProvision(rt, m.state.Claims[id].Provision)
		}
	}
	c := m.state.Claims[id]
	p, w := m.state.Provisions[c.Provision], m.state.Workspaces[c.Workspace]
	told := map[string]any{"plan_digest": aPlan}
	reason, own := m.report(rt, id, "AWAITING_APPROVAL", told)
	switch {
	case !own:
		want(rt, "await approval of another cluster's", reason, "claim_lost")
	case c.InVain:
		want(rt, "await approval of what is queued again", reason, "")
	case c.State == "ended" && m.planned[c.Provision]:
		want(rt, "await approval again", reason, "")
	case c.State != "running":
		want(rt, "await approval of a claim that is "+c.State, reason, "claim_lost")
	case c.Cancel && !c.ApplyBegun:
		want(rt, "await approval of what is to be cancelled", reason, "")
		m.seen["cancelled instead of waiting"]++
		m.take(c, told)
		m.end(c.Provision, "CANCELLED", "cancelled")
		m.endClaim(id, w)
	case p.Operation != "apply" && p.Operation != "destroy":
		want(rt, "await approval of what is not applied", reason, "operation_refused")
	case p.Approved || p.SetDown:
		want(rt, "await approval of another plan", reason, "already_approved")
	case !p.Stored:
		want(rt, "await approval of what is not stored", reason, "plan_missing")
	case c.ApplyBegun:
		want(rt, "await approval of what is being applied", reason, "claim_lost")
	default:
		want(rt, "await approval", reason, "")
		m.seen["awaits approval"]++
		m.take(c, told)
		m.planned[c.Provision] = true
		m.systemLine(c.Provision, "The plan needs approval.")
		p.Status = "AWAITING_APPROVAL"
		m.endClaim(id, w)
		w.Reserved, w.Due = c.Provision, true
		m.refreshHead(c.Workspace)
	}
}

// comeDue lets what some workspace is reserved for be due, and a timer see it.
func (m *model) comeDue(rt *rapid.T) {
	var due []uuid.UUID
	for _, id := range m.workspaces {
		if m.state.Workspaces[id].Due {
			due = append(due, id)
		}
	}
	if len(due) == 0 {
		rt.Skip("nothing waits for its time")
	}
	m.beDue(rt, rapid.SampledFrom(due).Draw(rt, "workspace"))
}

func (m *model) beDue(rt *rapid.T, workspace uuid.UUID) {
	m.exec(rt, "UPDATE public.workspaces SET due_at = clock_timestamp() - interval '1 second' WHERE id = $1", workspace)
	m.exec(rt, "UPDATE tendril.pulse SET stamped_at = clock_timestamp(), reap_not_before = '-infinity'") // nothing is put off
	m.pulse, m.putOff = fresh, false
	var n int
	want(rt, "reap", m.call(rt, &n, "SELECT tendril.reap()"), "")
	w := m.state.Workspaces[workspace]
	w.Due = false
	if id := w.Reserved; m.state.Provisions[id].Status == "AWAITING_APPROVAL" {
		m.seen["approval expired"]++
		m.systemLine(id, "The plan was not approved in time.")
		m.end(id, "CANCELLED", "approval_expired")
		m.endReservation(workspace, id)
	} else {
		m.seen["attempt due"]++
	}
	m.refreshHead(workspace)
	want(rt, "claims given up", n, m.reap())
}

// end is the end of a provision, and what follows of it: another attempt, or
// none where one waits.
func (m *model) end(id uuid.UUID, status, code string) {
	p := m.state.Provisions[id]
	was := p.Status
	p.Status, p.Code, p.Stored = status, code, false
	passes := status == "FAILED" && slices.Contains([]string{"agent_lost", "agent_restarted", "agent_drained", "init_failed", "internal"}, code)
	switch {
	case was == "PROCESSING" && passes:
		m.tryAgain(id, p)
	case was == "FAILED" && !passes:
		for other, o := range m.state.Provisions {
			if o.RetryOf == id && o.Attempt > 1 && o.Status == "QUEUED" {
				m.seen["attempt dropped"]++
				m.systemLine(other, "Cancelled: the earlier run reported after all.")
				m.end(other, "CANCELLED", "cancelled")
				m.endReservation(o.Workspace, other)
				m.refreshHead(o.Workspace)
			}
		}
	}
}

func (m *model) tryAgain(id uuid.UUID, p *provisionRow) {
	for _, c := range m.state.Claims {
		if c.Provision == id && (c.ApplyBegun || c.Cancel) {
			return
		}
	}
	if p.Attempt >= p.Most || p.Operation == "inspect" {
		return
	}
	m.seen["tried again"]++
	// Which one it is, the database alone says. If there is none, that shows.
	var next uuid.UUID
	again := *p
	_ = m.conn.QueryRow(m.ctx, `SELECT p.id, (SELECT count(*) FROM public.provisions o WHERE o.number <= p.number)
		FROM public.provisions p WHERE retry_of = $1 AND attempt > 1`, id).Scan(&next, &again.Number)
	m.provisions = append(m.provisions, next)
	again.Status, again.Code, again.Attempt, again.RetryOf = "QUEUED", "", p.Attempt+1, id
	again.Approved, again.Plan = false, ""
	m.state.Provisions[next] = &again
	m.systemLine(id, "Retry in")
	m.systemLine(next, fmt.Sprintf("Attempt %d of %d: run", p.Attempt+1, p.Most))
	w := m.state.Workspaces[p.Workspace]
	w.Reserved, w.Due = next, true
}

// finish lets time pass, and agents take and fail what they get, until all has
// ended: nothing is stuck, and no workspace lost.
func (m *model) finish(rt *rapid.T) {
	m.exec(rt, "UPDATE public.workspaces SET locked_at = NULL, locked_by = NULL, lock_reason = NULL, unsaved_state_on = NULL")
	const left = "SELECT count(*) FROM public.provisions WHERE status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')"
	var n int
	for range 8*len(m.provisions) + 10 { // what was set down is tried several times
		m.exec(rt, `UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running';
			UPDATE public.workspaces SET due_at = clock_timestamp() - interval '1 second' WHERE due_at IS NOT NULL;
			UPDATE tendril.pulse SET stamped_at = clock_timestamp(), reap_not_before = '-infinity';
			SELECT tendril.reap();
			SELECT public.release_workspace(id) FROM public.workspaces WHERE held_by_claim IS NOT NULL`)
		want(rt, "count what has not ended", m.call(rt, &n, left), "")
		if n == 0 {
			break
		}
		for _, a := range m.agents {
			id := uuid.New()
			if answer, _ := m.fetch(rt, a, a.boot(), id); answer != "" {
				var void any
				want(rt, "fail", m.call(rt, &void, "SELECT public.update_provision_status($1, $2, 'FAILED', '{\"error_code\": \"internal\"}')::text", m.clusters[a.cluster].tokenHash, id), "")
			}
		}
	}
	want(rt, "what has not ended at last", n, 0)
	var lost int
	want(rt, "workspaces", m.call(rt, &lost, "SELECT count(*) FROM public.workspaces WHERE coalesce(running_claim, held_by_claim, reserved_by, head_id) IS NOT NULL OR due_at IS NOT NULL"), "")
	want(rt, "workspaces that are kept for nothing", lost, 0)
}
