package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// terraformRun provisions with Terraform or OpenTofu.
type terraformRun struct {
	*engineRun
	*engineState
	unstoredState
	init *engineInit
	// file is the template's tendril.hcl, and places has its machines placed.
	file   *templatefile.File
	places *places
	plan   *tfjson.Plan
	// sealedPlan is what plan says, as the engine applies it; nil before there is one.
	sealedPlan *sealedPlan
	steps      int
	// applied is what the engine said of an apply, failed whether there was one
	// that did not succeed.
	applied terraform.Applied
	failed  bool
	// exist is how many resources there were before the run; 0 where that is not
	// known.
	exist int
	// priorMasked says that what the state holds is masked.
	priorMasked bool
	// ephemeral is the file of the ephemeral variables; "" without any.
	ephemeral string
	// versions is what the template and its modules want of the engine.
	versions []terraform.Constraint
	// release lets the engine's file go.
	release func()
}

func newTerraformRun(g given, file *templatefile.File) *terraformRun {
	e := &engineRun{given: g}
	state, init := &engineState{engineRun: e}, &engineInit{engineRun: e}
	return &terraformRun{file: file, engineRun: e, engineState: state, unstoredState: unstoredState{engineState: state, init: init}, init: init}
}

// Validate implements provisioner. What is to be masked is masked from here on.
func (t *terraformRun) Validate(plain, sealed map[string]json.RawMessage) error {
	template, err := tfvars.Load(t.dir, t.kind)
	if err != nil {
		return err
	}
	t.tellVariables(template)
	given := tfvars.Given{Plain: plain, Sealed: sealed, PlainSensitive: t.job.Settings.Policy.PlainSensitive}
	rendered, err := template.Render(given)
	if err != nil {
		return err
	}
	if t.places, err = t.newPlaces(template, given); err != nil {
		return err
	}
	t.tellRendered(rendered)
	t.varFiles = []string{t.files.vars}
	if err := os.WriteFile(t.files.vars, rendered.JSON, 0o600); err != nil {
		return fmt.Errorf("write the variables: %w", err)
	}
	if rendered.Sealed != nil {
		t.varFiles = append(t.varFiles, t.files.sealed)
		if err := os.WriteFile(t.files.sealed, rendered.Sealed, 0o600); err != nil {
			return fmt.Errorf("write the sealed variables: %w", err)
		}
	}
	if rendered.Ephemeral != nil {
		t.ephemeral = t.files.ephemeral
		if err := os.WriteFile(t.ephemeral, rendered.Ephemeral, 0o600); err != nil {
			return fmt.Errorf("write the ephemeral variables: %w", err)
		}
	}
	settings := t.job.Settings
	policy, err := modules.NewPolicy(settings.Policy, settings.Git.Hosts)
	if err != nil {
		return provision.Fail(provision.CodeRepoRefused, "the agent's configuration: "+err.Error(), err)
	}
	t.modules = templateModules{policy, t.kind, t.files.source, t.dir, t.files.modules()}
	if t.versions, err = t.modules.judge(); err != nil {
		return err
	}
	choose := chooseBackend
	if t.adopts() {
		choose = declaredBackend
	}
	if t.backend, err = choose(t.dir, t.kind, t.job); err != nil {
		return err
	}
	if t.backend.managed || t.adopts() {
		if t.managed, err = serveState(t.job, t.log); err != nil {
			return err
		}
	}
	return t.useSaved()
}

