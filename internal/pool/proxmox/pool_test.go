package proxmox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/provisioner"
)

func TestList(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pve.Machine("pve2", 700, map[string]string{"name": "theirs", "ipconfig0": "ip=10.99.0.9/24,gw=10.99.0.1", "ipconfig1": "ip6=fd00::9/64"})
	l.pve.Node("pve3", func(n *pvesim.Node) { n.Offline = true })
	inv, err := l.driver().List(l.context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(inv.VMIDs, []int{700, 9000, 9001, 9002, 9010}) || fmt.Sprint(inv.Addresses) != "[10.99.0.9 fd00::9]" {
		t.Errorf("VMIDs %v, addresses %v", inv.VMIDs, inv.Addresses)
	}
	one := inv.Nodes[0]
	if one.Name != "pve1" || !one.Online || one.Cores != 16 || one.Memory != 65536 || one.CoresUsed != 0.25 || one.MemoryUsed != 0.25 || inv.Nodes[2].Online {
		t.Errorf("nodes %+v", inv.Nodes)
	}
	var images, storages []string
	for _, n := range inv.Nodes {
		for _, i := range n.Images {
			images = append(images, fmt.Sprintf("%s:%s:%v", n.Name, i.Name, i.CloudInit && i.Agent))
		}
	}
	for _, s := range one.Storages {
		storages = append(storages, fmt.Sprintf("%s linked %v shared %v of %d", s.Name, s.Linked, s.Shared, s.Size))
	}
	if want := []string{"pve1:debian-12:true", "pve1:thick-12:true", "pve1:shared-12:true", "pve2:debian-12:true", "pve2:shared-12:true"}; !slices.Equal(images, want) {
		t.Errorf("images %v, want %v", images, want)
	}
	if want := []string{"disks linked true shared false of 400", "nfs linked true shared true of 900", "thick linked false shared false of 400"}; !slices.Equal(storages, want) {
		t.Errorf("storages %v, want %v", storages, want)
	}
}

func findings(all []pool.Finding) (problems, good string) {
	for _, f := range all {
		if f.Problem != "" {
			problems += fmt.Sprintf("%s (%v): %s -> %s\n", f.What, f.Warning, f.Problem, f.Detail)
		} else {
			good += f.What + ": " + f.Detail + "\n"
		}
	}
	return problems, good
}

func TestCheck(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.config.Storages = []string{"disks"}
	problems, good := findings(l.driver().Check(l.context()))
	if problems != "" || !strings.Contains(good, "ci@pve!tendril is accepted") || !strings.Contains(good, "Proxmox VE 9.2.11") {
		t.Errorf("problems %q, good %q", problems, good)
	}
	l.pve.Revoke(tokenID, "/sdn/zones/localnetwork")
	l.pve.Revoke(tokenID, "/vms")
	l.pve.Grant(tokenID, "/vms", "VM.Audit,VM.Clone")
	l.pve.Edit(9000, map[string]string{"agent": ""})
	l.config.Storages, l.config.CAFile, l.config.Insecure = []string{"disks", "thick"}, "", true
	problems, _ = findings(l.driver().Check(l.context()))
	for _, want := range []string{
		"certificate (true)", "privileges (false): ci@pve!tendril lacks SDN.Use at /sdn/zones/localnetwork", "lacks VM.Allocate, VM.Config.CPU, VM.Config.Memory",
		"pveum acl modify /vms --users ci@pve --tokens 'ci@pve!tendril' --roles Tendril", "storage thick of node pve1 can't make linked clones",
		"image debian-12 has no guest agent configured", "privileges (true): ci@pve!tendril lacks VM.GuestAgent.Audit at /vms",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("findings lack %q:\n%s", want, problems)
		}
	}
	l.pve.AddToken(pvesim.Token{ID: tokenID, Secret: "other"})
	if problems, _ = findings(l.driver().Check(l.context())); !strings.Contains(problems, "token (false)") || strings.Contains(problems, secret) {
		t.Errorf("with a wrong token: %s", problems)
	}
	l.pve.Close()
	if problems, _ = findings(l.driver().Check(l.context())); !strings.Contains(problems, "reach (false)") {
		t.Errorf("without a server: %s", problems)
	}
}

