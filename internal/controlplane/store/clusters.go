package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ClusterHead is what all that show a cluster begin with.
type ClusterHead struct {
	ID           uuid.UUID  `db:"id"`
	Name         string     `db:"name"`
	Connectivity string     `db:"connectivity"` // ONLINE, STALE or OFFLINE
	PausedAt     *time.Time `db:"paused_at"`
	LastSeenAt   *time.Time `db:"last_seen_at"`
	CreatedAt    time.Time  `db:"created_at"`
	// AgePublicKey is what variables are sealed to; "" until an agent has
	// brought one.
	AgePublicKey string `db:"age_public_key"`
}

// Cluster is where agents live.
type Cluster struct {
	ClusterHead
	Agents []Agent `db:"agents"`
}

// Agent is one agent instance of a cluster.
type Agent struct {
	Name    string `json:"name"`
	Host    string `json:"host"`
	Version string `json:"version"`
	Slots   int    `json:"slots"`
	// Alive: heard of within the last 45 s.
	Alive           bool      `json:"alive"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
}

// NewCluster is a cluster just made, and its token, which nobody can read
// again.
type NewCluster struct {
	ID    uuid.UUID `db:"cluster_id"`
	Token string    `db:"token"`
}

// selectedClusters is a query for Clusters, c being public.cluster_overview, to
// be followed by a condition.
const selectedClusters = `
		SELECT c.id, c.name, c.connectivity, c.paused_at, c.last_seen_at, c.created_at,
		       coalesce((SELECT k.age_public_key FROM public.clusters k WHERE k.id = c.id), '') AS age_public_key,
		       coalesce((SELECT jsonb_agg(jsonb_build_object(
		                   'name', a.name, 'host', a.host, 'version', a.version, 'slots', a.slots,
		                   'alive', a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds',
		                   'last_heartbeat_at', a.last_heartbeat_at) ORDER BY a.name)
		                 FROM public.agents a
		                 WHERE a.cluster_id = c.id AND a.last_heartbeat_at > now() - interval '1 day'), '[]') AS agents
		FROM public.cluster_overview c`

// Pause keeps a cluster's agents from claiming anything, or lets them again.
// What runs goes on. A *RefusedError when the person is no admin.
func (s *Store) Pause(ctx context.Context, cluster uuid.UUID, paused bool, reason string) error {
	return s.do(ctx, "pause or resume the cluster", "SELECT FROM public.pause_cluster($1, $2, $3)", cluster, paused, reason)
}

// ListClusters lists an organisation's clusters by name, at most limit, those
// after the name given; next is the after of the page that follows, "" at the
// end.
func (s *Store) ListClusters(ctx context.Context, org uuid.UUID, after string, limit int) (page []Cluster, next string, err error) {
	found, err := rows[Cluster](ctx, s, "list the clusters", selectedClusters+
		" WHERE c.org_id = $1 AND c.name > $2 ORDER BY c.name LIMIT $3", org, after, limit+1)
	page, next = more(found, limit, func(c Cluster) string { return c.Name })
	return page, next, err
}

// FleetCluster is a cluster as its own page shows it: how it does, and what of its
// agents' slots is taken.
type FleetCluster struct {
	ClusterHead
	// Approval is the rule for plans: never, destructive or always.
	Approval   string `db:"approval"`
	Workspaces int    `db:"workspaces"`
	// Busy are the slots taken, Slots those of agents that are alive.
	Busy   int          `db:"busy"`
	Slots  int          `db:"slots"`
	Agents []FleetAgent `db:"agents"`
	AsOf   time.Time    `db:"as_of"`
}

// Free is how many runs could begin there now.
func (m FleetCluster) Free() int { return max(0, m.Slots-m.Busy) }

// FleetAgent is an agent of a cluster, with what it says of itself.
type FleetAgent struct {
	Agent
	Contract   int      `json:"contract"`
	Operations []string `json:"operations"` // nil: all that it knows
}

const members = `
	SELECT c.id, c.name, c.connectivity, c.paused_at, c.last_seen_at, c.created_at,
	       coalesce(k.age_public_key, '') AS age_public_key, k.approval, now() AS as_of,
	       (SELECT count(*)::int FROM public.workspaces w WHERE w.cluster_id = c.id AND NOT w.hidden) AS workspaces,
	       (SELECT count(*)::int FROM public.workspaces w WHERE w.cluster_id = c.id AND w.running_claim IS NOT NULL) AS busy,
	       coalesce((SELECT sum(a.slots)::int FROM public.agents a WHERE a.cluster_id = c.id
	                 AND a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds'), 0) AS slots,
	       coalesce((SELECT jsonb_agg(to_jsonb(a) ORDER BY a.alive DESC, a.name) FROM (
	                   SELECT a.name, a.host, a.version, a.contract, a.slots, a.operations, a.last_heartbeat_at,
	                          a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' AS alive
	                   FROM public.agents a WHERE a.cluster_id = c.id AND a.last_heartbeat_at > now() - interval '7 days'
	                   ORDER BY a.last_heartbeat_at DESC LIMIT 200) a), '[]') AS agents
	FROM public.cluster_overview c JOIN public.clusters k ON k.id = c.id
	WHERE c.org_id = $1`

// Fleet lists an organisation's clusters by name, with the agents heard of within
// a week.
func (s *Store) Fleet(ctx context.Context, org uuid.UUID) ([]FleetCluster, error) {
	return rows[FleetCluster](ctx, s, "list the clusters", members+" ORDER BY c.name LIMIT 500", org)
}

// FindInFleet returns an organisation's cluster of that id, else of that name. A
// *RefusedError when there is none.
func (s *Store) FindInFleet(ctx context.Context, org uuid.UUID, ref string) (FleetCluster, error) {
	found, err := rows[FleetCluster](ctx, s, "look for the cluster",
		members+" AND (c.name = $2 OR c.id::text = lower($2)) ORDER BY c.id::text = lower($2) DESC LIMIT 1", org, ref)
	return first(found, err, &RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: fmt.Sprintf("there is no cluster %q, or you have no access to it", ref), Hint: "look for it in the list of clusters"})
}

// ClusterToken is what is known of a token or a key of a cluster's agents; the token
// itself nobody knows.
type ClusterToken struct {
	ID        uuid.UUID  `db:"id"`
	CreatedAt time.Time  `db:"created_at"`
	ExpiresAt *time.Time `db:"expires_at"` // nil: never
	RevokedAt *time.Time `db:"revoked_at"`
	CreatedBy *uuid.UUID `db:"created_by"`
	// Fingerprint is SHA-256 of a key, as 64 hexadecimal digits; "": it is a token. What
	// follows is of keys alone.
	Fingerprint string     `db:"fingerprint"`
	Name        string     `db:"name"`   // of the agent
	Parent      *uuid.UUID `db:"parent"` // the key or token that it has rotated from
	LastUsedAt  *time.Time `db:"last_used_at"`
	LastAddress string     `db:"last_address"` // "": not known
}

// Kind is key or token.
func (t ClusterToken) Kind() string {
	if t.Fingerprint != "" {
		return "key"
	}
	return "token"
}

// NewToken is a token just made, which nobody can read again.
type NewToken struct {
	ID    uuid.UUID `db:"token_id"`
	Token string    `db:"token"`
}

// ClusterTokens lists a cluster's tokens and keys, the newest first, at most 200, for an
// admin.
func (s *Store) ClusterTokens(ctx context.Context, cluster uuid.UUID) ([]ClusterToken, error) {
	return rows[ClusterToken](ctx, s, "list the cluster's tokens",
		`SELECT id, created_at, expires_at, revoked_at, created_by, coalesce(fingerprint, '') AS fingerprint, coalesce(name, '') AS name, parent, last_used_at, coalesce(last_address, '') AS last_address
		FROM public.cluster_tokens($1)`, cluster)
}

// NewClusterToken makes a new token for a cluster's agents, which nobody can read
// again. Those before it go on being valid for overlap, at most 30 days.
func (s *Store) NewClusterToken(ctx context.Context, cluster uuid.UUID, overlap time.Duration) (NewToken, error) {
	return only[NewToken](ctx, s, "rotate the cluster's token",
		"SELECT token_id, token FROM public.rotate_cluster_token($1, make_interval(secs => $2))", cluster, overlap.Seconds())
}

// RevokeTokens ends a token or key of a cluster at once, or all of them (nil), and
// returns how many it ended.
func (s *Store) RevokeTokens(ctx context.Context, cluster uuid.UUID, token *uuid.UUID) (int, error) {
	return one[int](ctx, s, "revoke the cluster's tokens", "SELECT public.revoke_cluster_token($1, $2) AS answer", cluster, token)
}

// CreateCluster makes a cluster in an organisation.
func (s *Store) CreateCluster(ctx context.Context, org uuid.UUID, name string) (NewCluster, error) {
	return only[NewCluster](ctx, s, "create a cluster", "SELECT cluster_id, token FROM public.create_cluster($1, $2)", name, org)
}

// Policy is when plans for a cluster must be approved, and by whom.
type Policy struct {
	Approval  string `db:"approval"`  // never, destructive or always
	Approvers string `db:"approvers"` // the least role: operator or admin
	FourEyes  bool   `db:"four_eyes"` // whoever asked may not approve
	// ApprovalExpiry is how long a plan waits, as PostgreSQL says it: "7 days".
	ApprovalExpiry string `db:"approval_expiry"`
}

// PolicyChange is what is to change of a Policy; nil stays.
type PolicyChange struct {
	Approval       *string `json:"approval,omitempty"`
	Approvers      *string `json:"approvers,omitempty"`
	FourEyes       *bool   `json:"four_eyes,omitempty"`
	ApprovalExpiry *string `json:"approval_expiry,omitempty"`
}

// Policy returns a cluster's policy.
func (s *Store) Policy(ctx context.Context, cluster uuid.UUID) (Policy, error) {
	return only[Policy](ctx, s, "read the cluster's policy",
		"SELECT approval, approvers, four_eyes, approval_expiry::text FROM public.clusters WHERE id = $1", cluster)
}

// SetPolicy changes a cluster's policy and returns all of it. A *RefusedError
// when the person is no admin, or what is wanted cannot be.
func (s *Store) SetPolicy(ctx context.Context, cluster uuid.UUID, change PolicyChange) (Policy, error) {
	return only[Policy](ctx, s, "set the cluster's policy", `
		SELECT p ->> 'approval' AS approval, p ->> 'approvers' AS approvers, (p ->> 'four_eyes')::boolean AS four_eyes, p ->> 'approval_expiry' AS approval_expiry
		FROM public.set_cluster_policy($1, $2) p`, cluster, change)
}
