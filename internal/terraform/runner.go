package terraform

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2/hclwrite"
	tfjson "github.com/hashicorp/terraform-json"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/cgroup"
	"github.com/tendril-run/tendril/internal/provision"
)

// Options say where and how a Runner runs its engine.
type Options struct {
	// Dir is the root module. Plan and apply must use the same one: the path
	// of a local state and the values of path.cwd depend on it.
	Dir string
	// Env is the engine's whole environment, "KEY=value"; nothing is inherited.
	// Those that change what a command does (TF_VAR_*, TF_CLI_ARGS*, TF_LOG*,
	// TF_INPUT, TF_WORKSPACE ...) are dropped.
	Env []string
	// Stdout and Stderr receive readable lines as they happen, one line or
	// message a call, never two calls at once. Nil discards.
	Stdout, Stderr io.Writer
	// KillAfter is how long after the interrupt the engine alone gets SIGKILL.
	// 0 means never, which is right for a caller that ends the process tree.
	KillAfter time.Duration
	// Stragglers, if set, is called once when the engine has ended and, two
	// seconds later, another process still holds its output. Until the caller
	// ends that process, the call does not return.
	Stragglers func()
	// Confine, if set, is called before each command on the thread that starts
	// the engine, and that ends with it: what it changes there the engine
	// inherits, and nothing else does.
	Confine func() error
	// State, if set, is called before each command and says what its environment has
	// in addition, so that it reaches the state; end is called when it has ended.
	State func(StateUse) (env map[string]string, end func())
	// Hide, if set, hides secrets in a text. It is asked before a text is cut
	// short, for half a secret is recognised by nobody.
	Hide func(string) string
	// Ended, if set, is called after each command, with its name and when it began.
	Ended func(name string, began time.Time)
	// Pieces, if set, takes what one provisioner prints and writes it to out,
	// with the name before each line: a secret may continue in its next event.
	Pieces func(name string, out io.Writer) Pieces
}

// Pieces takes the events of one provisioner, each a line or a piece of one.
type Pieces interface {
	Piece(text string)
	// Close writes what is left: the provisioner has ended.
	Close()
}

// StateUse is what a command does with the state.
type StateUse int

// The uses, each with the ones before it.
const (
	ReadsState StateUse = iota
	LocksState
	WritesState
)

// Runner runs one engine in one directory, a command at a time.
type Runner struct {
	engine     Engine
	dir        string
	env        map[string]string
	out        *output
	killAfter  time.Duration
	stragglers func()
	confine    func() error
	state      func(StateUse) (map[string]string, func())
	hide       hiding
	pieces     func(string, io.Writer) Pieces
	ended      func(string, time.Time)
	memory     cgroup.Memory
	plan       planText // what Plan has kept back
}

// New returns a Runner for the engine that Locate found.
func New(engine Engine, opts Options) (*Runner, error) {
	known, err := version.NewVersion(engine.Version)
	if err != nil {
		return nil, fmt.Errorf("version of the engine %s: %w", engine.Path, err)
	}
	if known.Core().LessThan(oldest) {
		return nil, provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
			"%s %s at %s is too old: it does not report an apply in a form that programs read. Install %s or newer.",
			engine.Kind, engine.Version, engine.Path, oldest), nil)
	}
	return newRunner(engine, opts)
}

// oldest is the first version with all that is used here: apply -json, and plan with
// -refresh-only and -replace.
var oldest = version.Must(version.NewVersion("0.15.4"))

