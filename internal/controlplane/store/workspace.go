package store

import (
	"context"
	"fmt"
	"strings"

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

// FindWorkspace returns the workspace of that id, else of that name: one may be
// named like another's id. The error is a *RefusedError when there is none that the person may see, or when several
// clusters have one of that name: the id says which.
func (s *Store) FindWorkspace(ctx context.Context, ref string) (Workspace, error) {
	found, err := rows[Workspace](ctx, s, "look for the workspace", `
		SELECT w.id, w.org_id, w.name, c.name AS cluster,
		       CASE WHEN w.home_instance IS NULL THEN '' ELSE coalesce(a.name || ' on ' || a.host, w.home_instance::text) END AS home
		FROM public.workspaces w
		JOIN public.clusters c ON c.id = w.cluster_id
		LEFT JOIN public.agents a ON a.cluster_id = w.cluster_id AND a.instance_id = w.home_instance
		WHERE NOT w.hidden AND (w.name = $1 OR w.id::text = lower($1)) ORDER BY w.id::text = lower($1) DESC, c.name, w.id`, ref)
	switch {
	case err != nil:
		return Workspace{}, err
	case len(found) == 0:
		return Workspace{}, &RefusedError{Code: "PT404", Reason: "workspace_not_found",
			Message: fmt.Sprintf("there is no workspace %q that you may see", ref), Hint: `"trellis status" names those of the latest provisions`}
	case len(found) > 1 && !strings.EqualFold(found[0].ID.String(), ref):
		places := make([]string, len(found))
		for i, w := range found {
			places[i] = fmt.Sprintf("%s on cluster %s", w.ID, w.Cluster)
		}
		return Workspace{}, &RefusedError{Code: "PT422", Reason: "workspace_ambiguous",
			Message: fmt.Sprintf("several workspaces are named %q", ref), Hint: "give the id: " + strings.Join(places, ", ")}
	}
	return found[0], nil
}

// Release ends what holds a workspace without a run: an agent that was lost
// during apply, or a state that an agent keeps because it could not be stored.
// A *RefusedError says so when nothing does, or when the person is no admin.
func (s *Store) Release(ctx context.Context, workspace uuid.UUID, reason string) error {
	_, err := rows[struct{}](ctx, s, "release the workspace", "SELECT FROM public.release_workspace($1, $2)", workspace, reason)
	return err
}
