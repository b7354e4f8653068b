package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// FleetCluster is a cluster as its own page shows it: how it does, and what of its
// agents' slots is taken.
type FleetCluster struct {
	ID           uuid.UUID       `db:"id"`
	Name         string          `db:"name"`
	Connectivity string          `db:"connectivity"` // ONLINE, STALE or OFFLINE
	PausedAt     *time.Time      `db:"paused_at"`
	LastSeenAt   *time.Time      `db:"last_seen_at"`
	CreatedAt    time.Time       `db:"created_at"`
	Labels       json.RawMessage `db:"labels"`
	AgePublicKey string          `db:"age_public_key"`
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
	Name            string    `json:"name"`
	Host            string    `json:"host"`
	Version         string    `json:"version"`
	Contract        int       `json:"contract"`
	Slots           int       `json:"slots"`
	Operations      []string  `json:"operations"` // nil: all that it knows
	Alive           bool      `json:"alive"`      // heard of within the last 45 s
	RegisteredAt    time.Time `json:"registered_at"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
}

const members = `
	SELECT c.id, c.name, c.connectivity, c.paused_at, c.last_seen_at, c.created_at, c.labels,
	       coalesce(k.age_public_key, '') AS age_public_key, k.approval, now() AS as_of,
	       (SELECT count(*)::int FROM public.workspaces w WHERE w.cluster_id = c.id AND NOT w.hidden) AS workspaces,
	       (SELECT count(*)::int FROM public.workspaces w WHERE w.cluster_id = c.id AND w.running_claim IS NOT NULL) AS busy,
	       coalesce((SELECT sum(a.slots)::int FROM public.agents a WHERE a.cluster_id = c.id
	                 AND a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds'), 0) AS slots,
	       coalesce((SELECT jsonb_agg(to_jsonb(a) ORDER BY a.alive DESC, a.name) FROM (
	                   SELECT a.name, a.host, a.version, a.contract, a.slots, a.operations, a.registered_at, a.last_heartbeat_at,
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
	if err != nil {
		return FleetCluster{}, err
	}
	if len(found) == 0 {
		return FleetCluster{}, &RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: fmt.Sprintf("there is no cluster %q that you may see", ref), Hint: "look for it in the list of clusters"}
	}
	return found[0], nil
}
