package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Cluster is where agents live.
type Cluster struct {
	ID           uuid.UUID  `db:"id" json:"id"`
	Name         string     `db:"name" json:"name"`
	Connectivity string     `db:"connectivity" json:"connectivity"` // ONLINE, STALE or OFFLINE
	PausedAt     *time.Time `db:"paused_at" json:"paused_at,omitempty"`
	LastSeenAt   *time.Time `db:"last_seen_at" json:"last_seen_at,omitempty"`
	CreatedAt    time.Time  `db:"created_at" json:"created_at"`
	// AgePublicKey is what variables are sealed to; "" until an agent has
	// brought one.
	AgePublicKey string  `db:"age_public_key" json:"age_public_key,omitempty"`
	Agents       []Agent `db:"agents" json:"agents"`
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
	ID    uuid.UUID `db:"cluster_id" json:"cluster_id"`
	Token string    `db:"token" json:"token"`
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
	_, err := rows[struct{}](ctx, s, "pause or resume the cluster", "SELECT FROM public.pause_cluster($1, $2, $3)", cluster, paused, reason)
	return err
}
