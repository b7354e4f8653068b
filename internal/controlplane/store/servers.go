package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// PoolServer is a bare-metal server of a pool that has a template to deploy it with.
type PoolServer struct {
	PoolID    uuid.UUID `db:"pool_id"`
	Pool      string    `db:"pool"`
	ClusterID uuid.UUID `db:"cluster_id"`
	Cluster   string    `db:"cluster"`
	AgeKey    string    `db:"age_key"` // of the cluster; "": it has none
	// State is the pool's, Problem why it could not be listed.
	State      string    `db:"state"`
	Problem    *string   `db:"problem"`
	ReportedAt time.Time `db:"reported_at"`
	// Node is its name in the pool; "" where the pool has no servers. Taken: a machine of Tendril has
	// it, or is about to.
	Node   string  `db:"node"`
	Server *Server `db:"server"`
	Taken  bool    `db:"taken"`
	Class  string  `db:"class"`
	// Image says that the image that was asked for can be deployed there.
	Image bool `db:"image"`
	// Template is how it is deployed; "" in Repo: in no way that the pool's admin has chosen.
	Repo    string `db:"repo"`
	Path    string `db:"path"`
	Version string `db:"version"`
}

// Servers lists the bare-metal servers of an organisation (uuid.Nil: of all of the person's) by pool
// and name, and whether each can have an image. A pool without servers is one row.
func (s *Store) Servers(ctx context.Context, org uuid.UUID, image string) ([]PoolServer, error) {
	return rows[PoolServer](ctx, s, "list the servers", `
		SELECT p.id AS pool_id, p.name AS pool, c.id AS cluster_id, c.name AS cluster, coalesce(c.age_public_key, '') AS age_key, `+poolState+` AS state, p.problem, p.reported_at,
		       coalesce(n.name, '') AS node, n.server, EXISTS (SELECT FROM public.reservations r WHERE r.pool_id = p.id AND r.node = n.name) AS taken, coalesce(n.labels ->> 'resource_class', '') AS class,
		       coalesce(coalesce((SELECT i.name FROM public.pool_images i WHERE i.pool_id = p.id AND i.image = $3), $3) = ANY (n.images), false) AS image,
		       coalesce(t.repo, '') AS repo, coalesce(t.path, '') AS path, coalesce(t.version, '') AS version
		FROM public.pools p JOIN public.clusters c ON c.id = p.cluster_id LEFT JOIN public.pool_nodes n ON n.pool_id = p.id LEFT JOIN public.templates t ON t.id = p.template_id
		WHERE ($2::uuid IS NULL OR p.org_id = $2) AND p.kind = 'ironic' ORDER BY p.name, p.id, n.name`, PoolStaleAfter, orNull(org), image)
}

// SetPoolTemplate says with which template servers of a pool are deployed; uuid.Nil: with none.
func (s *Store) SetPoolTemplate(ctx context.Context, pool, template uuid.UUID) error {
	return s.do(ctx, "set the pool's template", "SELECT FROM public.set_pool_template($1, $2)", pool, orNull(template))
}

// ServerOf is the server that a provision deploys, as far as it is known.
type ServerOf struct {
	Node   string  `db:"node"`
	ID     string  `db:"id"` // "": not known yet
	Server *Server `db:"server"`
	// MeasuredAt is when the agent looked at it.
	MeasuredAt *time.Time `db:"measured_at"`
	// Newest says that no later deploy of the workspace may have changed it.
	Newest bool `db:"newest"`
}

// ServerOfProvision finds the server that a provision has made its machine of, or makes it of; nil:
// none yet. A place that is reserved is none: Ironic may still give another one, or none.
func (s *Store) ServerOfProvision(ctx context.Context, id uuid.UUID) (*ServerOf, error) {
	return orNil(rows[ServerOf](ctx, s, "look for the server", `
		SELECT p.server ->> 'node' AS node, coalesce(p.server ->> 'id', n.server ->> 'id', '') AS id, n.server, n.measured_at,
		       NOT EXISTS (SELECT FROM public.provisions q WHERE q.workspace_id = p.workspace_id AND q.number > p.number AND q.operation = 'apply') AS newest
		FROM public.provisions p
		LEFT JOIN public.pools o ON o.cluster_id = p.cluster_id AND o.name = p.server ->> 'pool' AND o.kind = 'ironic'
		LEFT JOIN public.pool_nodes n ON n.pool_id = o.id AND n.name = p.server ->> 'node' AND n.server ->> 'id' = coalesce(p.server ->> 'id', n.server ->> 'id')
		WHERE p.id = $1 AND p.server IS NOT NULL`, id))
}

// ServerFound is a server by its id or name, with what Tendril did there last.
type ServerFound struct {
	Pool       string    `db:"pool"`
	Node       string    `db:"node"`
	Server     Server    `db:"server"`
	MeasuredAt time.Time `db:"measured_at"`
	// Provision is the newest deploy of what it was given to; nil: it was not given out by Tendril.
	Provision *uuid.UUID `db:"provision"`
}

// FindServer finds a server by its id or its name in a pool; nil: there is none that the person may
// see.
func (s *Store) FindServer(ctx context.Context, org uuid.UUID, ref string) (*ServerFound, error) {
	return orNil(rows[ServerFound](ctx, s, "look for the server", `
		SELECT p.name AS pool, n.name AS node, n.server, n.measured_at,
		       (SELECT q.id FROM public.provisions q
		        WHERE q.workspace_id IN (SELECT m.workspace_id FROM public.machines m WHERE m.node = n.name AND m.pool = p.name AND m.org_id = p.org_id AND m.status NOT IN ('planned', 'gone')
		                                 UNION ALL SELECT r.workspace_id FROM public.reservations r WHERE r.pool_id = p.id AND r.node = n.name)
		          AND q.cluster_id = p.cluster_id AND q.operation = 'apply' ORDER BY q.number DESC LIMIT 1) AS provision
		FROM public.pool_nodes n JOIN public.pools p ON p.id = n.pool_id
		WHERE ($1::uuid IS NULL OR p.org_id = $1) AND p.kind = 'ironic' AND n.server IS NOT NULL AND (n.server ->> 'id' = $2 OR n.name = $2) ORDER BY n.server ->> 'id' = $2 DESC, p.name LIMIT 1`, orNull(org), ref))
}

// Unplaced reports whether a provision waits because no server is free.
func (p Provision) Unplaced() bool {
	for _, why := range p.Why {
		if why.Reason == string(provision.CodeNoRoom) {
			return true
		}
	}
	return false
}
