//go:build vm

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/provisioner"
)

// unwaited is a small machine that is ready once it was started.
func unwaited(h *hypervisors.Host) pool.Spec {
	spec := small(h)
	spec.Init.Wait = "none"
	return spec
}

// whole fails unless the host has exactly one machine of the id, with one disk and one seed.
func whole(ctx context.Context, t *testing.T, h *hypervisors.Host, id string) {
	t.Helper()
	want := []string{"domain", "tendril-" + id + "-seed.iso", "tendril-" + id + ".qcow2"}
	if got := left(ctx, t, h, id); !slices.Equal(got, want) {
		t.Errorf("host %s has %v, want %v", h.Name, got, want)
	}
}

var errKilled = errors.New("killed by the test")

func TestCreateIsTakenUpAfterEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"define 0", "define 100", "disk 0", "disk 100", "seed 0", "seed 100", "start 0", "start 100"} {
		t.Run(step, func(t *testing.T) {
			ctx, h := limit(t), hosts[1]
			spec := unwaited(h)
			first, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			reached := false
			progress := &recorder{t: t, at: func(id string, percent int) {
				if fmt.Sprintf("%s %d", id, percent) == step {
					reached = true
					cancel(errKilled)
				}
			}}
			d := open(t)
			t.Cleanup(func() { destroy(t, d, spec) })
			found, err := d.Create(first, spec, progress)
			if !errors.Is(err, errKilled) || !reached {
				t.Fatalf("Create = %+v, %v; want that it was killed at %s", found, err, step)
			}
			// The next one is another process, which knows the id alone.
			next := open(t)
			seen, err := next.Look(ctx, pool.Ref{ID: spec.ID, Name: spec.Name})
			switch {
			case step == "define 0":
				if !errors.Is(err, pool.ErrGone) {
					t.Errorf("Look = %+v, %v; want ErrGone", seen, err)
				}
			case err != nil || seen.Mark != spec.ID || seen.Ready || seen.Status != provisioner.StatusCreating:
				t.Errorf("Look = %+v, %v; want the machine, which is not ready", seen, err)
			}
			found, err = next.Create(ctx, spec, &recorder{t: t})
			if err != nil || !found.Ready || found.Status != provisioner.StatusRunning {
				t.Errorf("the next Create = %+v, %v", found, err)
			}
			whole(ctx, t, h, spec.ID)
			destroy(t, next, spec)
			if rest := left(ctx, t, h, spec.ID); len(rest) > 0 {
				t.Errorf("Destroy left %v", rest)
			}
		})
	}
}

// Not in parallel: it takes a daemon away from the tests that need it.
func TestDaemonThatIsKilledWhileAMachineIsMade(t *testing.T) {
	for _, step := range []string{"define 0", "disk 0", "seed 0", "start 0"} {
		t.Run(step, func(t *testing.T) {
			ctx, d, h := limit(t), open(t), hosts[2]
			spec := unwaited(h)
			progress := &recorder{t: t, at: func(id string, percent int) {
				if fmt.Sprintf("%s %d", id, percent) == step {
					if err := h.KillDaemon(ctx); err != nil {
						t.Error(err)
					}
				}
			}}
			found, err := d.Create(ctx, spec, progress)
			if !errors.Is(err, pool.ErrUnreachable) {
				t.Errorf("Create = %+v, %v; want ErrUnreachable", found, err)
			}
			if _, err := d.Look(ctx, refOf(spec)); !errors.Is(err, pool.ErrUnreachable) {
				t.Errorf("Look: %v; want ErrUnreachable and not that it is gone", err)
			}
			if err := h.StartDaemon(ctx); err != nil {
				t.Fatal(err)
			}
			found, err = createWhenBack(ctx, t, d, spec)
			if err != nil || !found.Ready {
				t.Errorf("the next Create = %+v, %v", found, err)
			}
			whole(ctx, t, h, spec.ID)
			destroy(t, d, spec)
			if rest := left(ctx, t, h, spec.ID); len(rest) > 0 {
				t.Errorf("Destroy left %v", rest)
			}
		})
	}
}

