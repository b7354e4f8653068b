package caches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Kinds are what an agent's data directory is said to hold, by the names of its
// directories, in the order in which people are told.
func Kinds() []string {
	return []string{"repos", "providers", "engines", "work", "state", "spool", "rejected", Other}
}

// Fetched reports whether what is of a kind can be fetched again, which the limit
// is on.
func Fetched(kind string) bool {
	switch kind {
	case "repos", "providers", "engines", "work":
		return true
	}
	return false
}

// Other is the kind of whatever has none.
const Other = "other"

// kindOf is the kind of what lies in a data directory under a name.
func kindOf(name string) string {
	if name == "states" {
		return "state"
	}
	for _, kind := range Kinds() {
		if name == kind {
			return kind
		}
	}
	return Other
}

// Sizes returns what each of the Kinds takes in a data directory, in bytes; what
// is known already is not looked at. What cannot be looked at counts as nothing,
// and is in the error. When ctx ends it returns what it has found until then.
func Sizes(ctx context.Context, dataDir string, known map[string]int64) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, kind := range Kinds() {
		sizes[kind] = known[kind]
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return sizes, fmt.Errorf("look through the data directory: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		kind := kindOf(entry.Name())
		if _, is := known[kind]; is {
			continue
		}
		bytes, err := Size(ctx, filepath.Join(dataDir, entry.Name()))
		sizes[kind] += bytes
		errs = append(errs, err)
	}
	return sizes, errors.Join(errs...)
}
