package sql_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// canonicalTable reads one of the tables that internal/canonical is tested with.
func canonicalTable[T any](t *testing.T, name string) (rows []T) {
	t.Helper()
	data, err := os.ReadFile("../internal/canonical/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &rows); err != nil || len(rows) == 0 {
		t.Fatalf("%s = %d rows, %v, want some", name, len(rows), err)
	}
	return rows
}

type repositoryCase struct{ Address, Canonical, Template, Problem string }

// canonicalRepo is what the database says of an address.
func (w *world) canonicalRepo(t *testing.T, address string) repositoryCase {
	t.Helper()
	var plain string
	var template, problem *string
	if err := w.conn.QueryRow(t.Context(), "SELECT * FROM tendril.canonical_repo($1)", address).Scan(&plain, &template, &problem); err != nil {
		t.Fatalf("canonical_repo(%q): %v", address, err)
	}
	if problem != nil {
		if plain != address || template != nil {
			t.Errorf("canonical_repo(%q) = %q, %v with the problem %q, want the address itself", address, plain, template, *problem)
		}
		return repositoryCase{Address: address, Problem: *problem}
	}
	return repositoryCase{Address: address, Canonical: plain, Template: *template + " "}
}

func TestCanonicalForms(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, c := range canonicalTable[repositoryCase](t, "repositories.json") {
		if got := w.canonicalRepo(t, c.Address); got != c {
			t.Errorf("canonical_repo(%q) = %+v, want %+v", c.Address, got, c)
		}
	}
	for _, c := range canonicalTable[struct{ Name, Problem string }](t, "workspaces.json") {
		if got := one[string](t, w.conn, "SELECT coalesce(tendril.workspace_problem($1), '')", c.Name); got != c.Problem {
			t.Errorf("workspace_problem(%q) = %q, want %q", c.Name, got, c.Problem)
		}
	}
	for _, c := range canonicalTable[struct{ Path, Canonical string }](t, "paths.json") {
		if got := one[string](t, w.conn, "SELECT tendril.plain_path($1)", c.Path); got != c.Canonical {
			t.Errorf("plain_path(%q) = %q, want %q", c.Path, got, c.Canonical)
		}
	}
}

// Whatever is made of the table's cases, the database and internal/canonical say
// the same of it.
func TestCanonicalFormsAgree(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	const seed = 15 // the same each time, for a failure must not come and go
	random := rand.New(rand.NewPCG(seed, 1))
	pieces := []string{"/", "//", "/./", "/../", ".git", ".GIT", "%20", "%2e", "%", "@", ":", ":443", ":22", "a", "A", "-", ".", "~", "/~/", "[", "]", "::", "1", "0x1", "ü", "а", "\u200b", "?", "#", " ", "https://", "ssh://"}
	mutate := func(text string) string {
		runes := []rune(text)
		for range 1 + random.IntN(3) {
			at := random.IntN(len(runes) + 1)
			end := min(len(runes), at+random.IntN(3))
			runes = append(append(append([]rune{}, runes[:at]...), []rune(pieces[random.IntN(len(pieces))])...), runes[end:]...)
		}
		return string(runes)
	}
	accepted, refused := 0, 0
	for _, c := range canonicalTable[repositoryCase](t, "repositories.json") {
		for range 20 {
			address := mutate(c.Address)
			want := repositoryCase{Address: address}
			if r, err := canonical.ParseRepository(address); err != nil {
				want.Problem = err.Error()
				refused++
			} else {
				want.Canonical, want.Template = r.String(), r.Template("")
				accepted++
			}
			if got := w.canonicalRepo(t, address); got != want {
				t.Errorf("seed %d: canonical_repo(%q) = %+v, want what ParseRepository says, %+v", seed, address, got, want)
			}
		}
	}
	if accepted < 100 || refused < 100 {
		t.Errorf("%d addresses were accepted and %d refused, so this tests little", accepted, refused)
	}
	for _, c := range canonicalTable[struct{ Name, Problem string }](t, "workspaces.json") {
		for range 20 {
			name := mutate(c.Name)
			want := canonical.WorkspaceProblem(name)
			if got := one[string](t, w.conn, "SELECT coalesce(tendril.workspace_problem($1), '')", name); got != want {
				t.Errorf("seed %d: workspace_problem(%q) = %q, want what WorkspaceProblem says, %q", seed, name, got, want)
			}
		}
	}
}

// spellings address one repository; each is deployed as it stands, or refused.
var spellings = []string{
	"https://git.example/acme/app", "https://git.example/acme/app.git", "https://git.example/acme/app/", "https://git.example/acme/app/.git", "https://git.example/acme/app.git/.git",
	"https://GIT.example/acme/app", "HTTPS://git.example/acme/app", "https://git.example:443/acme/app", "https://git.example./acme/app", "https://ada@git.example/acme/app",
	"https://git.example//acme/app", "https://git.example/./acme/app", "https://git.example/acme/%61pp", "https://git.example/acme/app%2Fx%2F..", "https://git.example/acme/ap\u0440",
	"https://git.example/Acme/App", "git@git.example:acme/app", "git@git.example:/acme/app.git", "ssh://git.example/acme/app", "ssh://git@git.example:22/acme/app", "ssh://root@git.example/acme/app",
	"ssh://git@git.example:2222/acme/app/.git", "ssh://git@git.example/~/acme/app",
}

