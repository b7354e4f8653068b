//go:build vm

package proxmox

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// realLab is a lab whose machines really run, from one image.
type realLab struct {
	*lab
	ctx   context.Context
	hosts map[string]*hypervisors.Host // by node
}

func newRealLab(t *testing.T, file string, limit time.Duration) *realLab {
	t.Helper()
	images, err := hypervisors.Images()
	if err != nil {
		t.Fatal(err)
	}
	l := &realLab{hosts: map[string]*hypervisors.Host{}}
	for i, h := range hypervisors.Three(t) {
		l.hosts[fmt.Sprintf("pve%d", i+1)] = h
	}
	l.lab = newLab(t, func(o *pvesim.Options) {
		o.Speed = 1
		o.Backend = &qemu{hosts: l.hosts, images: map[string]string{"debian-12": filepath.Join(images, file)}}
	})
	var cancel context.CancelFunc
	l.ctx, cancel = patience.Context(t.Context(), limit)
	t.Cleanup(cancel)
	return l
}

// virsh is what libvirt itself says on the host of a node.
func (l *realLab) virsh(node string, args ...string) string {
	l.Helper()
	out, err := l.hosts[node].Virsh(l.ctx, args...)
	if err != nil {
		l.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// has fails the test where libvirt does not say this.
func (l *realLab) has(want, node string, args ...string) {
	l.Helper()
	if got := l.virsh(node, args...); !strings.Contains(got, want) {
		l.Errorf("on %s, virsh %v = %q, want %q", node, args, got, want)
	}
}

// create makes a machine; when the test fails, what the machine printed is shown.
func (l *realLab) create(d *Driver, s pool.Spec) pool.Found {
	l.Helper()
	h, began := &heard{}, time.Now()
	found, err := d.Create(l.ctx, s, h)
	if err != nil {
		console := l.hosts[s.Node].Console(fmt.Sprintf("vm-%d.log", s.VMID))
		l.Fatalf("Create(%s): %v\n%v\nits console ends:\n%s", s.Name, err, h.lines, console[max(0, len(console)-4000):])
	}
	l.Logf("machine %s has %v after %s", s.Name, found.Addresses, time.Since(began).Round(100*time.Millisecond))
	return found
}

func refTo(s pool.Spec) pool.Ref {
	return pool.Ref{ID: s.ID, Name: s.Name, ExternalID: fmt.Sprint(s.VMID), Node: s.Node}
}

// The driver's calls of the Proxmox API act on a QEMU domain, and what the driver reads of a
// machine comes from that domain and its guest. libvirt itself, its DHCP server and a connection
// to the guest are the witnesses.
func TestRealMachines(t *testing.T) {
	t.Parallel()
	l := newRealLab(t, "small.qcow2", 8*time.Minute)
	d := l.driver()
	small := func(id, name, node string, vmid int, settings string) pool.Spec {
		return spec(with(settings), func(s *pool.Spec) {
			s.ID, s.Name, s.Node, s.VMID, s.Cores, s.Memory, s.Disk = id, name, node, vmid, 1, 160, 5
		})
	}
	web := small(machineID, "web-1", "pve1", 500, "{}")
	other := small("0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a02", "web-2", "pve2", 501, `{"full_clone":true}`)
	clash := small("0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a03", "web-3", "pve1", 777, "{}")

	// A foreign domain has the name that VMID 777 would get.
	document := filepath.Join(t.TempDir(), "foreign.xml")
	if err := os.WriteFile(document, []byte("<domain type='qemu'><name>vm-777</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os></domain>"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.virsh("pve1", "define", document)
	l.virsh("pve1", "start", "--paused", "vm-777")
	foreign := l.virsh("pve1", "dumpxml", "vm-777")

	for _, s := range []pool.Spec{web, other} {
		found, domain := l.create(d, s), fmt.Sprintf("vm-%d", s.VMID)
		if found.Status != provisioner.StatusRunning || len(found.Addresses) == 0 {
			t.Fatalf("Create(%s) = %+v, want a running machine with an address", s.Name, found)
		}
		l.has("running", s.Node, "domstate", domain)
		l.has("163840 KiB", s.Node, "dominfo", domain)
		l.has("5368709120", s.Node, "domblkinfo", domain, "vda")
		// The network's DHCP server knows the address without the guest.
		mac, _, _ := strings.Cut(strings.TrimPrefix(l.pve.Config(s.VMID)["net0"], "virtio="), ",")
		l.has(found.Addresses[0].String()+"/24", s.Node, "net-dhcp-leases", "default", "--mac", mac)
		l.has("iso", s.Node, "dumpxml", domain)
		if console := l.hosts[s.Node].Console(domain + ".log"); !strings.Contains(console, "GUEST seed /dev/vdb") {
			t.Errorf("%s did not find its seed:\n%s", s.Name, console)
		}

		// The guest that answers at that address is the one that ran the commands.
		l.exec(d, s, "(while :; do echo $(cat /proc/sys/kernel/random/boot_id) | nc -l -p 7000; done) >/dev/null 2>&1 &")
		boot := l.exec(d, s, "cat /proc/sys/kernel/random/boot_id")
		if answer := l.dial(s.Node, found.Addresses[0].String(), 7000); boot == "" || answer != boot {
			t.Errorf("at %s answers %q, and %s is %q", found.Addresses[0], answer, s.Name, boot)
		}
	}
	if err := d.Exec(l.ctx, refTo(web), "exit 3", &heard{}); !exitedWith(err, 3) {
		t.Errorf("a command that fails = %v, want exit status 3", err)
	}

	// Power, another size, and an end that the simulator does not hear of.
	h := &heard{}
	if found, err := d.Power(l.ctx, refTo(web), provisioner.PowerStop, h); err != nil || found.Status != provisioner.StatusStopped {
		t.Errorf("stopping = %+v, %v", found, err)
	}
	l.has("shut off", "pve1", "domstate", "vm-500")
	l.has("shutdown", "pve1", "domstate", "--reason", "vm-500") // by the guest, not switched off
	web.Memory = 192
	if _, err := d.Change(l.ctx, refTo(web), web, h); err != nil {
		t.Errorf("changing it: %v", err)
	}
	if found, err := d.Power(l.ctx, refTo(web), provisioner.PowerStart, h); err != nil || found.Status != provisioner.StatusRunning {
		t.Errorf("starting = %+v, %v", found, err)
	}
	l.has("running", "pve1", "domstate", "vm-500")
	l.has("196608 KiB", "pve1", "dominfo", "vm-500")
	l.virsh("pve1", "destroy", "vm-500")
	if found, err := d.Look(l.ctx, refTo(web)); err != nil || found.Status != provisioner.StatusStopped || len(found.Addresses) != 0 {
		t.Errorf("a machine whose domain has ended = %+v, %v; want it stopped, without an address", found, err)
	}

	// The foreign domain is left alone, and the failed try leaves nothing.
	if found, err := d.Create(l.ctx, clash, h); err == nil || !strings.Contains(err.Error(), "vm-777") {
		t.Errorf("Create where the domain's name is taken = %+v, %v", found, err)
	}
	if left := l.pve.Config(777); left != nil {
		t.Errorf("the failed clone is %v", left)
	}
	for _, s := range []pool.Spec{web, other} { // one that has stopped, and one that runs
		if err := d.Destroy(l.ctx, refTo(s), h); err != nil {
			t.Errorf("Destroy(%s): %v", s.Name, err)
		}
	}
	for node, h := range l.hosts {
		want := ""
		if node == "pve1" {
			want = "vm-777"
		}
		if got := l.virsh(node, "list", "--all", "--name"); got != want {
			t.Errorf("the domains of %s are %q, want %q", node, got, want)
		}
		if left, err := filepath.Glob(filepath.Join(h.Dir, "vm-*")); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
	}
	l.has("paused", "pve1", "domstate", "vm-777")
	if got := l.virsh("pve1", "dumpxml", "vm-777"); got != foreign {
		t.Errorf("the foreign domain was changed:\n%s\nbefore:\n%s", got, foreign)
	}
}

// exec is what a command in a machine prints.
func (l *realLab) exec(d *Driver, s pool.Spec, command string) string {
	l.Helper()
	h := &heard{}
	if err := d.Exec(l.ctx, refTo(s), command, h); err != nil {
		l.Errorf("Exec(%s) in %s: %v", command, s.Name, err)
	}
	return strings.Join(h.lines, "\n")
}

// dial is what a port of a machine says, seen from its host; it is asked until it is open.
func (l *realLab) dial(node, address string, port int) (said string) {
	l.Helper()
	patience.Await(l, fmt.Sprintf("an answer at port %d of %s", port, address), func() bool {
		out, err := l.hosts[node].Inside(l.ctx, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d && head -n 1 <&3", address, port)).Output()
		said = strings.TrimSpace(string(out))
		return err == nil
	})
	return said
}

// A whole distribution does what the configuration says by cloud-init, and SSH knows its host
// key by its agent.
func TestRealDebian(t *testing.T) {
	t.Parallel()
	if os.Getenv("TENDRIL_TEST_VM") != "all" {
		t.Skip("make e2e-vm VM_TESTS=all runs it: a Debian takes minutes to start where processors are emulated")
	}
	l := newRealLab(t, "debian.qcow2", 15*time.Minute)
	d, network := l.driver(), l.hosts["pve1"].Network
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	s := spec(func(s *pool.Spec) {
		s.Cores, s.Memory = 1, 768
		s.Address, s.Gateway = netip.MustParsePrefix(network+".252/24"), netip.MustParseAddr(network+".1")
		s.Nameservers = []netip.Addr{s.Gateway}
		s.Init = pool.Init{User: "ops", Keys: &keys, Wait: "address"}
	})
	found := l.create(d, s)
	if len(found.Addresses) != 1 || found.Addresses[0] != s.Address.Addr() {
		t.Errorf("its addresses are %v, want %s", found.Addresses, s.Address)
	}
	for _, each := range []struct{ command, want string }{
		{"cloud-init status --wait | tail -n 1", "status: done"},
		{"hostname", s.Name},
		{"ip -4 -o addr show dev eth0 | grep -o '10[0-9./]*' | head -n 1", s.Address.String()},
		{"ip route show default | cut -d' ' -f3", s.Gateway.String()},
	} {
		if got := l.exec(d, s, each.command); got != each.want {
			t.Errorf("%s = %q, want %q", each.command, got, each.want)
		}
	}
	login, err := d.Login(l.ctx, refTo(s), s.Init)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	known, key := filepath.Join(dir, "known_hosts"), filepath.Join(dir, "key")
	var lines string
	for _, each := range login.HostKeys {
		lines += s.Address.Addr().String() + " " + each + "\n"
	}
	for path, content := range map[string]string{known: lines, key: login.Key} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said, err := l.hosts["pve1"].Inside(l.ctx, "ssh", "-i", key, "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile="+known, "-o", "LogLevel=ERROR",
		"-o", "ConnectTimeout=60", login.User+"@"+s.Address.Addr().String(), "id -un; sudo -n id -un").CombinedOutput()
	if err != nil || string(said) != "ops\nroot\n" {
		t.Errorf("ssh as ops = %q, %v", said, err)
	}
}
