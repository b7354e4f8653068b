package sql_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// modelWorkspaces is how many workspaces there are: all but the last belong to
// the first cluster.
const modelWorkspaces = 3

func (m *model) insert(rt *rapid.T, workspace int, asked provisionRow) {
	cluster := workspace / (modelWorkspaces - 1)
	var row struct{ id, workspace uuid.UUID }
	err := m.conn.QueryRow(m.ctx, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority, operation) VALUES ($1, $2, $3, $4) RETURNING id, workspace_id",
		m.clusters[cluster].id, snapshotWith(fmt.Sprintf("w%d", workspace), fmt.Sprintf(`"approval": %q, "max_attempts": %d`, asked.Approval, asked.Most)),
		asked.Priority, asked.Operation).Scan(&row.id, &row.workspace)
	if err != nil {
		rt.Fatalf("deploy: %v", err)
	}
	if m.state.Workspaces[row.workspace] == nil {
		m.state.Workspaces[row.workspace] = &workspaceRow{Cluster: m.clusters[cluster].id}
		m.workspaces = append(m.workspaces, row.workspace)
		m.hidden[row.workspace] = asked.Operation == "inspect"
	}
	m.provisions = append(m.provisions, row.id)
	asked.Workspace, asked.Number, asked.Status, asked.Attempt = row.workspace, len(m.provisions), "QUEUED", 1
	m.state.Provisions[row.id] = &asked
	m.refreshHead(row.workspace)
}

func (m *model) refreshHead(workspace uuid.UUID) {
	m.state.Workspaces[workspace].Head = m.state.head(workspace)
}

func (m *model) deploy(rt *rapid.T) {
	m.insert(rt, rapid.IntRange(0, modelWorkspaces-1).Draw(rt, "workspace"), provisionRow{
		Priority:  rapid.SampledFrom([]int{0, 0, 0, 5, -5}).Draw(rt, "priority"),
		Operation: rapid.SampledFrom([]string{"apply", "apply", "apply", "destroy", "plan", "refresh", "inspect"}).Draw(rt, "operation"),
		Approval:  rapid.SampledFrom([]string{"never", "never", "destructive", "always"}).Draw(rt, "approval"),
		Most:      rapid.IntRange(1, 3).Draw(rt, "attempts"),
	})
}

func (m *model) cancel(rt *rapid.T) {
	m.cancelProvision(rt, rapid.SampledFrom(m.provisions).Draw(rt, "provision"))
}

func (m *model) cancelProvision(rt *rapid.T, id uuid.UUID) {
	var answer string
	reason := m.call(rt, &answer, "SELECT public.cancel_provision($1)", id)

	p := m.state.Provisions[id]
	var claim *claimRow // its newest that has not ended
	held := false
	for _, c := range m.state.claimsOf(p.Workspace) {
		if row := m.state.Claims[c]; row.Provision == id && row.State != "ended" {
			claim, held = row, m.state.Workspaces[p.Workspace].Held == c
		}
	}
	switch {
	case p.Status == "CANCELLED":
	case p.Status == "QUEUED", p.Status == "AWAITING_APPROVAL":
		line := map[string]string{"QUEUED": "Cancelled before it began.", "AWAITING_APPROVAL": "Cancelled before approval."}[p.Status]
		if p.SetDown {
			line = "Cancelled while it was set down."
		}
		m.systemLine(id, line)
		m.end(id, "CANCELLED", "cancelled")
		m.endReservation(p.Workspace, id)
		m.refreshHead(p.Workspace)
	case p.Status == "PROCESSING", held:
		if !claim.Cancel {
			claim.Cancel = true
			m.systemLine(id, "Cancel requested.")
		}
	default:
		want(rt, "cancel", reason, "already_ended")
		return
	}
	want(rt, "cancel", reason, "")
	want(rt, "status after the cancel", answer, p.Status)
}

func (m *model) endReservation(workspace, provision uuid.UUID) {
	if w := m.state.Workspaces[workspace]; w.Reserved == provision {
		w.Reserved, w.Due = uuid.Nil, false
	}
}

func (m *model) release(rt *rapid.T) {
	id := rapid.SampledFrom(m.workspaces).Draw(rt, "workspace")
	if w := m.state.Workspaces[id]; w.Held == uuid.Nil && w.Unsaved == uuid.Nil && rapid.IntRange(0, 3).Draw(rt, "refused") < 3 {
		rt.Skip("nothing to release")
	}
	var void any
	reason := m.call(rt, &void, "SELECT public.release_workspace($1, 'a reason')::text", id)
	w := m.state.Workspaces[id]
	switch {
	case w.Running != uuid.Nil:
		want(rt, "release", reason, "workspace_running")
		return
	case w.Held == uuid.Nil && w.Unsaved == uuid.Nil:
		want(rt, "release", reason, "workspace_not_held")
		return
	}
	want(rt, "release", reason, "")
	m.seen["released it"]++
	told := w.Held
	for _, c := range m.state.claimsOf(id) {
		if w.Held == uuid.Nil && m.state.Claims[c].Instance == w.Unsaved {
			told = c
		}
	}
	m.systemLine(m.state.Claims[told].Provision, "An admin released the workspace (a reason).")
	if w.Held != uuid.Nil {
		m.released[w.Held] = true
		m.state.Claims[w.Held].Cancel = true
		m.endReservation(id, m.state.Claims[w.Held].Provision)
	}
	w.Held, w.Unsaved = uuid.Nil, uuid.Nil
	m.refreshHead(id)
}