// Sizes change, with a restart where one is needed; a machine moves; nothing else is changed.
func TestChange(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.strangers()
	d, ctx := l.driver(), l.context()
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
		t.Fatal(err)
	}
	before, password := l.foreign(), l.pve.Config(500)["cipassword"]
	said := &heard{}
	got, err := d.Change(ctx, l.ref(), spec(at("10.99.0.50/24"), func(s *pool.Spec) { s.Cores, s.Memory, s.Disk, s.Init.Password = 4, 4096, 16, "another" }), said)
	if err != nil || got.Cores != 4 || got.Memory != 4096 || got.Disk != 16 || got.Status != provisioner.StatusRunning || !said.said("restarting the machine") {
		t.Errorf("Change = %+v, %v, said %q", got, err, said.lines)
	}
	if l.pve.Config(500)["cipassword"] != password {
		t.Error("a change of sizes has changed the password")
	}
	got, err = d.Change(ctx, l.ref(), spec(at("10.99.0.50/24"), with(`{"reboot":false}`), func(s *pool.Spec) { s.Cores, s.Memory, s.Disk = 8, 4096, 16 }), said)
	if err != nil || !said.said("cores apply when the machine is started next") {
		t.Errorf("Change without a restart = %+v, %v", got, err)
	}
	if _, err = d.Change(ctx, l.ref(), spec(func(s *pool.Spec) { s.Disk = 1 }), said); err == nil || !strings.Contains(err.Error(), "can't be made smaller") {
		t.Errorf("Change to a smaller disk = %v", err)
	}
	got, err = d.Change(ctx, l.ref(), spec(at("10.99.0.50/24"), func(s *pool.Spec) { s.Node, s.Cores, s.Memory, s.Disk = "pve3", 8, 4096, 16 }), said)
	if err != nil || got.Node != "pve3" || got.Status != provisioner.StatusRunning || l.pve.Config(500)["node"] != "pve3" {
		t.Errorf("Change of the node = %+v, %v", got, err)
	}
	if seen, err := d.Look(ctx, l.ref()); err != nil || seen.Node != "pve3" {
		t.Errorf("Look where it was before = %+v, %v", seen, err)
	}
	if l.foreign() != before {
		t.Error("somebody else's machine has changed")
	}
}

func TestPower(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx := l.driver(), l.context()
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
		t.Fatal(err)
	}
	l.pve.Guest(500, pvesim.Guest{IgnoresACPI: true})
	for _, c := range []struct {
		action provisioner.PowerAction
		want   provisioner.MachineStatus
	}{{"stop", "stopped"}, {"stop", "stopped"}, {"start", "running"}, {"start", "running"}, {"restart", "running"}} {
		got, err := d.Power(ctx, l.ref(), c.action, &heard{})
		if err != nil || got.Status != c.want {
			t.Errorf("Power(%s) = %s, %v, want %s", c.action, got.Status, err, c.want)
		}
	}
	// What a backup holds is waited for; what someone protected stays.
	l.pve.Hold(500, 0)
	l.pve.Edit(500, map[string]string{"protection": "1"})
	if err := d.Destroy(ctx, l.ref(), &heard{}); err == nil || !strings.Contains(err.Error(), "qm set VMID --protection 0") || l.pve.Config(500) == nil {
		t.Errorf("Destroy of a protected machine = %v", err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pve.Commands = func(vmid int, argv []string) (int, string) {
		if vmid != 500 || !slices.Equal(argv[:2], []string{"/bin/sh", "-c"}) {
			return 1, "not so"
		}
		return map[string]int{"true": 0, "false": 3}[argv[2]], "one\n\x1b[31mtwo\x1b[0m\n"
	}
	d, ctx, said := l.driver(), l.context(), &heard{}
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), said); err != nil {
		t.Fatal(err)
	}
	if err := d.Exec(ctx, l.ref(), "true", said); err != nil || !said.said("two") || said.said("\x1b") {
		t.Errorf("Exec = %v, said %q", err, said.lines)
	}
	var exit *pool.ExitError
	if err := d.Exec(ctx, l.ref(), "false", said); !errors.As(err, &exit) || exit.Status != 3 {
		t.Errorf("Exec of what fails = %v", err)
	}
	l.pve.Edit(500, map[string]string{"agent": ""})
	if err := d.Exec(ctx, l.ref(), "true", said); !errors.Is(err, pool.ErrNoExec) {
		t.Errorf("Exec without agent = %v", err)
	}
}

