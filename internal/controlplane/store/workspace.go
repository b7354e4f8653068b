package store

import (
	"context"

	"github.com/google/uuid"
)

// Workspace is one Terraform state and what keeps it from being used.
type Workspace struct {
	ID      uuid.UUID `db:"id" json:"id"`
	OrgID   uuid.UUID `db:"org_id" json:"-"`
	Name    string    `db:"name" json:"name"`
	Cluster string    `db:"cluster" json:"cluster"`
	// Home is the agent that has the state as a local file, and its host; ""
	// where the state is shared.
	Home string `db:"home" json:"home,omitempty"`
}

// Release ends what holds a workspace without a run: an agent that was lost
// during apply, or a state that an agent keeps because it could not be stored.
// A *RefusedError says so when nothing does, or when the person is no admin.
func (s *Store) Release(ctx context.Context, workspace uuid.UUID, reason string) error {
	_, err := rows[struct{}](ctx, s, "release the workspace", "SELECT FROM public.release_workspace($1, $2)", workspace, reason)
	return err
}