func newRunner(engine Engine, opts Options) (*Runner, error) {
	if !filepath.IsAbs(engine.Path) {
		return nil, fmt.Errorf("engine path %q is not absolute", engine.Path)
	}
	if info, err := os.Stat(opts.Dir); err != nil {
		return nil, fmt.Errorf("open the template's directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("open the template's directory: %s is not a directory", opts.Dir)
	}
	return &Runner{
		hide:       opts.Hide,
		pieces:     opts.Pieces,
		state:      opts.State,
		engine:     engine,
		dir:        opts.Dir,
		env:        engineEnv(opts.Env),
		out:        newOutput(opts.Stdout, opts.Stderr),
		killAfter:  opts.KillAfter,
		stragglers: opts.Stragglers,
		confine:    opts.Confine,
		ended:      opts.Ended,
		memory:     cgroup.Own(),
	}, nil
}

// InitOptions belong to Init.
type InitOptions struct {
	// BackendConfig completes a partial backend. It reaches the engine in a
	// file that only this user can read, never in an argument.
	BackendConfig map[string]string
	// KillAfter is the Runner's, for this command; 0 takes the Runner's.
	KillAfter time.Duration
	// Env is the Runner's, for this command; nil takes the Runner's.
	Env []string
}

// Init prepares the directory. A lock file that is there already is obeyed: it
// may gain checksums of this platform, and Init fails if the engine had to
// change it otherwise. So the directory must hold the checkout and nothing from
// an earlier run. A backend recorded by an earlier init is replaced
// (-reconfigure), never migrated. Fails with CodeInitFailed.
func (r *Runner) Init(ctx context.Context, opts InitOptions) error {
	lock, err := r.readProviderLock()
	if err != nil {
		return err
	}
	args := []string{"-input=false", "-reconfigure"}
	if len(opts.BackendConfig) > 0 {
		file, err := writeBackendConfig(opts.BackendConfig)
		if err != nil {
			return err
		}
		defer os.Remove(file) //nolint:errcheck // a leftover in the private temporary directory does no harm
		argument, err := r.asBackendConfig(file)
		if err != nil {
			return err
		}
		args = append(args, "-backend-config="+argument)
	}
	err = r.initCommand("init", opts).do(ctx, args...)
	if err != nil && !errors.Is(err, ErrOutput) {
		return err
	}
	if refused := lock.check(r); refused != nil {
		return refused
	}
	return err
}

// Get fetches the modules that a configuration names, and does nothing else of
// what Init does: no backend and no provider is asked anything. An Init after it
// finds them there. Fails with CodeInitFailed.
func (r *Runner) Get(ctx context.Context, opts InitOptions) error {
	return r.initCommand("get", opts).do(ctx)
}

// initCommand is one of those that prepare the directory.
func (r *Runner) initCommand(name string, opts InitOptions) *command {
	run := r.command(name, provision.CodeInitFailed)
	if opts.Env != nil {
		run.env = engineEnv(opts.Env)
	}
	run.env, run.killAfter = alone(run.env), cmp.Or(opts.KillAfter, r.killAfter)
	run.print()
	return run
}

// PlanOptions belong to Plan.
type PlanOptions struct {
	VarFiles []string // tfvars files, of which a later one beats those before

	Out     string // where the plan is saved
	Destroy bool   // plan to destroy everything
	// RefreshOnly plans to record what changed outside Terraform.
	RefreshOnly bool
	// Targets limit the plan to these addresses and what they depend on, and
	// Replace has these resources replaced. The engine refuses what is no
	// address, and Replace unless it plans neither a destroy nor a refresh.
	Targets, Replace []string
	// LockTimeout is how long to wait for somebody else's state lock.
	LockTimeout time.Duration
	// Refreshing hears how many resources the engine has begun to look at. It
	// must be quick. May be nil.
	Refreshing func(resources int)
	// KeepText keeps what the engine prints of the plan until PrintPlan, also
	// where it fails.
	KeepText bool
}

// Plan makes a plan and reports whether it would change anything, outputs
// included. Fails with CodePlanFailed or CodeStateLocked.
func (r *Runner) Plan(ctx context.Context, opts PlanOptions) (changes bool, err error) {
	args := []string{"-input=false", "-detailed-exitcode", "-out=" + opts.Out, "-lock-timeout=" + opts.LockTimeout.String()}
	if opts.Destroy {
		args = append(args, "-destroy")
	}
	if opts.RefreshOnly {
		args = append(args, "-refresh-only")
	}
	for _, file := range opts.VarFiles {
		args = append(args, "-var-file="+file)
	}
	for _, address := range opts.Targets {
		args = append(args, "-target="+address)
	}
	for _, address := range opts.Replace {
		args = append(args, "-replace="+address)
	}
	run := r.command("plan", provision.CodePlanFailed)
	run.use, run.changesExit = LocksState, 2
	run.print()
	if opts.KeepText {
		r.plan = planText{out: r.out, dir: r.dir, most: maxPlanText}
		run.onLine = r.plan.line
	}
	run.onLine = countRefreshes(run.onLine, opts.Refreshing)
	err = run.do(ctx, args...)
	return run.changed && err == nil, err
}

// ShowPlan reads a saved plan. It holds sensitive values: nothing of it is
// written to the Runner's Stdout. Its size is the plan's and is held in memory.
func (r *Runner) ShowPlan(ctx context.Context, planFile string) (*tfjson.Plan, error) {
	return r.ShowPlanTo(ctx, planFile, nil)
}

// ShowPlanTo is ShowPlan that also writes the engine's JSON, as it is, to raw.
func (r *Runner) ShowPlanTo(ctx context.Context, planFile string, raw io.Writer) (*tfjson.Plan, error) {
	var shown bytes.Buffer
	run := r.command("show", provision.CodePlanFailed)
	run.into = &shown
	if raw != nil {
		run.into = io.MultiWriter(&shown, raw)
	}
	if err := run.do(ctx, "-json", "-no-color", planFile); err != nil {
		return nil, err
	}
	plan := new(tfjson.Plan)
	plan.UseJSONNumber(true)
	if err := json.Unmarshal(shown.Bytes(), plan); err != nil {
		return nil, fmt.Errorf("read what %s show says of the plan: %w", r.engine.Kind, err)
	}
	return plan, nil
}

// ErrOutput is in the chain of an error that says: the engine did its work,
// but what it printed could not be written. What else was returned is valid.
var ErrOutput = errors.New("cannot write the engine's output")

// reserved are the variables that change what a command does, and so are the runner's
// alone. A name that ends in * stands for all that begin so.
// See https://developer.hashicorp.com/terraform/cli/config/environment-variables.
var reserved = []string{
	"TF_CLI_ARGS*", "TF_LOG*", "TF_VAR_*", "TF_INPUT", "TF_IN_AUTOMATION", "TF_WORKSPACE",
	"TF_REATTACH_PROVIDERS", "TF_DISABLE_PLUGIN_TLS", "TF_SKIP_PROVIDER_VERIFY", "TF_APPEND_USER_AGENT",
}

func isReserved(key string) bool {
	return slices.ContainsFunc(reserved, func(name string) bool {
		prefix, all := strings.CutSuffix(name, "*")
		return key == name || all && strings.HasPrefix(key, prefix)
	})
}

// engineEnv turns the caller's list into the engine's whole environment.
func engineEnv(environ []string) map[string]string {
	env := make(map[string]string, len(environ)+1)
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && key != "" && !isReserved(key) {
			env[key] = value
		}
	}
	// Terraform warns at every command about a file that is not there.
	if file, ok := env["TF_CLI_CONFIG_FILE"]; ok {
		if _, err := os.Stat(file); err != nil {
			delete(env, "TF_CLI_CONFIG_FILE")
		}
	}
	env["CHECKPOINT_DISABLE"] = "1" // the engine must not call its vendor
	env["TF_IN_AUTOMATION"] = "1"   // no advice about what to type next
	return env
}

