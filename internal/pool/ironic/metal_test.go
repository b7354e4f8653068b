//go:build metal

package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/bcrypt"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	testironic "github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// short says that continuous integration runs the tests, which has a minute and a half for them.
var short = os.Getenv("METAL_TESTS") == "short"

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

// destroy undeploys a machine at the end of a test, whatever became of it.
func (l *lab) destroy(spec pool.Spec) {
	l.t.Helper()
	if err := l.driver.Destroy(l.ctx, pool.Ref{ID: spec.ID, Name: spec.Name}, &heard{t: l.t}); err != nil {
		l.t.Error(err)
	}
}

func (l *lab) create(spec pool.Spec) pool.Found {
	l.t.Helper()
	found, err := l.driver.Create(l.ctx, spec, &heard{t: l.t})
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

// wantCode fails unless an error has the code and says all of the texts.
func wantCode(t *testing.T, err error, code provision.Code, says ...string) {
	t.Helper()
	coded, has := errors.AsType[*pool.CodeError](err)
	if !has || coded.Code != code {
		t.Errorf("the error %v has the code %v, want %s", err, coded, code)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

// The pool's nodes are its servers, with what Ironic says of each.
func TestList(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3)
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+l.names[0]+"/traits/CUSTOM_GPU", map[string]any{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+l.names[1]+"/maintenance", map[string]any{"reason": "a fan is broken"}, nil); err != nil {
		t.Fatal(err)
	}
	spec := l.spec("web", l.names[2])
	l.create(spec)
	defer l.destroy(spec)
	inventory, err := l.driver.List(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]pool.Node{}
	for _, n := range inventory.Nodes {
		nodes[n.Name] = n
	}
	free, broken, used := nodes[l.names[0]], nodes[l.names[1]], nodes[l.names[2]]
	if !free.Online || free.Cores != 8 || free.Memory != 16384 || free.Labels["CUSTOM_GPU"] != "true" || free.Labels["resource_class"] != l.class || len(free.Images) != 1 || !free.Server.Available {
		t.Errorf("a free server is %+v with %+v", free, free.Server)
	}
	if broken.Online || broken.Server.Available || !broken.Server.Maintenance || !strings.Contains(broken.Server.Reason, "a fan is broken") {
		t.Errorf("one in maintenance is %+v with %+v", broken, broken.Server)
	}
	if !used.Online || used.MemoryUsed != 1 || used.Server.Available || used.Server.InstanceUUID != spec.ID || used.Server.ProvisionState != "active" {
		t.Errorf("one in use is %+v with %+v", used, used.Server)
	}
}

// Where the server that the database has chosen was given to others meanwhile, Ironic's allocation
// chooses another; one that the template names is an error that says who has it.
func TestTakenByOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	foreign := uuid.NewString()
	if err := l.Patch(l.ctx, l.names[0], add("/instance_uuid", foreign)); err != nil {
		t.Fatal(err)
	}
	before := l.node(l.names[0])
	named := l.spec("named", l.names[0])
	named.Named = true
	_, err := l.driver.Create(l.ctx, named, &heard{t: t})
	wantCode(t, err, provision.CodeServerNotAvailable, "Server "+l.names[0]+" is not available for provisioning", foreign)
	if _, err := l.driver.Look(l.ctx, pool.Ref{ID: named.ID, Name: "named"}); !errors.Is(err, pool.ErrGone) {
		t.Errorf("what was refused leaves %v", err)
	}
	missing := l.spec("missing", "no-such-server")
	missing.Named = true
	_, err = l.driver.Create(l.ctx, missing, &heard{t: t})
	wantCode(t, err, provision.CodeServerNotFound, "Server no-such-server not found")

	other := l.spec("other", l.names[0])
	if found := l.create(other); found.Node != l.names[1] {
		t.Errorf("the machine is on %s, want %s", found.Node, l.names[1])
	}
	defer l.destroy(other)
	none := l.spec("none", l.names[0])
	_, err = l.driver.Create(l.ctx, none, &heard{t: t})
	wantCode(t, err, provision.CodeNoServer, "No available servers matching criteria", l.class)
	allocations := map[string]any{}
	if err := l.Call(l.ctx, http.MethodGet, "/v1/allocations/"+none.ID, nil, &allocations); err == nil {
		t.Errorf("an allocation is left: %v", allocations)
	}
	image := l.spec("image", l.names[0])
	image.Image = "debain"
	_, err = l.driver.Create(l.ctx, image, &heard{t: t})
	wantCode(t, err, provision.CodeImageNotFound, "Image debain not found", `did you mean "debian"`)
	if after := l.node(l.names[0]); after.UpdatedAt != before.UpdatedAt || after.InstanceUUID != foreign {
		t.Errorf("the foreign server was touched: %+v, was %+v", after, before)
	}
}

// Another server than the one that is taken has the labels, cores and memory that were asked for.
func TestAnotherServerDoesAsWell(t *testing.T) {
	t.Parallel()
	l := newLab(t, 5)
	if err := l.Patch(l.ctx, l.names[0], add("/instance_uuid", uuid.NewString())); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{l.names[0], l.names[2], l.names[4]} {
		if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+name+"/traits/CUSTOM_GPU", map[string]any{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{l.names[0], l.names[3], l.names[4]} {
		if err := l.Patch(l.ctx, name, add("/properties/memory_mb", 65536)); err != nil {
			t.Fatal(err)
		}
	}
	spec := l.spec("web", l.names[0])
	spec.Labels, spec.Memory = map[string]string{"CUSTOM_GPU": "true", "resource_class": l.class}, 32768
	if found := l.create(spec); found.Node != l.names[4] {
		t.Errorf("it is on %s, want %s, which alone has the trait and the memory", found.Node, l.names[4])
	}
	defer l.destroy(spec)
	a, err := l.driver.allocation(l.ctx, spec.ID)
	if err != nil || a == nil || !slices.Equal(a.Traits, []string{"CUSTOM_GPU"}) {
		t.Errorf("the allocation is %+v, %v, want one that asks for the trait", a, err)
	}
	none := spec
	none.ID = uuid.NewString()
	_, err = l.driver.Create(l.ctx, none, &heard{t: t})
	wantCode(t, err, provision.CodeNoServer, "CUSTOM_GPU", "labels, cores and memory")
}

// What the run asks before it places machines is answered by the same codes.
func TestAdmit(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2)
	if err := l.Patch(l.ctx, l.names[1], add("/instance_uuid", uuid.NewString())); err != nil {
		t.Fatal(err)
	}
	admit := func(node, image string) (string, error) {
		return l.driver.Admit(l.ctx, pool.Spec{ID: uuid.NewString(), Name: "web", Node: node, Image: image})
	}
	if node, err := admit(l.node(l.names[0]).UUID, "debian"); err != nil || node != l.names[0] {
		t.Errorf("Admit by its id = %q, %v, want its name", node, err)
	}
	if node, err := admit("", "debian"); err != nil || node != "" {
		t.Errorf("Admit of any = %q, %v", node, err)
	}
	_, err := admit("nowhere", "debian")
	wantCode(t, err, provision.CodeServerNotFound, "Server nowhere not found")
	_, err = admit(l.names[1], "debian")
	wantCode(t, err, provision.CodeServerNotAvailable)
	_, err = admit(l.names[0], "nothing")
	wantCode(t, err, provision.CodeImageNotFound)
}

// A server that bears another mark is never touched, whatever the state has for it.
func TestForeignServersAreNeverTouched(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	foreign := uuid.NewString()
	if err := l.Patch(l.ctx, l.names[0], add("/instance_uuid", foreign), add("/extra/tendril_machine", foreign)); err != nil {
		t.Fatal(err)
	}
	if err := l.To(l.ctx, l.names[0], "active", "active"); err != nil {
		t.Fatal(err)
	}
	before := l.node(l.names[0])
	ref := pool.Ref{ID: uuid.NewString(), Name: "web", ExternalID: before.UUID, Node: before.Name}
	if _, err := l.driver.Look(l.ctx, ref); !errors.Is(err, pool.ErrForeign) {
		t.Errorf("Look = %v, want ErrForeign", err)
	}
	if err := l.driver.Destroy(l.ctx, ref, &heard{t: t}); err != nil {
		t.Errorf("Destroy of a machine that is gone: %v", err)
	}
	for _, action := range []provisioner.PowerAction{provisioner.PowerStop, provisioner.PowerStart, provisioner.PowerRestart} {
		if _, err := l.driver.Power(l.ctx, ref, action, &heard{t: t}); !errors.Is(err, pool.ErrGone) {
			t.Errorf("%s = %v, want ErrGone", action, err)
		}
	}
	after := l.node(l.names[0])
	if after.UpdatedAt != before.UpdatedAt || after.ProvisionState != "active" || after.PowerState != before.PowerState {
		t.Errorf("the foreign server was touched: %+v, was %+v", after, before)
	}
}

// A machine is stopped, started and restarted.
func TestPower(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	defer l.destroy(spec)
	ref := pool.Ref{ID: spec.ID, Name: "web"}
	for _, tt := range []struct {
		action provisioner.PowerAction
		status provisioner.MachineStatus
		power  string
	}{
		{provisioner.PowerStop, provisioner.StatusStopped, "power off"},
		{provisioner.PowerStart, provisioner.StatusRunning, "power on"},
		{provisioner.PowerRestart, provisioner.StatusRunning, "power on"},
		{provisioner.PowerStart, provisioner.StatusRunning, "power on"},
	} {
		found, err := l.driver.Power(l.ctx, ref, tt.action, &heard{t: t})
		if n := l.node(l.names[0]); err != nil || found.Status != tt.status || n.PowerState != tt.power {
			t.Errorf("%s = %+v, %v, and the power is %s", tt.action, found, err, n.PowerState)
		}
	}
}

// The disks are cleaned as the template asked, nobody gets the server before that, and it is left
// as it was found.
func TestCleaning(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		clean  string
		before *bool
		failed string
	}{
		"as Ironic does":    {"", nil, ""},
		"none":              {"none", nil, ""},
		"none, was on":      {"none", new(true), ""},
		"none, was off":     {"none", new(false), ""},
		"metadata, no step": {"metadata", nil, "erase_devices_metadata"}, // fake hardware has no such step
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 1)
			if tt.before != nil {
				if err := l.Patch(l.ctx, l.names[0], add("/automated_clean", *tt.before)); err != nil {
					t.Fatal(err)
				}
			}
			spec := l.spec("web", l.names[0])
			spec.Settings = json.RawMessage(fmt.Sprintf(`{"clean": %q}`, tt.clean))
			l.create(spec)
			err := l.driver.Destroy(l.ctx, pool.Ref{ID: spec.ID, Name: "web"}, &heard{t: t})
			n := l.node(l.names[0])
			if tt.failed != "" {
				if err == nil || !strings.Contains(err.Error(), tt.failed) {
					t.Errorf("Destroy = %v, want what is wrong with %s", err, tt.failed)
				}
				if n.InstanceUUID != "" || n.ProvisionState == "available" {
					t.Errorf("the server is %+v: others can get it uncleaned", n)
				}
				return
			}
			if err != nil || n.ProvisionState != "available" || n.Maintenance || len(n.Extra) > 0 {
				t.Errorf("Destroy = %v, and the server is %+v", err, n)
			}
			if (n.AutomatedClean == nil) != (tt.before == nil) || n.AutomatedClean != nil && *n.AutomatedClean != *tt.before {
				t.Errorf("automated_clean is %v, was %v", n.AutomatedClean, tt.before)
			}
			if skipped := l.Logged("Automated cleaning is disabled via API", "name='"+l.names[0]+"'"); skipped != (tt.clean == "none") {
				t.Errorf("that it was not cleaned is %t", skipped)
			}
		})
	}
}

