//go:build metal

package ironic

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/redfish"
	"github.com/tendril-run/tendril/provisioner"
)

// A machine is made of a server behind a BMC, which is a virtual machine: a real Ironic deploys a
// system to it by virtual media, which people sign in to by their keys and at the address that
// Tendril gave it. It is switched off and on, and given back.
func TestServerBehindABMC(t *testing.T) {
	ctx, cancel := patience.Context(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	servers := redfish.NewLab(ctx, t, "bm1")
	i, guest := redfish.StartIronic(ctx, t, ""), servers.Guest("bm1")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the console:\n%s", guest.Console())
		}
	})
	if err := i.Call(ctx, http.MethodPost, "/v1/nodes", servers.BMC.Node("bm1", servers.IDs[0]), nil); err != nil {
		t.Fatal(err)
	}
	for _, to := range []struct{ target, state string }{{"manage", "manageable"}, {"inspect", "manageable"}, {"provide", "available"}} {
		if err := i.To(ctx, "bm1", to.target, to.state); err != nil {
			t.Fatal(err)
		}
	}
	d, err := open(pool.Config{
		Name: "metal", Kind: "ironic", URL: i.URL, Timeout: 20 * time.Second,
		Images: []pool.ImageSource{
			{Name: "small", Source: servers.Web.URL + "/boot.iso", Kernel: servers.Web.URL + "/vmlinuz", Ramdisk: servers.Web.URL + "/initrd.gz"},
			{Name: "lost", Source: servers.Web.URL + "/boot.iso", Kernel: servers.Web.URL + "/lost", Ramdisk: servers.Web.URL + "/initrd.gz"},
		},
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })

	inventory, err := d.List(ctx)
	if err != nil || len(inventory.Nodes) != 1 {
		t.Fatalf("List = %+v, %v", inventory, err)
	}
	if n := inventory.Nodes[0]; n.Name != "bm1" || n.Cores != 1 || n.Memory != 1024 || !n.Online || !n.Server.Available {
		t.Errorf("the server is listed as %+v with %+v", n, n.Server)
	}

	key := servers.NewKey(t, "mine")
	spec := pool.Spec{
		ID: uuid.NewString(), Name: "web", Workspace: "acme/prod", Node: "bm1", Image: "lost", Cores: 1, Memory: 1024,
		Address: netip.MustParsePrefix(servers.Host.Network + ".252/24"), Init: pool.Init{User: "root", SSHKeys: []string{key.Public}},
	}
	_, err = d.Create(ctx, spec, &heard{t: t})
	wantCode(t, err, "image_not_found", "/lost", "404")
	if err := d.Destroy(ctx, pool.Ref{ID: spec.ID, Name: spec.Name}, &heard{t: t}); err != nil {
		t.Fatal(err)
	}

	spec.Image, spec.ID = "small", uuid.NewString()
	began := time.Now()
	found, err := d.Create(ctx, spec, &heard{t: t})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("made after %s", time.Since(began).Round(time.Millisecond))
	if found.Node != "bm1" || found.Mark != spec.ID || !found.Ready || found.Status != provisioner.StatusRunning || len(found.Addresses) != 1 || found.Addresses[0] != spec.Address.Addr() {
		t.Errorf("Create = %+v", found)
	}
	guest.Await(t, 1)
	if got := guest.Address(); got != spec.Address.Addr().String() {
		t.Errorf("its address is %s, want %s", got, spec.Address.Addr())
	}
	guest.Expect(t, key, "hostname; head -n 1 /config/openstack/latest/user_data; grep -o "+spec.ID+" /config/openstack/latest/meta_data.json | head -n 1", "web\n#cloud-config\n"+spec.ID+"\n")
	t.Logf("signed in after %s", time.Since(began).Round(time.Millisecond))

	ref := pool.Ref{ID: spec.ID, Name: spec.Name, ExternalID: found.ExternalID, Node: "bm1"}
	if found, err = d.Power(ctx, ref, provisioner.PowerStop, &heard{t: t}); err != nil || found.Status != provisioner.StatusStopped {
		t.Errorf("switched off = %+v, %v", found, err)
	}
	guest.AwaitOff(t)
	if found, err = d.Power(ctx, ref, provisioner.PowerStart, &heard{t: t}); err != nil || found.Status != provisioner.StatusRunning {
		t.Errorf("switched on = %+v, %v", found, err)
	}
	guest.Await(t, 2)
	guest.Expect(t, key, "hostname", "web\n")

	if err := d.Destroy(ctx, ref, &heard{t: t}); err != nil {
		t.Fatal(err)
	}
	guest.AwaitOff(t)
	if n, err := i.Node(ctx, "bm1"); err != nil || n.ProvisionState != "available" || n.InstanceUUID != "" {
		t.Errorf("the server that was given back is %+v, %v", n, err)
	}
	if left := servers.Inserted(t); len(left) > 0 {
		t.Errorf("media that are inserted still: %s", strings.Join(left, ", "))
	}
}
