package executor

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// credentialsName is the directory of the workspace's credentials within that of
// the run's secrets.
const credentialsName = "credentials"

// credentials writes the workspace's credentials where only this run reads them,
// and returns what the engine's environment has of them. Nothing else that runs
// here gets it.
func (r *provisionRun) credentials() (environment []string, err error) {
	c := r.job.Credentials
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		environment = append(environment, name+"="+c.Env[name])
	}
	dir := filepath.Join(r.files.secrets, credentialsName)
	if len(c.Files) > 0 {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a directory for the workspace's credentials: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		path := filepath.Join(dir, strings.ToLower(name))
		if err := os.WriteFile(path, []byte(c.Files[name]), 0o600); err != nil {
			return nil, fmt.Errorf("write the workspace's credentials: %w", err)
		}
		environment = append(environment, name+"="+path)
	}
	return environment, nil
}
