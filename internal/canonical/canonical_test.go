package canonical_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/tendril-run/tendril/internal/canonical"
)

// table reads one of the tables that the tests in sql read too.
func table[T any](t testing.TB, name string) (rows []T) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &rows); err != nil || len(rows) == 0 {
		t.Fatalf("%s = %d rows, %v, want some", name, len(rows), err)
	}
	return rows
}

type repositoryCase struct{ Address, Canonical, Template, Problem string }

func TestRepositories(t *testing.T) {
	t.Parallel()
	for _, c := range table[repositoryCase](t, "repositories.json") {
		r, err := canonical.ParseRepository(c.Address)
		if err != nil {
			if err.Error() != c.Problem {
				t.Errorf("ParseRepository(%q) = %v, want canonical %q or problem %q", c.Address, err, c.Canonical, c.Problem)
			}
			if got := canonical.Address(c.Address); got != c.Address {
				t.Errorf("Address(%q) = %q, want it unchanged", c.Address, got)
			}
			continue
		}
		if got := r.String(); got != c.Canonical || c.Problem != "" {
			t.Errorf("ParseRepository(%q) = %q, want canonical %q or problem %q", c.Address, got, c.Canonical, c.Problem)
		}
		if got := r.Template(""); got != c.Template {
			t.Errorf("Template of %q = %q, want %q", c.Address, got, c.Template)
		}
		if again := canonical.Address(r.String()); again != r.String() {
			t.Errorf("the canonical form %s of %q becomes %s when it is read again", r, c.Address, again)
		}
	}
}

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	for _, c := range table[struct{ Name, Problem string }](t, "workspaces.json") {
		if got := canonical.WorkspaceProblem(c.Name); got != c.Problem {
			t.Errorf("WorkspaceProblem(%q) = %q, want %q", c.Name, got, c.Problem)
		}
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, c := range table[struct{ Path, Canonical string }](t, "paths.json") {
		if got := canonical.Path(c.Path); got != c.Canonical {
			t.Errorf("Path(%q) = %q, want %q", c.Path, got, c.Canonical)
		}
	}
}

// An address that parses means the same to the next program that parses it, and
// has no escape, empty segment or user name in it that could hide something.
func FuzzParseRepository(f *testing.F) {
	for _, c := range table[repositoryCase](f, "repositories.json") {
		f.Add(c.Address)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := canonical.ParseRepository(raw)
		if err != nil {
			return
		}
		again, err := canonical.ParseRepository(r.String())
		if err != nil || again.String() != r.String() || again.Template("") != r.Template("") {
			t.Errorf("ParseRepository(%q) = %s; read again it is %s, %v", raw, r, again, err)
		}
		if canonical.Path(r.Path) != r.Path[1:] {
			t.Errorf("ParseRepository(%q) has the path %q", raw, r.Path)
		}
	})
}