// What Ironic refuses, and what fails in the middle, is told with its reason, and nothing stays of it.
func TestFailingDeployments(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	spec.Settings = json.RawMessage(`{"deploy_steps": [{"interface": "deploy", "step": "deploy", "priority": 100, "args": {"nonsense": true}}]}`)
	_, err := l.driver.Create(l.ctx, spec, &heard{t: t})
	if err == nil || !strings.Contains(err.Error(), "unexpected arguments: nonsense") || !strings.Contains(err.Error(), "block ironic") {
		t.Errorf("Create with a step that Ironic refuses = %v", err)
	}
	l.destroy(spec)

	// This interface has the image read, which nobody serves.
	if err := l.Patch(l.ctx, l.names[0], add("/deploy_interface", "direct")); err != nil {
		t.Fatal(err)
	}
	spec.Settings = json.RawMessage(`{"clean": "none"}`) // for which nothing is booted
	found, err := l.driver.Create(l.ctx, spec, &heard{t: t})
	wantCode(t, err, provision.CodeImageNotFound, "deploy failed", "http://127.0.0.1/debian.raw", "[[pools.images]]")
	if found.ExternalID == "" || found.Ready || found.Status != provisioner.StatusFailed {
		t.Errorf("it is known as %+v", found)
	}
	l.destroy(spec)
	if n := l.node(l.names[0]); n.ProvisionState != "available" || n.InstanceUUID != "" || len(n.Extra) > 0 {
		t.Errorf("the server is %+v", n)
	}
}

