package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Approve lets a plan be applied: the very one whose digest the person has
// seen. It returns the status after that. A *RefusedError says so when the
// provision awaits no approval, or that of another plan, and when the person may
// not approve it.
func (s *Store) Approve(ctx context.Context, id uuid.UUID, planDigest string) (provision.Status, error) {
	return one[provision.Status](ctx, s, "approve the plan", "SELECT public.approve_provision($1, $2) AS answer", id, planDigest)
}

// Reject turns a plan down: its provision ends as CANCELLED.
func (s *Store) Reject(ctx context.Context, id uuid.UUID, reason string) error {
	_, err := one[provision.Status](ctx, s, "reject the plan", "SELECT public.reject_provision($1, $2) AS answer", id, reason)
	return err
}

// Retry queues what an ended provision asked for once more and returns the new
// provision's id.
func (s *Store) Retry(ctx context.Context, id uuid.UUID) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "retry the provision", "SELECT public.retry_provision($1) AS answer", id)
}

// one asks for the one value that a function answers, named answer.
func one[T any](ctx context.Context, s *Store, doing, query string, args ...any) (value T, err error) {
	type row struct {
		Answer T `db:"answer"`
	}
	answer, err := only[row](ctx, s, doing, query, args...)
	return answer.Answer, err
}

// only asks for exactly one row.
func only[T any](ctx context.Context, s *Store, doing, query string, args ...any) (row T, err error) {
	answers, err := rows[T](ctx, s, doing, query, args...)
	if err != nil {
		return row, err
	}
	if len(answers) != 1 {
		return row, fmt.Errorf("%s: the database answered %d rows, not one", doing, len(answers))
	}
	return answers[0], nil
}
