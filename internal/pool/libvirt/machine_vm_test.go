//go:build vm

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// open answers a driver of all hypervisors, or of those given.
func open(t *testing.T, of ...*hypervisors.Host) *driver {
	t.Helper()
	if len(of) == 0 {
		of = hosts
	}
	config := pool.Config{Name: "lab", Kind: "libvirt", Timeout: patience.For(30 * time.Second)}
	for _, h := range of {
		config.Hosts = append(config.Hosts, pool.Host{Name: h.Name, URL: h.URL()})
	}
	opened, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*driver)
}

func limit(t *testing.T) context.Context {
	ctx, cancel := patience.Context(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

var number atomic.Int64

// small is a machine of the small image, with a name of its own.
func small(node *hypervisors.Host) pool.Spec {
	return pool.Spec{
		ID: uuid.NewString(), Name: fmt.Sprintf("m%d", number.Add(1)), Workspace: "acme/" + node.Name, Node: node.Name,
		Image: "small.qcow2", Cores: 1, Memory: 160,
	}
}

func refOf(spec pool.Spec) pool.Ref { return pool.Ref{ID: spec.ID, Name: spec.Name, Node: spec.Node} }

// create makes a machine, which is destroyed with the test.
func create(ctx context.Context, t *testing.T, d *driver, spec pool.Spec) (pool.Found, *recorder) {
	t.Helper()
	progress := &recorder{t: t}
	t.Cleanup(func() { destroy(t, d, spec) })
	found, err := d.Create(ctx, spec, progress)
	if err != nil {
		t.Fatalf("Create: %v\n%s", err, progress.log())
	}
	return found, progress
}

func destroy(t *testing.T, d *driver, spec pool.Spec) {
	t.Helper()
	ctx, cancel := patience.Context(context.Background(), time.Minute)
	defer cancel()
	if err := d.Destroy(ctx, refOf(spec), &recorder{t: t}); err != nil {
		t.Errorf("Destroy: %v", err)
	}
}

// left answers what a hypervisor has of an id: domains and files.
func left(ctx context.Context, t *testing.T, h *hypervisors.Host, id string) []string {
	t.Helper()
	var found []string
	names, err := h.Virsh(ctx, "list", "--all", "--uuid")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(names) {
		if line == id {
			found = append(found, "domain")
		}
	}
	files, err := filepath.Glob(filepath.Join(h.Volumes, "*"+id+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		found = append(found, filepath.Base(file))
	}
	return found
}

func TestCreateGivesARunningMachineWithItsAddress(t *testing.T) {
	t.Parallel()
	ctx, d, h := limit(t), open(t), hosts[0]
	spec := small(h)
	spec.Disk = 2
	spec.Labels = map[string]string{"role": "</description><x/>&\x01"}
	spec.Workspace = `a"<&>b`
	began := time.Now()
	found, progress := create(ctx, t, d, spec)
	t.Logf("a machine with its address after %s", time.Since(began).Round(time.Millisecond))

	if found.Mark != spec.ID || found.ExternalID != spec.ID || found.Name != spec.Name || found.Node != h.Name ||
		found.Status != provisioner.StatusRunning || !found.Ready || found.Cores != 1 || found.Memory != 160 || found.Disk != 2 {
		t.Errorf("Create = %+v", found)
	}
	if len(found.Addresses) != 1 || !strings.HasPrefix(found.Addresses[0].String(), h.Network+".") {
		t.Errorf("its addresses are %v, want one of %s.0/24", found.Addresses, h.Network)
	}
	if !strings.Contains(progress.log(), "no usable KVM") {
		t.Errorf("the log does not say that processors are emulated:\n%s", progress.log())
	}
	if got, want := strings.Join(progress.steps, ", "), "define 0, define 100, disk 0, disk 100, seed 0, seed 100, start 0, start 100, wait 0"; !strings.HasPrefix(got, want) {
		t.Errorf("steps are %s, want first %s", got, want)
	}
	looked, err := d.Look(ctx, pool.Ref{ID: spec.ID})
	if err != nil || looked.Node != h.Name || !looked.Ready {
		t.Errorf("Look without a node = %+v, %v", looked, err)
	}
	// A second Create finds it, and makes nothing.
	again, err := d.Create(ctx, spec, &recorder{t: t})
	if err != nil || again.Addresses[0] != found.Addresses[0] {
		t.Errorf("a second Create = %+v, %v", again, err)
	}
	console := h.Console("tendril-" + spec.ID + "-console.log")
	for _, want := range []string{"GUEST name " + spec.Name, "GUEST seed /dev/vdb"} {
		if !strings.Contains(console, want) {
			t.Errorf("the console lacks %q:\n%s", want, console)
		}
	}
	inventory, err := d.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !containsAddress(inventory.Addresses, found.Addresses[0]) {
		t.Errorf("List has not the address %s: %v", found.Addresses[0], inventory.Addresses)
	}

	if err := d.Destroy(ctx, refOf(spec), &recorder{t: t}); err != nil {
		t.Fatal(err)
	}
	if rest := left(ctx, t, h, spec.ID); len(rest) > 0 {
		t.Errorf("Destroy left %v", rest)
	}
	if _, err := d.Look(ctx, refOf(spec)); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Look after Destroy: %v, want ErrGone", err)
	}
}

func containsAddress(all []netip.Addr, one netip.Addr) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}
