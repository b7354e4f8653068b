package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

// How a pool is, by what agents have reported of it.
const (
	PoolReachable   = "reachable"
	PoolUnreachable = "unreachable" // an agent tried, and could not list it
	PoolStale       = "stale"       // no agent has reported it for PoolStaleAfter
)

// PoolStaleAfter is how old a report is that no longer says how a pool is.
const PoolStaleAfter = 5 * time.Minute

// Pool is where machines are made, as agents last reported it. Its figures are sums over the
// nodes that were online.
type Pool struct {
	ID        uuid.UUID `db:"id"`
	Name      string    `db:"name"`
	Cluster   string    `db:"cluster"`
	ClusterID uuid.UUID `db:"cluster_id"`
	Kind      string    `db:"kind"` // proxmox, libvirt, static or ironic
	State     string    `db:"state"`
	// Problem is why it could not be listed.
	Problem    *string   `db:"problem"`
	ReportedAt time.Time `db:"reported_at"`
	// Agent is the name of the agent that reported it last; "": it is deleted since.
	Agent    string `db:"agent"`
	Nodes    int    `db:"nodes"`
	Online   int    `db:"online"`
	Machines int    `db:"machines"` // that have a place there
	Load
	// Images are those that any node has, by name.
	Images []string `db:"images"`
}

// Load is how much of a node, or of a pool's nodes, is in use. What was reserved since the last
// measurement is not in what is used.
type Load struct {
	Cores          int     `db:"cores"`
	MemoryMiB      int     `db:"memory_mib"`
	CoresUsed      float64 `db:"cores_used"`
	MemoryUsed     float64 `db:"memory_used"` // MiB
	CoresNew       float64 `db:"cores_new"`
	MemoryNew      float64 `db:"memory_new"`
	CoresReserved  int     `db:"cores_reserved"`
	MemoryReserved int     `db:"memory_reserved"`
}

// PoolNode is one host of a pool.
type PoolNode struct {
	Name   string `db:"name"`
	Online bool   `db:"online"`
	Load
	// MostCores and MostMemory are how much may be reserved there; nil: any number of cores.
	MostCores  *float64          `db:"most_cores"`
	MostMemory *float64          `db:"most_memory"`
	Machines   int               `db:"machines"`
	Images     []string          `db:"images"`
	Labels     map[string]string `db:"labels"`
	Storages   []Storage         `db:"storages"`
	// Server is the bare-metal server that it is; nil: it is none.
	Server     *Server   `db:"server"`
	MeasuredAt time.Time `db:"measured_at"`
}

// Server is a bare-metal server, as the agent that can reach it has reported it.
type Server struct {
	ID             string `json:"id"`
	Name           string `json:"name"`
	ProvisionState string `json:"provision_state"`
	PowerState     string `json:"power_state"`
	Maintenance    bool   `json:"maintenance"`
	Reason         string `json:"reason"`
	Available      bool   `json:"available"`
	InstanceUUID   string `json:"instance_uuid"`
	LastError      string `json:"last_error"`

	Health    provision.ServerHealth `json:"health"`
	HealthWhy string                 `json:"health_why"`
}

// Storage is one of a node's.
type Storage struct {
	Name    string  `json:"name"`
	FreeGiB float64 `json:"free_gib"`
	SizeGiB float64 `json:"size_gib"`
}

// Reservation is the place of a machine.
type Reservation struct {
	Name        string    `db:"name"`
	Workspace   string    `db:"workspace"`
	WorkspaceID uuid.UUID `db:"workspace_id"`
	Pool        string    `db:"pool"`
	PoolID      uuid.UUID `db:"pool_id"`
	Node        string    `db:"node"`
	Cores       int       `db:"cores"`
	MemoryMiB   int       `db:"memory_mib"`
	VMID        *int      `db:"vm_id"`
	Address     *string   `db:"address"`
	Why         string    `db:"why"`
	// Machine is the machine of that name; nil: none was reported or planned yet.
	Machine *uuid.UUID `db:"machine_id"`
	Status  *string    `db:"status"`
	// Number is the provision that it was reserved for; nil: it is deleted since.
	Number    *int64    `db:"number"`
	CreatedAt time.Time `db:"created_at"`
	// Leftover says that no machine is there and no run may make one, so that FreePlace would
	// free it.
	Leftover bool `db:"leftover"`
}

