package scripts

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageComments holds each package to one comment of 5 to 40 lines. Test kits and
// packages of tests alone are free.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	packages := 0
	err := filepath.WalkDir("..", func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); dir != ".." && (strings.HasPrefix(name, ".") || name == "testkit" || name == "testdata" || name == "e2e" || name == "dist") {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		if problem, found := packageComment(t, files); found {
			packages++
			if problem != "" {
				t.Errorf("%s: %s", dir, problem)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 50 {
		t.Errorf("%d packages were read, want them all", packages)
	}
}

// TestPackageCommentsAreMeasured shows what the rule refuses.
func TestPackageCommentsAreMeasured(t *testing.T) {
	t.Parallel()
	line := "// It does one thing.\n"
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"five lines":       {[]string{strings.Repeat(line, 5) + "package a\n", "package a\n"}, ""},
		"forty lines":      {[]string{strings.Repeat(line, 40) + "package a\n"}, ""},
		"a block of five":  {[]string{"/*\n" + strings.Repeat("It does one thing.\n", 3) + "*/\npackage a\n"}, ""},
		"four lines":       {[]string{strings.Repeat(line, 4) + "package a\n"}, "the package comment has 4 lines, want 5 to 40"},
		"too long":         {[]string{strings.Repeat(line, 41) + "package a\n"}, "the package comment has 41 lines, want 5 to 40"},
		"in two files":     {[]string{line + "package a\n", line + "package a\n"}, "2 files have a package comment, want 1"},
		"none":             {[]string{line + "\npackage a\n"}, "0 files have a package comment, want 1"},
		"a directive only": {[]string{"//go:build linux\n\npackage a\n"}, "0 files have a package comment, want 1"},
	} {
		dir := t.TempDir()
		var files []string
		for i, text := range c.files {
			path := filepath.Join(dir, string(rune('a'+i))+".go")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			files = append(files, path)
		}
		if got, found := packageComment(t, files); got != c.want || !found {
			t.Errorf("%s: %q, %v, want %q", name, got, found, c.want)
		}
	}
	if _, found := packageComment(t, []string{"doc_test.go"}); found {
		t.Error("a package of tests alone is measured")
	}
}

// packageComment says what is wrong with the comment of the package that these files
// make; found is false if they make none but tests.
func packageComment(t *testing.T, files []string) (problem string, found bool) {
	t.Helper()
	comments, lines := 0, 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		found = true
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc != nil {
			comments++
			lines = set.Position(file.Doc.End()).Line - set.Position(file.Doc.Pos()).Line + 1
		}
	}
	switch {
	case comments != 1:
		return fmt.Sprintf("%d files have a package comment, want 1", comments), found
	case lines < 5 || lines > 40:
		return fmt.Sprintf("the package comment has %d lines, want 5 to 40", lines), found
	}
	return "", found
}
