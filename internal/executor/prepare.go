package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Prepare implements provisioner.
func (t *terraformRun) Prepare(ctx context.Context) error {
	if err := t.setTornAside(); err != nil {
		return err
	}
	if err := t.makeErroredState(); err != nil {
		return err
	}
	if t.reused = t.note.take(time.Now()) && !t.run.session.unsaved; t.reused {
		t.run.log.System("Template, engine and backend are those of the last run, and so is what %s init made.", t.kind())
		return t.cache.Reuse()
	}
	return t.init(ctx)
}

// init fetches modules and providers and records the backend, beginning with
// nothing: modules' sources may be mutable, and what the engine believes of a
// record may not be of its own making. The links to providers stay, for init
// verifies them.
func (t *terraformRun) init(ctx context.Context) error {
	for _, name := range []string{modulesName, backendRecord, selectedWorkspace} {
		if err := removeAll(filepath.Join(t.run.files.data, name)); err != nil {
			return fmt.Errorf("clear the work directory: %w", err)
		}
	}
	began := time.Now()
	lock, lockErr := providers.ReadLock(t.dir)
	// Modules may be private. No code of the template runs during init.
	env, done, err := t.run.source.Lend(ctx, t.environment(), t.run.gitHelper, t.run.files.temp)
	if err != nil {
		return err
	}
	defer done()
	err = t.whatEngineSaid(t.cache.Init(ctx, func(ctx context.Context) error {
		return t.runner.Init(ctx, terraform.InitOptions{BackendConfig: t.backend.config, KillAfter: t.run.job.Settings.CancelGrace, Env: env})
	}))
	if err != nil || lockErr != nil && !errors.Is(lockErr, os.ErrNotExist) || !t.repeatable(lock) {
		t.note.of = ""
	}
	t.note.made, t.note.since = whatInitMade(t.note.data), began
	return err
}