// A machine is known over SSH by the host key that its guest agent reads, which the token may do
// without the right to run commands. Our key is in its cloud-init settings.
func TestLogin(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const host = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f root@web-1"
	var reads atomic.Int32
	l.pve.Files = func(vmid int, path string) (string, bool) {
		// The first time cloud-init has not made it yet.
		return host + "\n", vmid == 500 && path == "/etc/ssh/ssh_host_ed25519_key.pub" && reads.Add(1) > 1
	}
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	over := spec(at("10.99.0.50/24"))
	over.Init.Keys = &keys
	l.config.Snippets = []string{"local:snippets/m.yml", "local:snippets/u.yml"}
	d, ctx := l.driver(), l.context()
	if _, err := d.Create(ctx, over, &heard{}); err != nil {
		t.Fatal(err)
	}
	if has, err := url.QueryUnescape(l.pve.Config(500)["sshkeys"]); err != nil || !strings.Contains(has, keys.Public(keys.Login)) || !strings.Contains(has, over.Init.SSHKeys[0]) || strings.Contains(has, "PRIVATE") {
		t.Errorf("sshkeys = %q, %v, want the person's and the public half of ours", has, err)
	}
	login, err := d.Login(ctx, l.ref(), over.Init)
	if want := (pool.Login{User: "student", Key: keys.Login, HostKeys: []string{host}, Settles: true}); err != nil || !reflect.DeepEqual(login, want) {
		t.Errorf("Login() = %+v, %v, want %+v", login, err, want)
	}
	l.pve.Files = func(int, string) (string, bool) { return strings.Repeat("x", mostKey+1), true }
	if _, err := d.Login(ctx, l.ref(), over.Init); !errors.Is(err, pool.ErrNoSSH) {
		t.Errorf("Login() with a key of any size = %v", err)
	}
	l.pve.Edit(500, map[string]string{"agent": ""})
	if _, err := d.Login(ctx, l.ref(), over.Init); !errors.Is(err, pool.ErrNoSSH) || !strings.Contains(err.Error(), "qm set 500 --agent 1") {
		t.Errorf("Login() without agent = %v", err)
	}
	other := l.ref()
	other.ID = "0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a99"
	if _, err := d.Login(ctx, other, over.Init); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Login() of another's machine = %v", err)
	}
	over.ID, over.VMID = other.ID, 501
	over.Settings = json.RawMessage(`{"cicustom": "meta=local:snippets/m.yml,user=local:snippets/u.yml"}`)
	if _, err := d.Create(ctx, over, &heard{}); err == nil || !strings.Contains(err.Error(), "by = \"agent\"") || l.pve.Config(501) != nil {
		t.Errorf("Create() with a document of the nodes' = %v", err)
	}
}

