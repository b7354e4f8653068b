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
