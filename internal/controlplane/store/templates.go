package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/semver"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

// Template is an entry of the catalogue.
type Template struct {
	ID          uuid.UUID `db:"id"`
	OrgID       uuid.UUID `db:"org_id"`
	Name        string    `db:"name"`
	Repo        string    `db:"repo"`
	Path        string    `db:"path"`
	Version     string    `db:"version"`
	Description string    `db:"description"`
	Approval    string    `db:"approval"` // never, destructive or always
	CreatedAt   time.Time `db:"created_at"`
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
	// About is what that version says of itself; nil: not known.
	About *provision.About `db:"about"`
}

// KnownOf says for each template what is known of the version that it offers, in
// one question however many they are.
func (s *Store) KnownOf(ctx context.Context, org uuid.UUID, entries []Template) ([]Known, error) {
	repos, versions, paths := make([]string, len(entries)), make([]string, len(entries)), make([]string, len(entries))
	for i, e := range entries {
		repos[i], versions[i], paths[i] = canonical.Address(e.Repo), e.Version, canonical.Path(e.Path)
	}
	return rows[Known](ctx, s, "read what the templates declare", `
		SELECT coalesce(i.status, '') AS status, i.variables IS NOT NULL AS inspected, coalesce(jsonb_array_length(i.variables), 0) AS variables, i.commit, i.about
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
	ID      uuid.UUID `db:"id"`
	Name    string    `db:"name"`
	Cluster string    `db:"cluster"`
	// Version and Number are of the newest apply there that succeeded; nil where
	// none has.
	Version *string    `db:"version"`
	Number  *int64     `db:"number"`
	At      *time.Time `db:"at"`
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

// ListTemplates lists an organisation's catalogue by name, at most limit, those
// after the name given; next is the after of the page that follows, "" at the end.
func (s *Store) ListTemplates(ctx context.Context, org uuid.UUID, after string, limit int) (page []Template, next string, err error) {
	found, err := rows[Template](ctx, s, "list the templates", selectedTemplates+
		"WHERE t.org_id = $1 AND t.name > $2 ORDER BY t.name LIMIT $3", org, after, limit+1)
	page, next = more(found, limit, func(t Template) string { return t.Name })
	return page, next, err
}

// States of an Inspection.
const (
	InspectionWanted = "wanted" // trellis has not looked yet
	InspectionHanded = "handed" // trellis cannot look: an agent must, when one that can is online
	InspectionQueued = "queued" // a run of an agent looks
	InspectionDone   = "done"
	InspectionFailed = "failed" // Problem says why
)

// Inspection is what is known of one version of a template.
type Inspection struct {
	Status string `db:"status"` // "" where nobody has asked
	// Inspected says that Variables is what that version declares; there may
	// be none. It stays while the version is looked at again.
	Inspected bool                 `db:"inspected"`
	Variables []provision.Variable `db:"variables"`
	Commit    *string              `db:"commit"`
	// About is what that version says of itself; nil: not known.
	About *provision.About `db:"about"`
	// Readme is its README.md; "": it has none, or it is not known.
	Readme string `db:"readme"`
	// By is who looked: trellis, agent, or run (a deploy of it).
	By *string    `db:"inspected_by"`
	At *time.Time `db:"inspected_at"`
	// Problem is why it could not be looked at, or why trellis leaves that to an
	// agent, for people; Reason a stable word for it. Both may be "".
	Problem string `db:"problem"`
	Reason  string `db:"problem_code"`
	// Number is the provision of the agent's run, where there is one.
	Number *int64 `db:"number"`
}

// TemplateVariables returns what is known of a version of a template. Where
// nobody has asked for it yet, InspectTemplate does.
func (s *Store) TemplateVariables(ctx context.Context, org uuid.UUID, repo, version, path string) (Inspection, error) {
	found, err := rows[Inspection](ctx, s, "read what the template declares", `
		SELECT i.status, i.variables IS NOT NULL AS inspected, coalesce(i.variables, '[]') AS variables, i.commit, i.about, coalesce(i.readme, '') AS readme, i.inspected_by, i.inspected_at,
		       coalesce(i.problem, '') AS problem, coalesce(i.problem_code, '') AS problem_code,
		       (SELECT p.number FROM public.provisions p WHERE p.id = i.provision_id) AS number
		FROM public.template_inspections i
		WHERE i.org_id = $1 AND i.version = $3 AND i.repo = $2 AND i.path = $4`, org, canonical.Address(repo), version, canonical.Path(path))
	if err != nil || len(found) == 0 {
		return Inspection{Variables: []provision.Variable{}}, err
	}
	return found[0], nil
}

// PinTemplate says which commit a tag of a repository means for the whole
// organisation. A *RefusedError when the person is no admin.
func (s *Store) PinTemplate(ctx context.Context, org uuid.UUID, repo, tag, commit, reason string) error {
	return s.do(ctx, "pin the template", "SELECT FROM public.pin_template($1, $2, $3, $4, $5)", org, repo, tag, commit, reason)
}

// InspectTemplate has a version of a template looked at, again as well, by
// trellis where it can reach the repository and else by an agent. The person
// must be an operator.
func (s *Store) InspectTemplate(ctx context.Context, org uuid.UUID, repo, version, path string) error {
	return s.do(ctx, "have the template inspected", "SELECT FROM public.inspect_template($1, $2, $3, $4)", org, repo, version, path)
}

// TemplateVersion is a version of a repository that is known.
type TemplateVersion struct {
	Version string  `db:"version"`
	Commit  *string `db:"commit"`
	// Tag says that the repository had it as a tag when trellis looked last.
	Tag bool `db:"tag"`
	// UsedAt is when the organisation used it first, if it has.
	UsedAt *time.Time `db:"used_at"`
}

// TemplateVersions lists the versions of a repository that are known, the newest
// first: its tags, where trellis could list them, and what was used or inspected.
func (s *Store) TemplateVersions(ctx context.Context, org uuid.UUID, repo string) ([]TemplateVersion, error) {
	found, err := rows[TemplateVersion](ctx, s, "list the template's versions", `
		SELECT v.version, max(v.commit) AS commit, bool_or(v.tag) AS tag, max(v.used_at) AS used_at FROM (
		  SELECT t.item ->> 'tag' AS version, t.item ->> 'commit' AS commit, true AS tag, NULL::timestamptz AS used_at
		  FROM public.template_tags r, jsonb_array_elements(r.tags) t (item) WHERE r.org_id = $1 AND r.repo = $2
		  UNION ALL SELECT p.version, p.commit, false, p.first_used_at FROM public.template_pins p WHERE p.org_id = $1 AND p.repo = $2
		  UNION ALL SELECT p.version, p.commit, false, p.first_used_at
		  FROM public.clusters c JOIN public.cluster_pins p ON p.cluster_id = c.id WHERE c.org_id = $1 AND p.repo = $2
		  UNION ALL SELECT i.version, i.commit, false, NULL FROM public.template_inspections i WHERE i.org_id = $1 AND i.repo = $2
		) v GROUP BY v.version`, org, canonical.Address(repo))
	slices.SortFunc(found, func(a, b TemplateVersion) int { return compareVersions(b.Version, a.Version) })
	return found, err
}

// compareVersions orders tags as people number them; what has no number comes
// before what has.
func compareVersions(a, b string) int {
	if order := semver.Compare(semantic(a), semantic(b)); order != 0 {
		return order
	}
	return strings.Compare(a, b)
}

// semantic is a tag as semver wants it: v1.2.3.
func semantic(tag string) string {
	if i := strings.LastIndexByte(tag, '/'); i >= 0 { // module/v1.2.3
		tag = tag[i+1:]
	}
	if !strings.HasPrefix(tag, "v") {
		tag = "v" + tag
	}
	return tag
}

// WantedInspection is one that this process has been given.
type WantedInspection struct {
	Org                          uuid.UUID
	Repo, Version, Path, Address string
	// Pinned is the commit that the version meant when it was first used; "" where
	// it never was.
	Pinned string
	lease  uuid.UUID
}

// ClaimInspection gives this process an inspection to make, for so long. It acts
// as the database's owner; false where there is nothing to do.
func (d *Database) ClaimInspection(ctx context.Context, lease time.Duration) (w WantedInspection, ok bool, err error) {
	w.lease = uuid.New()
	err = d.OwnerAsks(ctx, "look for templates to inspect",
		"SELECT org_id, repo, version, path, address, coalesce(pinned_commit, '') FROM tendril.claim_inspection($1, make_interval(secs => $2))",
		[]any{w.lease, lease.Seconds()}, &w.Org, &w.Repo, &w.Version, &w.Path, &w.Address, &w.Pinned)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, false, nil
	}
	return w, err == nil, err
}

// InspectionResult is what came of an inspection: variables, or a problem.
type InspectionResult struct {
	Commit    string
	Variables []provision.Variable // nil with a problem
	About     *provision.About
	Code      string
	Problem   string
	// Hand leaves it to an agent.
	Hand bool
}

// SettleInspection stores what came of an inspection.
func (d *Database) SettleInspection(ctx context.Context, w WantedInspection, r InspectionResult) error {
	var commit, variables, about any
	if r.Commit != "" {
		commit = r.Commit
	}
	if r.Variables != nil {
		encoded, err := json.Marshal(r.Variables)
		if err != nil {
			return err
		}
		variables = string(encoded)
	}
	if r.About != nil {
		encoded, err := json.Marshal(r.About)
		if err != nil {
			return err
		}
		about = string(encoded)
	}
	r.Problem = strings.ReplaceAll(r.Problem, "\x00", "\uFFFD") // it may have a server's words
	return d.OwnerDoes(ctx, "store what a template declares", "SELECT tendril.settle_inspection($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8, $9, $10, $11::text::jsonb)",
		w.Org, w.Repo, w.Version, w.Path, w.lease, commit, variables, r.Code, r.Problem, r.Hand, about)
}

// Tag is a tag of a repository.
type Tag struct {
	Tag    string `json:"tag"`
	Commit string `json:"commit"`
}

// NewestTags are as many of a repository's tags as are stored, the newest first. A
// repository may have a hundred thousand, and a hostile server names that git has
// not, with a NUL that no database takes.
func NewestTags(tags []Tag) []Tag {
	const most, longest = 500, 255
	tags = slices.DeleteFunc(tags, func(t Tag) bool { return len(t.Tag) > longest || strings.ContainsFunc(t.Tag, unicode.IsControl) })
	slices.SortFunc(tags, func(a, b Tag) int { return compareVersions(b.Tag, a.Tag) })
	return tags[:min(len(tags), most)]
}

// RecordTags stores which tags a repository has, the newest of them.
func (d *Database) RecordTags(ctx context.Context, w WantedInspection, tags []Tag) error {
	encoded, err := json.Marshal(NewestTags(tags))
	if err != nil {
		return err
	}
	return d.OwnerDoes(ctx, "store a template's tags", "SELECT tendril.record_tags($1, $2, $3::text::jsonb)", w.Org, w.Repo, string(encoded))
}

// HandInspections queues the inspections that agents are to make, and says how
// many.
func (d *Database) HandInspections(ctx context.Context) (handed int, err error) {
	err = d.OwnerAsks(ctx, "hand inspections to agents", "SELECT tendril.hand_inspections()", nil, &handed)
	return handed, err
}