// Locate implements provisioner.
func (t *terraformRun) Locate(ctx context.Context) (provision.Detail, error) {
	if err := t.session.report(provision.Detail{Stage: provision.StageEngine}); err != nil {
		return provision.Detail{}, err
	}
	log := t.log
	var engine terraform.Engine
	err := t.checkout.asCache(func() (err error) {
		if engine, err = t.locate(ctx); err == nil {
			t.init.sharedOf = t.init.sharedMark(engine)
			t.init.shared = readSharedInit(t.job.Dirs.Providers, t.init.sharedOf, t.job.NoteKey, time.Now())
		}
		return err
	})
	if err != nil {
		return provision.Detail{}, err
	}
	t.engine = engine
	if err := t.otherEngine(); err != nil {
		return provision.Detail{}, err
	}
	if err := t.id.CanRun(engine.Path); err != nil {
		return provision.Detail{}, provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
			"%s %s is on this agent, but the unprivileged user that runs templates may not use it (%s): let others read and execute the file and pass through the directories above it", engine.Kind, engine.Version, err), err)
	}
	store := t.job.Dirs.Providers
	if t.backend.starts { // what its commands may have made is for nobody else
		store = ""
	}
	t.cache = providers.New(providers.Options{
		Store: store, Private: t.files.providers, Template: t.dir,
		AsStore: t.asStore(), Notice: func(text string) { log.System("%s", text) },
	})
	if t.credentials, err = writeCredentials(t.job.Credentials, t.files.secrets); err != nil {
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
		Confine: t.id.Confine,
		State:   t.managed.grants(),
		Hide:    log.MaskString,
		Ended:   func(name string, began time.Time) { t.session.marks.ended(engine.Kind+" "+name, began) },
		Pieces:  func(name string, out io.Writer) terraform.Pieces { return log.Pieces(name, out) },
	})
	if err != nil {
		return provision.Detail{}, err
	}
	t.init.note = initialised{
		path: filepath.Join(t.job.Dirs.Work, "initialised"), data: t.files.data, key: t.job.NoteKey, of: t.init.mark(engine, t.dir),
	}
	log.System("Using %s %s", engine.Kind, engine.Version)
	return provision.Detail{Engine: engine.Kind, EngineVersion: engine.Version, LocalState: t.backend.local}, nil
}