// PoolImage says what an image that templates name is called in a pool.
type PoolImage struct {
	Image string `db:"image"`
	Name  string `db:"name"`
}

// PoolDetail is a pool with its nodes and what is reserved there.
type PoolDetail struct {
	Pool
	NodeList     []PoolNode
	Reservations []Reservation // at most 500
	ImageNames   []PoolImage
}

// poolState is how the pool p is; $1 is PoolStaleAfter.
const poolState = `CASE WHEN p.reported_at < clock_timestamp() - $1::interval THEN 'stale' WHEN p.problem IS NOT NULL THEN 'unreachable' ELSE 'reachable' END`

const selectedPools = `
	SELECT p.id, p.name, c.name AS cluster, p.cluster_id, p.kind, p.problem, p.reported_at,
	       ` + poolState + ` AS state,
	       coalesce((SELECT a.name FROM public.agents a WHERE a.cluster_id = p.cluster_id AND a.instance_id = p.reported_by), '') AS agent,
	       n.nodes, n.online, (SELECT count(*)::int FROM public.reservations r WHERE r.pool_id = p.id) AS machines, n.cores, n.memory_mib, n.cores_used, n.memory_used,
	       l.cores_new, l.memory_new, l.cores_reserved, l.memory_reserved,
	       ARRAY(SELECT DISTINCT i FROM public.pool_nodes s, unnest(s.images) i WHERE s.pool_id = p.id ORDER BY i LIMIT 500) AS images
	FROM public.pools p
	JOIN public.clusters c ON c.id = p.cluster_id,
	LATERAL (SELECT count(*)::int AS nodes, (count(*) FILTER (WHERE n.online))::int AS online, coalesce(sum(n.cores) FILTER (WHERE n.online), 0)::int AS cores,
	           coalesce(sum(n.memory_mib) FILTER (WHERE n.online), 0)::int AS memory_mib, coalesce(sum(n.cores * n.cores_used) FILTER (WHERE n.online), 0)::float8 AS cores_used,
	           coalesce(sum(n.memory_mib * n.memory_used) FILTER (WHERE n.online), 0)::float8 AS memory_used
	         FROM public.pool_nodes n WHERE n.pool_id = p.id) n,
	LATERAL (SELECT coalesce(sum(l.cores_new), 0)::float8 AS cores_new, coalesce(sum(l.memory_new), 0)::float8 AS memory_new,
	           coalesce(sum(l.cores_reserved), 0)::int AS cores_reserved, coalesce(sum(l.memory_reserved), 0)::int AS memory_reserved
	         FROM public.pool_loads(p.org_id, p.id) l JOIN public.pool_nodes n ON n.pool_id = p.id AND n.name = l.node AND n.online) l `

// ListPools lists an organisation's pools by cluster and name; cluster, if it is not uuid.Nil, is
// the one to look in.
func (s *Store) ListPools(ctx context.Context, org, cluster uuid.UUID) ([]Pool, error) {
	return rows[Pool](ctx, s, "list the pools", selectedPools+`
		WHERE p.org_id = $2 AND ($3::uuid IS NULL OR p.cluster_id = $3) ORDER BY c.name, p.name LIMIT 500`, PoolStaleAfter, org, orNull(cluster))
}

// PoolByRef returns the pool of that name or id, like ClusterByRef; cluster, if it is not
// uuid.Nil, is the one to look in.
func (s *Store) PoolByRef(ctx context.Context, org, cluster uuid.UUID, text string) (Pool, error) {
	r := ref{text, org}
	found, err := rows[Pool](ctx, s, "look for the pool", selectedPools+`
		WHERE (p.id = $2 OR p.name = $3) AND ($4::uuid IS NULL OR p.org_id = $4) AND ($5::uuid IS NULL OR p.cluster_id = $5) ORDER BY c.name, p.id LIMIT 20`,
		PoolStaleAfter, r.id(), text, r.inOrg(), orNull(cluster))
	return theOne("pool", r, found, err, func(p Pool) uuid.UUID { return p.ID }, func(p Pool) string { return "on cluster " + p.Cluster })
}

