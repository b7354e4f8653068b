package sql_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/pages"
)

func TestDeployFillsInTheRow(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	var id uuid.UUID
	var number int
	if err := w.try(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		insert := pages.Block(t, "docs/CONTRACT.md", "INSERT INTO public.provisions")
		return tx.QueryRow(t.Context(), insert, w.cluster, snapshot("team/web")).Scan(&id, &number)
	}); err != nil || number != 1 {
		t.Fatalf("the documented INSERT answers number %d, %v, want 1", number, err)
	}
	got := one[string](t, w.conn, `SELECT concat_ws(' ', p.status, p.operation, p.number, w.name, p.org_id = $2, p.requested_by = $3, w.head_id = p.id)
		FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = $1`, id, w.org, w.operator)
	if want := "QUEUED apply 1 team/web t t t"; got != want {
		t.Errorf("row = %q, want %q", got, want)
	}
	mustExec(t, w.conn, pages.Code(t, "docs/GUIDE.md", "SELECT * FROM why_waiting(id)", "id", "'"+id.String()+"'"))
}

func TestDeployTakesWorkspaceFromVariables(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.deploy(t, w.operator, `{"template_source": {"repo": "https://git.example/a/b", "version": "v1"},
		"terraform_vars": {"project_name": "acme", "environment": "prod"}}`)
	if got := one[string](t, w.conn, "SELECT w.name FROM public.workspaces w JOIN public.provisions p ON p.workspace_id = w.id WHERE p.id = $1", id); got != "acme/prod" {
		t.Errorf("workspace = %q, want acme/prod", got)
	}
}

func TestDeployNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	source := func(repo, version, path string) string {
		return fmt.Sprintf(`{"workspace": "w", "template_source": {"repo": %q, "version": %q, "path": %q}}`, repo, version, path)
	}
	const repo = "https://git.example/a/b"
	for name, test := range map[string]struct{ snapshot, want string }{
		"empty":              {`{}`, "config_snapshot.template_source: missing"},
		"not an object":      {`[]`, "config_snapshot: must be a JSON object"},
		"no repo":            {`{"workspace": "w", "template_source": {"version": "v1"}}`, "config_snapshot.template_source.repo: missing"},
		"no version":         {`{"workspace": "w", "template_source": {"repo": "https://git.example/a/b"}}`, "config_snapshot.template_source.version: missing"},
		"no workspace":       {`{"template_source": {"repo": "https://git.example/a/b", "version": "v1"}}`, "config_snapshot.workspace: missing"},
		"slash in a part":    {`{"template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform_vars": {"project_name": "a/b", "environment": "c"}}`, "config_snapshot.workspace: missing"},
		"half a workspace":   {`{"template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform_vars": {"project_name": "x"}}`, "config_snapshot.workspace: missing"},
		"unknown key":        {`{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1", "ref": "x"}}`, "config_snapshot.template_source.ref: unknown"},
		"ext":                {source("ext::sh -c id", "v1", ""), "config_snapshot.template_source.repo"},
		"http":               {source("http://git.example/a/b", "v1", ""), "config_snapshot.template_source.repo"},
		"option as repo":     {source("--upload-pack=id", "v1", ""), "config_snapshot.template_source.repo"},
		"option as host":     {source("ssh://-oProxyCommand=id/x", "v1", ""), "config_snapshot.template_source.repo"},
		"option as ssh user": {source("-oProxyCommand=id@host:x", "v1", ""), "config_snapshot.template_source.repo"},
		"relative repo":      {source("../up", "v1", ""), "config_snapshot.template_source.repo"},
		"option as version":  {source(repo, "--output=x", ""), "config_snapshot.template_source.version"},
		"ref as version":     {source(repo, "refs/heads/main", ""), "config_snapshot.template_source.version"},
		"range as version":   {source(repo, "v1..v2", ""), "config_snapshot.template_source.version"},
		"spaced version":     {source(repo, "v1 v2", ""), "config_snapshot.template_source.version"},
		"climbing path":      {source(repo, "v1", "a/../../b"), "config_snapshot.template_source.path"},
		"absolute path":      {source(repo, "v1", "/etc"), "config_snapshot.template_source.path"},
		"bad workspace":      {`{"workspace": "../x", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}}`, "config_snapshot.workspace"},
		"bad engine":         {`{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform": {"engine": "pulumi"}}`, "config_snapshot.terraform.engine"},
		"version range":      {`{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform": {"version": "~> 1.0"}}`, "config_snapshot.terraform.version"},
		"bad variable name":  {`{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform_vars": {"a b": 1}}`, "config_snapshot.terraform_vars.a b"},
		"too large":          {`{"workspace": "w", "meta": {"x": "` + strings.Repeat("x", 300_000) + `"}}`, "more than the 262144 allowed"},
	} {
		_, err := w.tryDeploy(t, w.operator, test.snapshot)
		if got := wantRefusal(t, err, "PT422", "bad_snapshot"); !strings.Contains(got, test.want) {
			t.Errorf("%s: error = %q, want it to name %q", name, got, test.want)
		}
		// What programs check before they insert is the same.
		s, err := provision.ParseSnapshot([]byte(test.snapshot))
		if err == nil {
			_, err = s.WorkspaceName()
		}
		if err == nil {
			t.Errorf("%s: ParseSnapshot accepts what the database refuses", name)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces"); got != 0 {
		t.Errorf("workspaces after refused deploys = %d, want 0", got)
	}
}

