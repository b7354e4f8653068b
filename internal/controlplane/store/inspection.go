package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/semver"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

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
	Status string `db:"status" json:"status"` // "" where nobody has asked
	// Inspected says that Variables is what that version declares; there may
	// be none. It stays while the version is looked at again.
	Inspected bool                 `db:"inspected" json:"inspected"`
	Variables []provision.Variable `db:"variables" json:"variables"`
	Commit    *string              `db:"commit" json:"commit,omitempty"`
	// By is who looked: trellis, agent, or run (a deploy of it).
	By *string    `db:"inspected_by" json:"inspected_by,omitempty"`
	At *time.Time `db:"inspected_at" json:"inspected_at,omitempty"`
	// Problem is why it could not be looked at, or why trellis leaves that to an
	// agent, for people; Reason a stable word for it. Both may be "".
	Problem string `db:"problem" json:"problem,omitempty"`
	Reason  string `db:"problem_code" json:"reason,omitempty"`
	// Number is the provision of the agent's run, where there is one.
	Number *int64 `db:"number" json:"provision,omitempty"`
}

// TemplateVariables returns what is known of a version of a template. Where
// nobody has asked for it yet, InspectTemplate does.
func (s *Store) TemplateVariables(ctx context.Context, org uuid.UUID, repo, version, path string) (Inspection, error) {
	found, err := rows[Inspection](ctx, s, "read what the template declares", `
		SELECT i.status, i.variables IS NOT NULL AS inspected, coalesce(i.variables, '[]') AS variables, i.commit, i.inspected_by, i.inspected_at,
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
	_, err := rows[struct{}](ctx, s, "pin the template", "SELECT FROM public.pin_template($1, $2, $3, $4, $5)", org, repo, tag, commit, reason)
	return err
}

// InspectTemplate has a version of a template looked at, again as well, by
// trellis where it can reach the repository and else by an agent. The person
// must be an operator.
func (s *Store) InspectTemplate(ctx context.Context, org uuid.UUID, repo, version, path string) error {
	_, err := rows[struct{}](ctx, s, "have the template inspected", "SELECT FROM public.inspect_template($1, $2, $3, $4)", org, repo, version, path)
	return err
}

// TemplateVersion is a version of a repository that is known.
type TemplateVersion struct {
	Version string  `db:"version" json:"version"`
	Commit  *string `db:"commit" json:"commit,omitempty"`
	// Tag says that the repository had it as a tag when trellis looked last.
	Tag bool `db:"tag" json:"tag"`
	// UsedAt is when the organisation used it first, if it has.
	UsedAt *time.Time `db:"used_at" json:"used_at,omitempty"`
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
