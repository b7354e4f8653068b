package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

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
	t.note.put()
	return b, nil
}

// Origin implements stateEditor.
func (t *terraformRun) Origin() planbundle.Bundle {
	return planbundle.Bundle{Engine: t.engine.Kind, EngineVersion: t.engine.Version, State: t.backend.place}
}

func (t *terraformRun) lockFile() string { return filepath.Join(t.dir, providers.LockFileName) }

// useSaved prepares for an approved plan: with its lock file, for the engine
// applies a plan only with the providers that made it, and where the state still
// is where it was.
func (t *terraformRun) useSaved() error {
	saved := t.run.approved
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
	if saved := t.run.approved; saved != nil {
		return terraform.Want{Kind: saved.Engine, Version: saved.EngineVersion}
	}
	return terraform.Want{Kind: t.run.snapshot.Terraform.Engine, Version: t.run.snapshot.Terraform.Version, Constraints: t.versions}
}

// Recall implements provisioner.
func (t *terraformRun) Recall(ctx context.Context) (planned, error) {
	if err := t.sealBytes(t.run.approved.Plan); err != nil {
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
	saved := t.run.approved
	if saved == nil || t.engine.Kind == saved.Engine && t.engine.Version == saved.EngineVersion {
		return nil
	}
	return provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
		"The approved plan was made by %s %s, which is not on this agent; %s %s cannot apply it. Nothing was changed.",
		saved.Engine, saved.EngineVersion, t.engine.Kind, t.engine.Version), nil)
}
