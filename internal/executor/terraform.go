package executor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"

	"github.com/tendril-run/tendril/internal/modules"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"

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
	// sealedPlan is what plan says, as the engine applies it; nil before there is one.
	sealedPlan *sealedPlan
	steps      int
	cache      *providers.Cache
	base       terraform.PlanBase
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
