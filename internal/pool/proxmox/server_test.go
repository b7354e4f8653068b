package proxmox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// firstOfTest is the first of the VMIDs that TestServer takes, if it is free.
const firstOfTest = 990000

// server is a Proxmox VE that TestServer may make machines on, by its environment:
//
//	PROXMOX_TEST_URL          https://pve.example.org:8006
//	PROXMOX_TEST_TOKEN        USER@REALM!NAME=SECRET
//	PROXMOX_TEST_NODE         where the machines are made
//	PROXMOX_TEST_TEMPLATE     the name of a template that the node can clone
//	PROXMOX_TEST_CA           the file of its certificate authority, or
//	PROXMOX_TEST_FINGERPRINT  SHA-256 of its certificate
func server(t *testing.T, getenv func(string) string) (config pool.Config, node, template string) {
	t.Helper()
	value := func(name string) string {
		text := getenv("PROXMOX_TEST_" + name)
		if text == "" {
			t.Fatalf("PROXMOX_TEST_URL is set, so PROXMOX_TEST_%s must be, too", name)
		}
		return text
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(value("TOKEN")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config = pool.Config{
		Name: "server", Kind: "proxmox", URL: value("URL"), TokenFile: token, Timeout: 20 * time.Second,
		CAFile: getenv("PROXMOX_TEST_CA"), Fingerprint: getenv("PROXMOX_TEST_FINGERPRINT"),
	}
	return config, value("NODE"), value("TEMPLATE")
}

// A machine's life on any Proxmox VE: the one that PROXMOX_TEST_URL names, else a simulated
// one. It makes two machines, which it marks, and removes them; it touches no other.
func TestServer(t *testing.T) {
	t.Parallel()
	getenv, speed := os.Getenv, 1.0
	if getenv("PROXMOX_TEST_URL") == "" {
		l := newLab(t)
		simulated := map[string]string{
			"PROXMOX_TEST_URL": l.config.URL, "PROXMOX_TEST_TOKEN": tokenID + "=" + secret, "PROXMOX_TEST_NODE": "pve1",
			"PROXMOX_TEST_TEMPLATE": "debian-12", "PROXMOX_TEST_CA": l.config.CAFile,
		}
		getenv, speed = func(name string) string { return simulated[name] }, l.pace
	}
	config, node, template := server(t, getenv)
	opened := func() *Driver {
		d, err := open(config, speed, usual)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	d := opened()
	ctx, cancel := patience.Context(t.Context(), 20*time.Minute)
	defer cancel()

	for _, f := range d.Check(ctx) {
		if f.Problem != "" && !f.Warning {
			t.Errorf("Check: %s: %s: %s", f.What, f.Problem, f.Detail)
		}
	}
	before, err := d.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(before.Nodes, func(n pool.Node) bool { return n.Name == node }); i < 0 || !before.Nodes[i].Online {
		t.Fatalf("node %s is not among those that are online: %+v", node, before.Nodes)
	} else if !slices.ContainsFunc(before.Nodes[i].Images, func(m pool.Image) bool { return m.Name == template }) {
		t.Fatalf("node %s has no template %s, only %+v", node, template, before.Nodes[i].Images)
	}
	free := firstOfTest
	machine := func(name string) (pool.Spec, pool.Ref) {
		for slices.Contains(before.VMIDs, free) {
			free++
		}
		s := spec(func(s *pool.Spec) {
			s.ID, s.Name, s.Node, s.Image, s.VMID, s.Disk = uuid.NewString(), name, node, template, free, 0
			s.Init.Wait = "none" // no network that we know of
		})
		free++
		ref := pool.Ref{ID: s.ID, Name: name, ExternalID: strconv.Itoa(s.VMID), Node: node}
		t.Cleanup(func() { // also when the test ends early
			ctx, cancel := patience.Context(context.Background(), 5*time.Minute)
			defer cancel()
			if err := d.Destroy(ctx, ref, &heard{}); err != nil {
				t.Errorf("remove by hand what may be left of VM %d: %v", s.VMID, err)
			}
		})
		return s, ref
	}
	one, oneRef := machine("tendril-test-1")
	two, twoRef := machine("tendril-test-2")

	said := &heard{}
	made, err := d.Create(ctx, one, said)
	if err != nil {
		t.Fatalf("Create() = %v, said %q", err, said.lines)
	}
	if made.Mark != one.ID || made.ExternalID != oneRef.ExternalID || made.Node != node || made.Status != provisioner.StatusRunning || made.Cores != one.Cores || made.Memory != one.Memory {
		t.Errorf("Create() = %+v, want it as asked for", made)
	}
	if again, err := opened().Create(ctx, one, said); err != nil || again.ExternalID != made.ExternalID {
		t.Errorf("Create() of a restarted agent = %+v, %v, want the same machine", again, err)
	}
	// The id of a machine that bears another mark.
	taken := two
	taken.VMID = one.VMID
	if _, err := d.Create(ctx, taken, said); err == nil {
		t.Error("Create() at another machine's VMID = nil, want an error")
	}
	if _, err := d.Look(ctx, twoRef); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Look() for what was not made = %v, want %v", err, pool.ErrGone)
	}
	if _, err := d.Create(ctx, two, said); err != nil {
		t.Fatalf("Create() of a second machine = %v, said %q", err, said.lines)
	}
	for _, c := range []struct {
		action provisioner.PowerAction
		want   provisioner.MachineStatus
	}{{"stop", provisioner.StatusStopped}, {"stop", provisioner.StatusStopped}, {"start", provisioner.StatusRunning}} {
		if got, err := d.Power(ctx, oneRef, c.action, said); err != nil || got.Status != c.want {
			t.Errorf("Power(%s) = %+v, %v, want %s", c.action, got, err, c.want)
		}
	}
	one.Cores, one.Memory = 1, one.Memory+512
	if got, err := d.Change(ctx, oneRef, one, said); err != nil || got.Cores != one.Cores || got.Memory != one.Memory {
		t.Errorf("Change() = %+v, %v, want the new sizes", got, err)
	}

	// Removing one leaves the other alone.
	other, err := d.Look(ctx, twoRef)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Destroy(ctx, oneRef, said); err != nil {
			t.Errorf("Destroy() = %v", err)
		}
	}
	if _, err := d.Look(ctx, oneRef); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Look() after Destroy() = %v, want %v", err, pool.ErrGone)
	}
	if still, err := d.Look(ctx, twoRef); err != nil || still.Mark != other.Mark || still.ExternalID != other.ExternalID || still.Node != other.Node || still.Status != other.Status {
		t.Errorf("the other machine is %+v, %v, was %+v", still, err, other)
	}
	// The cluster's list is some seconds behind.
	patience.Await(t, "the VM is in no list any more", func() bool {
		inventory, err := opened().List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.Contains(inventory.VMIDs, one.VMID)
	})
}
