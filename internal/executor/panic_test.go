package executor

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/terraform"
)

// panicking is an engine that leaves a state, and a Tendril that fails on it.
type panicking struct {
	provisioner
	run  *provisionRun
	left string
}

func (p panicking) Apply(context.Context, reporter) error {
	if err := p.run.files.kept.begin(terraform.StateHeader{Version: 4, Serial: 3, Lineage: "l"}); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.run.files.source, erroredState), []byte(p.left), 0o600); err != nil {
		return err
	}
	panic("a defect")
}

// A panic after an apply leaves the state where the next run finds it, with
// what that needs to store it.
func TestPanicLosesNoState(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]string{"a state": wholeState, "half a state": wholeState[:30], "no state": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bareRun(t)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic: this test shows nothing")
					}
				}()
				defer r.cleanUp()
				_ = r.apply(t.Context(), panicking{run: r, left: left}, 0) // panics
			}()
			_, err := os.Lstat(r.files.source)
			if stays := err == nil; stays != (left != "") {
				t.Fatalf("the checkout stays: %t, want %t", stays, left != "")
			}
			if err := r.files.rescueState(); err != nil {
				t.Fatal(err)
			}
			paths, err := r.files.kept.list()
			if err != nil || len(paths) > 0 != (left != "") {
				t.Fatalf("the next run finds %v, %v, want a state: %t", paths, err, left != "")
			}
			if began := r.files.kept.began(); left != "" && began.Lineage != "l" {
				t.Errorf("began() = %+v, want the state that the apply began from", began)
			}
		})
	}
}
