package sql_test

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// modelWorkspaces is how many workspaces there are: all but the last belong to
// the first cluster.
const modelWorkspaces = 3

func (m *model) insert(rt *rapid.T, workspace, priority int) {
	cluster := workspace / (modelWorkspaces - 1)
	var row struct{ id, workspace uuid.UUID }
	err := m.conn.QueryRow(m.ctx, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, $3) RETURNING id, workspace_id",
		m.clusters[cluster].id, snapshot(fmt.Sprintf("w%d", workspace)), priority).Scan(&row.id, &row.workspace)
	if err != nil {
		rt.Fatalf("deploy: %v", err)
	}
	if m.state.Workspaces[row.workspace] == nil {
		m.state.Workspaces[row.workspace] = &workspaceRow{Cluster: m.clusters[cluster].id}
		m.workspaces = append(m.workspaces, row.workspace)
	}
	m.provisions = append(m.provisions, row.id)
	m.state.Provisions[row.id] = &provisionRow{Workspace: row.workspace, Number: len(m.provisions), Priority: priority, Status: "QUEUED"}
	m.refreshHead(row.workspace)
}

func (m *model) refreshHead(workspace uuid.UUID) {
	m.state.Workspaces[workspace].Head = m.state.head(workspace)
}

func (m *model) deploy(rt *rapid.T) {
	m.insert(rt, rapid.IntRange(0, modelWorkspaces-1).Draw(rt, "workspace"), rapid.SampledFrom([]int{0, 0, 0, 5, -5}).Draw(rt, "priority"))
}

func (m *model) cancel(rt *rapid.T) {
	id := rapid.SampledFrom(m.provisions).Draw(rt, "provision")
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
		m.systemLine(id, map[string]string{"QUEUED": "Cancelled before it began.", "AWAITING_APPROVAL": "Cancelled while it awaited approval."}[p.Status])
		p.Status, p.Code = "CANCELLED", "cancelled"
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
		w.Reserved = uuid.Nil
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

// await does what the end of a plan does that wants approval.
func (m *model) await(rt *rapid.T) {
	id := m.drawClaim(rt, func(c *claimRow) bool { return c.State == "running" && !c.ApplyBegun })
	c := m.state.Claims[id]
	m.exec(rt, fmt.Sprintf(`BEGIN; UPDATE public.provisions SET status = 'AWAITING_APPROVAL' WHERE id = '%s';
		UPDATE public.workspaces SET reserved_by = '%s' WHERE id = '%s';
		UPDATE public.workspaces SET running_claim = NULL WHERE id = '%[3]s';
		UPDATE tendril.claims SET state = 'ended', ended_at = clock_timestamp() WHERE id = '%[4]s';
		SELECT tendril.refresh_head('%[3]s'); COMMIT`, c.Provision, c.Provision, c.Workspace, id))
	m.state.Provisions[c.Provision].Status = "AWAITING_APPROVAL"
	w := m.state.Workspaces[c.Workspace]
	w.Running, w.Reserved = uuid.Nil, c.Provision
	c.State, c.Expired = "ended", false
	m.refreshHead(c.Workspace)
}

// approve does what an approval does.
func (m *model) approve(rt *rapid.T) {
	waiting := slices.DeleteFunc(slices.Clone(m.provisions), func(p uuid.UUID) bool { return m.state.Provisions[p].Status != "AWAITING_APPROVAL" })
	if len(waiting) == 0 {
		rt.Skip("nothing awaits approval")
	}
	id := rapid.SampledFrom(waiting).Draw(rt, "provision")
	p := m.state.Provisions[id]
	m.exec(rt, fmt.Sprintf("BEGIN; UPDATE public.provisions SET status = 'QUEUED' WHERE id = '%s'; SELECT tendril.refresh_head('%s'); COMMIT", id, p.Workspace))
	p.Status = "QUEUED"
	m.refreshHead(p.Workspace)
}
