package proxmox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
)

// The driver waits for faults that pass, and makes the machine all the same.
func TestFaultsThatPass(t *testing.T) {
	t.Parallel()
	for name, grammar := range map[string]string{
		"lock file":           "POST /nodes/*/qemu/*/status/start #1: dies can't lock file '/var/lock/qemu-server/lock-500.conf' - got timeout\nPUT /nodes/*/qemu/*/config #1: error 500 can't lock file '/var/lock/qemu-server/lock-500.conf' - got timeout",
		"storage busy":        "POST /nodes/*/qemu/*/clone #1-2: error 500 storage 'disks' is busy",
		"another node":        "GET * #3-5: proxy 596 Connection timed out\nPOST * #2: proxy 595 No route to host",
		"cut":                 "GET * #2: cut\nPUT * #1: cut\nPOST * #1: lost\nPOST * #3: cut",
		"slow":                "GET * #1-9: slow 3s",
		"task dies of a lock": "POST /nodes/*/qemu/*/clone #1: dies can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout\nPUT /nodes/*/qemu/*/resize #1: dies VM is locked (backup)",
		"quorum":              "POST * #1-2: error 500 cluster not ready - no quorum?\nPUT * #1: error 500 cluster not ready - no quorum?",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			if err := l.pve.Faults(grammar); err != nil {
				t.Fatal(err)
			}
			got, err := l.driver().Create(l.context(), spec(at("10.99.0.50/24")), &heard{})
			if err != nil || !got.Ready || len(l.marked()) != 1 || !l.pve.Met() {
				t.Errorf("Create = %+v, %v; machines %v", got, err, l.marked())
			}
		})
	}
}

// An error that stays says what is wrong and what to do.
func TestFaultsThatStay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(l *lab)
		change  func(*pool.Spec)
		want    []string
	}{
		{"no KVM", func(l *lab) { l.pve.Node("pve1", func(n *pvesim.Node) { n.NoKVM = true }) }, nil, []string{"KVM virtualisation configured", "switch virtualisation on in the node's BIOS"}},
		{"too many cores", nil, func(s *pool.Spec) { s.Cores = 64 }, []string{"MAX 16 vcpus", "ask for fewer cores"}},
		{"node full", func(l *lab) { l.pve.Node("pve1", func(n *pvesim.Node) { n.Memory = 1 << 30 }) }, nil, []string{"QEMU exited"}},
		{"no bridge", nil, with(`{"bridge":"vmbr77"}`), []string{"bridge 'vmbr77' does not exist", "proxmox { bridge"}},
		{"no room", func(l *lab) {
			l.pve.Storage(pvesim.Storage{Name: "thick", Type: "lvm", Content: "images", Size: 1 << 30, Full: true})
		}, with(`{"storage":"thick"}`), []string{"insufficient free space", "choose another"}},
		{"storage gone", nil, with(`{"storage":"nope"}`), []string{"storage 'nope' does not exist"}},
		{"smaller disk", nil, func(s *pool.Spec) { s.Disk = 1 }, []string{"4G", "can't be made smaller"}},
		{"bad key", nil, func(s *pool.Spec) { s.Init.SSHKeys = []string{"garbage"} }, []string{"SSH public key validation error", "one of the SSH keys is none"}},
		{"user data", nil, func(s *pool.Spec) { s.Init.UserData = "#cloud-config" }, []string{"cicustom"}},
		{"snippet missing", func(l *lab) { l.config.Snippets = []string{"local:snippets/x.yml"} }, with(`{"cicustom":"user=local:snippets/x.yml"}`), []string{"local:snippets/x.yml"}},
		{"no cloud-init drive", func(l *lab) { l.pve.Edit(9000, map[string]string{"ide2": ""}) }, nil, []string{"no cloud-init drive", "qm set 9000 --ide2 disks:cloudinit"}},
		{"no agent", func(l *lab) { l.pve.Edit(9000, map[string]string{"agent": ""}) }, func(s *pool.Spec) { s.Init.Wait = "agent" }, []string{"qm set 9000 --agent 1"}},
		{"no SDN.Use", func(l *lab) { l.pve.Revoke(tokenID, "/sdn/zones/localnetwork") }, nil, []string{"SDN.Use", "pveum acl modify /sdn/zones/localnetwork/vmbr0 --users ci@pve --tokens 'ci@pve!tendril'"}},
		{"clone dies", func(l *lab) { l.fault("POST /nodes/*/qemu/*/clone: dies clone failed: disk on fire") }, nil, []string{"disk on fire", "UPID:pve1:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			if c.prepare != nil {
				c.prepare(l)
			}
			s := spec(at("10.99.0.50/24"))
			if c.change != nil {
				c.change(&s)
			}
			got, err := l.driver().Create(l.context(), s, &heard{})
			if err == nil {
				t.Fatalf("Create = %+v", got)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), s.Init.Password) {
				t.Errorf("error %q has a secret", err)
			}
		})
	}
}

