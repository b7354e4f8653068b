package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
)

// engineInit is what init makes of a template: by an earlier run in the workspace, in
// another workspace, or now.
type engineInit struct {
	*engineRun
	note initialised
	// shared is what an init made of the same in another workspace, nil for none, and
	// sharedOf what it must be of.
	shared   *sharedInit
	sharedOf string
	// reused says that an earlier run's init serves this one.
	reused bool
}

// prepare takes what an earlier init made, if it serves this run, or has init make it.
func (i *engineInit) prepare(ctx context.Context) error {
	fresh := i.fresh()
	if i.reused = i.note.take(time.Now()) && !i.session.unsaved && i.plans(); i.reused {
		i.log.System("Template, engine and backend are those of the last run, and so is what %s init made.", i.kind)
		return i.cache.Reuse()
	}
	if fresh && !i.session.unsaved && i.plans() {
		var err error
		if i.reused, err = i.takeShared(ctx); err != nil {
			return err
		}
		if i.reused {
			i.log.System("What %s init made of this template in another workspace serves here too.", i.kind)
			return nil
		}
	}
	if i.backend.starts {
		// As before a plan: what such a command makes is for nobody else to run.
		i.log.System("The template's backend or encryption can start commands during %s init, which has no provider cache therefore.", i.kind)
		if err := i.checkout.settle(); err != nil {
			return err
		}
	}
	return i.start(ctx)
}

// start fetches modules and providers and records the backend, beginning with
// nothing: modules' sources may be mutable, and what the engine believes of a
// record may not be of its own making. The links to providers stay, for init
// verifies them.
func (i *engineInit) start(ctx context.Context) error {
	if err := i.clear(); err != nil {
		return err
	}
	if err := i.configureEngine(); err != nil {
		return err
	}
	began := time.Now()
	lock, lockErr := providers.ReadLock(i.dir)
	env, done, err := i.lend(ctx)
	if err != nil {
		return err
	}
	defer done()
	options := terraform.InitOptions{BackendConfig: i.backend.config, KillAfter: i.job.Settings.CancelGrace, Env: env}
	apart := env != nil && len(i.job.Settings.Git.Hosts) > 0 && i.runsCode()
	err = whatEngineSaid(i.cache.Init(ctx, func(ctx context.Context) error {
		if apart {
			apart = false // modules are there if init must run again
			err := whatEngineSaid(i.runner.Get(ctx, options))
			if done(); err != nil {
				return err
			}
			if err := i.modules.judgeFetched(); err != nil {
				return err
			}
		}
		if err := i.runner.Init(ctx, options); err != nil && !errors.Is(err, terraform.ErrOutput) {
			return err
		}
		// Before the store gets the providers that a module has asked for.
		return i.modules.judgeFetched()
	}))
	if err != nil || lockErr != nil && !errors.Is(lockErr, os.ErrNotExist) || !i.repeatable(lock) {
		i.note.of = ""
	}
	i.note.made, i.note.since = whatInitMade(i.note.data), began
	if i.note.of != "" {
		i.share()
	}
	return err
}

// clear removes what an earlier init left, but for the links to providers.
func (i *engineInit) clear() error {
	for _, name := range []string{modulesName, backendRecord, selectedWorkspace} {
		if err := isolation.RemoveAll(filepath.Join(i.files.data, name)); err != nil {
			return fmt.Errorf("clear the work directory: %w", err)
		}
	}
	return nil
}

// runsCode reports whether init may run programs that the template names, as
// a backend does to get credentials (a kubeconfig's exec, AWS's
// credential_process), and OpenTofu for the keys of an encrypted state. Modules
// are then fetched in a step of their own, so that nobody is lent anything while
// such a program runs.
func (i *engineInit) runsCode() bool {
	return !i.backend.local && !i.backend.managed || i.kind != terraform.Terraform
}

// lend gives init's git what opens private modules. No code of the template has
// run by then, unless a plan began with what an earlier init had made, which is
// so only where each module is a directory of the template: then there is
// nothing to lend for, and somebody who would take it.
func (i *engineInit) lend(ctx context.Context) (env []string, done func(), err error) {
	if i.reused {
		return nil, func() {}, nil
	}
	return i.checkout.source.Lend(ctx, source.Engine{
		Environ: i.environment(), Helper: i.gitHelper, Temp: i.files.temp, Above: filepath.Dir(i.files.source),
	})
}