// Room is the largest machine that a pool has room for now.
type Room struct {
	PoolID    uuid.UUID `db:"pool_id"`
	Pool      string    `db:"pool"`
	Cores     int       `db:"cores"`
	MemoryMiB int       `db:"memory_mib"`
}

// PoolRooms lists, by name, a cluster's pools that have room, each with the size that fits on
// the node with the most free memory.
func (s *Store) PoolRooms(ctx context.Context, org, cluster uuid.UUID) ([]Room, error) {
	return rows[Room](ctx, s, "read what is free in pools", `
		SELECT DISTINCT ON (f.pool, f.pool_id) f.* FROM (
		  SELECT p.id AS pool_id, p.name AS pool, floor(least(n.cores, coalesce(l.most_cores - l.cores_reserved, n.cores)))::int AS cores,
		         floor(l.most_memory - greatest(l.memory_reserved, n.memory_mib * n.memory_used + l.memory_new))::int AS memory_mib
		  FROM public.pools p JOIN public.pool_loads(p.org_id, p.id) l ON true JOIN public.pool_nodes n ON n.pool_id = p.id AND n.name = l.node
		  WHERE p.org_id = $1 AND p.cluster_id = $2 AND p.problem IS NULL AND n.online AND NOT (p.kind = 'static' AND l.cores_reserved > 0)) f
		WHERE f.cores > 0 AND f.memory_mib > 0 ORDER BY f.pool, f.pool_id, f.memory_mib DESC, f.cores DESC`, org, cluster)
}

// mostReservations are shown of a pool, and of a run.
const mostReservations = 500

const selectedReservations = `
	SELECT r.name, w.name AS workspace, r.workspace_id, p.name AS pool, r.pool_id, r.node, r.cores, r.memory_mib, r.vm_id, host(r.address) AS address, r.why, r.created_at,
	       m.id AS machine_id, m.status, (SELECT v.number FROM public.provisions v WHERE v.id = r.provision_id) AS number,
	       coalesce(m.status, 'gone') IN ('planned', 'gone') AND w.running_claim IS NULL AND w.held_by_claim IS NULL
	         AND NOT r.kept AND NOT EXISTS (SELECT FROM public.provisions v WHERE v.id IN (r.provision_id, r.wanted_by) AND v.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')) AS leftover
	FROM public.reservations r
	JOIN public.pools p ON p.id = r.pool_id
	JOIN public.workspaces w ON w.id = r.workspace_id
	LEFT JOIN public.machines m ON m.workspace_id = r.workspace_id AND m.name = r.name `

// PoolDetail reads a pool's nodes by name, at most 500, what is reserved there by node and
// machine, at most 500, and the names of its images.
func (s *Store) PoolDetail(ctx context.Context, p Pool) (d PoolDetail, err error) {
	d.Pool = p
	if d.NodeList, err = rows[PoolNode](ctx, s, "list the pool's nodes", `
		SELECT n.name, n.online, n.cores, n.memory_mib, (n.cores * n.cores_used)::float8 AS cores_used, (n.memory_mib * n.memory_used)::float8 AS memory_used,
		       l.cores_new, l.memory_new, l.cores_reserved, l.memory_reserved, l.most_cores, l.most_memory, l.machines::int AS machines, n.images, n.measured_at,
		       CASE WHEN n.server IS NOT NULL THEN jsonb_build_object('id', n.server ->> 'id', 'name', n.server ->> 'name', 'provision_state', n.server ->> 'provision_state', 'power_state', n.server ->> 'power_state',
		         'maintenance', n.server -> 'maintenance' = 'true', 'reason', n.server ->> 'reason', 'available', n.server -> 'available' = 'true', 'instance_uuid', n.server ->> 'instance_uuid', 'last_error', n.server ->> 'last_error',
		         'health', coalesce(n.server ->> 'health', 'unknown'), 'health_why', coalesce(n.server ->> 'health_why', 'Its agent reports no health')) END AS server,
		       (SELECT coalesce(jsonb_object_agg(e.key, e.value), '{}') FROM jsonb_each_text(n.labels) e) AS labels,
		       (SELECT coalesce(jsonb_agg(jsonb_build_object('name', e ->> 'name', 'free_gib', (e -> 'free_gib')::float8, 'size_gib', (e -> 'size_gib')::float8) ORDER BY e ->> 'name'), '[]')
		        FROM jsonb_array_elements(n.storages) e
		        WHERE jsonb_path_exists(e, '$ ? (@.name.type() == "string" && @.free_gib >= 0 && @.free_gib < 1e9 && @.size_gib > 0 && @.size_gib < 1e9)')) AS storages
		FROM public.pools p JOIN public.pool_nodes n ON n.pool_id = p.id JOIN public.pool_loads(p.org_id, p.id) l ON l.node = n.name
		WHERE p.id = $1 ORDER BY n.name LIMIT 500`, p.ID); err != nil {
		return d, err
	}
	if d.Reservations, err = rows[Reservation](ctx, s, "list what is reserved in the pool", selectedReservations+"WHERE r.pool_id = $1 ORDER BY r.node, w.name, r.name LIMIT $2", p.ID, mostReservations); err != nil {
		return d, err
	}
	d.ImageNames, err = rows[PoolImage](ctx, s, "list the names of images", "SELECT image, name FROM public.pool_images WHERE pool_id = $1 ORDER BY image", p.ID)
	return d, err
}

