package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
)

// Template is an entry of the catalogue.
type Template struct {
	ID          uuid.UUID `db:"id" json:"id"`
	OrgID       uuid.UUID `db:"org_id" json:"-"`
	Name        string    `db:"name" json:"name"`
	Repo        string    `db:"repo" json:"repo"`
	Path        string    `db:"path" json:"path,omitempty"`
	Version     string    `db:"version" json:"version"`
	Description string    `db:"description" json:"description,omitempty"`
	Approval    string    `db:"approval" json:"approval"` // never, destructive or always
	CreatedAt   time.Time `db:"created_at" json:"created_at"`
}

const selectedTemplates = `SELECT t.id, t.org_id, t.name, t.repo, t.path, t.version, t.description, t.approval, t.created_at FROM public.templates t `

// Catalogue lists an organisation's templates, by name.
func (s *Store) Catalogue(ctx context.Context, org uuid.UUID) ([]Template, error) {
	return rows[Template](ctx, s, "list the templates", selectedTemplates+"WHERE t.org_id = $1 ORDER BY t.name", org)
}

// Known is what is known of the version that a template offers.
type Known struct {
	Status    string  `db:"status"` // as Inspection has it; "" where nobody has asked
	Inspected bool    `db:"inspected"`
	Variables int     `db:"variables"` // how many it declares
	Commit    *string `db:"commit"`
}

// KnownOf says for each template what is known of the version that it offers, in
// one question however many they are.
func (s *Store) KnownOf(ctx context.Context, org uuid.UUID, entries []Template) ([]Known, error) {
	repos, versions, paths := make([]string, len(entries)), make([]string, len(entries)), make([]string, len(entries))
	for i, e := range entries {
		repos[i], versions[i], paths[i] = canonical.Address(e.Repo), e.Version, canonical.Path(e.Path)
	}
	return rows[Known](ctx, s, "read what the templates declare", `
		SELECT coalesce(i.status, '') AS status, i.variables IS NOT NULL AS inspected, coalesce(jsonb_array_length(i.variables), 0) AS variables, i.commit
		FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY e (repo, version, path, place)
		LEFT JOIN public.template_inspections i ON i.org_id = $1 AND i.repo = e.repo AND i.version = e.version AND i.path = e.path
		ORDER BY e.place`, org, repos, versions, paths)
}

// SaveTemplate puts a template into the catalogue, or changes what stands there
// under its name (admin). An empty approval leaves what stands.
func (s *Store) SaveTemplate(ctx context.Context, org uuid.UUID, e Template) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "save the template", "SELECT public.save_template($1, $2, $3, $4, $5, $6, nullif($7, '')) AS answer",
		org, e.Name, e.Repo, e.Version, e.Path, e.Description, e.Approval)
}

// RemoveTemplate takes a template out of the catalogue (admin); what was deployed
// stays. False: there was none of that name.
func (s *Store) RemoveTemplate(ctx context.Context, org uuid.UUID, name string) (bool, error) {
	return one[bool](ctx, s, "remove the template", "SELECT public.remove_template($1, $2) AS answer", org, name)
}

// Usage is a workspace that a template is bound to.
type Usage struct {
	ID      uuid.UUID `db:"id" json:"id"`
	Name    string    `db:"name" json:"name"`
	Cluster string    `db:"cluster" json:"cluster"`
	// Version and Number are of the newest apply there that succeeded; nil where
	// none has.
	Version *string    `db:"version" json:"version,omitempty"`
	Number  *int64     `db:"number" json:"number,omitempty"`
	At      *time.Time `db:"at" json:"at,omitempty"`
}

// UsedBy lists the workspaces in which a template is used, at most limit.
func (s *Store) UsedBy(ctx context.Context, org uuid.UUID, repo, path string, limit int) ([]Usage, error) {
	return rows[Usage](ctx, s, "list where the template is used", `
		SELECT w.id, w.name, c.name AS cluster, p.version, p.number, p.at
		FROM (SELECT id, name, cluster_id FROM public.workspaces WHERE org_id = $1 AND repo = $2 AND path = $3 AND NOT hidden ORDER BY name, id LIMIT $4) w
		JOIN public.clusters c ON c.id = w.cluster_id
		LEFT JOIN LATERAL (
		  SELECT config_snapshot -> 'template_source' ->> 'version' AS version, number, finished_at AS at FROM public.provisions
		  WHERE workspace_id = w.id AND operation = 'apply' AND status = 'SUCCESS' ORDER BY number DESC LIMIT 1) p ON true
		ORDER BY w.name, c.name`, org, canonical.Address(repo), canonical.Path(path), limit)
}

// SameTemplate tells whether two repositories and paths are one template.
func SameTemplate(repo, path, otherRepo, otherPath string) bool {
	return canonical.Address(repo) == canonical.Address(otherRepo) && canonical.Path(path) == canonical.Path(otherPath)
}