// locate finds the engine, and holds it: it could be removed to make room.
func (t *terraformRun) locate(ctx context.Context) (engine terraform.Engine, err error) {
	dir := t.job.Dirs.Engines
	for range 3 {
		engine, err = terraform.Locate(ctx, t.job.Settings.Engine, t.want(), dir, func(text string) { t.log.System("%s", text) })
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
	t.stopServing()
	t.cache.Close()
	_ = t.sealedPlan.Close() // it was only read
	if t.release != nil {
		t.release()
	}
}

// Prepare implements provisioner.
func (t *terraformRun) Prepare(ctx context.Context) error {
	if err := errors.Join(t.setTornAside(), t.takeOver()); err != nil {
		return err
	}
	if err := t.makeErroredState(); err != nil {
		return err
	}
	t.maskPriorState()
	return t.init.prepare(ctx)
}

// maskPriorState hides what the state of the last run holds, where that is at
// hand.
func (t *terraformRun) maskPriorState() {
	var raw []byte
	switch {
	case t.managed != nil:
		raw = t.managed.State()
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
	if t.priorMasked || t.approved != nil {
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
	t.log.Mask(state.Secrets...)
	t.exist, t.priorMasked = len(state.Resources), true
}

// Plan implements provisioner.
func (t *terraformRun) Plan(ctx context.Context) (planned, error) {
	placed := ""
	// A drift check needs them, too: its plan computes the outputs, which look places up.
	if t.operation() != provision.OperationDestroy {
		var err error
		if placed, err = t.places.write(ctx); err != nil {
			return planned{}, err
		}
	}
	if placed != "" {
		t.varFiles = append(t.varFiles, placed)
	}
	changes, err := t.makePlan(ctx)
	if t.init.reused && terraform.WantsInit(err) {
		t.log.System("What an earlier %s init made does not serve any more.", t.kind)
		if err := t.init.start(ctx); err != nil {
			return planned{}, err
		}
		changes, err = t.makePlan(ctx)
	}
	if err != nil {
		return planned{}, err
	}
	if err := t.seal(); err != nil {
		return planned{}, err
	}
	return t.show(ctx, changes)
}

// show reads the plan that was made, or approved.
func (t *terraformRun) show(ctx context.Context, changes bool) (_ planned, err error) {
	var raw bytes.Buffer
	t.plan, err = t.runner.ShowPlanTo(ctx, t.sealedPlan.path(), t.rawPlan(&raw))
	endDescendants(t.log) // nothing that the template started runs while the hook judges
	if err == nil {
		t.log.Mask(terraform.SensitiveValues(t.plan)...)
	}
	t.runner.PrintPlan()
	if err != nil {
		return planned{}, err
	}
	t.warnOfUnmatched()
	if t.operation() == provision.OperationRefresh {
		t.init.note.put()
		return planned{drift: terraform.Drift(t.plan)}, nil
	}
	summary := terraform.Summarise(t.plan)
	t.steps = terraform.Steps(summary)
	if changes && t.operation() != provision.OperationPlan {
		// An encrypted plan, which OpenTofu can make, does without.
		t.base, _ = terraform.ReadPlanBase(t.sealedPlan.path())
		return planned{summary: summary, changes: true, room: t.base.Room, json: raw.Bytes()}, nil
	}
	t.init.note.put()
	outputs, err := terraform.PlannedOutputs(t.plan)
	found := results{outputs: t.outputsFor(outputs), resources: terraform.Resources(t.plan, terraform.Applied{})}
	found.machines = t.machinesIn(found.outputs, t.snapshot.Targets, found.resources)
	return planned{summary: summary, changes: changes, found: found, json: raw.Bytes()}, err
}

// rawPlan keeps the plan's JSON where a policy hook wants it.
func (t *terraformRun) rawPlan(raw *bytes.Buffer) io.Writer {
	if len(t.job.Settings.Policy.Hook) == 0 {
		return nil
	}
	return raw
}

func (t *terraformRun) makePlan(ctx context.Context) (changes bool, err error) {
	operation, snapshot := t.operation(), t.snapshot
	// The engine keeps the mode of a file that is there. What init has started may
	// have put a pipe in its place, which nobody would read.
	if err := errors.Join(isolation.RemoveAll(t.files.plan), writeNew(t.files.plan, nil)); err != nil {
		return false, fmt.Errorf("make the plan's file: %w", err)
	}
	t.maskRemoteState(ctx)
	progress := newQuiet(t.session)
	defer progress.close()
	var looking func(int)
	if t.exist > 0 {
		looking = func(at int) { progress.reach(min(100, at*100/t.exist)) }
	}
	changes, err = t.runner.Plan(ctx, terraform.PlanOptions{
		VarFiles: t.varFiles, Out: t.files.plan,
		Destroy: operation == provision.OperationDestroy, RefreshOnly: operation == provision.OperationRefresh,
		Targets: snapshot.Targets, Replace: snapshot.Replace, Refreshing: looking, KeepText: true,
	})
	if err != nil {
		t.printFailedPlan(ctx)
	}
	return changes, whatEngineSaid(err)
}

// printFailedPlan prints how far a plan got that failed, which some versions
// save as well.
func (t *terraformRun) printFailedPlan(ctx context.Context) {
	if info, err := os.Stat(t.files.plan); err == nil && info.Size() > 0 && ctx.Err() == nil {
		if plan, err := t.runner.ShowPlan(ctx, t.files.plan); err == nil {
			t.log.Mask(terraform.SensitiveValues(plan)...)
		}
	}
	t.runner.PrintPlan()
}

// warnOfUnmatched says which targets and replacements meet nothing: such a plan
// may do nothing and look as if all were well.
func (t *terraformRun) warnOfUnmatched() {
	for _, address := range terraform.Unmatched(t.plan, t.snapshot.Targets) {
		t.log.System("Warning: nothing is at the target %s.", address)
	}
	for _, address := range terraform.Unmatched(t.plan, t.snapshot.Replace) {
		t.log.System("Warning: nothing is at %s, which is to be replaced.", address)
	}
}

// seal copies the plan that the engine has saved, after ending what the template's
// programs have left running, and seals the copy.
func (t *terraformRun) seal() error {
	endDescendants(t.log)
	file, err := terraform.OpenStateFile(t.files.plan)
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	return t.sealFrom(file)
}

func (t *terraformRun) sealFrom(plan io.Reader) error {
	sealed, err := sealPlan(plan)
	if err != nil {
		return err
	}
	t.sealedPlan, sealed = sealed, t.sealedPlan
	return sealed.Close()
}

// sealBytes is sealFrom for a plan that is in memory.
func (t *terraformRun) sealBytes(plan []byte) error { return t.sealFrom(bytes.NewReader(plan)) }

// maxLockFile is more than a lock file may have to be obeyed, in bytes.
const maxLockFile = 2 << 20

// Save implements provisioner.
func (t *terraformRun) Save() (planbundle.Bundle, error) {
	b := t.Origin()
	var err error
	if b.Plan, err = t.sealedPlan.read(planbundle.MaxContent); err != nil {
		return b, fmt.Errorf("read the plan: %w", err)
	}
	// A template may do what it likes where this is.
	b.Lock, err = readBounded(t.lockFile(), maxLockFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return b, fmt.Errorf("read the lock file: %w", err)
	}
	t.init.note.put()
	return b, nil
}

func (t *terraformRun) lockFile() string { return filepath.Join(t.dir, providers.LockFileName) }

// useSaved prepares for an approved plan: with its lock file, for the engine
// applies a plan only with the providers that made it, and where the state still
// is where it was.
func (t *terraformRun) useSaved() error {
	saved := t.approved
	if saved == nil {
		return nil
	}
	if t.backend.place != saved.State {
		return planbundle.Invalid(fmt.Sprintf("the state was in %s, and is to be in %s now", saved.State, t.backend.place), nil)
	}
	if len(saved.Lock) == 0 {
		return nil
	}
	if err := os.Remove(t.lockFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the plan's lock file into the checkout: %w", err)
	}
	if err := writeNew(t.lockFile(), saved.Lock); err != nil {
		return fmt.Errorf("put the plan's lock file into the checkout: %w", err)
	}
	return nil
}

// want is the engine that the run needs: for an approved plan the one that made
// it, for no other version reads it.
func (t *terraformRun) want() terraform.Want {
	if saved := t.approved; saved != nil {
		return terraform.Want{Kind: saved.Engine, Version: saved.EngineVersion}
	}
	return terraform.Want{Kind: t.snapshot.Terraform.Engine, Version: t.snapshot.Terraform.Version, Constraints: t.versions}
}

// Recall implements provisioner.
func (t *terraformRun) Recall(ctx context.Context) (planned, error) {
	if err := t.sealBytes(t.approved.Plan); err != nil {
		return planned{}, err
	}
	return t.show(ctx, true)
}

// writeNew writes a file that is not there.
func writeNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// otherEngine fails unless the engine is the one that made the approved plan.
func (t *terraformRun) otherEngine() error {
	saved := t.approved
	if saved == nil || t.engine.Kind == saved.Engine && t.engine.Version == saved.EngineVersion {
		return nil
	}
	return provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
		"The approved plan was made by %s %s, which is not on this agent; %s %s cannot apply it. Nothing was changed.",
		saved.Engine, saved.EngineVersion, t.engine.Kind, t.engine.Version), nil)
}

// Apply implements provisioner.
func (t *terraformRun) Apply(ctx context.Context, to reporter) error {
	t.failed = true
	if err := t.files.kept.begin(t.base.State); err != nil {
		return fmt.Errorf("nothing was applied: note in %s from which state: %w", t.files.kept.dir, err)
	}
	applied, err := t.runner.Apply(ctx, terraform.ApplyOptions{
		PlanFile: t.sealedPlan.path(), VarFile: t.ephemeral, Steps: t.steps,
		On: func(e terraform.Event) {
			t.log.Mask(e.Secrets...)
			if e.Resource != nil {
				to.on(*e.Resource, e.Percent())
			}
		},
	})
	t.dumped, t.dumpedBytes, applied.State = applied.State, applied.StateBytes, nil
	t.applied = applied
	if err := whatEngineSaid(err); err != nil {
		return t.howFar(ctx, applied, err)
	}
	t.failed = false
	t.init.note.put()
	return nil
}

// howFar adds to an interrupted apply's error what had been done by then.
func (t *terraformRun) howFar(ctx context.Context, applied terraform.Applied, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return provision.Fail(provision.CodeApplyFailed, fmt.Sprintf(
		"Apply was interrupted after %d of %d steps. What was done is in the state, unless the log says otherwise; deploy again to finish.", applied.Done, applied.Total), err)
}

// Result implements provisioner.
func (t *terraformRun) Result(ctx context.Context) results {
	state, err := t.stateNow(ctx)
	if err != nil {
		// What the engine said knows no value of a sensitive output, and no
		// address of what is new.
		t.log.System("The state could not be read for what exists (%s): it is listed from what the engine said.", reason(err))
		found := results{resources: terraform.Resources(t.plan, t.applied)}
		if t.applied.Outputs != nil {
			t.runner.PrintOutputs(t.applied)
			found.outputs = t.outputsFor(t.applied.Outputs)
		}
		return found
	}
	t.log.Mask(state.Secrets...)
	if t.failed {
		return results{resources: terraform.ResourcesNow(t.plan, t.applied, state)}
	}
	t.runner.PrintOutputs(t.applied)
	outputs := t.outputsFor(terraform.OutputsNow(t.plan, state))
	return results{outputs: outputs, resources: state.Resources, machines: t.machinesIn(outputs, t.snapshot.Targets, state.Resources)}
}

// stateNow reads the state after an apply: what is kept, where it could not be
// stored.
func (t *terraformRun) stateNow(ctx context.Context) (terraform.State, error) {
	raw, err := t.raw(ctx)
	if err != nil {
		return terraform.State{}, err
	}
	state, err := terraform.ReadState(raw, t.plan)
	if err == nil || !t.backend.local && t.managed == nil || t.session.unsaved {
		return state, err
	}
	// OpenTofu may have encrypted it.
	if raw, err = t.pullState(ctx); err != nil {
		return terraform.State{}, err
	}
	return terraform.ReadState(raw, t.plan)
}