// The address of a pool's range is told with the config drive, and known again.
func TestAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	spec.Address, spec.Gateway = netip.MustParsePrefix("10.0.9.7/24"), netip.MustParseAddr("10.0.9.1")
	if _, err := l.driver.Create(l.ctx, spec, &heard{t: t}); err == nil || !strings.Contains(err.Error(), "has no port") {
		t.Errorf("Create without a port = %v", err)
	}
	n := l.node(l.names[0])
	if err := l.Call(l.ctx, http.MethodPost, "/v1/ports", map[string]any{"node_uuid": n.UUID, "address": fmt.Sprintf("52:54:00:%s:%s:%s", n.UUID[0:2], n.UUID[2:4], n.UUID[4:6])}, nil); err != nil {
		t.Fatal(err)
	}
	found := l.create(spec)
	defer l.destroy(spec)
	again, err := l.driver.Look(l.ctx, pool.Ref{ID: spec.ID, Name: "web"})
	if want := []netip.Addr{spec.Address.Addr()}; err != nil || !slices.Equal(found.Addresses, want) || !slices.Equal(again.Addresses, want) {
		t.Errorf("the addresses are %v and %v, %v", found.Addresses, again.Addresses, err)
	}
}

// Ironic's own sign-in by HTTP basic: with the right password machines can be listed.
func TestHTTPBasic(t *testing.T) {
	t.Parallel()
	digest, err := bcrypt.GenerateFromPassword([]byte("s3:cret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "users")
	// Ironic takes the form of htpasswd -B alone.
	if err := os.WriteFile(users, []byte("tendril:"+strings.Replace(string(digest), "$2a$", "$2y$", 1)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := testironic.Start(t, testironic.Options{Users: users, User: "tendril", Password: "s3:cret"})
	l := labOn(t, i, 0, i.URL)
	if err := i.Enroll(l.ctx, "n0"); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]*class{"tendril:s3:cret": nil, "tendril:wrong": classDenied, "": classDenied} {
		d, err := open(pool.Config{Name: "metal", Kind: "ironic", URL: i.URL, Token: token, Timeout: 20 * time.Second}, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		inventory, err := d.List(l.ctx)
		if want == nil && (err != nil || len(inventory.Nodes) != 1) || want != nil && !is(err, want) || err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("List as %q = %+v, %v", token, inventory, err)
		}
		refused := slices.ContainsFunc(d.Check(l.ctx), func(f pool.Finding) bool { return f.What == "token" && f.Problem != "" })
		if refused != (want != nil) {
			t.Errorf("Check as %q says that the token is refused: %t", token, refused)
		}
	}
}

// A server that stays in a state for longer than the template's limit is an error, and Ironic goes on:
// the next try finds the machine.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 2"})
	l := labOn(t, i, 1, i.URL)
	spec := l.spec("web", l.names[0])
	spec.Settings = json.RawMessage(`{"deploy_timeout": "1s"}`)
	found, err := l.driver.Create(l.ctx, spec, &heard{t: t})
	if err == nil || !strings.Contains(err.Error(), "in the state deploying (Writing the image) for 1s, which is the limit") || found.Ready || found.ExternalID == "" {
		t.Fatalf("Create = %+v, %v", found, err)
	}
	spec.Settings = nil
	if found = l.create(spec); !found.Ready {
		t.Errorf("the next try found %+v", found)
	}
	l.destroy(spec)
}

// A server in maintenance, a protected one and one that was taken out of what is offered are errors
// that say what to do.
func TestServersThatNeedSomebody(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3)
	named := func(n int) pool.Spec {
		s := l.spec("web", l.names[n])
		s.Named = true
		return s
	}
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+l.names[0]+"/maintenance", map[string]any{"reason": "a fan is broken"}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := l.driver.Create(l.ctx, named(0), &heard{t: t})
	wantCode(t, err, provision.CodeServerNotAvailable, "a fan is broken", "baremetal node maintenance unset "+l.names[0])
	if err := l.To(l.ctx, l.names[1], "manage", "manageable"); err != nil {
		t.Fatal(err)
	}
	_, err = l.driver.Create(l.ctx, named(1), &heard{t: t})
	wantCode(t, err, provision.CodeServerNotAvailable, "Managed, and not offered yet", "baremetal node provide "+l.names[1])
	kept := named(2)
	l.create(kept)
	if err := l.Patch(l.ctx, l.names[2], add("/protected", true)); err != nil {
		t.Fatal(err)
	}
	if err := l.driver.Destroy(l.ctx, pool.Ref{ID: kept.ID, Name: "web"}, &heard{t: t}); err == nil || !strings.Contains(err.Error(), "baremetal node unset "+l.names[2]+" --protected") {
		t.Errorf("Destroy of a protected one = %v", err)
	}
	if err := l.Patch(l.ctx, l.names[2], add("/protected", false)); err != nil {
		t.Fatal(err)
	}
	l.destroy(kept)
	findings := l.driver.Check(l.ctx)
	for _, says := range []string{"a fan is broken", "Managed, and not offered yet"} {
		if !slices.ContainsFunc(findings, func(f pool.Finding) bool {
			return f.What == "servers" && f.Warning && strings.Contains(f.Problem, says)
		}) {
			t.Errorf("Check does not say %q: %+v", says, findings)
		}
	}
}