func (l *lab) fault(grammar string) {
	l.Helper()
	if err := l.pve.Faults(grammar); err != nil {
		l.Fatal(err)
	}
}

// That a machine is gone is said only by a cluster that was asked for all of them.
func TestGoneIsKnownOnly(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(l *lab){
		"node offline":   func(l *lab) { l.pve.Node("pve2", func(n *pvesim.Node) { n.Offline = true }) },
		"token blind":    func(l *lab) { l.pve.Revoke(tokenID, "/vms"); l.pve.Grant(tokenID, "/vms/9000", "PVEVMAdmin") },
		"list is cut":    func(l *lab) { l.fault("GET /cluster/resources: cut") },
		"token revoked":  func(l *lab) { l.pve.AddToken(pvesim.Token{ID: tokenID, Secret: "another", Separate: true}) },
		"config refused": func(l *lab) { l.fault("GET /nodes/pve2/qemu/9010/config: error 500 unable to read tail (got 0 bytes)") },
		"no server":      func(l *lab) { l.pve.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			prepare(l)
			d := l.driver()
			ref := l.ref()
			ref.ExternalID, ref.Node = "", ""
			_, err := d.Look(l.context(), ref)
			if err == nil || errors.Is(err, pool.ErrGone) {
				t.Errorf("Look = %v", err)
			}
			if name != "token revoked" && !errors.Is(err, pool.ErrUnreachable) {
				t.Errorf("Look = %v, which is no ErrUnreachable", err)
			}
			if err := d.Destroy(l.context(), ref, &heard{}); err == nil {
				t.Error("Destroy says that it is done")
			}
		})
	}
}

// A server that means harm gets no more than a bounded time and a bounded memory.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, grammar, want string }{
		{"a gigabyte", "GET /cluster/resources: flood 1024", "more than 16 MiB"},
		{"a redirect", "GET /cluster/resources: redirect https://127.0.0.1:1/steal", "a redirect, which is not followed"},
		{"slow drip", "GET /cluster/resources: drip", "did not answer completely within"},
		{"an endless task", "POST /nodes/*/qemu/*/clone: hangs", "it is not done after"},
		{"an endless log", "POST /nodes/*/qemu/*/clone: hangs \u202ereversed\x1b[2J", "it is not done after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(o *pvesim.Options) {
				if c.name == "slow drip" {
					o.Speed = 1
				}
			})
			l.pace = pace
			switch {
			case c.name == "slow drip":
				l.config.Timeout = 300 * time.Millisecond
			case strings.HasPrefix(c.name, "an endless"):
				l.limits.clone = 3 * time.Second
			}
			l.fault(c.grammar)
			said := &heard{}
			_, err := l.driver().Create(l.context(), spec(at("10.99.0.50/24")), said)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "steal") {
				t.Errorf("Create = %v, want %q", err, c.want)
			}
			if said.said("\u202e") || said.said("\x1b") || len(said.lines) > mostLines+10 {
				t.Errorf("%d lines, with control characters", len(said.lines))
			}
		})
	}
}

