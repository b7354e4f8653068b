package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Credential is a session or an API token of the person's own. What it is shown
// by is nowhere.
type Credential struct {
	ID         uuid.UUID  `db:"id" json:"id"`
	Kind       string     `db:"kind" json:"kind"`  // session or api_token
	Name       string     `db:"label" json:"name"` // of a session: what the browser calls itself
	CreatedAt  time.Time  `db:"created_at" json:"created_at"`
	LastUsedAt *time.Time `db:"last_used_at" json:"last_used_at,omitempty"` // to the minute
	ExpiresAt  *time.Time `db:"expires_at" json:"expires_at,omitempty"`
}

// APIToken is a new API token, which is shown once.
type APIToken struct {
	ID        uuid.UUID  `db:"token_id" json:"id"`
	Token     string     `db:"token" json:"token"`
	ExpiresAt *time.Time `db:"expires_at" json:"expires_at,omitempty"`
}

// Credentials lists the person's own sessions and API tokens that count, the
// newest first.
func (s *Store) Credentials(ctx context.Context) ([]Credential, error) {
	return rows[Credential](ctx, s, "list your sessions and tokens", "SELECT * FROM public.own_credentials()")
}

// CreateAPIToken makes the person a token that may do what they may, for so long.
func (s *Store) CreateAPIToken(ctx context.Context, name string, lasts time.Duration) (APIToken, error) {
	return only[APIToken](ctx, s, "make an API token", "SELECT * FROM public.create_api_token($1, $2)", name, lasts)
}

// RevokeCredential ends a session or an API token of the person's own; false:
// there is none.
func (s *Store) RevokeCredential(ctx context.Context, id uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "revoke it", "SELECT public.revoke_credential($1) AS answer", id)
}

// SignOutEverywhere ends all sessions of the person, and with tokens their API
// tokens as well; it returns how many.
func (s *Store) SignOutEverywhere(ctx context.Context, tokens bool) (int, error) {
	return one[int](ctx, s, "sign you out", "SELECT public.sign_out_everywhere($1) AS answer", tokens)
}
