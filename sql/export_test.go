package sql

import (
	"strings"
	"testing"
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