// drawProvision draws one that rather is of some status.
func (m *model) drawProvision(rt *rapid.T, rather ...string) uuid.UUID {
	fitting := slices.DeleteFunc(slices.Clone(m.provisions), func(p uuid.UUID) bool { return !slices.Contains(rather, m.state.Provisions[p].Status) })
	if len(fitting) == 0 || rapid.IntRange(0, 7).Draw(rt, "any") == 7 {
		fitting = m.provisions
	}
	return rapid.SampledFrom(fitting).Draw(rt, "provision")
}

// approve approves the plan that awaits it, or another one.
func (m *model) approve(rt *rapid.T) {
	id := m.drawProvision(rt, "AWAITING_APPROVAL")
	p, plan := m.state.Provisions[id], aPlan
	if rapid.IntRange(0, 7).Draw(rt, "another plan") == 7 {
		plan = strings.Repeat("e", 64)
	}
	var answer string
	reason := m.call(rt, &answer, "SELECT public.approve_provision($1, $2)", id, plan)
	switch {
	case p.Status != "AWAITING_APPROVAL" && p.Approved && plan == aPlan:
		want(rt, "approve again", reason, "")
		want(rt, "approve again", answer, p.Status)
	case p.Status != "AWAITING_APPROVAL":
		want(rt, "approve", reason, "not_awaiting_approval")
	case plan != aPlan:
		want(rt, "approve another plan", reason, "plan_changed")
	default:
		want(rt, "approve", reason, "")
		m.seen["approved"]++
		m.systemLine(id, "The plan was approved.")
		p.Status, p.Approved = "QUEUED", true
		m.state.Workspaces[p.Workspace].Due = false
		m.refreshHead(p.Workspace)
	}
}

func (m *model) reject(rt *rapid.T) {
	id := m.drawProvision(rt, "AWAITING_APPROVAL")
	p := m.state.Provisions[id]
	var answer string
	reason := m.call(rt, &answer, "SELECT public.reject_provision($1, 'a reason')", id)
	switch {
	case p.Status == "CANCELLED" && p.Code == "rejected":
		want(rt, "reject again", reason, "")
	case p.Status != "AWAITING_APPROVAL":
		want(rt, "reject", reason, "not_awaiting_approval")
	default:
		want(rt, "reject", reason, "")
		m.seen["rejected"]++
		m.systemLine(id, "The plan was rejected (a reason).")
		m.end(id, "CANCELLED", "rejected")
		m.endReservation(p.Workspace, id)
		m.refreshHead(p.Workspace)
	}
}

func (m *model) retry(rt *rapid.T) {
	id := m.drawProvision(rt, "FAILED", "CANCELLED")
	p := m.state.Provisions[id]
	var answer uuid.UUID
	reason := m.call(rt, &answer, "SELECT public.retry_provision($1)", id)
	if !ended(p) {
		want(rt, "retry", reason, "not_ended")
		return
	}
	want(rt, "retry", reason, "")
	for _, other := range m.provisions {
		if o := m.state.Provisions[other]; o.RetryOf == id && !ended(o) {
			want(rt, "retry again", answer, other)
			return
		}
	}
	m.seen["retried"]++
	m.provisions = append(m.provisions, answer)
	m.state.Provisions[answer] = &provisionRow{
		Workspace: p.Workspace, Number: len(m.provisions), Priority: p.Priority, Status: "QUEUED", RetryOf: id,
		Operation: p.Operation, Approval: p.Approval, Most: p.Most, Attempt: 1,
	}
	m.refreshHead(p.Workspace)
}

func ended(p *provisionRow) bool {
	return slices.Contains([]string{"SUCCESS", "FAILED", "CANCELLED"}, p.Status)
}

// lock locks a workspace, or repeats that.
func (m *model) lock(rt *rapid.T) {
	id := rapid.SampledFrom(m.workspaces).Draw(rt, "workspace")
	why := rapid.SampledFrom([]string{"a reason", "another reason"}).Draw(rt, "reason")
	w := m.state.Workspaces[id]
	var void any
	reason := m.call(rt, &void, "SELECT public.lock_workspace($1, $2)::text", id, why)
	if m.hidden[id] {
		want(rt, "lock of what is hidden", reason, "workspace_not_found")
		return
	}
	if w.Locked != "" && w.Locked != why {
		want(rt, "lock what is locked", reason, "workspace_locked")
		return
	}
	want(rt, "lock", reason, "")
	w.Locked = why
}

func (m *model) unlock(rt *rapid.T) {
	id := rapid.SampledFrom(m.workspaces).Draw(rt, "workspace")
	var void any
	reason := m.call(rt, &void, "SELECT public.unlock_workspace($1)::text", id)
	if m.hidden[id] {
		want(rt, "unlock of what is hidden", reason, "workspace_not_found")
		return
	}
	want(rt, "unlock", reason, "")
	m.state.Workspaces[id].Locked = ""
}
