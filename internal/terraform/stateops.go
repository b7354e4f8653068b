package terraform

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// ShowState reads the state where Init has said. It holds sensitive values:
// nothing of it is written to the Runner's Stdout. Fails with CodeStateFailed.
func (r *Runner) ShowState(ctx context.Context) (state *tfjson.State, err error) {
	run := r.command("show", provision.CodeStateFailed)
	err = run.do(ctx, nil, func(ctx context.Context, tf *tfexec.Terraform) error {
		state, err = tf.Show(ctx, tfexec.JSONNumber(true))
		return err
	})
	if err == nil && state == nil {
		err = run.interrupted(ctx)
	}
	return state, err
}

// RemoveFromState forgets resources: they go on existing. Fails with
// CodeStateFailed; those before the one that failed are forgotten then.
func (r *Runner) RemoveFromState(ctx context.Context, addresses ...string) error {
	for _, address := range addresses {
		if err := operand(address); err != nil {
			return err
		}
		if err := r.change(ctx, "state rm", func(ctx context.Context, tf *tfexec.Terraform) error {
			return tf.StateRm(ctx, address)
		}); err != nil {
			return err
		}
	}
	return nil
}

// MoveInState records a resource under another address. Fails with
// CodeStateFailed.
func (r *Runner) MoveInState(ctx context.Context, from, to string) error {
	for _, address := range []string{from, to} {
		if err := operand(address); err != nil {
			return err
		}
	}
	return r.change(ctx, "state mv", func(ctx context.Context, tf *tfexec.Terraform) error { return tf.StateMv(ctx, from, to) })
}

// Import records something that exists, by its provider's id, under an address
// of the configuration. Fails with CodeStateFailed.
func (r *Runner) Import(ctx context.Context, address, id string, varFiles ...string) error {
	for _, text := range []string{address, id} {
		if err := operand(text); err != nil {
			return err
		}
	}
	var options []tfexec.ImportOption
	for _, file := range varFiles {
		options = append(options, tfexec.VarFile(file))
	}
	return r.change(ctx, "import", func(ctx context.Context, tf *tfexec.Terraform) error { return tf.Import(ctx, address, id, options...) })
}

// Unlock releases the state's lock of that id, whoever holds it. Fails with
// CodeStateFailed.
func (r *Runner) Unlock(ctx context.Context, lockID string) error {
	if err := operand(lockID); err != nil {
		return err
	}
	return r.change(ctx, "force-unlock", func(ctx context.Context, tf *tfexec.Terraform) error { return tf.ForceUnlock(ctx, lockID) })
}

func (r *Runner) change(ctx context.Context, name string, call func(context.Context, *tfexec.Terraform) error) error {
	run := r.command(name, provision.CodeStateFailed)
	run.use = WritesState
	return run.do(ctx, r.out.stdout(), call)
}

// operand refuses what the engine would take for an option.
func operand(text string) error {
	if text == "" || strings.HasPrefix(text, "-") {
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("%q is neither an address nor an id", text), nil)
	}
	return nil
}

// Recorded lists the managed resources of a state, as Resources does.
func Recorded(state *tfjson.State) []provision.Resource {
	exist := make(map[string]provision.Resource)
	if state.Values != nil {
		addResources(exist, state.Values.RootModule)
	}
	return sortedResources(exist)
}

// SensitiveInState returns what a state knows of values that must not be shown,
// as SensitiveValues does for a plan.
func SensitiveInState(state *tfjson.State) []string {
	found := make(secretSet)
	if state.Values == nil {
		return nil
	}
	for _, output := range state.Values.Outputs {
		if output != nil && output.Sensitive {
			found.add(output.Value)
		}
	}
	found.addModule(state.Values.RootModule)
	return found.sorted()
}
