//go:build metal

package ironic

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	testironic "github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// shared is the Ironic of the tests that need none of their own.
var shared *testironic.Ironic

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tendril-ironic-")
	if err == nil {
		ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
		shared, err = testironic.Run(ctx, dir, testironic.Options{Clean: true})
		cancel()
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	if shared != nil {
		shared.Kill()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// lab is an Ironic with a driver, and nodes of a class of their own.
type lab struct {
	*testironic.Ironic
	t      *testing.T
	ctx    context.Context
	driver *Driver
	names  []string
	class  string
}

// newLab enrolls nodes in the shared Ironic.
func newLab(t *testing.T, nodes int) *lab { return labOn(t, shared, nodes, shared.URL) }

func labOn(t *testing.T, i *testironic.Ironic, nodes int, url string) *lab {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	l := &lab{Ironic: i, t: t, ctx: ctx, class: "c" + uuid.NewString()[:8]}
	for n := range nodes {
		l.names = append(l.names, fmt.Sprintf("%s-n%02d", l.class, n))
	}
	if err := i.Enroll(ctx, l.names...); err != nil {
		t.Fatal(err)
	}
	for _, name := range l.names {
		if err := i.Patch(ctx, name, add("/resource_class", l.class)); err != nil {
			t.Fatal(err)
		}
	}
	l.driver = l.open(url)
	return l
}

func (l *lab) open(url string) *Driver {
	l.t.Helper()
	d, err := open(pool.Config{
		Name: "metal", Kind: "ironic", URL: url, Timeout: 20 * time.Second,
		Images: []pool.ImageSource{{Name: "debian", Source: "http://127.0.0.1/debian.raw", Checksum: "d41d8cd98f00b204e9800998ecf8427e"}},
	}, 1)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = d.Close() })
	return d
}

func (l *lab) spec(name, node string) pool.Spec {
	return pool.Spec{ID: uuid.NewString(), Name: name, Workspace: "acme/prod", Node: node, Image: "debian", Cores: 1, Memory: 1024}
}

func (l *lab) node(name string) testironic.Node {
	l.t.Helper()
	n, err := l.Node(l.ctx, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// heard is a Progress that keeps what it is told.
type heard struct {
	t       testing.TB
	mu      sync.Mutex
	ids     []string
	percent []int
	logs    []string
	begun   []pool.Found
}

func (h *heard) Step(id, label string, percent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 || h.ids[len(h.ids)-1] != id {
		h.ids = append(h.ids, id)
	}
	if label == "" {
		h.t.Errorf("the step %s has no label", id)
	}
	if n := len(h.percent); n > 0 && percent < h.percent[n-1] {
		h.t.Errorf("%s: %d %% after %d", id, percent, h.percent[n-1])
	}
	h.percent = append(h.percent, percent)
}

func (h *heard) Log(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs = append(h.logs, fmt.Sprintf(format, args...))
	h.t.Logf(format, args...)
}

func (h *heard) Secret(string) {}

func (h *heard) Begun(f pool.Found) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = append(h.begun, f)
}

// A machine is made of the server that was chosen for it, found by its mark, and given back.
func TestLifeOfAMachine(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	spec := l.spec("web", l.names[1])
	p := &heard{t: t}
	found, err := l.driver.Create(l.ctx, spec, p)
	if err != nil {
		t.Fatal(err)
	}
	n := l.node(l.names[1])
	if found.Node != l.names[1] || found.ExternalID != n.UUID || found.Mark != spec.ID || !found.Ready || found.Status != provisioner.StatusRunning {
		t.Errorf("Create = %+v of %+v", found, n)
	}
	if n.ProvisionState != "active" || n.InstanceUUID != spec.ID || n.AllocationUUID != spec.ID || n.Extra["tendril_machine"] != spec.ID || n.InstanceInfo["image_source"] != "http://127.0.0.1/debian.raw" || n.InstanceInfo["configdrive"] == nil {
		t.Errorf("the server is %+v", n)
	}
	if len(p.begun) != 1 || p.begun[0].ExternalID != n.UUID || p.begun[0].Ready {
		t.Errorf("it was told to have begun as %+v", p.begun)
	}
	if len(p.percent) == 0 || p.percent[len(p.percent)-1] != 100 {
		t.Errorf("the steps were %v with %v percent", p.ids, p.percent)
	}
	ref := pool.Ref{ID: spec.ID, Name: "web", ExternalID: found.ExternalID, Node: found.Node}
	if again, err := l.driver.Look(l.ctx, pool.Ref{ID: spec.ID, Name: "web"}); err != nil || again.ExternalID != n.UUID || again.Name != "web" {
		t.Errorf("Look = %+v, %v", again, err)
	}
	if err := l.driver.Destroy(l.ctx, ref, &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	n = l.node(l.names[1])
	if n.ProvisionState != "available" || n.InstanceUUID != "" || n.AllocationUUID != "" || len(n.Extra) > 0 || n.Maintenance {
		t.Errorf("afterwards the server is %+v", n)
	}
	if err := l.driver.Destroy(l.ctx, ref, &heard{t: t}); err != nil {
		t.Errorf("to destroy it again: %v", err)
	}
}
