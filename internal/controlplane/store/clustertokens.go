package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ClusterToken is what is known of a token of a cluster's agents; the token
// itself nobody knows.
type ClusterToken struct {
	ID        uuid.UUID  `db:"id" json:"id"`
	CreatedAt time.Time  `db:"created_at" json:"created_at"`
	ExpiresAt *time.Time `db:"expires_at" json:"expires_at,omitempty"` // nil: never
	RevokedAt *time.Time `db:"revoked_at" json:"revoked_at,omitempty"`
	CreatedBy *uuid.UUID `db:"created_by" json:"created_by,omitempty"`
}

// NewToken is a token just made, which nobody can read again.
type NewToken struct {
	ID    uuid.UUID `db:"token_id" json:"token_id"`
	Token string    `db:"token" json:"token"`
}

// ClusterTokens lists a cluster's tokens, the newest first, at most 200, for an
// admin.
func (s *Store) ClusterTokens(ctx context.Context, cluster uuid.UUID) ([]ClusterToken, error) {
	return rows[ClusterToken](ctx, s, "list the cluster's tokens",
		"SELECT id, created_at, expires_at, revoked_at, created_by FROM public.cluster_tokens($1)", cluster)
}

// NewClusterToken makes a new token for a cluster's agents, which nobody can read
// again. Those before it go on being valid for overlap, at most 30 days.
func (s *Store) NewClusterToken(ctx context.Context, cluster uuid.UUID, overlap time.Duration) (NewToken, error) {
	return only[NewToken](ctx, s, "rotate the cluster's token",
		"SELECT token_id, token FROM public.rotate_cluster_token($1, make_interval(secs => $2))", cluster, overlap.Seconds())
}

// RevokeTokens ends a token of a cluster at once, or all of them (nil), and
// returns how many it ended.
func (s *Store) RevokeTokens(ctx context.Context, cluster uuid.UUID, token *uuid.UUID) (int, error) {
	return one[int](ctx, s, "revoke the cluster's tokens", "SELECT public.revoke_cluster_token($1, $2) AS answer", cluster, token)
}

// CreateCluster makes a cluster in an organisation.
func (s *Store) CreateCluster(ctx context.Context, org uuid.UUID, name string) (NewCluster, error) {
	return only[NewCluster](ctx, s, "create a cluster", "SELECT cluster_id, token FROM public.create_cluster($1, $2)", name, org)
}
