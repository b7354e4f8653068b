//go:build metal

package redfish

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// startIronic starts an Ironic that publishes its images over HTTP, as its BMCs need it.
func startIronic(ctx context.Context, t *testing.T, more string) *ironic.Ironic {
	t.Helper()
	dir, err := os.MkdirTemp("", "tendril-ironic-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	published := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(dir, "http"))))
	t.Cleanup(published.Close)
	// With SQLite's usual journal a greenlet that reads keeps those off that write, and they stop the
	// whole process for 5 s and fail ("database is locked"); in this mode they don't wait for readers.
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", `import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.execute("pragma journal_mode = wal")
c.execute("create table made (x)")
c.execute("drop table made")`, filepath.Join(dir, "ironic.sqlite")).CombinedOutput(); err != nil {
		t.Fatalf("Ironic's database: %v: %s", err, out)
	}
	i, err := ironic.Run(ctx, dir, ironic.Options{More: `[DEFAULT]
enabled_bios_interfaces = no-bios,fake,redfish
isolinux_bin = /usr/lib/ISOLINUX/isolinux.bin
ldlinux_c32 = /usr/lib/syslinux/modules/bios/ldlinux.c32
[deploy]
http_url = ` + published.URL + `
[redfish]
connection_attempts = 2
connection_retry_interval = 1
` + more})
	if i != nil {
		t.Cleanup(func() {
			i.Kill()
			if t.Failed() {
				t.Logf("Ironic's log ends:\n%s", i.Log())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// node is what a server's owner writes down to enrol it.
func node(s *Server, name, id string) map[string]any {
	return map[string]any{
		"name": name, "driver": "redfish", "resource_class": "baremetal",
		"boot_interface": "redfish-virtual-media", "deploy_interface": "ramdisk", "inspect_interface": "redfish", "bios_interface": "redfish",
		"driver_info": map[string]any{
			"redfish_address": s.URL(), "redfish_system_id": SystemPath(id), "redfish_username": "admin", "redfish_password": "password",
		},
	}
}

func set(path string, value any) map[string]any {
	return map[string]any{"op": "add", "path": path, "value": value}
}

// TestIronicDeploysByVirtualMedia enrols a server at a real Ironic, deploys a system to it by virtual
// media with a config drive, signs in over SSH by the key of the config drive, switches its power,
// and undeploys it; and then once more with an image that Ironic makes of a kernel and a ramdisk.
//
// Its deploy interface is ramdisk, for which the system runs from the virtual CD. The interface
// direct writes an image to the disk, by an agent (ironic-python-agent) that Debian does not
// package, and that would take minutes where processors are emulated.
func TestIronicDeploysByVirtualMedia(t *testing.T) {
	l := newLab(t, "bm1")
	ctx, id := l.ctx, l.ids[0]
	i := startIronic(ctx, t, "")
	began := time.Now()
	step := func(format string, args ...any) {
		t.Helper()
		t.Logf("%5.1f s: "+format, append([]any{time.Since(began).Seconds()}, args...)...)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	call := func(method, path string, body, into any) {
		t.Helper()
		must(i.Again(ctx, func() error { return i.Call(ctx, method, path, body, into) }))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the console:\n%s", l.host.Console("bm1.log"))
		}
	})

	// Enrolled, verified, inspected.
	call(http.MethodPost, "/v1/nodes", node(l.s, "bm1", id), nil)
	must(i.To(ctx, "bm1", "manage", "manageable"))
	must(i.To(ctx, "bm1", "inspect", "manageable"))
	var inspected struct {
		Properties map[string]any `json:"properties"`
		PowerState string         `json:"power_state"`
	}
	call(http.MethodGet, "/v1/nodes/bm1", nil, &inspected)
	for name, want := range map[string]any{"cpus": "1", "memory_mb": "1024", "local_gb": "4", "cpu_arch": "x86_64", "capabilities": "boot_mode:bios"} {
		if got := fmt.Sprint(inspected.Properties[name]); got != want {
			t.Errorf("property %s after inspection = %q, want %q", name, got, want)
		}
	}
	if inspected.PowerState != "power off" {
		t.Errorf("power of a new server = %q, want power off", inspected.PowerState)
	}
	var ports struct {
		Ports []struct {
			Address string `json:"address"`
		} `json:"ports"`
	}
	call(http.MethodGet, "/v1/ports?node=bm1", nil, &ports)
	document, err := l.host.Virsh(ctx, "dumpxml", "bm1")
	must(err)
	mac := regexp.MustCompile(`<mac address='([^']*)'`).FindStringSubmatch(document)
	if len(ports.Ports) != 1 || len(mac) != 2 || ports.Ports[0].Address != mac[1] {
		t.Errorf("ports after inspection = %v, want the network card %v", ports, mac)
	}
	var settings struct {
		BIOS []struct{ Name, Value string } `json:"bios"`
	}
	call(http.MethodGet, "/v1/nodes/bm1/bios", nil, &settings)
	if len(settings.BIOS) != len(defaultBIOS()) {
		t.Errorf("BIOS settings that Ironic has read = %v, want %v", settings.BIOS, defaultBIOS())
	}
	must(i.To(ctx, "bm1", "provide", "available"))
	step("enrolled, inspected, available")

	// Deployed from an image that starts as it is.
	mine, other := newKey(t, l.dir, "mine"), newKey(t, l.dir, "other")
	deploy := func(instance, drive map[string]any) {
		t.Helper()
		must(i.Patch(ctx, "bm1", set("/instance_info", instance), set("/instance_uuid", "f0000000-0000-4000-8000-000000000001")))
		call(http.MethodPut, "/v1/nodes/bm1/states/provision", map[string]any{"target": "active", "configdrive": drive}, nil)
		must(i.Await(ctx, "bm1", "active"))
	}
	drive := map[string]any{
		"meta_data":    map[string]any{"hostname": "first-server", "public_keys": map[string]any{"ops": mine.public}},
		"network_data": map[string]any{},
		"user_data":    "#!/bin/sh\necho \"for $(hostname)\" >/tmp/greeting\n",
	}
	deploy(map[string]any{"boot_iso": l.web.URL + "/boot.iso"}, drive)
	step("active")
	g := guest{l: l, t: t}
	g.await(1)
	step("its system is up: %s", g.last("GUEST up"))
	g.expect(mine, "hostname; cat /tmp/greeting", "first-server\nfor first-server\n")
	step("reachable over SSH at %s", g.address())
	if out, err := g.ssh(other, "hostname"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("a key that the config drive does not have: %q, %v; want Permission denied", out, err)
	}

	// Power actions, as Ironic's API has them. It starts from the same medium again.
	call(http.MethodPut, "/v1/nodes/bm1/states/power", map[string]any{"target": "soft power off"}, nil)
	g.off()
	patience.Await(t, "Ironic to see that the power is off", func() bool {
		n, err := i.Node(ctx, "bm1")
		return err == nil && n.PowerState == "power off"
	})
	step("soft power off")
	must(i.Power(ctx, "bm1", "power on"))
	g.await(2)
	g.expect(mine, "hostname", "first-server\n")
	step("power on; reachable again")
	call(http.MethodPut, "/v1/nodes/bm1/states/power", map[string]any{"target": "rebooting"}, nil)
	g.await(3)
	g.expect(mine, "hostname", "first-server\n")
	step("rebooted; reachable again")

	// Undeployed: off, without media, and without anything of its owner's.
	undeployed := func() {
		t.Helper()
		must(i.To(ctx, "bm1", "deleted", "available"))
		g.off()
		n, err := i.Node(ctx, "bm1")
		must(err)
		if n.PowerState != "power off" || n.InstanceUUID != "" || len(n.InstanceInfo) > 0 {
			t.Errorf("server after it was undeployed = %+v, want off and without an instance", n)
		}
		if left, err := os.ReadDir(l.media); err != nil || len(left) > 0 {
			t.Errorf("media that are inserted still: %v, %v", left, err)
		}
		if out, err := g.ssh(mine, "hostname"); err == nil {
			t.Errorf("a server that was undeployed answers over SSH: %q", out)
		}
	}
	undeployed()
	step("undeployed")

	// And once more, for another owner, with an image that Ironic makes.
	drive["meta_data"] = map[string]any{"hostname": "second-server", "public_keys": map[string]any{"ops": other.public}}
	drive["network_data"] = map[string]any{
		"links":    []any{map[string]any{"id": "eth0", "type": "phy", "ethernet_mac_address": mac[1]}},
		"networks": []any{map[string]any{"id": "n0", "type": "ipv4", "link": "eth0", "ip_address": l.host.Network + ".251", "netmask": "255.255.255.0"}},
	}
	deploy(map[string]any{
		"kernel": l.web.URL + "/vmlinuz", "ramdisk": l.web.URL + "/initrd.gz",
		"ramdisk_kernel_arguments": "console=ttyS0 quiet mitigations=off net.ifnames=0", "image_source": l.web.URL + "/boot.iso",
	}, drive)
	step("active, with another system")
	g.await(4)
	if got, want := g.address(), l.host.Network+".251"; got != want {
		t.Errorf("address of the second system = %s, want %s as its config drive says", got, want)
	}
	g.expect(other, "hostname; grep -o root=/dev/ram0 /proc/cmdline", "second-server\nroot=/dev/ram0\n")
	step("reachable over SSH at %s", g.address())
	if out, err := g.ssh(mine, "hostname"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("the first owner's key: %q, %v; want Permission denied", out, err)
	}
	undeployed()
	step("undeployed")
	call(http.MethodDelete, "/v1/nodes/bm1", nil, nil)
}

