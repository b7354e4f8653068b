package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Machine is one machine as it was last reported. No credential is in it.
type Machine struct {
	ID          uuid.UUID         `db:"id"`
	Name        string            `db:"name"`
	Workspace   string            `db:"workspace"`
	WorkspaceID uuid.UUID         `db:"workspace_id"`
	Cluster     string            `db:"cluster"`
	Status      string            `db:"status"`
	Address     *string           `db:"address"`
	Pool        *string           `db:"pool"`
	Node        *string           `db:"node"`
	ExternalID  *string           `db:"external_id"`
	IPAddresses []string          `db:"ip_addresses"`
	SSHPort     *int              `db:"ssh_port"`
	SSHUser     *string           `db:"ssh_user"`
	Image       *string           `db:"image"`
	Cores       *int              `db:"cores"`
	MemoryMiB   *int              `db:"memory_mib"`
	DiskGiB     *int              `db:"disk_gib"`
	Labels      map[string]string `db:"labels"`
	// Actions are what a run can do to this machine alone.
	Actions   []provision.MachineAction `db:"actions"`
	Owner     *uuid.UUID                `db:"owner"`
	OwnerName string                    `db:"owner_name"`
	// Number is the provision that last changed it; nil: it is deleted since.
	Number *int64 `db:"number"`
	// Health is nil where the template has no check; HealthWhy says why it is not healthy.
	Health    *string    `db:"health"`
	HealthWhy *string    `db:"health_why"`
	HealthAt  *time.Time `db:"health_at"`
	// Plan is the snapshot of a planned machine; nil: it is not planned.
	Plan      json.RawMessage `db:"plan"`
	CreatedAt time.Time       `db:"created_at"`
	UpdatedAt time.Time       `db:"updated_at"`
}

// MachineFilter says which machines a list has; what is empty does not matter.
type MachineFilter struct {
	Words     string // a part of the name, an address or the external id
	Workspace uuid.UUID
	// Status is one of theirs. Without it those that are gone are left out.
	Status string
	Pool   string
	Health string
	// Labels are those that a machine must have.
	Labels map[string]string
	// Group is what the list is sorted by before the name: workspace, pool, status or health.
	Group string
}

// MachineKey is where a machine stands in a list.
type MachineKey struct {
	Group, Name string
	ID          uuid.UUID
}

// InGroup is what a machine has of what a list is grouped by; "" for nothing.
func (m Machine) InGroup(group string) string {
	of := map[string]*string{"workspace": &m.Workspace, "pool": m.Pool, "status": &m.Status, "health": m.Health}[group]
	if of == nil {
		return ""
	}
	return *of
}

const selectedMachines = `
	SELECT m.id, m.name, w.name AS workspace, m.workspace_id, c.name AS cluster, m.status, m.address, m.pool, m.node, m.external_id, m.ip_addresses,
	       m.ssh_port, m.ssh_user, m.image, m.cores, m.memory_mib, m.disk_gib, m.labels, m.actions, m.owner, m.health, m.health_why, m.health_at, m.plan, m.created_at, m.updated_at,
	       coalesce(CASE WHEN m.owner IS NOT NULL THEN (SELECT coalesce(nullif(h.name, ''), h.email) FROM public.people h WHERE h.org_id = m.org_id AND h.user_id = m.owner) END, '') AS owner_name,
	       (SELECT p.number FROM public.provisions p WHERE p.id = m.provision_id) AS number
	FROM public.machines m
	JOIN public.workspaces w ON w.id = m.workspace_id
	JOIN public.clusters c ON c.id = w.cluster_id `

// ListMachines lists an organisation's machines by group and name, at most limit, those after the key
// given; next is nil at the end.
func (s *Store) ListMachines(ctx context.Context, org uuid.UUID, f MachineFilter, after MachineKey, limit int) (page []Machine, next *MachineKey, err error) {
	labels := f.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	found, err := rows[Machine](ctx, s, "list the machines", selectedMachines+`
		CROSS JOIN LATERAL (SELECT coalesce(CASE $11 WHEN 'workspace' THEN w.name WHEN 'pool' THEN m.pool WHEN 'status' THEN m.status WHEN 'health' THEN m.health END, '') COLLATE "C" AS name) g
		WHERE m.org_id = $1 AND (g.name, m.name, m.id) > ($12, $2, $3)
		  AND ($4::uuid IS NULL OR m.workspace_id = $4)
		  AND CASE $5 WHEN '' THEN m.status <> 'gone' ELSE m.status = $5 END
		  AND ($6 = '' OR m.pool = $6) AND m.labels @> $7
		  AND (m.name ILIKE $8 OR m.external_id ILIKE $8 OR array_to_string(m.ip_addresses, ' ') ILIKE $8)
		  AND ($10 = '' OR m.health = $10)
		ORDER BY g.name, m.name, m.id LIMIT $9`,
		org, after.Name, after.ID, orNull(f.Workspace), f.Status, f.Pool, labels, containing(f.Words), limit+1, f.Health, f.Group, after.Group)
	page, next = more(found, limit, func(m Machine) *MachineKey { return &MachineKey{m.InGroup(f.Group), m.Name, m.ID} })
	return page, next, err
}

// containing is the pattern of what has words in it.
func containing(words string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(words) + "%"
}

