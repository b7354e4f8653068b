package main

import (
	"cmp"
	"fmt"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
)

const databaseEnv = "TRELLIS_DATABASE_URL"

// givenDatabase is the database that the person named, "" for none. It is for
// those who run one; everybody else asks a server.
func (a *app) givenDatabase() string { return cmp.Or(a.databaseURL, a.getenv(databaseEnv)) }

// database is the URL of the one named, else of the running instance.
func (a *app) database() (string, error) {
	if url := a.givenDatabase(); url != "" {
		return url, nil
	}
	runtime, err := devstack.ReadRuntime(a.dataDir)
	if err != nil {
		return "", fmt.Errorf("%w; or name a database with --database-url", err)
	}
	return runtime.DatabaseURL, nil
}