// ImageNames lists the names by which templates can name images of a cluster's pools, where those
// call them otherwise.
func (s *Store) ImageNames(ctx context.Context, cluster uuid.UUID) ([]string, error) {
	type name struct {
		Image string `db:"image"`
	}
	found, err := rows[name](ctx, s, "list the names of images", "SELECT DISTINCT i.image FROM public.pool_images i JOIN public.pools p ON p.id = i.pool_id WHERE p.cluster_id = $1 ORDER BY i.image LIMIT 500", cluster)
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = n.Image
	}
	return names, err
}

// ProvisionReservations lists, by name, the places that were reserved for a provision and are
// still, at most 500.
func (s *Store) ProvisionReservations(ctx context.Context, p ProvisionKey) ([]Reservation, error) {
	return rows[Reservation](ctx, s, "list what is reserved for the run", selectedReservations+"WHERE r.workspace_id = $1 AND r.provision_id = $2 ORDER BY r.name LIMIT $3", p.WorkspaceID, p.ID, mostReservations)
}

// MachineReservation is the place of a workspace's machine; nil: it has none.
func (s *Store) MachineReservation(ctx context.Context, workspace uuid.UUID, name string) (*Reservation, error) {
	return orNil(rows[Reservation](ctx, s, "look for the machine's place", selectedReservations+"WHERE r.workspace_id = $1 AND r.name = $2", workspace, name))
}

// WorkspaceReservations lists the places of a workspace's machines by name.
func (s *Store) WorkspaceReservations(ctx context.Context, workspace uuid.UUID) ([]Reservation, error) {
	return rows[Reservation](ctx, s, "list what is reserved for the workspace", selectedReservations+"WHERE r.workspace_id = $1 ORDER BY r.name LIMIT $2", workspace, mostReservations)
}

// SetPoolImage says what an image that templates name is called in a pool; name "": the same.
func (s *Store) SetPoolImage(ctx context.Context, pool uuid.UUID, image, name string) error {
	return s.do(ctx, "set the image's name", "SELECT public.set_pool_image($1, $2, nullif($3, ''))", pool, image, name)
}

// PoolQuota is how much the workspaces that match a pattern may reserve, with what they have.
type PoolQuota struct {
	ID         uuid.UUID `db:"id"`
	Workspaces string    `db:"workspaces"`
	// Pool and Cluster are nil for all pools together.
	Pool    *string `db:"pool"`
	Cluster *string `db:"cluster"`
	// Machines, Cores and MemoryMiB are nil where any number is allowed.
	Machines     *int       `db:"machines"`
	Cores        *int       `db:"cores"`
	MemoryMiB    *int       `db:"memory_mib"`
	MachinesUsed int64      `db:"machines_used"`
	CoresUsed    int64      `db:"cores_used"`
	MemoryUsed   int64      `db:"memory_used"`
	Top          []QuotaUse `db:"top"`
}

