package executor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"

	"filippo.io/age"
	tfjson "github.com/hashicorp/terraform-json"
)

// terraformRun provisions with Terraform or OpenTofu.
type terraformRun struct {
	run     *provisionRun
	dir     string
	engine  terraform.Engine
	runner  *terraform.Runner
	backend backend
	plan    *tfjson.Plan
	steps   int
	cache   *providers.Cache
	base    terraform.PlanBase
	// dumped is a state that the engine printed as it could store it nowhere,
	// and how much of it was printed.
	dumped      []byte
	dumpedBytes int
	// credentials are what the engine's environment has of the workspace's.
	credentials []string
	// applied is what the engine said of an apply, failed whether there was one
	// that did not succeed.
	applied terraform.Applied
	failed  bool
	// exist is how many resources there were before the run; 0 where that is not
	// known.
	exist int
	// priorMasked says that what the state holds is masked.
	priorMasked bool
	// requester is to whom sensitive outputs are sealed; nil for nobody.
	requester age.Recipient
	// sealed is the file of the variables that came sealed, and ephemeral that of
	// the ephemeral ones; "" without any.
	sealed, ephemeral string
	note              initialised
	// modules is where modules may come from, and versions what they, and the
	// template, want of the engine.
	modules  modules.Policy
	versions []terraform.Constraint
	// reused says that an earlier run's init serves this one.
	reused bool
	// release lets the engine's file go.
	release func()
}

func newTerraformRun(r *provisionRun, dir string) *terraformRun {
	return &terraformRun{run: r, dir: dir}
}

func (t *terraformRun) kind() string { return t.run.kind() }

// kind is the engine that made the approved plan, else the one that the snapshot
// asks for, else the agent's: each reads files of its own.
func (r *provisionRun) kind() string {
	if r.approved != nil {
		return r.approved.Engine
	}
	return cmp.Or(r.snapshot.Terraform.Engine, r.job.Settings.Engine.Kind, terraform.Terraform)
}

// Validate implements provisioner. What is to be masked is masked from here on.
func (t *terraformRun) Validate(plain, sealed map[string]json.RawMessage) error {
	t.requester = t.run.requester()
	template, err := tfvars.Load(t.dir, t.kind())
	if err != nil {
		return err
	}
	t.run.tellVariables(template)
	rendered, err := template.Render(tfvars.Given{
		Plain: plain, Sealed: sealed, PlainSensitive: t.run.job.Settings.Policy.PlainSensitive,
	})
	if err != nil {
		return err
	}
	log := t.run.log
	log.Mask(rendered.Sensitive...)
	for _, name := range rendered.Unmaskable {
		log.System("Warning: the sensitive variable %s is shorter than %d characters and cannot be masked in this log.", name, tfvars.MinSecret)
	}
	for _, warning := range rendered.Warnings {
		log.System("Warning: %s", warning)
	}
	if err := os.WriteFile(t.run.files.vars, rendered.JSON, 0o600); err != nil {
		return fmt.Errorf("write the variables: %w", err)
	}
	if rendered.Sealed != nil {
		t.sealed = t.run.files.sealed
		if err := os.WriteFile(t.sealed, rendered.Sealed, 0o600); err != nil {
			return fmt.Errorf("write the sealed variables: %w", err)
		}
	}
	if rendered.Ephemeral != nil {
		t.ephemeral = t.run.files.ephemeral
		if err := os.WriteFile(t.ephemeral, rendered.Ephemeral, 0o600); err != nil {
			return fmt.Errorf("write the ephemeral variables: %w", err)
		}
	}
	settings := t.run.job.Settings
	if t.modules, err = modules.NewPolicy(settings.Policy, settings.Git.Hosts); err != nil {
		return provision.Fail(provision.CodeRepoRefused, "the agent's configuration: "+err.Error(), err)
	}
	if t.versions, err = t.judgeModules(); err != nil {
		return err
	}
	choose := chooseBackend
	if t.run.adopts() {
		choose = declaredBackend
	}
	if t.backend, err = choose(t.dir, t.kind(), t.run.job); err != nil {
		return err
	}
	if t.backend.managed || t.run.adopts() {
		if err := t.run.serveState(); err != nil {
			return err
		}
	}
	return t.useSaved()
}

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
		Hide:    log.MaskString,
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
	return slices.Concat(os.Environ(), t.credentials, own, t.cache.Env(), t.run.managed.environ())
}

// Plan implements provisioner.
func (t *terraformRun) Plan(ctx context.Context) (planned, error) {
	changes, err := t.makePlan(ctx)
	if t.reused && terraform.WantsInit(err) {
		t.run.log.System("What an earlier %s init made does not serve any more.", t.kind())
		if err := t.init(ctx); err != nil {
			return planned{}, err
		}
		changes, err = t.makePlan(ctx)
	}
	if err != nil {
		return planned{}, err
	}
	return t.show(ctx, changes)
}