// With a snapshot, a change that fails leaves the machine as it was, running, with its disk; one
// that is made leaves no snapshot behind.
func TestChangeWithSnapshot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx := l.driver(), l.context()
	before := spec(at("10.99.0.50/24"))
	if _, err := d.Create(ctx, before, &heard{}); err != nil {
		t.Fatal(err)
	}
	larger := spec(at("10.99.0.50/24"), with(`{"snapshot":true}`), func(s *pool.Spec) { s.Memory = 4096 })
	snapshots := func() (names string) {
		var all []struct {
			Name string `json:"name"`
		}
		if err := d.client.get(ctx, "/nodes/pve1/qemu/500/snapshot", nil, &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			names += s.Name + " "
		}
		return names
	}

	// What is left of an earlier one is older than the machine's disk.
	older := &making{Driver: d, spec: before, progress: &heard{}}
	g, err := d.find(ctx, l.ref())
	if err == nil {
		err = older.haveSnapshot(ctx, g, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.pve.Edit(500, map[string]string{"hotplug": "disk"})
	if err := l.pve.Faults("POST /nodes/pve1/qemu/500/status/start #1: dies KVM virtualisation configured, but not available"); err != nil {
		t.Fatal(err)
	}
	said := &heard{}
	got, err := d.Change(ctx, l.ref(), larger, said)
	if err == nil || !strings.Contains(err.Error(), "the machine is rolled back to how it was") {
		t.Errorf("Change() that fails = %+v, %v, said %q", got, err, said.lines)
	}
	if c := l.pve.Config(500); c["memory"] != "2048" || c["hotplug"] != "disk" || c["running"] != "true" || !strings.Contains(c["description"], stateLine+ready) {
		t.Errorf("after it the machine is %v, want it as it was", c)
	}
	if got := snapshots(); got != "current " {
		t.Errorf("after it the snapshots are %s, want none", got)
	}
	if got, err = d.Change(ctx, l.ref(), larger, said); err != nil || got.Memory != 4096 || got.Status != provisioner.StatusRunning || snapshots() != "current " {
		t.Errorf("Change() = %+v, %v, with snapshots %s", got, err, snapshots())
	}
}

func TestImport(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pve.Machine("pve2", 700, map[string]string{"name": "old", "description": "their notes", "memory": "256", "tags": "prod"})
	d, ctx := l.driver(), l.context()
	got, err := d.Import(ctx, "pve2", 700, spec())
	if err != nil || got.Mark != machineID || !got.Ready || l.pve.Config(700)["tags"] != "prod;tendril" || !strings.HasSuffix(l.pve.Config(700)["description"], "their notes") {
		t.Errorf("Import = %+v, %v: %v", got, err, l.pve.Config(700))
	}
	other := spec(func(s *pool.Spec) { s.ID = strings.Replace(machineID, "0b", "1b", 1) })
	if _, err := d.Import(ctx, "pve2", 700, other); !errors.Is(err, pool.ErrForeign) {
		t.Errorf("Import of a marked machine = %v", err)
	}
	l.pve.Machine("pve3", 701, map[string]string{"name": "theirs"})
	l.config.Nodes = []string{"pve1", "pve2"}
	if _, err := l.driver().Import(ctx, "pve3", 701, other); err == nil || !strings.Contains(err.Error(), "does not let machines be on that node") || l.pve.Config(701)["description"] != "" {
		t.Errorf("Import from a node that the pool does not have = %v", err)
	}
	if _, err := d.Import(ctx, "pve1", 9000, other); err == nil {
		t.Error("a template was imported")
	}
	if seen, err := d.Look(ctx, pool.Ref{ID: machineID, Name: "web-1"}); err != nil || seen.ExternalID != "700" {
		t.Errorf("Look = %+v, %v", seen, err)
	}
}

// A machine that someone cloned by hand bears the mark twice: nothing is done before that is
// resolved, except to the one that the state names.
func TestCopyOfMark(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx := l.driver(), l.context()
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
		t.Fatal(err)
	}
	l.pve.Machine("pve2", 501, map[string]string{"name": "web-1", "description": l.pve.Config(500)["description"]})
	if _, err := d.Look(ctx, pool.Ref{ID: machineID, Name: "web-1"}); err == nil || !strings.Contains(err.Error(), "both bear its mark") {
		t.Errorf("Look = %v", err)
	}
	if err := d.Destroy(ctx, l.ref(), &heard{}); err != nil || l.pve.Config(500) != nil || l.pve.Config(501) == nil {
		t.Errorf("Destroy = %v", err)
	}
}

func TestAddressing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ address, gateway, want string }{
		{"", "10.0.0.1", "ip=dhcp"}, {"10.0.0.5/24", "10.0.0.1", "ip=10.0.0.5/24,gw=10.0.0.1"}, {"10.0.0.5/24", "", "ip=10.0.0.5/24"},
		{"10.0.0.5/24", "fd00::1", "ip=10.0.0.5/24"}, {"fd00::5/64", "fd00::1", "ip6=fd00::5/64,gw6=fd00::1"},
	} {
		var s pool.Spec
		if c.address != "" {
			s.Address = netip.MustParsePrefix(c.address)
		}
		if c.gateway != "" {
			s.Gateway = netip.MustParseAddr(c.gateway)
		}
		if got := addressing(s); got != c.want {
			t.Errorf("addressing(%s, %s) = %s, want %s", c.address, c.gateway, got, c.want)
		}
	}
}

// The text around a mark is people's and templates': none of it can be a mark.
func TestMarks(t *testing.T) {
	t.Parallel()
	evil := spec(func(s *pool.Spec) { s.Workspace = "a\n" + markLine + "other\u2028" + markLine + "third\r\n" })
	if mark, state := marks(describe(evil, creating)); mark != machineID || state != creating {
		t.Errorf("marks = %q, %q of %q", mark, state, describe(evil, creating))
	}
	if mark, state := marks(restate(describe(evil, creating)+"\nnotes", ready)); mark != machineID || state != ready {
		t.Errorf("marks = %q, %q", mark, state)
	}
	for _, text := range []string{"", "x", markLine + "a\n" + markLine + "a", " " + markLine + "a"} {
		if mark, _ := marks(text); mark != "" {
			t.Errorf("marks(%q) = %q", text, mark)
		}
	}
}