// A template gets nothing that the pool's operator does not let it have, and the cluster is not
// even asked for it.
func TestHostileTemplate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		config func(*pool.Config)
		change func(*pool.Spec)
		want   string
	}{
		{"another's resource pool", nil, with(`{"resource_pool":"other-org"}`), "does not let templates choose a resource pool"},
		{"a resource pool beside one's own", func(c *pool.Config) { c.ResourcePool = "lab" }, with(`{"resource_pool":"lab2"}`), "can only name it or one below it"},
		{"another's seed", nil, with(`{"cicustom":"user=local:snippets/net-ann-user.yml"}`), "does not let templates use the snippet local:snippets/net-ann-user.yml"},
		{"another's seed beside an allowed one", func(c *pool.Config) { c.Snippets = []string{"local:snippets/lab.yml"} }, with(`{"cicustom":"vendor=local:snippets/lab.yml,user=local:snippets/net-ann-user.yml"}`), "snippets/net-ann-user.yml"},
		{"a node that it may not have", func(c *pool.Config) { c.Nodes = []string{"pve2"} }, nil, "does not let machines be on node pve1"},
		{"a storage that it may not have", func(c *pool.Config) { c.Storages = []string{"disks"} }, with(`{"storage":"nfs"}`), "does not let templates use storage"},
		{"a VMID of the system", nil, func(s *pool.Spec) { s.VMID = 99 }, "VMID 99 is none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			if c.config != nil {
				c.config(&l.config)
			}
			s := spec(at("10.99.0.50/24"))
			if c.change != nil {
				c.change(&s)
			}
			_, err := l.driver().Create(l.context(), s, &heard{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Create = %v, want %q", err, c.want)
			}
			for _, r := range l.pve.Requests() {
				t.Errorf("%s %s was sent", r.Method, r.Path)
			}
		})
	}
}

// A machine that bears another's mark from one moment to the next is not touched any more.
func TestAnothersMarkAppears(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx := l.driver(), l.context()
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), &heard{}); err != nil {
		t.Fatal(err)
	}
	l.pve.Edit(500, map[string]string{"description": markLine + "0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a02"})
	before := l.pve.Digest(func(int) bool { return true })
	if got, err := d.Look(ctx, l.ref()); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Look = %+v, %v", got, err)
	}
	if _, err := d.Change(ctx, l.ref(), spec(func(s *pool.Spec) { s.Memory = 4096 }), &heard{}); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Change = %v", err)
	}
	if _, err := d.Power(ctx, l.ref(), "stop", &heard{}); !errors.Is(err, pool.ErrGone) {
		t.Errorf("Power = %v", err)
	}
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), &heard{}); !errors.Is(err, pool.ErrForeign) {
		t.Errorf("Create = %v, want ErrForeign", err)
	}
	if err := d.Destroy(ctx, l.ref(), &heard{}); err != nil {
		t.Errorf("Destroy = %v, want it to be gone", err)
	}
	if l.pve.Digest(func(int) bool { return true }) != before {
		t.Error("a machine that bears another's mark has changed")
	}
}

// The driver drops addresses that a guest can only have made up.
func TestHostileGuest(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string][]string{
		"loopback and link": {"127.0.0.1/8", "169.254.169.254/16", "fe80::1/64", "0.0.0.0/0", "224.0.0.1/4", "::1/128"},
		"another card":      {"02:42:ac:11:00:01 172.17.0.1/16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.limits.agent = 4 * time.Second
			l.pve.Guest(9000, pvesim.Guest{Addresses: addresses})
			got, err := l.driver().Create(l.context(), spec(), &heard{})
			if err == nil || len(got.Addresses) != 0 || !strings.Contains(err.Error(), "no address that others can reach") {
				t.Errorf("Create = %+v, %v", got, err)
			}
		})
	}
	l := newLab(t)
	l.pve.Guest(9000, pvesim.Guest{Addresses: []string{"10.99.0.1/24"}})
	got, err := l.driver().Create(l.context(), spec(at("10.99.0.50/24")), &heard{})
	if err != nil || fmt.Sprint(got.Addresses) != "[10.99.0.50]" {
		t.Errorf("Create = %+v, %v; want the address that was given", got, err)
	}
}

