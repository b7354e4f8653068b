package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Within runs do in one transaction: all that it asks of the Store that it is
// given comes to pass together, or, if it returns an error, not at all. That
// Store is for do alone.
func (s *Store) Within(ctx context.Context, doing string, do func(context.Context, *Store) error) error {
	var failed error
	err := s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		failed = do(ctx, &Store{pool: s.pool, user: s.user, tx: tx})
		return failed
	})
	if failed != nil {
		return failed // in the caller's words, or already in ours
	}
	return err
}
