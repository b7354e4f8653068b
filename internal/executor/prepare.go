package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Prepare implements provisioner.
func (t *terraformRun) Prepare(ctx context.Context) error {
	if err := errors.Join(t.setTornAside(), t.takeOver()); err != nil {
		return err
	}
	if err := t.makeErroredState(); err != nil {
		return err
	}
	t.maskPriorState()
	if t.reused = t.note.take(time.Now()) && !t.run.session.unsaved && t.run.plans(); t.reused {
		t.run.log.System("Template, engine and backend are those of the last run, and so is what %s init made.", t.kind())
		return t.cache.Reuse()
	}
	if t.backend.starts {
		// As before a plan: what such a command makes is for nobody else to run.
		t.run.log.System("The template's backend or encryption can start commands during %s init, which has no provider cache therefore.", t.kind())
		if err := t.run.settleIdentity(); err != nil {
			return err
		}
	}
	return t.init(ctx)
}

// maskPriorState hides what the state of the last run holds, where that is at
// hand.
func (t *terraformRun) maskPriorState() {
	var raw []byte
	switch {
	case t.run.managed != nil:
		raw = t.run.managed.State()
	case t.backend.local:
		raw, _ = terraform.ReadStateFile(t.backend.place) // init says what is wrong with it
	default:
		return
	}
	t.maskState(raw)
}

// maskRemoteState is maskPriorState for a state in a backend of the template's,
// or one that is encrypted: the engine alone has it, when init is done. That
// costs a process, and the backend's answer; but what the plan itself says of
// secrets comes when its first lines are printed. A plan will tell by itself what
// is wrong with the backend.
func (t *terraformRun) maskRemoteState(ctx context.Context) {
	if t.priorMasked || t.run.approved != nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, resultPatience)
	defer cancel()
	if raw, err := t.pullState(limited); err == nil {
		t.maskState(raw)
	}
}

// maskState hides what a state says is sensitive.
func (t *terraformRun) maskState(raw []byte) {
	state, err := terraform.ReadState(raw, nil)
	if err != nil {
		return
	}
	t.run.log.Mask(state.Secrets...)
	t.exist, t.priorMasked = len(state.Resources), true
}

// init fetches modules and providers and records the backend, beginning with
// nothing: modules' sources may be mutable, and what the engine believes of a
// record may not be of its own making. The links to providers stay, for init
// verifies them.
func (t *terraformRun) init(ctx context.Context) error {
	for _, name := range []string{modulesName, backendRecord, selectedWorkspace} {
		if err := isolation.RemoveAll(filepath.Join(t.run.files.data, name)); err != nil {
			return fmt.Errorf("clear the work directory: %w", err)
		}
	}
	if err := t.configureEngine(); err != nil {
		return err
	}
	began := time.Now()
	lock, lockErr := providers.ReadLock(t.dir)
	env, done, err := t.lend(ctx)
	if err != nil {
		return err
	}
	defer done()
	options := terraform.InitOptions{BackendConfig: t.backend.config, KillAfter: t.run.job.Settings.CancelGrace, Env: env}
	apart := env != nil && len(t.run.job.Settings.Git.Hosts) > 0 && t.initRunsCode()
	err = t.whatEngineSaid(t.cache.Init(ctx, func(ctx context.Context) error {
		if apart {
			apart = false // modules are there if init must run again
			err := t.whatEngineSaid(t.runner.Get(ctx, options))
			if done(); err != nil {
				return err
			}
			if err := t.judgeFetched(); err != nil {
				return err
			}
		}
		if err := t.runner.Init(ctx, options); err != nil && !errors.Is(err, terraform.ErrOutput) {
			return err
		}
		// Before the store gets the providers that a module has asked for.
		return t.judgeFetched()
	}))
	if err != nil || lockErr != nil && !errors.Is(lockErr, os.ErrNotExist) || !t.repeatable(lock) {
		t.note.of = ""
	}
	t.note.made, t.note.since = whatInitMade(t.note.data), began
	return err
}

// initRunsCode reports whether init may run programs that the template names, as
// a backend does to get credentials (a kubeconfig's exec, AWS's
// credential_process), and OpenTofu for the keys of an encrypted state. Modules
// are then fetched in a step of their own, so that nobody is lent anything while
// such a program runs.
func (t *terraformRun) initRunsCode() bool {
	return !t.backend.local && !t.backend.managed || t.kind() != terraform.Terraform
}

// lend gives init's git what opens private modules. No code of the template has
// run by then, unless a plan began with what an earlier init had made, which is
// so only where each module is a directory of the template: then there is
// nothing to lend for, and somebody who would take it.
func (t *terraformRun) lend(ctx context.Context) (env []string, done func(), err error) {
	if t.reused {
		return nil, func() {}, nil
	}
	return t.run.source.Lend(ctx, source.Engine{
		Environ: t.environment(), Helper: t.run.gitHelper, Temp: t.run.files.temp, Above: filepath.Dir(t.run.files.source),
	})
}