// alone is the environment of a command that starts no provider. Such an engine
// needs little memory and ends soon, and a third of its time goes into
// collecting garbage unless it is told not to hurry. Providers would inherit
// that and could take some times the memory they need otherwise.
func alone(env map[string]string) map[string]string {
	if _, set := env["GOGC"]; set {
		return env
	}
	env = maps.Clone(env)
	env["GOGC"] = "400"
	return env
}

// ConfigFile is the variable that names an engine's configuration, OpenTofu's as
// well.
const ConfigFile = "TF_CLI_CONFIG_FILE"

// WriteProviderMirror writes an engine configuration that takes providers from a
// mirror: a directory, or the URL of a network mirror. Direct adds the providers'
// own registries, which are out of reach otherwise; so are the directories where
// engines, and templates, keep providers by themselves.
func WriteProviderMirror(path, mirror string, direct bool) error {
	file := hclwrite.NewEmptyFile()
	installation := file.Body().AppendNewBlock("provider_installation", nil).Body()
	if filepath.IsAbs(mirror) {
		installation.AppendNewBlock("filesystem_mirror", nil).Body().SetAttributeValue("path", cty.StringVal(mirror))
	} else {
		installation.AppendNewBlock("network_mirror", nil).Body().SetAttributeValue("url", cty.StringVal(strings.TrimRight(mirror, "/")+"/"))
	}
	if direct {
		installation.AppendNewBlock("direct", nil)
	}
	if err := writeNew(path, file.Bytes()); err != nil {
		return fmt.Errorf("configure the provider mirror: %w", err)
	}
	return nil
}

// initWanted is how engines say, in the title of an error, that they do not find
// what init makes. What a template says itself is never in a title.
var initWanted = regexp.MustCompile(`^\S+ \S+ failed(?: for \S+)?(?: on .+? line \d+)?: ` +
	`(?:Backend initialization required|Initialization required|Required plugins are not installed|` +
	`Inconsistent dependency lock file|Module not installed|Module source has changed|Module version requirements have changed)`)

// WantsInit reports whether a command failed for want of an init.
func WantsInit(err error) bool {
	return err != nil && initWanted.MatchString(provision.AsFailure(err).Message)
}
