package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// ref is a name or an id, and the organisation to look in: uuid.Nil for all that
// the person belongs to.
type ref struct {
	text string
	org  uuid.UUID
}

// id is the ref as an id, null when it is none.
func (r ref) id() uuid.NullUUID {
	id, err := uuid.Parse(r.text)
	return uuid.NullUUID{UUID: id, Valid: err == nil}
}

func (r ref) inOrg() uuid.NullUUID { return orNull(r.org) }

// theOne is the one of those found that a ref means: the one of that id, else
// the only one of that name. kind is such as "cluster".
func theOne[T any](kind string, r ref, found []T, err error, id func(T) uuid.UUID, place func(T) string) (one T, _ error) {
	if err != nil {
		return one, err
	}
	for _, f := range found {
		if strings.EqualFold(id(f).String(), r.text) {
			return f, nil
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return one, &RefusedError{Code: "PT404", Reason: kind + "_not_found", Message: fmt.Sprintf("there is no %s %q, or you have no access to it", kind, r.text)}
	}
	places := make([]string, len(found))
	for i, f := range found {
		places[i] = fmt.Sprintf("%s (%s)", id(f), place(f))
	}
	return one, &RefusedError{Code: "PT422", Reason: kind + "_ambiguous", Message: fmt.Sprintf("several %ss are named %q", kind, r.text),
		Hint: "give the id: " + strings.Join(places, ", ")}
}

// ClusterByRef returns the cluster of that name or id; uuid.Nil: of whichever
// organisation. A *RefusedError when there is none that the person may see, or
// when several have that name.
func (s *Store) ClusterByRef(ctx context.Context, org uuid.UUID, text string) (Cluster, error) {
	r := ref{text, org}
	found, err := rows[Cluster](ctx, s, "look for the cluster", selectedClusters+`
		WHERE (c.id = $1 OR c.name = $2) AND ($3::uuid IS NULL OR c.org_id = $3) ORDER BY c.created_at LIMIT 20`, r.id(), text, r.inOrg())
	return theOne("cluster", r, found, err, func(c Cluster) uuid.UUID { return c.ID },
		func(c Cluster) string { return "made " + c.CreatedAt.UTC().Format("2006-01-02") })
}

// TemplateByRef returns the template of that name or id, like ClusterByRef.
func (s *Store) TemplateByRef(ctx context.Context, org uuid.UUID, text string) (Template, error) {
	r := ref{text, org}
	found, err := rows[Template](ctx, s, "look for the template", selectedTemplates+`
		WHERE (t.id = $1 OR t.name = $2) AND ($3::uuid IS NULL OR t.org_id = $3) ORDER BY t.created_at LIMIT 20`, r.id(), text, r.inOrg())
	return theOne("template", r, found, err, func(t Template) uuid.UUID { return t.ID }, func(t Template) string { return t.Repo })
}

// WorkspaceByRef returns the workspace of that name or id, like ClusterByRef;
// cluster, if it is not uuid.Nil, is the one to look in.
func (s *Store) WorkspaceByRef(ctx context.Context, org, cluster uuid.UUID, text string) (Workspace, error) {
	r := ref{text, org}
	// By the clusters, for their workspaces' names have an index.
	found, err := rows[Workspace](ctx, s, "look for the workspace", `
		SELECT w.id, w.org_id, w.name, c.name AS cluster
		FROM (SELECT w.* FROM public.workspaces w WHERE w.id = $1
		      UNION
		      SELECT w.* FROM public.clusters c JOIN public.workspaces w ON w.cluster_id = c.id AND w.name = $2) w
		JOIN public.clusters c ON c.id = w.cluster_id
		WHERE NOT w.hidden AND ($3::uuid IS NULL OR c.org_id = $3) AND ($4::uuid IS NULL OR c.id = $4) ORDER BY c.name, w.id LIMIT 20`,
		r.id(), text, r.inOrg(), orNull(cluster))
	return theOne("workspace", r, found, err, func(w Workspace) uuid.UUID { return w.ID }, func(w Workspace) string { return "on cluster " + w.Cluster })
}

// ProvisionKey is what a provision is known by.
type ProvisionKey struct {
	ID          uuid.UUID `db:"id"`
	Number      int64     `db:"number"`
	WorkspaceID uuid.UUID `db:"workspace_id"`
	Workspace   string    `db:"workspace"`
}

// ProvisionByRef returns what the provision of that number or id is known by. Its
// errors are those of Provision.
func (s *Store) ProvisionByRef(ctx context.Context, text string) (ProvisionKey, error) {
	condition, key, err := provisionRef(text)
	if err != nil {
		return ProvisionKey{}, err
	}
	found, err := rows[ProvisionKey](ctx, s, "look for the provision", `
		SELECT p.id, p.number, p.workspace_id, w.name AS workspace
		FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE `+condition, key)
	return first(found, err, noProvision(text))
}