// key is one for SSH.
type key struct{ file, public string }

func newKey(t *testing.T, dir, name string) key {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, name)
	if err != nil {
		t.Fatal(err)
	}
	k := key{file: filepath.Join(dir, name)}
	if err := os.WriteFile(k.file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	of, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	k.public = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(of))) + " " + name
	return k
}

// guest is the system that was deployed.
type guest struct {
	l *lab
	t *testing.T
}

// last is what its console says last after some words.
func (g guest) last(words string) string {
	found := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(words)+` (.*?)\r?$`).FindAllStringSubmatch(g.l.host.Console("bm1.log"), -1)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1][1]
}

func (g guest) address() string {
	address, _, _ := strings.Cut(g.last("GUEST address"), "/")
	return address
}

// await waits until a system has started so often.
func (g guest) await(times int) {
	g.t.Helper()
	patience.AwaitShowing(g.t, fmt.Sprintf("start %d of a system", times), func() string { return g.l.host.Console("bm1.log") },
		func() bool { return strings.Count(g.l.host.Console("bm1.log"), "GUEST up") >= times })
}

// off waits until the hypervisor says so.
func (g guest) off() {
	g.t.Helper()
	patience.Await(g.t, "the machine to be off", func() bool {
		state, err := g.l.host.Virsh(g.l.ctx, "domstate", "bm1")
		return err == nil && strings.TrimSpace(state) == "shut off"
	})
}

// ssh runs a command there, from the hypervisor's network, if the host key is the console's.
func (g guest) ssh(by key, command string) (string, error) {
	known := filepath.Join(g.l.dir, "known_hosts")
	if err := os.WriteFile(known, []byte(g.address()+" "+g.last("GUEST host-key")+"\n"), 0o600); err != nil {
		return "", err
	}
	out, err := g.l.host.Inside(g.l.ctx, "ssh", "-F", "none", "-i", by.file, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "UserKnownHostsFile="+known, "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5", "root@"+g.address(), command).CombinedOutput()
	return string(out), err
}

func (g guest) expect(by key, command, want string) {
	g.t.Helper()
	if out, err := g.ssh(by, command); err != nil || out != want {
		g.t.Errorf("%s over SSH = %q, %v; want %q", command, out, err, want)
	}
}
