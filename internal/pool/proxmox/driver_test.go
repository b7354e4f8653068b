package proxmox

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

// A machine's whole life, with an address of its own.
func TestLife(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx, said := l.driver(), l.context(), &heard{}
	got, err := d.Create(ctx, spec(at("10.99.0.50/24"), with(`{"tags":["lab"],"bridge":"vmbr0","vlan":30,"cpu":"host","on_boot":true}`)), said)
	if err != nil {
		t.Fatal(err)
	}
	want := pool.Found{Mark: machineID, ExternalID: "500", Name: "web-1", Node: "pve1", Status: provisioner.StatusRunning, Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.50")}, Cores: 2, Memory: 2048, Disk: 8, Ready: true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Create = %+v, want %+v", got, want)
	}
	c := l.pve.Config(500)
	for k, v := range map[string]string{
		"cores": "2", "memory": "2048", "ciuser": "student", "ipconfig0": "ip=10.99.0.50/24,gw=10.99.0.1", "nameserver": "10.99.0.1 1.1.1.1", "tags": "lab;tendril", "cpu": "host", "onboot": "1",
		"sshkeys": "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f%20ann%40example.org",
		"scsi0":   "disks:9000/base-9000-disk-0.qcow2/500/vm-500-disk-0.qcow2,size=8G",
	} {
		if c[k] != v {
			t.Errorf("%s is %q, want %q", k, c[k], v)
		}
	}
	if !strings.Contains(c["net0"], "bridge=vmbr0,tag=30") || c["cipassword"] == "" {
		t.Errorf("net0 %q, cipassword %q", c["net0"], c["cipassword"])
	}
	if !slices.Equal(said.steps, []string{"find", "clone", "configure", "resize", "start", "ready"}) || said.back {
		t.Errorf("steps %v, backwards: %v", said.steps, said.back)
	}
	if !said.said("create linked clone of drive scsi0") || said.said("transferred") {
		t.Errorf("the task's log was not passed on: %q", said.lines)
	}
	if !slices.Equal(said.secrets, []string{"a-secret-of-a-guest"}) || said.said("a-secret") {
		t.Errorf("secrets told: %q", said.secrets)
	}
	again, err := l.driver().Create(ctx, spec(at("10.99.0.50/24")), said)
	if err != nil || !reflect.DeepEqual(again, want) || !slices.Equal(l.marked(), []int{500}) {
		t.Errorf("Create again = %+v, %v, with %v", again, err, l.marked())
	}
	if seen, err := d.Look(ctx, l.ref()); err != nil || !reflect.DeepEqual(seen, want) {
		t.Errorf("Look = %+v, %v", seen, err)
	}
	if err := d.Destroy(ctx, l.ref(), said); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Look(ctx, l.ref()); !errors.Is(err, pool.ErrGone) || l.pve.Config(500) != nil {
		t.Errorf("Look after Destroy: %v", err)
	}
	if err := d.Destroy(ctx, l.ref(), said); err != nil {
		t.Errorf("Destroy again: %v", err)
	}
}

// A machine that gets its address itself is ready when its guest's agent says it.
func TestAddressFromAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	own := "10.99.0.77"
	got, err := l.driver().Create(l.context(), spec(), &heard{})
	if err != nil || !slices.Equal(got.Addresses, []netip.Addr{netip.MustParseAddr(own)}) {
		t.Fatalf("Create = %+v, %v", got, err)
	}
}

func TestFullCloneWhereStorageCannotLink(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ image, settings, said, scsi0 string }{
		{"thick-12", `{}`, "can't make linked clones", "thick:vm-500-disk-0,size=4G"},
		{"debian-12", `{"full_clone":true}`, "", "disks:500/vm-500-disk-0.qcow2,size=4G"},
		{"debian-12", `{"storage":"thick"}`, "making a full clone", "thick:vm-500-disk-0,size=4G"},
		{"debian-12", `{"storage":"disks"}`, "", "disks:9000/base-9000-disk-0.qcow2/500/vm-500-disk-0.qcow2,size=4G"},
	} {
		t.Run(c.image+c.settings, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			said := &heard{}
			_, err := l.driver().Create(l.context(), spec(at("10.99.0.50/24"), with(c.settings), func(s *pool.Spec) { s.Image, s.Disk = c.image, 0 }), said)
			if err != nil || l.pve.Config(500)["scsi0"] != c.scsi0 || c.said != "" && !said.said(c.said) {
				t.Errorf("error %v, scsi0 %q, said %q", err, l.pve.Config(500)["scsi0"], said.lines)
			}
		})
	}
}

// Each node's own template is used; one on another node only where all see its storage.
func TestTemplateOfAnotherNode(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for i, c := range []struct{ node, image, wrong string }{
		{"pve2", "debian-12", ""}, {"pve3", "shared-12", ""},
		{"pve3", "debian-12", `image "debian-12" is on node pve1 and pve2 only, on a storage that node pve3 does not see`},
		{"pve1", "debain-12", `did you mean "debian-12"?`},
	} {
		id := fmt.Sprintf("%s%d", machineID[:len(machineID)-1], i)
		got, err := l.driver().Create(l.context(), spec(at("10.99.0.50/24"), func(s *pool.Spec) { s.ID, s.Node, s.Image, s.VMID = id, c.node, c.image, 510+i }), &heard{})
		if c.wrong == "" && (err != nil || got.Node != c.node) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s on %s: %+v, %v", c.image, c.node, got, err)
		}
	}
}
