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

// Machine is one machine as it was last reported, or a place that is reserved for one that is
// not made yet. No credential is in it.
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

const machineColumns = `
	SELECT m.id, m.name, w.name AS workspace, m.workspace_id, c.name AS cluster, m.status, m.address, m.pool, m.node, m.external_id, m.ip_addresses,
	       m.ssh_port, m.ssh_user, m.image, m.cores, m.memory_mib, m.disk_gib, m.labels, m.actions, m.owner, m.health, m.health_why, m.health_at, m.plan, m.created_at, m.updated_at,
	       coalesce(CASE WHEN m.owner IS NOT NULL THEN (SELECT coalesce(nullif(h.name, ''), h.email) FROM public.people h WHERE h.org_id = m.org_id AND h.user_id = m.owner) END, '') AS owner_name,
	       (SELECT p.number FROM public.provisions p WHERE p.id = m.provision_id) AS number `

const joinedMachines = `
	JOIN public.workspaces w ON w.id = m.workspace_id
	JOIN public.clusters c ON c.id = w.cluster_id `

const selectedMachines = machineColumns + "FROM public.machines m" + joinedMachines

// recordedMachines are the rows of machines, in the order of columns of reservedMachines.
const recordedMachines = `
	SELECT m.id, m.org_id, m.workspace_id, m.name, m.status, m.address, m.pool, m.node, m.external_id, m.ip_addresses, m.ssh_port, m.ssh_user, m.image, m.cores, m.memory_mib,
	       m.disk_gib, m.labels, m.actions, m.owner, m.health, m.health_why, m.health_at, m.plan, m.provision_id, m.created_at, m.updated_at `

// reservedMachines are the machines that have a place and are not made yet. One that is planned,
// or that was there before, keeps its id; others have their reservation's.
const reservedMachines = `
	SELECT coalesce(o.id, r.id) AS id, r.org_id, r.workspace_id, r.name, 'reserved' AS status, NULL::text AS address, l.name AS pool, r.node, NULL::text AS external_id,
	       CASE WHEN r.address IS NULL THEN '{}'::text[] ELSE ARRAY[host(r.address)] END AS ip_addresses, NULL::int AS ssh_port, NULL::text AS ssh_user, o.image, r.cores, r.memory_mib,
	       o.disk_gib, coalesce(o.labels, '{}') AS labels, '{}'::text[] AS actions, o.owner, NULL::text AS health, NULL::text AS health_why, NULL::timestamptz AS health_at,
	       o.plan, r.provision_id, r.created_at, r.created_at AS updated_at
	FROM public.reservations r
	JOIN public.pools l ON l.id = r.pool_id
	LEFT JOIN public.machines o ON o.workspace_id = r.workspace_id AND o.name = r.name
	WHERE NOT r.made `

// notReserved holds for rows of machines that reservedMachines has not.
const notReserved = `(m.status NOT IN ('planned', 'gone') OR NOT EXISTS (
	SELECT FROM public.reservations r WHERE r.workspace_id = m.workspace_id AND r.name = m.name AND NOT r.made))`

// machineGroups are the texts that a list is grouped by.
var machineGroups = map[string]string{
	"workspace": `w.name COLLATE "C"`, "pool": `coalesce(m.pool, '') COLLATE "C"`, "status": `m.status COLLATE "C"`, "health": `coalesce(m.health, '') COLLATE "C"`,
}

