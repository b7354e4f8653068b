package devstack

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/templates"
)

// templatesURL is the directory of the sample repositories as a file:// URL.
// A blank is the one character that has to be escaped for those who read it.
func (o Options) templatesURL() string {
	return "file://" + strings.ReplaceAll(o.path("templates"), " ", "%20")
}

// templatePattern is the policy that allows the sample templates.
func (o Options) templatePattern() string { return o.templatesURL() + "/*" }

// publish writes the sample templates as git repositories and offers them in
// the catalogue. It returns each as "name version".
func publish(ctx context.Context, db *pgxpool.Pool, o Options, org uuid.UUID) (published []string, err error) {
	dir := o.path("templates")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // runs may have an account of their own, and read it
		return nil, fmt.Errorf("make the templates' directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // likewise, whatever the umask
		return nil, fmt.Errorf("make the templates' directory: %w", err)
	}
	for _, sample := range templates.All() {
		repo := o.templatesURL() + "/" + url.PathEscape(sample.Name) + ".git"
		pins, err := pinsOf(ctx, db, org, repo)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		version, err := commitSample(o.path("templates", sample.Name+".git"), sample.Files, pins)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		// A data directory that was moved: its workspaces' states are at the new place
		// of the same template.
		_, err = db.Exec(ctx, `
			UPDATE public.workspaces w SET repo = tendril.plain_repo($3) FROM public.templates t
			WHERE t.org_id = $1 AND t.name = $2 AND t.repo <> $3 AND w.org_id = $1 AND w.repo = tendril.plain_repo(t.repo)`,
			org, sample.Name, repo)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		_, err = db.Exec(ctx, `
			INSERT INTO public.templates (org_id, name, repo, version, description) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (org_id, name) DO UPDATE SET repo = EXCLUDED.repo, path = '', version = EXCLUDED.version, description = EXCLUDED.description`,
			org, sample.Name, repo, version, sample.Description)
		if err != nil {
			return nil, fmt.Errorf("publish the template %s: %w", sample.Name, err)
		}
		published = append(published, sample.Name+" "+version)
	}
	return published, nil
}

// pinsOf returns the commits that the versions of a repository meant when they
// were first used. They hold even when the repository itself was removed.
func pinsOf(ctx context.Context, db *pgxpool.Pool, org uuid.UUID, repo string) (map[string]string, error) {
	found, err := db.Query(ctx, `
		SELECT p.version, p.commit FROM public.clusters c JOIN public.cluster_pins p ON p.cluster_id = c.id WHERE c.org_id = $1 AND p.repo = tendril.plain_repo($2)
		UNION ALL SELECT version, commit FROM public.template_pins WHERE org_id = $1 AND repo = tendril.plain_repo($2)`, org, repo)
	if err != nil {
		return nil, err
	}
	pins := map[string]string{}
	var version, commit string
	_, err = pgx.ForEachRow(found, []any{&version, &commit}, func() error {
		pins[version] = commit
		return nil
	})
	return pins, err
}
