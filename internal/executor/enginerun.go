package executor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/terraform"
)

// engineRun is the engine of a run with the template that it runs: what all of its
// commands share.
type engineRun struct {
	given
	engine  terraform.Engine
	runner  *terraform.Runner
	backend backend
	cache   *providers.Cache
	// credentials are what the engine's environment has of the workspace's.
	credentials []string
	modules     templateModules
}

// configureEngine has the engine use the agent's provider mirror, if it has one.
// The template can write where the file is, so it is written before each init.
func (e *engineRun) configureEngine() error {
	from := e.job.Settings.Engine
	if from.ProviderMirror == "" {
		return nil
	}
	return terraform.WriteProviderMirror(e.files.engineConfig, from.ProviderMirror, from.ProviderDirect)
}

// asStore is how the provider store is written to, see providers.Options.
func (e *engineRun) asStore() func(func() error) error {
	if e.id == nil {
		return nil
	}
	return e.id.AsCache
}

// dataVariable tells an engine where its data is.
const dataVariable = "TF_DATA_DIR="

// EngineMark is how an entry of the environment begins of a work directory's engine, and
// of all that it has started.
func EngineMark(work string) string { return dataVariable + work + string(filepath.Separator) }

// environment is this process's own, which the agent has scrubbed, with the
// workspace's credentials and what belongs to the run.
func (e *engineRun) environment() []string {
	own := []string{dataVariable + e.files.data, "TMPDIR=" + e.files.temp}
	if e.job.Settings.Engine.ProviderMirror != "" {
		own = append(own, terraform.ConfigFile+"="+e.files.engineConfig)
	}
	return slices.Concat(os.Environ(), e.credentials, own, e.cache.Env())
}

// whatEngineSaid passes an engine's error on, but not that its output could not
// be written: the log says so itself, and the work is done.
func whatEngineSaid(err error) error {
	if errors.Is(err, terraform.ErrOutput) {
		return nil
	}
	return err
}

// credentialsName is the directory of the workspace's credentials within that of
// the run's secrets.
const credentialsName = "credentials"

// writeCredentials writes the workspace's credentials where only this run reads them,
// and returns what the engine's environment has of them. Nothing else that runs
// here gets it.
func writeCredentials(c job.Credentials, secrets string) (environment []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		environment = append(environment, name+"="+c.Env[name])
	}
	dir := filepath.Join(secrets, credentialsName)
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
