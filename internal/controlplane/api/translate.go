package api

import (
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/placement"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Rows of the store become what is answered here. Where an answer has the fields of
// its row, Go converts it and refuses to compile once they differ.

// each translates a list; none stays none.
func each[R, T any](to func(R) T, rows []R) []T {
	if rows == nil {
		return nil
	}
	list := make([]T, len(rows))
	for i, r := range rows {
		list[i] = to(r)
	}
	return list
}

func agentOf(a store.Agent) wire.Agent                            { return wire.Agent(a) }
func apiTokenOf(t store.APIToken) wire.APIToken                   { return wire.APIToken(t) }
func auditEventOf(e store.AuditEvent) wire.AuditEvent             { return wire.AuditEvent(e) }
func attemptOf(a store.DeliveryAttempt) wire.DeliveryAttempt      { return wire.DeliveryAttempt(a) }
func driftOf(d store.Drift) wire.Drift                            { return wire.Drift(d) }
func eventOf(e store.Event) wire.Event                            { return wire.Event(e) }
func inspectionOf(i store.Inspection) wire.Inspection             { return wire.Inspection(i) }
func invitationOf(i store.Invitation) wire.Invitation             { return wire.Invitation(i) }
func logRowOf(r store.LogRow) wire.LogRow                         { return wire.LogRow(r) }
func machineOf(m store.Machine) wire.Machine                      { return wire.Machine(m) }
func machineEventOf(e store.MachineEvent) wire.MachineEvent       { return wire.MachineEvent(e) }
func memberOf(m store.Member) wire.Member                         { return wire.Member(m) }
func orgOf(o store.Org) wire.Org                                  { return wire.Org(o) }
func ownInvitationOf(i store.OwnInvitation) wire.OwnInvitation    { return wire.OwnInvitation(i) }
func poolImageOf(i store.PoolImage) wire.PoolImage                { return wire.PoolImage(i) }
func policyOf(p store.Policy) wire.Policy                         { return wire.Policy(p) }
func reservationOf(r store.Reservation) wire.Reservation          { return wire.Reservation(r) }
func storageOf(s store.Storage) wire.Storage                      { return wire.Storage(s) }
func quotaUseOf(u store.QuotaUse) wire.QuotaUse                   { return wire.QuotaUse(u) }
func provisionAgentOf(a store.ProvisionAgent) wire.ProvisionAgent { return wire.ProvisionAgent(a) }
func reasonOf(r store.Reason) wire.Reason                         { return wire.Reason(r) }
func resourceOf(r store.Resource) wire.Resource                   { return wire.Resource(r) }
func stageTimeOf(s store.StageTime) wire.StageTime                { return wire.StageTime(s) }
func stepOf(s store.Step) wire.Step                               { return wire.Step(s) }
func stateVersionOf(v store.StateVersion) wire.StateVersion       { return wire.StateVersion(v) }

func poolOf(p store.Pool) wire.Pool {
	return wire.Pool{
		ID: p.ID, Name: p.Name, Cluster: p.Cluster, ClusterID: p.ClusterID, Kind: p.Kind, State: p.State, Problem: p.Problem, ReportedAt: p.ReportedAt, Agent: p.Agent,
		Nodes: p.Nodes, Online: p.Online, Machines: p.Machines, Load: wire.Load(p.Load), Images: p.Images,
	}
}

func poolNodeOf(n store.PoolNode) wire.PoolNode {
	return wire.PoolNode{
		Name: n.Name, Online: n.Online, Load: wire.Load(n.Load), MostCores: n.MostCores, MostMemory: n.MostMemory, Machines: n.Machines,
		Images: n.Images, Labels: n.Labels, Storages: each(storageOf, n.Storages), Server: serverOf(n.Server), MeasuredAt: n.MeasuredAt,
	}
}

func serverOf(s *store.Server) *wire.Server {
	if s == nil {
		return nil
	}
	return new(wire.Server(*s))
}

func poolDetailOf(d store.PoolDetail) wire.PoolDetail {
	return wire.PoolDetail{Pool: poolOf(d.Pool), NodeList: each(poolNodeOf, d.NodeList), Reservations: each(reservationOf, d.Reservations), ImageNames: each(poolImageOf, d.ImageNames)}
}

func placementOf(p placement.Preview) wire.Placement {
	return wire.Placement{Text: p.Text(), Machines: each(func(m store.PlacedMachine) wire.PlacedMachine { return wire.PlacedMachine(m) }, p.Machines)}
}

func poolQuotaOf(q store.PoolQuota) wire.PoolQuota {
	return wire.PoolQuota{
		ID: q.ID, Workspaces: q.Workspaces, Pool: q.Pool, Cluster: q.Cluster, Machines: q.Machines, Cores: q.Cores, MemoryMiB: q.MemoryMiB,
		MachinesUsed: q.MachinesUsed, CoresUsed: q.CoresUsed, MemoryUsed: q.MemoryUsed, Top: each(quotaUseOf, q.Top),
	}
}

func provisionOf(p store.Provision) wire.Provision {
	return wire.Provision{
		ID: p.ID, Number: p.Number, Cluster: p.Cluster, Workspace: p.Workspace, Operation: p.Operation, Status: p.Status,
		Waiting: p.Waiting, Why: each(reasonOf, p.Why), Stage: p.Stage, Percent: p.Percent, Running: p.Running, Stages: each(stageTimeOf, p.Stages), Agents: each(provisionAgentOf, p.Agents), Steps: each(stepOf, p.Steps),
		Template: wire.Source(p.Template), Commit: p.Commit, Engine: p.Engine, Plan: p.Plan, PlanDigest: p.PlanDigest, Input: (*wire.Input)(p.Input), Outputs: p.Outputs,
		ErrorCode: p.ErrorCode, ErrorMessage: p.ErrorMessage, RequestedBy: p.RequestedBy, RequestedByName: p.RequestedByName, Proposed: p.Proposed,
		CancelRequestedAt: p.CancelRequestedAt, CreatedAt: p.CreatedAt, StartedAt: p.StartedAt, FinishedAt: p.FinishedAt,
		StateLock: heldLockOf(p.StateLock), AsOf: p.AsOf, Snapshot: p.Snapshot,
	}
}

func heldLockOf(l *store.HeldLock) *wire.HeldLock {
	if l == nil {
		return nil
	}
	return &wire.HeldLock{ID: l.ID, Who: l.Who, Operation: l.Operation, Created: l.Created, Number: l.Number, At: l.At}
}

func standingOf(w store.Situation) wire.Standing {
	return wire.Standing{
		ID: w.ID, Name: w.Name, Cluster: w.Cluster, Template: strings.TrimSuffix(w.Repo+"//"+w.Path, "//"), Resources: w.Resources,
		Doing: w.Doing, Number: w.Number, Status: w.Status, Since: w.Since,
	}
}

func workspaceOf(w store.Situation) wire.WorkspaceDetail {
	d := wire.WorkspaceDetail{
		Standing: standingOf(w), Home: w.Home, LockedAt: w.LockedAt, LockedBy: w.LockedBy,
		StateVersion: w.StateVersion, StateSerial: w.StateSerial, StateAt: w.StateAt, StateLock: heldLockOf(w.StateLock),
		DriftCount: w.Drift, DriftAt: w.DriftAt, CreatedAt: w.CreatedAt,
	}
	if w.Locked {
		d.LockReason = &w.Reason
	}
	return d
}

func clusterOf(c store.Cluster) wire.Cluster {
	return wire.Cluster{
		ID: c.ID, Name: c.Name, Connectivity: c.Connectivity, PausedAt: c.PausedAt, LastSeenAt: c.LastSeenAt, CreatedAt: c.CreatedAt,
		AgePublicKey: c.AgePublicKey, Agents: each(agentOf, c.Agents),
	}
}

func templateOf(t store.Template) wire.Template {
	return wire.Template{
		ID: t.ID, Name: t.Name, Repo: t.Repo, Path: t.Path, Version: t.Version, Description: t.Description, Approval: t.Approval, CreatedAt: t.CreatedAt,
	}
}

func webhookOf(w store.Webhook) wire.Webhook {
	return wire.Webhook{
		ID: w.ID, Name: w.Name, Kind: w.Kind, Host: w.Host, Events: w.Events, ClusterID: w.ClusterID, Cluster: w.Cluster, Workspace: w.Workspace,
		Enabled: w.Enabled, DisabledWhy: w.DisabledWhy, FailingSince: w.FailingSince, CreatedAt: w.CreatedAt,
	}
}

func deliveryOf(d store.Delivery) wire.Delivery {
	return wire.Delivery{
		ID: d.ID, Event: d.Event, ProvisionID: d.ProvisionID, Status: d.Status, Attempts: each(attemptOf, d.Attempts), CreatedAt: d.CreatedAt,
		NextAt: d.NextAt, FinishedAt: d.FinishedAt, Payload: d.Payload,
	}
}

func credentialOf(c store.Credential) wire.Credential {
	w := wire.Credential{ID: c.ID, Kind: c.Kind, Name: c.Name, CreatedAt: c.CreatedAt, LastUsedAt: c.LastUsedAt, ExpiresAt: c.ExpiresAt, Powers: (*wire.Powers)(c.Powers)}
	if c.Audience != nil {
		w.Audience = *c.Audience
	}
	return w
}
