package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/secretfile"
)

const (
	databaseEnv     = "TRELLIS_DATABASE_URL"
	databaseFileEnv = "TRELLIS_DATABASE_URL_FILE"
)

// givenDatabase is the database that the person named, "" for none. It is for
// those who run one; everybody else asks a server. What the command line says
// goes before the environment.
func (a *app) givenDatabase() (string, error) {
	if a.databaseURL != "" || a.databaseURLFile != "" {
		return oneDatabase("--database-url", a.databaseURL, "--database-url-file", a.databaseURLFile)
	}
	return a.databaseOfEnvironment()
}

// databaseOfEnvironment is givenDatabase without what the command line says.
func (a *app) databaseOfEnvironment() (string, error) {
	return oneDatabase(databaseEnv, a.getenv(databaseEnv), databaseFileEnv, a.getenv(databaseFileEnv))
}

// oneDatabase is the URL as it stands, or that of the file.
func oneDatabase(from, url, fromFile, file string) (string, error) {
	switch {
	case url != "" && file != "":
		return "", wrongUsage("%s and %s: give one of them", from, fromFile)
	case file == "":
		return url, nil
	}
	text, err := secretfile.Read(file)
	if err != nil {
		return "", fmt.Errorf("%s: the file %s %w", fromFile, file, err)
	}
	// The error must not show it: it has a password in it, or is one by mistake, of
	// which nobody would know what to take out.
	url = strings.TrimSpace(text)
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") || strings.ContainsFunc(url, unicode.IsControl) {
		return "", fmt.Errorf("%s: the file %s must hold one line, postgres://USER:PASSWORD@HOST/DATABASE", fromFile, file)
	}
	return url, nil
}

// database is the URL of the one named, else of the running instance.
func (a *app) database() (string, error) {
	if url, err := a.givenDatabase(); url != "" || err != nil {
		return url, err
	}
	runtime, err := instance.ReadRuntime(a.dataDir)
	if err != nil {
		return "", fmt.Errorf("%w; or name a database with --database-url", err)
	}
	return runtime.DatabaseURL, nil
}

// databaseSource is what of the environment names the database, for messages.
func (a *app) databaseSource() string {
	if a.getenv(databaseEnv) != "" {
		return databaseEnv
	}
	return databaseFileEnv
}
