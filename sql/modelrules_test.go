package sql_test

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// brokenRules holds the tables to what must hold whatever was called, and to
// what may have changed since the step before.
func (m *model) brokenRules(now *contractState) (broken []string) {
	fail := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	for id := range now.Workspaces {
		m.workspaceRules(now, id, fail)
	}
	for id := range now.Provisions {
		m.provisionRules(now, id, fail)
	}
	for id := range now.Claims {
		m.claimRules(now, id, fail)
	}
	for id, rows := range now.Logs {
		for i, row := range rows {
			if row.Seq != i+1 {
				fail("log of %s has row %d in place %d", id, row.Seq, i+1)
			}
		}
	}
	return broken
}

type failing = func(format string, args ...any)

func (m *model) workspaceRules(now *contractState, id uuid.UUID, fail failing) {
	w := now.Workspaces[id]
	running := slices.DeleteFunc(now.claimsOf(id), func(c uuid.UUID) bool { return now.Claims[c].State != "running" })
	switch {
	case len(running) > 1:
		fail("workspace %s has %d running claims", id, len(running))
	case len(running) == 1 && w.Running != running[0], len(running) == 0 && w.Running != uuid.Nil:
		fail("workspace %s has running_claim %s, its running claims are %v", id, w.Running, running)
	}
	if w.Held != uuid.Nil {
		if w.Running != uuid.Nil {
			fail("workspace %s is held by %s while %s runs there", id, w.Held, w.Running)
		}
		if c := now.Claims[w.Held]; c == nil || c.Workspace != id || c.State != "lost" || !c.ApplyBegun {
			fail("workspace %s is held by %s, which was not lost during apply there: %+v", id, w.Held, c)
		}
	}
	if want := now.head(id); w.Head != want {
		fail("workspace %s has head %s, %s should be next", id, w.Head, want)
	}
	r := now.Provisions[w.Reserved]
	if r != nil {
		// For a plan that awaits a person or has been approved, for an attempt, or for what was set down.
		waits := r.Status == "AWAITING_APPROVAL" || slices.Contains([]string{"QUEUED", "PROCESSING"}, r.Status) && (r.Approved || r.Attempt > 1 || r.SetDown)
		if !waits && (w.Held == uuid.Nil || now.Claims[w.Held].Provision != w.Reserved) {
			fail("workspace %s is reserved by %s, which is over: %+v", id, w.Reserved, r)
		}
	}
	if w.Due && (r == nil || r.Status != "AWAITING_APPROVAL" && (r.Status != "QUEUED" || r.Attempt == 1 && !r.SetDown || r.Approved && !r.SetDown)) {
		fail("in workspace %s something is due that is none: %+v", id, r)
	}
}

// stuck says of a provision that has not ended if nothing will ever move it: no
// run, no turn in the queue, no time at which it is due.
func stuck(now *contractState, id uuid.UUID) bool {
	p := now.Provisions[id]
	w := now.Workspaces[p.Workspace]
	switch p.Status {
	case "QUEUED":
		// Its turn comes, or that of what goes before it.
		before := now.Provisions[w.Reserved]
		return w.Head == uuid.Nil && w.Running == uuid.Nil && w.Held == uuid.Nil && !w.Due && (before == nil || ended(before))
	case "AWAITING_APPROVAL":
		return w.Reserved != id || !w.Due
	case "PROCESSING":
		return w.Running == uuid.Nil || now.Claims[w.Running].Provision != id
	}
	return false
}

func (m *model) provisionRules(now *contractState, id uuid.UUID, fail failing) {
	p := now.Provisions[id]
	running := 0
	for _, c := range now.Claims {
		if c.Provision == id && c.State == "running" {
			running++
		}
	}
	if want := map[bool]int{true: 1}[p.Status == "PROCESSING"]; running != want {
		fail("run %s is %s with %d running claims", id, p.Status, running)
	}
	if stuck(now, id) {
		fail("run %s is stuck: %+v, workspace %+v", id, p, now.Workspaces[p.Workspace])
	}
	if p.Stored && ended(p) {
		fail("run %s is %s and its plan is still stored", id, p.Status)
	}
	if m.before == nil || m.before.Provisions[id] == nil {
		return
	}
	was := m.before.Provisions[id]
	if from, to := provision.Status(was.Status), provision.Status(p.Status); from != to && !from.Terminal() && !from.CanBecome(to) {
		fail("run %s was %s and is %s: the machine has no such arrow", id, from, to)
	}
	terminal := slices.Contains([]string{"SUCCESS", "FAILED", "CANCELLED"}, was.Status)
	if !terminal || was.Status == p.Status && was.Code == p.Code { // a lost run may still tell of its plan
		return
	}
	// Only late settlement, by the claim that was lost, while nothing newer has
	// begun.
	settled := false
	for claim, c := range now.Claims {
		settled = settled || c.Provision == id && c.State == "ended" && m.before.Claims[claim].State == "lost" && m.before.newest(claim)
	}
	if was.Status != "FAILED" || was.Code != "agent_lost" || !settled {
		fail("run %s was %s/%s and is %s/%s", id, was.Status, was.Code, p.Status, p.Code)
	}
}

func (m *model) claimRules(now *contractState, id uuid.UUID, fail failing) {
	c := now.Claims[id]
	if c.State == "lost" && c.ApplyBegun && !m.released[id] && now.Workspaces[c.Workspace].Held != id {
		fail("claim %s was lost during apply and does not hold its workspace", id)
	}
	if c.SetDown && (!c.ApplyBegun || !c.Detachable || c.State != "ended") || c.InVain && (c.ApplyBegun || c.State != "ended" || !now.Provisions[c.Provision].SetDown) {
		fail("claim %s was set down, or could not take up what was: %+v", id, c)
	}
	if m.before == nil {
		return
	}
	was := m.before.Claims[id]
	if was == nil {
		if w := m.before.Workspaces[c.Workspace]; w.Running != uuid.Nil || w.Held != uuid.Nil || w.Unsaved != uuid.Nil && w.Unsaved != c.Instance || w.Locked != "" || w.Due || w.Reserved != uuid.Nil && w.Reserved != c.Provision {
			fail("claim %s began on a workspace that was taken: %+v", id, w)
		}
		return
	}
	order := []string{"running", "lost", "ended"}
	if slices.Index(order, c.State) < slices.Index(order, was.State) {
		fail("claim %s was %s and is %s", id, was.State, c.State)
	}
	if !c.ApplyBegun || was.ApplyBegun {
		return
	}
	if was.State != "running" || was.Expired || was.Cancel {
		fail("claim %s began to apply although it was %+v", id, was)
	}
	p := now.Provisions[c.Provision]
	if rule := m.rule(p); p.Operation == "plan" || p.Operation == "refresh" || !p.Approved && !p.SetDown && (rule == "always" || rule == "destructive" && (p.Operation == "destroy" || p.Plan != "calm")) {
		fail("claim %s began to apply what must be approved (%s) or is not to be applied: %+v", id, rule, p)
	}
	if p.SetDown && (!p.Stored || c.Detachable != p.SetDown) {
		fail("claim %s took up what was set down, and it is not stored or does not go on by itself: %+v", id, c)
	}
	for _, other := range now.claimsOf(c.Workspace) {
		if o := now.Claims[other]; other != id && o.ApplyBegun && o.State != "ended" && !m.released[other] {
			fail("claim %s began to apply while %s may still: %+v", id, other, o)
		}
	}
}