// ListMachines lists an organisation's machines by group and name, at most limit, those after the key
// given; next is nil at the end.
//
// Only the page's machines are joined to anything, and only filters that are given are asked:
// so an index of status, pool or health and name serves them. Labels and words have none. Under
// row-level security PostgreSQL compares a row by an operator that may leak what it sees, such
// as jsonb's @>, only after it has decided that the row is visible.
func (s *Store) ListMachines(ctx context.Context, org uuid.UUID, f MachineFilter, after MachineKey, limit int) (page []Machine, next *MachineKey, err error) {
	args := []any{org, limit + 1}
	arg := func(value any) string {
		args = append(args, value)
		return fmt.Sprintf("$%d", len(args))
	}
	join := ""
	if f.Group == "workspace" {
		join = " JOIN public.workspaces w ON w.id = m.workspace_id"
	}
	order, start := "m.name, m.id", arg(after.Name)+", "+arg(after.ID)
	if group := machineGroups[f.Group]; group != "" {
		order, start = group+", "+order, arg(after.Group)+", "+start
	}
	where := "m.org_id = $1 AND (" + order + ") > (" + start + ")"
	if f.Status == "" {
		where += " AND m.status <> 'gone'"
	} else {
		where += " AND m.status = " + arg(f.Status)
	}
	for column, value := range map[string]string{"pool": f.Pool, "health": f.Health} {
		if value != "" {
			where += " AND m." + column + " = " + arg(value)
		}
	}
	if f.Workspace != uuid.Nil {
		where += " AND m.workspace_id = " + arg(f.Workspace)
	}
	if len(f.Labels) > 0 {
		where += " AND m.labels @> " + arg(f.Labels)
	}
	if f.Words != "" {
		words := arg(containing(f.Words))
		where += " AND (m.name ILIKE " + words + " OR m.external_id ILIKE " + words + " OR array_to_string(m.ip_addresses, ' ') ILIKE " + words + ")"
	}
	where += " "
	end := "ORDER BY " + order + " LIMIT $2"
	// Two lists, each no longer than the page: in one, no index would serve.
	recorded, reserved := recordedMachines+"FROM public.machines m"+join+" WHERE "+where+"AND "+notReserved+end, "SELECT m.* FROM ("+reservedMachines+") m"+join+" WHERE "+where+end
	both := "((" + recorded + ") UNION ALL (" + reserved + "))"
	switch f.Status {
	case "":
	case "reserved":
		both = "(" + reserved + ")"
	default:
		both = "(" + recorded + ")"
	}
	found, err := rows[Machine](ctx, s, "list the machines", machineColumns+"FROM "+both+" m"+joinedMachines+end, args...)
	page, next = more(found, limit, func(m Machine) *MachineKey { return &MachineKey{m.InGroup(f.Group), m.Name, m.ID} })
	return page, next, err
}

// containing is the pattern of what has words in it.
func containing(words string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(words) + "%"
}

// MachineByRef returns the machine of that name or id, like ClusterByRef; workspace, if it
// is not uuid.Nil, is the one to look in. One that is gone is found by its id, and by its
// name where no other has it. A reservation's id finds its machine, also once it is made.
func (s *Store) MachineByRef(ctx context.Context, org, workspace uuid.UUID, text string) (Machine, error) {
	r := ref{text, org}
	found, err := rows[Machine](ctx, s, "look for the machine", machineColumns+"FROM ("+recordedMachines+"FROM public.machines m WHERE "+notReserved+" UNION ALL "+reservedMachines+") m"+joinedMachines+`
		WHERE (m.id = $1 OR m.name = $2 OR (m.workspace_id, m.name) = (SELECT r.workspace_id, r.name FROM public.reservations r WHERE r.id = $1)) AND ($3::uuid IS NULL OR m.org_id = $3) AND ($4::uuid IS NULL OR m.workspace_id = $4)
		  AND (m.id = $1 OR m.status <> 'gone' OR NOT EXISTS (
		    SELECT FROM public.machines o WHERE o.org_id = m.org_id AND o.name = m.name AND o.status <> 'gone' AND ($4::uuid IS NULL OR o.workspace_id = $4)))
		ORDER BY m.id = $1 DESC NULLS LAST, w.name, m.id LIMIT 20`, r.id(), text, r.inOrg(), orNull(workspace))
	return theOne("machine", r, found, err, func(m Machine) uuid.UUID { return m.ID }, func(m Machine) string { return "of workspace " + m.Workspace })
}

// MachinePools lists the pools that an organisation's machines are in, at most 100. It asks the
// index for one pool after the other, and so reads one machine of each.
func (s *Store) MachinePools(ctx context.Context, org uuid.UUID) ([]string, error) {
	type pool struct {
		Name string `db:"pool"`
	}
	found, err := rows[pool](ctx, s, "list the pools", `
		WITH RECURSIVE pools (pool) AS (
		  (SELECT m.pool FROM public.machines m WHERE m.org_id = $1 AND m.pool IS NOT NULL AND m.status <> 'gone' ORDER BY m.pool LIMIT 1)
		  UNION ALL
		  SELECT (SELECT m.pool FROM public.machines m WHERE m.org_id = $1 AND m.pool > o.pool AND m.status <> 'gone' ORDER BY m.pool LIMIT 1)
		  FROM pools o WHERE o.pool IS NOT NULL)
		SELECT pool FROM (SELECT pool FROM pools LIMIT 100) p WHERE pool IS NOT NULL
		UNION SELECT l.name FROM public.reservations r JOIN public.pools l ON l.id = r.pool_id WHERE r.org_id = $1 AND NOT r.made
		ORDER BY pool LIMIT 100`, org)
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