// show reads the plan that was made, or approved.
func (t *terraformRun) show(ctx context.Context, changes bool) (_ planned, err error) {
	var raw bytes.Buffer
	err = t.unchanged(func() (err error) {
		t.plan, err = t.runner.ShowPlanTo(ctx, t.run.files.plan, t.rawPlan(&raw))
		return err
	})
	if err == nil {
		t.run.log.Mask(terraform.SensitiveValues(t.plan)...)
	}
	t.runner.PrintPlan()
	if err != nil {
		return planned{}, err
	}
	t.warnOfUnmatched()
	if t.run.operation() == provision.OperationRefresh {
		t.note.put()
		return planned{drift: terraform.Drift(t.plan)}, nil
	}
	summary := terraform.Summarise(t.plan)
	t.steps = terraform.Steps(summary)
	if changes && t.run.operation() != provision.OperationPlan {
		// An encrypted plan, which OpenTofu can make, does without.
		t.base, _ = terraform.ReadPlanBase(t.run.files.plan)
		return planned{summary: summary, changes: true, room: t.base.Room, json: raw.Bytes()}, nil
	}
	t.note.put()
	outputs, err := terraform.PlannedOutputs(t.plan)
	found := results{t.run.outputsFor(t.requester, outputs), terraform.Resources(t.plan, terraform.Applied{})}
	return planned{summary: summary, changes: changes, found: found, json: raw.Bytes()}, err
}

// rawPlan keeps the plan's JSON where a policy hook wants it.
func (t *terraformRun) rawPlan(raw *bytes.Buffer) io.Writer {
	if len(t.run.job.Settings.Policy.Hook) == 0 {
		return nil
	}
	return raw
}

func (t *terraformRun) makePlan(ctx context.Context) (changes bool, err error) {
	operation, snapshot := t.run.operation(), t.run.snapshot
	// The engine keeps the mode of a file that is there. What init has started may
	// have put a pipe in its place, which nobody would read.
	if err := errors.Join(isolation.RemoveAll(t.run.files.plan), writeNew(t.run.files.plan, nil)); err != nil {
		return false, fmt.Errorf("make the plan's file: %w", err)
	}
	t.maskRemoteState(ctx)
	progress := newQuiet(t.run.session)
	defer progress.close()
	var looking func(int)
	if t.exist > 0 {
		looking = func(at int) { progress.at(min(100, at*100/t.exist)) }
	}
	changes, err = t.runner.Plan(ctx, terraform.PlanOptions{
		VarFile: t.run.files.vars, SealedVarFile: t.sealed, Out: t.run.files.plan,
		Destroy: operation == provision.OperationDestroy, RefreshOnly: operation == provision.OperationRefresh,
		Targets: snapshot.Targets, Replace: snapshot.Replace, Refreshing: looking, KeepText: true,
	})
	if err != nil {
		t.printFailedPlan(ctx)
	}
	return changes, t.whatEngineSaid(err)
}

// printFailedPlan prints how far a plan got that failed, which some versions
// save as well.
func (t *terraformRun) printFailedPlan(ctx context.Context) {
	if info, err := os.Stat(t.run.files.plan); err == nil && info.Size() > 0 && ctx.Err() == nil {
		if plan, err := t.runner.ShowPlan(ctx, t.run.files.plan); err == nil {
			t.run.log.Mask(terraform.SensitiveValues(plan)...)
		}
	}
	t.runner.PrintPlan()
}

// warnOfUnmatched says which targets and replacements meet nothing: such a plan
// may do nothing and look as if all were well.
func (t *terraformRun) warnOfUnmatched() {
	for _, address := range terraform.Unmatched(t.plan, t.run.snapshot.Targets) {
		t.run.log.System("Warning: nothing is at the target %s.", address)
	}
	for _, address := range terraform.Unmatched(t.plan, t.run.snapshot.Replace) {
		t.run.log.System("Warning: nothing is at %s, which is to be replaced.", address)
	}
}

// Apply implements provisioner.
func (t *terraformRun) Apply(ctx context.Context, on func(provision.Event, int)) error {
	t.failed = true
	if err := t.run.files.kept.begin(t.base.State); err != nil {
		return fmt.Errorf("nothing was applied: note in %s from which state: %w", t.run.files.kept.dir, err)
	}
	applied, err := t.runner.Apply(ctx, terraform.ApplyOptions{
		PlanFile: t.run.files.plan, VarFile: t.ephemeral, Steps: t.steps,
		On: func(e terraform.Event) {
			t.run.log.Mask(e.Secrets...)
			if e.Resource != nil {
				on(*e.Resource, e.Percent())
			}
		},
	})
	t.dumped, t.dumpedBytes, applied.State = applied.State, applied.StateBytes, nil
	t.applied = applied
	if err := t.whatEngineSaid(err); err != nil {
		return t.howFar(ctx, applied, err)
	}
	t.failed = false
	t.note.put()
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

// whatEngineSaid passes an engine's error on, but not that its output could not
// be written: the log says so itself, and the work is done.
func (t *terraformRun) whatEngineSaid(err error) error {
	if errors.Is(err, terraform.ErrOutput) {
		return nil
	}
	return err
}