// MachineByRef returns the machine of that name or id, like ClusterByRef; workspace, if it
// is not uuid.Nil, is the one to look in. One that is gone is found by its id, and by its
// name where no other has it.
func (s *Store) MachineByRef(ctx context.Context, org, workspace uuid.UUID, text string) (Machine, error) {
	r := ref{text, org}
	found, err := rows[Machine](ctx, s, "look for the machine", selectedMachines+`
		WHERE (m.id = $1 OR m.name = $2) AND ($3::uuid IS NULL OR m.org_id = $3) AND ($4::uuid IS NULL OR m.workspace_id = $4)
		  AND (m.id = $1 OR m.status <> 'gone' OR NOT EXISTS (
		    SELECT FROM public.machines o WHERE o.org_id = m.org_id AND o.name = m.name AND o.status <> 'gone' AND ($4::uuid IS NULL OR o.workspace_id = $4)))
		ORDER BY m.id = $1 DESC NULLS LAST, w.name, m.id LIMIT 20`, r.id(), text, r.inOrg(), orNull(workspace))
	return theOne("machine", r, found, err, func(m Machine) uuid.UUID { return m.ID }, func(m Machine) string { return "of workspace " + m.Workspace })
}

// MachinePools lists the pools that an organisation's machines are in.
func (s *Store) MachinePools(ctx context.Context, org uuid.UUID) ([]string, error) {
	type pool struct {
		Name string `db:"pool"`
	}
	found, err := rows[pool](ctx, s, "list the pools", "SELECT DISTINCT pool FROM public.machines WHERE org_id = $1 AND pool IS NOT NULL AND status <> 'gone' ORDER BY pool LIMIT 100", org)
	names := make([]string, len(found))
	for i, p := range found {
		names[i] = p.Name
	}
	return names, err
}

// MachineEvent is what a machine became, and when.
type MachineEvent struct {
	Status string    `db:"status"`
	At     time.Time `db:"at"`
	// Number is the provision that reported it; nil: it is deleted since.
	Number *int64 `db:"number"`
	// Health and Why are of a change of its health alone.
	Health *string `db:"health"`
	Why    *string `db:"why"`
}

// mostMachineEvents are shown of a machine's history.
const mostMachineEvents = 100

// MachineHistory lists what a machine has been, the newest first, at most 100.
func (s *Store) MachineHistory(ctx context.Context, machine uuid.UUID) ([]MachineEvent, error) {
	return rows[MachineEvent](ctx, s, "read the machine's history", `
		SELECT e.status, e.at, e.health, e.why, (SELECT p.number FROM public.provisions p WHERE p.id = e.provision_id) AS number
		FROM public.machine_events e WHERE e.machine_id = $1 ORDER BY e.id DESC LIMIT $2`, machine, mostMachineEvents)
}

// ProvisionMachines lists, by name, the machines that a provision has last changed, at most
// 500.
func (s *Store) ProvisionMachines(ctx context.Context, p ProvisionKey) ([]Machine, error) {
	return rows[Machine](ctx, s, "list the run's machines", selectedMachines+"WHERE m.workspace_id = $1 AND m.provision_id = $2 ORDER BY m.name LIMIT 500", p.WorkspaceID, p.ID)
}

// PlanMachines draws up machines with the snapshot that they are to be provisioned with, and
// returns their ids in order. machines are as public.plan_machines() describes them.
func (s *Store) PlanMachines(ctx context.Context, cluster uuid.UUID, snapshot json.RawMessage, machines any) ([]uuid.UUID, error) {
	text, err := json.Marshal(machines)
	if err != nil {
		return nil, fmt.Errorf("write the machines: %w", err)
	}
	return one[[]uuid.UUID](ctx, s, "plan the machines", "SELECT public.plan_machines($1, $2::text::jsonb, $3::text::jsonb) AS answer", cluster, string(snapshot), string(text))
}

// DeletePlannedMachine deletes a machine that is planned.
func (s *Store) DeletePlannedMachine(ctx context.Context, machine uuid.UUID) error {
	return s.do(ctx, "delete the planned machine", "SELECT public.delete_planned_machine($1)", machine)
}

// PlannedMachines lists, by name, the machines that are planned in a workspace, at most limit;
// with refs, those of these names and ids.
func (s *Store) PlannedMachines(ctx context.Context, workspace uuid.UUID, refs []string, limit int) ([]Machine, error) {
	return rows[Machine](ctx, s, "list the planned machines", selectedMachines+`
		WHERE m.workspace_id = $1 AND m.status = 'planned' AND (coalesce(cardinality($2::text[]), 0) = 0 OR m.name = ANY ($2) OR m.id::text = ANY ($2)) ORDER BY m.name LIMIT $3`, workspace, refs, limit)
}

// WorkspaceMachines lists a workspace's machines, also those that are gone.
func (s *Store) WorkspaceMachines(ctx context.Context, workspace uuid.UUID) ([]Machine, error) {
	return rows[Machine](ctx, s, "list the workspace's machines", selectedMachines+"WHERE m.workspace_id = $1 ORDER BY m.name", workspace)
}

// Change is a run that has changed, or may yet change, what is in a workspace.
type Change struct {
	Number    int64               `db:"number"`
	Operation provision.Operation `db:"operation"`
	Status    provision.Status    `db:"status"`
	Snapshot  json.RawMessage     `db:"config_snapshot"`
}

// NewestChange is the newest apply or destroy of a whole workspace, but for those given; its
// number is 0 where there is none.
func (s *Store) NewestChange(ctx context.Context, workspace uuid.UUID, without ...uuid.UUID) (Change, error) {
	found, err := rows[Change](ctx, s, "look for what was deployed", `
		SELECT number, operation, status, config_snapshot FROM public.provisions
		WHERE workspace_id = $1 AND operation IN ('apply', 'destroy') AND NOT (operation = 'destroy' AND config_snapshot ? 'targets')
		  AND (status <> 'CANCELLED' OR started_at IS NOT NULL) AND NOT id = ANY (coalesce($2::uuid[], '{}'))
		ORDER BY number DESC LIMIT 1`, workspace, without)
	if err != nil || len(found) == 0 {
		return Change{}, err
	}
	return found[0], nil
}