// mark is what init's work in dir depends on. A template's commit stands for its
// files.
func (i *engineInit) mark(engine terraform.Engine, dir string) string {
	text, err := json.Marshal([]any{
		i.commit, dir, engine, i.backend.config, i.backend.local, i.backend.managed, i.job.Settings.State, i.snapshot.TemplateSource,
	})
	if err != nil || len(i.job.NoteKey) == 0 || i.approved != nil { // whose lock file is not the template's
		return ""
	}
	return string(text)
}

// sharedMark is mark for any workspace, "" where init's work is this one's alone.
func (i *engineInit) sharedMark(engine terraform.Engine) string {
	within, err := filepath.Rel(i.files.source, i.dir)
	if err != nil || !i.backend.managed && !i.backend.local || len(i.backend.config) > 0 || i.backend.starts {
		return ""
	}
	return i.mark(engine, within)
}

// repeatable reports whether an init that began with the given lock file would
// come to the same if it were run again: it had to change nothing there, and
// each module is a directory of the template. Another module's source may have
// something else by then, and a template without a lock file takes the newest
// providers.
func (i *engineInit) repeatable(before providers.Lock) bool {
	after, err := providers.ReadLock(i.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) || !reflect.DeepEqual(before, after) {
		return false
	}
	manifest, err := i.modules.manifest()
	if err != nil {
		return false
	}
	for _, m := range manifest {
		if m.Source != "" && !modules.IsLocal(m.Source) {
			return false
		}
	}
	return true
}

// fresh reports whether no run has come to an init in this workspace. Where one
// has, and it does not serve, init itself puts right whatever is wrong.
func (i *engineInit) fresh() bool {
	made, err := os.ReadDir(i.files.data)
	_, noted := os.Lstat(i.note.path)
	return len(made) == 0 && (err == nil || errors.Is(err, os.ErrNotExist)) && errors.Is(noted, os.ErrNotExist)
}

// takeShared puts what an init made in another workspace where this one's would have
// put it. It reports false where init must run.
func (i *engineInit) takeShared(ctx context.Context) (bool, error) {
	if i.shared == nil {
		return false, nil
	}
	if err := i.clear(); err != nil {
		return false, err
	}
	linked, err := i.cache.Adopt(ctx, filepath.Join(i.files.data, "providers"))
	if err != nil || !linked {
		return false, err
	}
	record := i.shared.Record
	if i.backend.local {
		if record, err = moveRecord(record, i.backend.place); err != nil {
			return false, nil //nolint:nilerr // an engine that records its backend otherwise makes its own
		}
	}
	for path, text := range map[string][]byte{
		backendRecord: record, filepath.Join(modulesName, "modules.json"): i.shared.Modules,
	} {
		if text == nil {
			continue
		}
		path = filepath.Join(i.files.data, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeNew(path, text)); err != nil { //nolint:gosec // as the engine makes it
			return false, fmt.Errorf("write what init would: %w", err)
		}
	}
	i.note.made, i.note.since = whatInitMade(i.note.data), i.shared.Since
	return true, nil
}

// share keeps, for other workspaces, what an init has just left in the data
// directory. That it cannot be kept costs those an init.
func (i *engineInit) share() {
	if i.sharedOf == "" || i.shared != nil || i.cache == nil {
		return
	}
	data := i.files.data
	s := sharedInit{Since: i.note.since}
	var err error
	if s.Record, err = readOptional(filepath.Join(data, backendRecord)); err != nil {
		return
	}
	if s.Modules, err = readOptional(filepath.Join(data, modulesName, "modules.json")); err != nil {
		return
	}
	if _, err := os.Lstat(filepath.Join(data, selectedWorkspace)); err == nil || len(s.Record)+len(s.Modules) > maxSharedInit {
		return
	}
	store := func() error { return s.write(i.job.Dirs.Providers, i.sharedOf, i.job.NoteKey) }
	if as := i.asStore(); as != nil {
		_ = as(store)
	} else {
		_ = store()
	}
}