func TestDeployAcceptsUsualRepositories(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for i, repo := range []string{
		"https://git.example/a/b", "https://git.example:8443/a/b.git", "ssh://git@git.example/a/b.git",
		"ssh://git.example:22/a/b", "git@git.example:a/b.git", "file:///srv/templates/a.git",
	} {
		snapshot := fmt.Sprintf(`{"workspace": "w%d", "template_source": {"repo": %q, "version": "v1.2.0", "path": "env/prod"}, "terraform": null}`, i, repo)
		w.deploy(t, w.operator, snapshot)
		if _, err := provision.ParseSnapshot([]byte(snapshot)); err != nil {
			t.Errorf("ParseSnapshot(%s) = %v, want what the database accepts", snapshot, err)
		}
	}
}

func TestDeployHidesCredentialsInRepository(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, repo := range []string{"https://user:s3cret@git.example/a/b", "https://s3cret@git.example/a/b", "HTTPS://x:s3cret@git.example/a/b"} {
		_, err := w.tryDeploy(t, w.operator, fmt.Sprintf(`{"workspace": "w", "template_source": {"repo": %q, "version": "v1"}}`, repo))
		if got := wantRefusal(t, err, "PT422", "bad_snapshot"); strings.Contains(got, "s3cret") {
			t.Errorf("error = %q, want the secret left out", got)
		}
	}
}

// A stranger, a viewer and nobody get one answer, whether the cluster exists or not.
func TestDeployTellsStrangersNothing(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	absent := uuid.New()
	insert := func(user, cluster uuid.UUID, snapshot string) string {
		err := w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", cluster, snapshot)
			return err
		})
		return strings.ReplaceAll(wantRefusal(t, err, "PT404", "cluster_not_found"), cluster.String(), "ID")
	}
	for name, user := range map[string]uuid.UUID{"stranger": w.stranger, "viewer": w.viewer, "nobody": uuid.New()} {
		real, none := insert(user, w.cluster, snapshot("w")), insert(user, absent, snapshot("w"))
		if real != none {
			t.Errorf("%s: existing cluster %q, absent %q, want the same answer", name, real, none)
		}
		insert(user, w.cluster, `{}`) // refused for the role, before the snapshot is read
	}
}

// Nor does the work that goes before the answer, and so the time, tell of it.
func TestDeployTakesStrangersAsLong(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "SET track_functions = 'all'")
	called := func(cluster uuid.UUID) (calls string) {
		const counted = "SELECT coalesce(jsonb_object_agg(funcname, calls), '{}') FROM pg_stat_xact_user_functions WHERE funcname <> 'current_user_id'" // the planner calls that as well
		var before, after map[string]int
		w.as(t, "authenticated", w.stranger, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), counted).Scan(&before); err != nil {
				return err
			}
			err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", cluster, snapshot("w"))
				return err
			})
			wantRefusal(t, err, "PT404", "cluster_not_found")
			return tx.QueryRow(t.Context(), counted).Scan(&after)
		})
		for name := range before {
			after[name] -= before[name]
		}
		maps.DeleteFunc(after, func(_ string, n int) bool { return n == 0 })
		return fmt.Sprint(after)
	}
	if real, none := called(w.cluster), called(uuid.New()); real != none || !strings.Contains(real, "orgs_with_role") {
		t.Errorf("functions called for an existing cluster: %s, for none: %s, want the same", real, none)
	}
}

func TestDeployerCannotSetOtherColumns(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, column := range []string{"status", "attempt", "retry_of", "not_before", "approved_plan", "org_id", "workspace_id", "requested_by", "outputs", "error_code", "resolved_commit"} {
		err := w.try(t, "authenticated", w.operator, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot, "+column+") VALUES ($1, $2, NULL)", w.cluster, snapshot("w"))
			return err
		})
		wantRefusal(t, err, "42501", "")
	}
}

func TestBoundWorkspaceRefusesAnotherTemplate(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	other := strings.Replace(snapshot("web"), "envtempl", "another", 1)
	agent := w.newAgent(t, "one")

	// Nothing is bound before the template has been used: a typo may be mended.
	first := w.deploy(t, w.operator, snapshot("web"))
	second := w.deploy(t, w.operator, other)
	claim, provision := agent.mustClaim(t)
	if provision != first {
		t.Fatalf("claimed %s, want the older %s", provision, first)
	}
	agent.mustReport(t, claim, "PROCESSING", `{"commit": "`+strings.Repeat("a", 40)+`"}`)
	agent.mustReport(t, claim, "SUCCESS", `{}`)

	_, err := w.tryDeploy(t, w.operator, other)
	if got := wantRefusal(t, err, "PT409", "workspace_bound"); !strings.Contains(got, "envtempl") || !strings.Contains(got, `"web"`) {
		t.Errorf("error = %q, want it to name the workspace and its template", got)
	}
	// The one that was queued before the binding is refused when it is used.
	claim, provision = agent.mustClaim(t)
	if provision != second {
		t.Fatalf("claimed %s, want %s", provision, second)
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"commit": "`+strings.Repeat("b", 40)+`"}`), "PT409", "workspace_bound")

	for _, same := range []string{"https://git.example/acme/envtempl.git", "https://GIT.example:443/acme/envtempl/.git/"} {
		w.deploy(t, w.operator, strings.Replace(snapshot("web"), "https://git.example/acme/envtempl", same, 1))
	}
}

func TestRequestIsImmutable(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.deploy(t, w.operator, snapshot("web"))
	_, err := w.conn.Exec(t.Context(), "UPDATE public.provisions SET config_snapshot = $2 WHERE id = $1", id, snapshot("other"))
	wantRefusal(t, err, "PT409", "immutable")
}