// A template's rule holds however its repository is addressed, and a tag means
// one commit. An address that nobody can compare is refused.
func TestSpellingsDodgeNothing(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.save(t, "https://git.example/acme/app", "v1")
	mustExec(t, w.conn, "UPDATE public.templates SET approval = 'always'")
	agent := w.newAgent(t, "a")
	pinned := map[string]bool{}
	for i, repo := range spellings {
		snapshot := fmt.Sprintf(`{"workspace": "w%d", "template_source": {"repo": %q, "version": "v1"}}`, i, repo)
		id, err := w.tryDeploy(t, w.operator, snapshot)
		if err != nil {
			if got := wantRefusal(t, err, "PT422", "bad_snapshot"); !strings.Contains(got, "config_snapshot.template_source.repo: ") {
				t.Errorf("deploy of %s = %s, want it to name the repository", repo, got)
			}
			continue
		}
		if got := one[string](t, w.conn, "SELECT tendril.approval_for(p) FROM public.provisions p WHERE id = $1", id); got != "always" {
			t.Errorf("approval_for(%s) = %s, want always", repo, got)
		}
		claim, _ := agent.mustClaim(t)
		plain := one[string](t, w.conn, "SELECT tendril.plain_repo($1)", repo)
		err = agent.report(t, claim, "PROCESSING", fmt.Sprintf(`{"commit": "%040d"}`, len(pinned)+i))
		if pinned[plain] {
			wantRefusal(t, err, "PT409", "tag_moved")
		} else if err != nil {
			t.Errorf("the first commit of %s: %v", repo, err)
		}
		pinned[plain] = true
		agent.mustReport(t, claim, "FAILED", `{"error": {"code": "tag_moved", "message": "x"}}`)
	}
	if len(pinned) < 3 || len(pinned) > 6 {
		t.Errorf("the spellings are %d repositories: %v", len(pinned), pinned)
	}
}

var contract30 = pgtest.WithSetup("migration 30", olddb.At("30"))

// Rows of before are brought to the canonical form, and none is lost where two
// meet.
func TestRowsBecomeCanonical(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract30)
	w := newWorld(t, db.Conn(t))
	deploy := func(workspace, repo string) string {
		return w.deploy(t, w.operator, fmt.Sprintf(`{"workspace": %q, "template_source": {"repo": %q, "version": "v1"}}`, workspace, repo)).String()
	}
	names := map[string]string{} // by provision, what its workspace is to be called
	for _, c := range [][3]string{
		{"acme/prod", "https://git.example/a/b", "acme/prod"},
		{"acme/prod/", "https://git.example/a/b.git", "acme/prod-2"},
		{"acme/prod/.", "git@git.example:a/b", "acme/prod-3"},
		{"acme/./dev", "https://git.example/a/c", "acme/dev"},
	} {
		names[deploy(c[0], c[1])] = c[2]
	}
	mustExec(t, w.conn, "UPDATE public.workspaces SET repo = 'https://git.example/a/b/.git', path = 'x/./y' WHERE name = 'acme/prod/'")
	commit := func(digit string) string { return strings.Repeat(digit, 40) }
	for i, pin := range [][3]string{
		{"https://git.example/a/b", "v1", commit("1")}, {"https://git.example/a/b/.git", "v1", commit("2")}, {"git@git.example:a/b", "v1", commit("3")},
		{"ssh://git@git.example:22/a/b", "v1", commit("4")}, {"https://git.example/a/c/.git", "v1", commit("5")},
	} {
		mustExec(t, w.conn, "INSERT INTO public.template_pins (org_id, repo, version, commit, first_used_at) VALUES ($1, $2, $3, $4, now() - make_interval(hours => $5))", w.org, pin[0], pin[1], pin[2], i)
		mustExec(t, w.conn, "INSERT INTO public.template_tags (org_id, repo, tags) VALUES ($1, $2, '{}')", w.org, pin[0])
	}
	w.save(t, "https://git.example/a//b.git", "v1")
	mustExec(t, w.conn, "INSERT INTO public.template_inspections (org_id, repo, version, path, address, variables) VALUES ($1, 'https://git.example/a/b/.git', 'v1', '', 'x', '[]')", w.org)

	for range 2 { // the second time there is nothing to do
		if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
		for id, want := range names {
			if got := one[string](t, w.conn, "SELECT w.name || ' ' || (p.config_snapshot ->> 'workspace') FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = $1", id); got != want+" "+want {
				t.Errorf("workspace and snapshot = %s, want %s in both", got, want)
			}
		}
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE (repo, path) = ('https://git.example/a/b', 'x/y')"); got != 1 {
			t.Errorf("workspaces bound to the canonical form = %d, want 1", got)
		}
		got := one[string](t, w.conn, "SELECT string_agg(repo || ' ' || left(commit, 1), ', ' ORDER BY repo) FROM public.template_pins")
		if want := "https://git.example/a/b 2, https://git.example/a/c 5, ssh://git@git.example/a/b 4"; got != want {
			t.Errorf("pins = %s, want those that were used first, %s", got, want)
		}
		if got := one[string](t, w.conn, "SELECT string_agg(p ->> 'commit', ' ' ORDER BY p ->> 'commit') FROM public.audit_events, jsonb_array_elements(detail -> 'pins') p WHERE action = 'merge_pins'"); got != strings.Join([]string{commit("1"), commit("2"), commit("3"), commit("4")}, " ") {
			t.Errorf("the audit of merged pins has %s, want all four commits", got)
		}
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'rename_workspace'"); got != 3 {
			t.Errorf("workspaces renamed in the audit = %d, want 3", got)
		}
		if got := one[string](t, w.conn, "SELECT repo FROM public.templates"); got != "https://git.example/a/b.git" {
			t.Errorf("the template's address = %s, want one that is accepted", got)
		}
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.template_inspections WHERE repo = 'https://git.example/a/b' AND variables IS NOT NULL"); got != 1 {
			t.Errorf("inspections under the canonical form = %d, want the one that has read the template", got)
		}
	}
}
