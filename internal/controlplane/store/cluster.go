package store

import (
	"context"
	"fmt"
	"strings"
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

// CreateCluster makes a cluster in the organisation that the person is admin of.
func (s *Store) CreateCluster(ctx context.Context, name string) (NewCluster, error) {
	made, err := rows[NewCluster](ctx, s, "create a cluster", "SELECT cluster_id, token FROM public.create_cluster($1)", name)
	if err != nil {
		return NewCluster{}, err
	}
	if len(made) != 1 {
		return NewCluster{}, fmt.Errorf("create a cluster: the database answered %d rows, not one", len(made))
	}
	return made[0], nil
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

// Clusters lists the clusters that the person may see, by name, with the agents
// heard of within a day.
func (s *Store) Clusters(ctx context.Context) ([]Cluster, error) {
	return rows[Cluster](ctx, s, "list the clusters", selectedClusters+" ORDER BY c.name, c.id")
}

// FindCluster returns the cluster of that name or id; "" means the only one
// there is.
func (s *Store) FindCluster(ctx context.Context, ref string) (Cluster, error) {
	clusters, err := s.Clusters(ctx)
	if err != nil {
		return Cluster{}, err
	}
	return PickCluster(clusters, ref)
}

// PickCluster is FindCluster among those that are known.
func PickCluster(clusters []Cluster, ref string) (Cluster, error) {
	var matching []Cluster
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.Name
		if ref == "" || c.Name == ref || strings.EqualFold(c.ID.String(), ref) {
			matching = append(matching, c)
		}
	}
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(clusters) == 0:
		return Cluster{}, &RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: "there is no cluster that you may see", Hint: "make one with: trellis clusters create NAME"}
	case ref == "":
		return Cluster{}, &RefusedError{Code: "PT422", Reason: "cluster_missing", Message: "there are several clusters: " + strings.Join(names, ", "), Hint: "say which one with --cluster"}
	case len(matching) > 1:
		return Cluster{}, &RefusedError{Code: "PT422", Reason: "cluster_ambiguous", Message: fmt.Sprintf("several clusters are named %q", ref), Hint: "give the id: trellis clusters list -o json"}
	}
	return Cluster{}, &RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: fmt.Sprintf("there is no cluster %q that you may see", ref), Hint: "there are: " + strings.Join(names, ", ")}
}

// Template is an entry of the catalogue.
type Template struct {
	ID          uuid.UUID `db:"id" json:"id"`
	OrgID       uuid.UUID `db:"org_id" json:"-"`
	Name        string    `db:"name" json:"name"`
	Repo        string    `db:"repo" json:"repo"`
	Path        string    `db:"path" json:"path,omitempty"`
	Version     string    `db:"version" json:"version"`
	Description string    `db:"description" json:"description,omitempty"`
	Approval    string    `db:"approval" json:"approval"` // never, destructive or always
	CreatedAt   time.Time `db:"created_at" json:"created_at"`
}

const selectedTemplates = `SELECT t.id, t.org_id, t.name, t.repo, t.path, t.version, t.description, t.approval, t.created_at FROM public.templates t `

// Templates lists the catalogue of the organisation that a cluster belongs to.
func (s *Store) Templates(ctx context.Context, cluster uuid.UUID) (templates []Template, err error) {
	return rows[Template](ctx, s, "list the templates",
		selectedTemplates+"JOIN public.clusters c ON c.org_id = t.org_id WHERE c.id = $1 ORDER BY t.name", cluster)
}

// Pause keeps a cluster's agents from claiming anything, or lets them again.
// What runs goes on. A *RefusedError when the person is no admin.
func (s *Store) Pause(ctx context.Context, cluster uuid.UUID, paused bool, reason string) error {
	_, err := rows[struct{}](ctx, s, "pause or resume the cluster", "SELECT FROM public.pause_cluster($1, $2, $3)", cluster, paused, reason)
	return err
}