// createWhenBack creates a machine by the same driver, which asks a host that was down again
// after some seconds.
func createWhenBack(ctx context.Context, t *testing.T, d *driver, spec pool.Spec) (pool.Found, error) {
	for {
		found, err := d.Create(ctx, spec, &recorder{t: t})
		if !errors.Is(err, pool.ErrUnreachable) || ctx.Err() != nil {
			return found, err
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return found, err
		}
	}
}

// Not in parallel: it takes a daemon away from the tests that need it.
func TestHostThatHangsHoldsUpNoOther(t *testing.T) {
	ctx, h := limit(t), hosts[2]
	d := open(t)
	for _, each := range d.hosts { // the time that this test waits for the one that hangs
		each.timeout = 5 * time.Second
	}
	spec, there := unwaited(hosts[0]), unwaited(h)
	create(ctx, t, d, there)
	if err := h.Signal(ctx, stopSignal); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Signal(context.Background(), continueSignal) })

	inventory, err := d.List(ctx)
	if err != nil || len(inventory.Nodes) != 3 || !inventory.Nodes[0].Online || !inventory.Nodes[1].Online || inventory.Nodes[2].Online {
		t.Errorf("List = %+v, %v; want two of three online", inventory.Nodes, err)
	}
	if found, err := d.Look(ctx, refOf(there)); !errors.Is(err, pool.ErrUnreachable) {
		t.Errorf("Look for a machine of the host that hangs = %+v, %v", found, err)
	}
	if err := d.Destroy(ctx, refOf(there), &recorder{t: t}); !errors.Is(err, pool.ErrUnreachable) {
		t.Errorf("Destroy of a machine of the host that hangs: %v", err)
	}
	if found, _ := create(ctx, t, d, spec); !found.Ready {
		t.Errorf("Create on another host = %+v", found)
	}
	if found, err := d.Look(ctx, refOf(spec)); err != nil || found.Node != hosts[0].Name {
		t.Errorf("Look for a machine of another host = %+v, %v", found, err)
	}
	if _, err := d.Look(ctx, pool.Ref{ID: unwaited(h).ID}); !errors.Is(err, pool.ErrUnreachable) {
		t.Errorf("Look for a machine that may be on the host that hangs: %v", err)
	}
	if err := h.Signal(ctx, continueSignal); err != nil {
		t.Fatal(err)
	}
	for {
		found, err := d.Look(ctx, refOf(there))
		if err == nil && found.Status == provisioner.StatusRunning {
			break
		}
		if !errors.Is(err, pool.ErrUnreachable) || wait(ctx, 100*time.Millisecond) != nil {
			t.Fatalf("Look after the host came back = %+v, %v", found, err)
		}
	}
}

func TestMachineThatDoesNotStartIsFoundAndReported(t *testing.T) {
	t.Parallel()
	ctx, d, h := limit(t), open(t), hosts[1]
	spec := unwaited(h)
	spec.Settings = []byte(`{"cpu": "no-such-processor"}`)
	t.Cleanup(func() { destroy(t, d, spec) })
	found, err := d.Create(ctx, spec, &recorder{t: t})
	if err == nil || !strings.Contains(err.Error(), "no-such-processor") || found.Mark != spec.ID || found.Status != provisioner.StatusFailed {
		t.Fatalf("Create = %+v, %v", found, err)
	}
	if seen, err := d.Look(ctx, refOf(spec)); err != nil || seen.Mark != spec.ID || seen.Ready {
		t.Errorf("Look = %+v, %v", seen, err)
	}
	destroy(t, d, spec)
	if rest := left(ctx, t, h, spec.ID); len(rest) > 0 {
		t.Errorf("Destroy left %v", rest)
	}
}
