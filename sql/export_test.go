package sql

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// FunctionTexts are the files of functions, by name.
func FunctionTexts(t testing.TB) map[string]string {
	t.Helper()
	names, err := fs.Glob(functions, "functions/*.sql")
	all := map[string]string{}
	for _, name := range names {
		text, readErr := functions.ReadFile(name)
		err = errors.Join(err, readErr)
		all[strings.TrimSuffix(path.Base(name), ".sql")] = string(text)
	}
	if err != nil {
		t.Fatal(err)
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

// MigrateWithin is Migrate with another limit to how long it waits for locks.
func MigrateWithin(ctx context.Context, url string, wait time.Duration) error {
	_, err := migrate(ctx, url, wait)
	return err
}
