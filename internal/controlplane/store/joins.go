package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// JoinRequest is an agent whose key waits for an admin. All but the fingerprint and the address is
// what it says of itself.
type JoinRequest struct {
	// Fingerprint is SHA-256 of its key, as 64 hexadecimal digits.
	Fingerprint string    `db:"fingerprint"`
	Name        string    `db:"name"`
	Host        string    `db:"host"`
	Version     string    `db:"version"`
	Slots       int       `db:"slots"`
	Operations  []string  `db:"operations"` // nil: it did not say
	Wanted      string    `db:"wanted"`     // the cluster that it wants to join; "": any
	Address     string    `db:"address"`    // "": not known
	RequestedAt time.Time `db:"requested_at"`
	ExpiresAt   time.Time `db:"expires_at"`
}

// JoinToken is a one-time token just made, which nobody can read again.
type JoinToken struct {
	ID        uuid.UUID `db:"token_id"`
	Token     string    `db:"token"`
	ExpiresAt time.Time `db:"expires_at"`
}

// JoinRequest finds the agent that waits with a code; nil where none does. A wrong code is counted,
// so a caller's transaction must not be rolled back because of it: that would take the count back.
func (s *Store) JoinRequest(ctx context.Context, code string) (*JoinRequest, error) {
	return orNil(rows[JoinRequest](ctx, s, "look up the code", `
		SELECT fingerprint, name, host, version, slots, operations, coalesce(wanted, '') AS wanted, coalesce(address, '') AS address, requested_at, expires_at
		FROM public.join_request($1)`, code))
}

// ApproveJoin lets the agent that waits with a code join a cluster, if its key has this fingerprint,
// and returns the key's id; nil where no agent waits. Of wrong codes see JoinRequest.
func (s *Store) ApproveJoin(ctx context.Context, code string, cluster uuid.UUID, fingerprint string) (*uuid.UUID, error) {
	return one[*uuid.UUID](ctx, s, "let the agent join", "SELECT public.approve_join($1, $2, $3) AS answer", code, cluster, fingerprint)
}

// RefuseJoin refuses the agent that waits with a code, and reports whether there was one. Of wrong
// codes see JoinRequest.
func (s *Store) RefuseJoin(ctx context.Context, code string) (bool, error) {
	return one[bool](ctx, s, "refuse the agent", "SELECT public.refuse_join($1) AS answer", code)
}

// NewJoinToken makes a token with which one key joins a cluster, valid for a minute to a day.
func (s *Store) NewJoinToken(ctx context.Context, cluster uuid.UUID, name string, valid time.Duration) (JoinToken, error) {
	return only[JoinToken](ctx, s, "make a join token",
		"SELECT token_id, token, expires_at FROM public.create_join_token($1, $2, make_interval(secs => $3))", cluster, name, valid.Seconds())
}

// TrustedIssuer is a Kubernetes cluster whose service account tokens let agents join.
type TrustedIssuer struct {
	ID         uuid.UUID  `db:"id"`
	Issuer     string     `db:"issuer"`
	Audience   string     `db:"audience"`
	Subjects   []string   `db:"subjects"`
	KeyIDs     []string   `db:"key_ids"`
	CreatedBy  *uuid.UUID `db:"created_by"` // nil: the control plane
	CreatedAt  time.Time  `db:"created_at"`
	ExpiresAt  *time.Time `db:"expires_at"`   // nil: never
	LastUsedAt *time.Time `db:"last_used_at"` // nil: never
}

// Trusted is an issuer just trusted.
type Trusted struct {
	ID       uuid.UUID `db:"trust_id"`
	Audience string    `db:"audience"`
}

// Trust is what an admin trusts for a cluster.
type Trust struct {
	Issuer   string
	Subjects []string
	Keys     map[string]any // JSON Web Key Set
	Audience string         // "": the one that the cluster has
	Valid    *time.Duration // nil: for good
}

// TrustIssuer lets agents with an issuer's service account tokens join a cluster.
func (s *Store) TrustIssuer(ctx context.Context, cluster uuid.UUID, t Trust) (Trusted, error) {
	var seconds *float64
	if t.Valid != nil {
		valid := t.Valid.Seconds()
		seconds = &valid
	}
	return only[Trusted](ctx, s, "trust the issuer", "SELECT trust_id, audience FROM public.trust_issuer($1, $2, $3, $4, nullif($5, ''), make_interval(secs => $6))",
		cluster, t.Issuer, t.Subjects, t.Keys, t.Audience, seconds)
}

// TrustedIssuers lists the issuers that a cluster trusts, the newest first.
func (s *Store) TrustedIssuers(ctx context.Context, cluster uuid.UUID) ([]TrustedIssuer, error) {
	return rows[TrustedIssuer](ctx, s, "list the trusted issuers", `
		SELECT id, issuer, audience, subjects, key_ids, created_by, created_at, expires_at, last_used_at FROM public.trusted_issuers($1)`, cluster)
}

// UntrustIssuer reports whether the issuer was trusted; it no longer is.
func (s *Store) UntrustIssuer(ctx context.Context, cluster, trust uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "trust the issuer no more", "SELECT public.untrust_issuer($1, $2) AS answer", cluster, trust)
}
