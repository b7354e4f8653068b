//go:build metal

package ironic

import (
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

// A server behind a BMC, which is a virtual machine, is enrolled from a list, after a wrong password
// was corrected, and a machine is made of it: a real Ironic deploys a
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

	list := "name,driver,address,system,user,password,resource_class,inspect\n" +
		"bm1,redfish," + servers.BMC.URL() + "," + redfish.SystemPath(servers.IDs[0]) + ",admin,PASSWORD,baremetal,true\n"
	wrong, err := ReadServers(strings.NewReader(strings.ReplaceAll(list, "PASSWORD", "a guess")))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Enroll(ctx, wrong[0], &heard{t: t})
	wantCode(t, err, "server_not_available", "401", "correct the BMC's user and password")
	if err != nil && strings.Contains(err.Error(), "a guess") {
		t.Errorf("the error has the password: %v", err)
	}
	right, err := ReadServers(strings.NewReader(strings.ReplaceAll(list, "PASSWORD", "password")))
	if err != nil {
		t.Fatal(err)
	}
	if enrolled, err := d.Enroll(ctx, right[0], &heard{t: t}); err != nil || !enrolled.Available {
		t.Fatalf("Enroll = %+v, %v", enrolled, err)
	}

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
