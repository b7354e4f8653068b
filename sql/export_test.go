package sql

import (
	"context"
	stdsql "database/sql"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// MigrationTexts is all of the migrations.
func MigrationTexts(t *testing.T) string {
	t.Helper()
	all, err := read(migrations)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, m := range all {
		b.WriteString(m.text)
	}
	return b.String()
}

// Versions lists the migrations there are, in their order.
func Versions(t *testing.T) (versions []int64) {
	t.Helper()
	all, err := read(migrations)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		versions = append(versions, m.version)
	}
	return versions
}

// FunctionTexts are the files of functions, by name.
func FunctionTexts(t testing.TB) map[string]string {
	t.Helper()
	files, err := readFunctions(functions)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[f.name] = f.text
	}
	return all
}

// FunctionNames are the functions that each file creates.
func FunctionNames(t testing.TB) map[string][]string {
	t.Helper()
	files, err := readFunctions(functions)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, f := range files {
		all[f.name] = f.names
	}
	return all
}

// ApplyFunctions is the statement that applies files of these texts.
func ApplyFunctions(t testing.TB, texts map[string]string) string {
	t.Helper()
	files := fstest.MapFS{}
	for name, text := range texts {
		files["functions/"+name+".sql"] = &fstest.MapFile{Data: []byte(text)}
	}
	all, err := readFunctions(files)
	if err != nil {
		t.Fatal(err)
	}
	return "DO $tendril$\n" + functionsBlock(all) + "$tendril$"
}

// LockToMigrate waits for the lock of Migrate, and gives it back.
func LockToMigrate(ctx context.Context, url string, wait time.Duration) error {
	db, err := stdsql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // of the test
	l := &migrationLock{db: db, wait: wait}
	if err := l.SessionLock(ctx, nil); err != nil {
		return err
	}
	return l.SessionUnlock(ctx, nil)
}
