package terraform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/tendril-run/tendril/internal/provision"
)

// stores reports whether what the backend holds records the same as the state
// in file. The backend's state is held in memory, up to MaxStateFile bytes, and
// never printed.
func (r *Runner) stores(ctx context.Context, file string, opts PushOptions) (bool, error) {
	pushed, err := ReadStateFile(file)
	if err != nil {
		return false, err
	}
	stored, err := r.pullState(ctx, opts)
	if err != nil {
		return false, err
	}
	return sameState(pushed, []byte(stored)), nil
}

func (r *Runner) pullState(ctx context.Context, opts PushOptions) (state string, err error) {
	run := r.command("state pull", provision.CodeStateUnsaved)
	run.out = newOutput(nil, nil)
	run.killAfter = opts.KillAfter
	limit := &limitWriter{left: MaxStateFile, exceeded: func(err error) { run.gate.interrupt(err) }}
	err = run.do(ctx, limit, func(ctx context.Context, tf *tfexec.Terraform) error {
		state, err = tf.StatePull(ctx)
		return err
	})
	if err == nil && limit.left < 0 {
		err = ErrStateTooLarge
	}
	return state, err
}

// limitWriter refuses what is more than left bytes. terraform-exec then reads
// no further, and the engine, which waits for it, is to be ended.
type limitWriter struct {
	left     int
	exceeded func(error)
}

func (l *limitWriter) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		l.exceeded(ErrStateTooLarge)
		return 0, ErrStateTooLarge
	}
	return len(p), nil
}

// sameState reports whether two whole states record the same. The serial and
// the version of the engine are whose hand it was written by. So is the
// lineage: an empty backend gives the state that is pushed to it another one.
// It keeps a state from being replaced by an unrelated one, and nothing is
// replaced here: what the one records is in the other, to the last id, so
// nothing is lost with either.
func sameState(a, b []byte) bool {
	left, err := recorded(a)
	if err != nil {
		return false
	}
	right, err := recorded(b)
	return err == nil && reflect.DeepEqual(left, right)
}

func recorded(state []byte) (map[string]any, error) {
	if _, err := ReadStateHeader(state); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(state))
	decoder.UseNumber() // an id may have more digits than a float
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	for name, value := range fields {
		if value == nil || name == "serial" || name == "lineage" || name == "terraform_version" {
			delete(fields, name)
		}
	}
	return fields, nil
}