// QuotaUse is what a workspace has of a quota.
type QuotaUse struct {
	Workspace string `json:"workspace"`
	Machines  int64  `json:"machines"`
	Cores     int64  `json:"cores"`
	MemoryMiB int64  `json:"memory_mib"`
}

// PoolQuotas lists an organisation's quotas by workspaces and pool.
func (s *Store) PoolQuotas(ctx context.Context, org uuid.UUID) ([]PoolQuota, error) {
	return rows[PoolQuota](ctx, s, "list the quotas", "SELECT id, workspaces, pool, cluster, machines, cores, memory_mib, machines_used, cores_used, memory_used, top FROM public.pool_quota_uses($1)", org)
}

// QuotaChange is a quota as an admin sets it; pool nil: all together, workspaces "": all.
type QuotaChange struct {
	Workspaces string     `json:"workspaces,omitempty"`
	Pool       *uuid.UUID `json:"pool_id,omitempty"`
	Machines   *int       `json:"machines,omitempty"`
	Cores      *int       `json:"cores,omitempty"`
	MemoryMiB  *int       `json:"memory_mib,omitempty"`
}

// SetPoolQuota sets a quota, in place of the one of the same workspaces and pool, and returns
// its id.
func (s *Store) SetPoolQuota(ctx context.Context, org uuid.UUID, q QuotaChange) (uuid.UUID, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return uuid.Nil, fmt.Errorf("write the quota: %w", err)
	}
	return one[uuid.UUID](ctx, s, "set the quota", "SELECT public.set_pool_quota($1, $2::text::jsonb) AS answer", org, string(text))
}

// DeletePoolQuota deletes a quota.
func (s *Store) DeletePoolQuota(ctx context.Context, org, quota uuid.UUID) error {
	return s.do(ctx, "delete the quota", "SELECT public.delete_pool_quota($1, $2)", org, quota)
}

// PlacedMachine is where a machine would go.
type PlacedMachine struct {
	Name string `json:"name"`
	Pool string `json:"pool"`
	Node string `json:"node"`
	Why  string `json:"why"`
	// Exists says that the machine is there and stays where it is.
	Exists bool `json:"exists"`
}

// PreviewMachines says where a run would place machines in a workspace of a cluster, which may
// not exist yet, and places none.
func (s *Store) PreviewMachines(ctx context.Context, cluster uuid.UUID, workspace string, wants []provision.PlaceWanted) (places []PlacedMachine, err error) {
	if wants == nil {
		wants = []provision.PlaceWanted{}
	}
	text, err := json.Marshal(wants)
	if err != nil {
		return nil, fmt.Errorf("write the machines that are wanted: %w", err)
	}
	answer, err := one[json.RawMessage](ctx, s, "preview the placement", "SELECT public.preview_machines($1, $2, $3::text::jsonb) AS answer", cluster, workspace, string(text))
	if err == nil {
		err = json.Unmarshal(answer, &places)
	}
	return places, err
}

// FreePlace gives back the place of a workspace's machine that is gone or was never made.
func (s *Store) FreePlace(ctx context.Context, workspace uuid.UUID, machine string) error {
	return s.do(ctx, "free the place", "SELECT public.free_place($1, $2)", workspace, machine)
}

// PlacedTemplate is what an inspection holds of a template whose machines get places.
type PlacedTemplate struct {
	Variables []provision.Variable `db:"variables"`
	// File is its tendril.hcl; nil: it has no such machines, or was inspected by an old version.
	File *string `db:"file"`
}

// PlacedTemplate reads it; nil: the version was never inspected.
func (s *Store) PlacedTemplate(ctx context.Context, org uuid.UUID, repo, version, path string) (*PlacedTemplate, error) {
	return orNil(rows[PlacedTemplate](ctx, s, "read the template's machines", `
		SELECT i.variables, i.file
		FROM public.template_inspections i WHERE i.org_id = $1 AND i.version = $3 AND i.repo = $2 AND i.path = $4 AND i.variables IS NOT NULL`,
		org, canonical.Address(repo), version, canonical.Path(path)))
}
