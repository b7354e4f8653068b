package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake makes programs that say a version.
func fake(t *testing.T, base, version string) string {
	t.Helper()
	dir := filepath.Join(base, version, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s (Debian)'\n", name, version)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindPrefersTheNewest(t *testing.T) {
	t.Parallel()
	base := newDir(t)
	v14, v15, v16, beta := fake(t, base, "14.9"), fake(t, base, "15.18"), fake(t, base, "16.2"), fake(t, base, "18beta1")
	broken := fake(t, base, "17.0")
	if err := os.WriteFile(filepath.Join(broken, "postgres"), []byte("#!/bin/sh\necho no >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		dirs  []string
		major int
		want  string
	}{
		{"newest", []string{"/nowhere", v14, v15, broken, v16}, 0, v16},
		{"beta", []string{v16, beta}, 0, beta},
		{"of the data", []string{v14, v15, v16}, 15, v15},
	} {
		got, err := find(t.Context(), c.dirs, c.major)
		if err != nil || got.dir != c.want {
			t.Errorf("find(%s) = %s, %v, want %s", c.name, got.dir, err, c.want)
		}
	}
	_, err := find(t.Context(), []string{v14, broken, v15}, 16)
	for _, want := range []string{"no PostgreSQL 16 (which the data was made with)", v14 + " is PostgreSQL 14.9, too old", "does not run (exit status 3)", v15 + " has 15.18"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("find() = %v, want it to contain %q", err, want)
		}
	}
}

// A program that somebody else could have put there is not even asked for its version.
func TestProgramsOfOthersAreNotRun(t *testing.T) {
	t.Parallel()
	base := newDir(t)
	witness := filepath.Join(base, "executed")
	spy := func(version string) string {
		dir := fake(t, base, version)
		script := fmt.Sprintf("#!/bin/sh\necho x >>%s\necho 'postgres (PostgreSQL) %s'\n", witness, version)
		if err := os.WriteFile(filepath.Join(dir, "postgres"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	directory, program := spy("16.1"), spy("16.2")
	want := []string{directory, filepath.Join(program, "postgres")}
	for _, path := range want {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	dirs := []string{directory, program}
	if os.Geteuid() == 0 {
		foreign := spy("16.3")
		if err := os.Chown(filepath.Join(foreign, "postgres"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		dirs, want = append(dirs, foreign), append(want, filepath.Join(foreign, "postgres")+" belongs to another user")
	}
	_, err := find(t.Context(), dirs, 0)
	for _, want := range want {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("find() = %v, want %s refused", err, want)
		}
	}
	if text, err := os.ReadFile(witness); err == nil {
		t.Errorf("a program that others may write to was executed: %s", text)
	}
}

func TestDataOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	v16 := fake(t, filepath.Dir(dir), "16.2")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: dir, BinDir: v16})
	if err == nil || !strings.Contains(err.Error(), "was made with PostgreSQL 15, but "+v16+" has PostgreSQL 16.2") {
		t.Errorf("Start = %v, want both versions named", err)
	}
}

func TestForeignDataIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	file := filepath.Join(dir, "data", "thesis.txt")
	if err := os.MkdirAll(filepath.Dir(file), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("four years"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), options(dir))
	if err == nil || !strings.Contains(err.Error(), "is not a PostgreSQL database") {
		t.Errorf("Start = %v, want that it is not a database", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "four years" {
		t.Errorf("the file = %q, %v", text, err)
	}
}

func TestFindOnThisMachine(t *testing.T) {
	t.Parallel()
	dir, err := Find()
	if err != nil { // then it has to say so
		if !strings.Contains(err.Error(), "no PostgreSQL 15 or newer was found") {
			t.Errorf("Find() = %v", err)
		}
		return
	}
	if found, err := inspect(t.Context(), dir); err != nil || found.major < minMajor {
		t.Errorf("inspect(%s) = %+v, %v, want version %d or newer", dir, found, err, minMajor)
	}
}
