package executor

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Locate implements provisioner.
func (t *terraformRun) Locate(ctx context.Context) (provision.Detail, error) {
	if err := t.run.session.report(provision.Detail{Stage: provision.StageEngine}); err != nil {
		return provision.Detail{}, err
	}
	log := t.run.log
	var engine terraform.Engine
	err := t.run.asCache(func() (err error) {
		engine, err = t.locate(ctx)
		return err
	})
	if err != nil {
		return provision.Detail{}, err
	}
	t.engine = engine
	if err := t.otherEngine(); err != nil {
		return provision.Detail{}, err
	}
	if err := t.run.id.CanRun(engine.Path); err != nil {
		return provision.Detail{}, provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
			"%s %s is on this agent, but the unprivileged user that runs templates may not use it (%s): let others read and execute the file and pass through the directories above it", engine.Kind, engine.Version, err), err)
	}
	store := t.run.job.Dirs.Providers
	if t.backend.starts { // what its commands may have made is for nobody else
		store = ""
	}
	t.cache = providers.New(providers.Options{
		Store: store, Private: t.run.files.providers, Template: t.dir,
		AsStore: t.asStore(), Notice: func(text string) { log.System("%s", text) },
	})
	if t.credentials, err = t.run.credentials(); err != nil {
		return provision.Detail{}, err
	}
	if err := t.configureEngine(); err != nil {
		return provision.Detail{}, err
	}
	t.runner, err = terraform.New(engine, terraform.Options{
		Dir:    t.dir,
		Env:    t.environment(),
		Stdout: log.Stream(provision.Stdout),
		Stderr: log.Stream(provision.Stderr),
		// What an engine leaves behind must not keep the run from ending.
		Stragglers: func() {
			log.System("%s has ended but processes it started still hold its output; they are killed.", engine.Kind)
			endDescendants(log)
		},
		Confine: t.run.id.Confine,
		State:   t.run.managed.grants(),
		Hide:    log.MaskString,
		Pieces:  func(name string, out io.Writer) terraform.Pieces { return log.Pieces(name, out) },
	})
	if err != nil {
		return provision.Detail{}, err
	}
	t.note = initialised{
		path: filepath.Join(t.run.job.Dirs.Work, "initialised"), data: t.run.files.data, key: t.run.job.NoteKey, of: t.mark(engine),
	}
	log.System("Using %s %s", engine.Kind, engine.Version)
	return provision.Detail{Engine: engine.Kind, EngineVersion: engine.Version, LocalState: t.backend.local}, nil
}

// locate finds the engine, and holds it: it could be removed to make room.
func (t *terraformRun) locate(ctx context.Context) (engine terraform.Engine, err error) {
	dir := t.run.job.Dirs.Engines
	for range 3 {
		engine, err = terraform.Locate(ctx, t.run.job.Settings.Engine, t.want(), dir, func(text string) { t.run.log.System("%s", text) })
		if err != nil {
			break
		}
		if release, held := engine.Hold(dir); held {
			t.release = release
			break
		}
	}
	return engine, err
}

// Close implements provisioner.
func (t *terraformRun) Close() {
	t.cache.Close()
	_ = t.sealedPlan.Close() // it was only read
	if t.release != nil {
		t.release()
	}
}

// configureEngine has the engine use the agent's provider mirror, if it has one.
// The template can write where the file is, so it is written before each init.
func (t *terraformRun) configureEngine() error {
	from := t.run.job.Settings.Engine
	if from.ProviderMirror == "" {
		return nil
	}
	return terraform.WriteProviderMirror(t.run.files.engineConfig, from.ProviderMirror, from.ProviderDirect)
}

// asStore is how the provider store is written to, see providers.Options.
func (t *terraformRun) asStore() func(func() error) error {
	if t.run.id == nil {
		return nil
	}
	return t.run.id.AsCache
}

// environment is this process's own, which the agent has scrubbed, with the
// workspace's credentials and what belongs to the run.
func (t *terraformRun) environment() []string {
	own := []string{"TF_DATA_DIR=" + t.run.files.data, "TMPDIR=" + t.run.files.temp}
	if t.run.job.Settings.Engine.ProviderMirror != "" {
		own = append(own, terraform.ConfigFile+"="+t.run.files.engineConfig)
	}
	return slices.Concat(os.Environ(), t.credentials, own, t.cache.Env())
}