// An agent that is late is waited for; one that never comes ends the wait with what to look at.
func TestLateAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pve.Guest(9000, pvesim.Guest{AgentAfter: 40 * time.Second})
	if _, err := l.driver().Create(l.context(), spec(), &heard{}); err != nil {
		t.Error(err)
	}
	l = newLab(t)
	l.limits.agent = 2 * time.Second
	l.pve.Guest(9000, pvesim.Guest{NoAgent: true})
	got, err := l.driver().Create(l.context(), spec(), &heard{})
	if err == nil || got.ExternalID != "500" || got.Ready || !strings.Contains(err.Error(), "is qemu-guest-agent installed and running") {
		t.Errorf("Create = %+v, %v", got, err)
	}
	got, err = l.driver().Create(l.context(), spec(with(`{"agent":false}`)), &heard{})
	if err != nil || !got.Ready {
		t.Errorf("agent = false: Create = %+v, %v", got, err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	good := l.pve.Fingerprint()
	for _, c := range []struct {
		name   string
		change func(*pool.Config)
		want   string
	}{
		{"system's authorities", func(c *pool.Config) { c.CAFile = "" }, "certificate"},
		{"fingerprint", func(c *pool.Config) { c.CAFile, c.Fingerprint = "", good }, ""},
		{"other fingerprint", func(c *pool.Config) { c.CAFile, c.Fingerprint = "", strings.Repeat("ab:", 31)+"ab" }, "has the fingerprint " + good},
		{"insecure", func(c *pool.Config) { c.CAFile, c.Insecure = "", true }, ""},
	} {
		config := l.config
		c.change(&config)
		d, err := open(config, pace, usual)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.List(l.context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: List = %v, want %q", c.name, err, c.want)
		}
		_ = d.Close()
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	write := func(text string, mode os.FileMode) string {
		path := t.TempDir() + "/token"
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		change func(*pool.Config)
		want   string
	}{
		{func(c *pool.Config) { c.URL = "http://pve1:8006" }, "https://HOST:8006"},
		{func(c *pool.Config) { c.URL = "https://root:geheim@pve1:8006" }, "without user"},
		{func(c *pool.Config) { c.URL = "https://pve1:8006/#v1" }, "https://HOST:8006"},
		{func(c *pool.Config) { c.TokenFile = write(tokenID+"="+secret, 0o644) }, "chmod o="},
		{func(c *pool.Config) { c.TokenFile = write("root@pam:geheim", 0o600) }, "USER@REALM!NAME=UUID"},
		{func(c *pool.Config) { c.Fingerprint = "AB" }, "64 hexadecimal digits"},
		{func(c *pool.Config) { c.CAFile = write("no PEM", 0o600) }, "no certificate in PEM form"},
	} {
		config := l.config
		c.change(&config)
		_, err := Open(config)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("Open = %v, want %q", err, c.want)
		}
	}
}

// A token that was replaced is read again, and a Create that is cancelled ends soon.
func TestTokenReplaced(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d := l.driver()
	fresh := strings.ReplaceAll(secret, "a", "b")
	l.pve.AddToken(pvesim.Token{ID: tokenID, Secret: fresh, Separate: true})
	if err := os.WriteFile(l.config.TokenFile, []byte(tokenID+"="+fresh), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(l.context()); err != nil {
		t.Error(err)
	}
	l.fault("POST /nodes/*/qemu/*/clone: hangs")
	ctx, cancel := context.WithCancel(l.context())
	said := &watch{heard: heard{}, at: "clone", do: cancel}
	if _, err := d.Create(ctx, spec(at("10.99.0.50/24")), said); !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v, want the context's end", err)
	}
}

// watch does something when a step begins.
type watch struct {
	heard
	at string
	do func()
}

func (w *watch) Step(id, label string, percent int) {
	w.heard.Step(id, label, percent)
	if id == w.at {
		w.do()
	}
}
