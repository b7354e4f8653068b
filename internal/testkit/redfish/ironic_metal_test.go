//go:build metal

package redfish

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

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
	ctx, cancel := patience.Context(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	l := NewLab(ctx, t, "bm1")
	i, g := StartIronic(ctx, t, ""), l.Guest("bm1")
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
			t.Logf("the console:\n%s", g.Console())
		}
	})

	// Enrolled, verified, inspected.
	call(http.MethodPost, "/v1/nodes", l.BMC.Node("bm1", l.IDs[0]), nil)
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
	document, err := l.Host.Virsh(ctx, "dumpxml", "bm1")
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
	mine, other := l.NewKey(t, "mine"), l.NewKey(t, "other")
	deploy := func(instance, drive map[string]any) {
		t.Helper()
		must(i.Patch(ctx, "bm1", set("/instance_info", instance), set("/instance_uuid", "f0000000-0000-4000-8000-000000000001")))
		call(http.MethodPut, "/v1/nodes/bm1/states/provision", map[string]any{"target": "active", "configdrive": drive}, nil)
		must(i.Await(ctx, "bm1", "active"))
	}
	drive := map[string]any{
		"meta_data":    map[string]any{"hostname": "first-server", "public_keys": map[string]any{"ops": mine.Public}},
		"network_data": map[string]any{},
		"user_data":    "#!/bin/sh\necho \"for $(hostname)\" >/tmp/greeting\n",
	}
	deploy(map[string]any{"boot_iso": l.Web.URL + "/boot.iso"}, drive)
	step("active")
	g.Await(t, 1)
	step("its system is up: %s", g.Last("GUEST up"))
	g.Expect(t, mine, "hostname; cat /tmp/greeting", "first-server\nfor first-server\n")
	step("reachable over SSH at %s", g.Address())
	if out, err := g.SSH(other, "hostname"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("a key that the config drive does not have: %q, %v; want Permission denied", out, err)
	}

	// Power actions, as Ironic's API has them. It starts from the same medium again.
	call(http.MethodPut, "/v1/nodes/bm1/states/power", map[string]any{"target": "soft power off"}, nil)
	g.AwaitOff(t)
	patience.Await(t, "Ironic to see that the power is off", func() bool {
		n, err := i.Node(ctx, "bm1")
		return err == nil && n.PowerState == "power off"
	})
	step("soft power off")
	must(i.Power(ctx, "bm1", "power on"))
	g.Await(t, 2)
	g.Expect(t, mine, "hostname", "first-server\n")
	step("power on; reachable again")
	call(http.MethodPut, "/v1/nodes/bm1/states/power", map[string]any{"target": "rebooting"}, nil)
	g.Await(t, 3)
	g.Expect(t, mine, "hostname", "first-server\n")
	step("rebooted; reachable again")

	// Undeployed: off, without media, and without anything of its owner's.
	undeployed := func() {
		t.Helper()
		must(i.To(ctx, "bm1", "deleted", "available"))
		g.AwaitOff(t)
		n, err := i.Node(ctx, "bm1")
		must(err)
		if n.PowerState != "power off" || n.InstanceUUID != "" || len(n.InstanceInfo) > 0 {
			t.Errorf("server after it was undeployed = %+v, want off and without an instance", n)
		}
		if left := l.Inserted(t); len(left) > 0 {
			t.Errorf("media that are inserted still: %v", left)
		}
		if out, err := g.SSH(mine, "hostname"); err == nil {
			t.Errorf("a server that was undeployed answers over SSH: %q", out)
		}
	}
	undeployed()
	step("undeployed")

	// And once more, for another owner, with an image that Ironic makes.
	drive["meta_data"] = map[string]any{"hostname": "second-server", "public_keys": map[string]any{"ops": other.Public}}
	drive["network_data"] = map[string]any{
		"links":    []any{map[string]any{"id": "eth0", "type": "phy", "ethernet_mac_address": mac[1]}},
		"networks": []any{map[string]any{"id": "n0", "type": "ipv4", "link": "eth0", "ip_address": l.Host.Network + ".251", "netmask": "255.255.255.0"}},
	}
	deploy(map[string]any{
		"kernel": l.Web.URL + "/vmlinuz", "ramdisk": l.Web.URL + "/initrd.gz",
		"ramdisk_kernel_arguments": "quiet", "image_source": l.Web.URL + "/boot.iso",
	}, drive)
	step("active, with another system")
	g.Await(t, 4)
	if got, want := g.Address(), l.Host.Network+".251"; got != want {
		t.Errorf("address of the second system = %s, want %s as its config drive says", got, want)
	}
	g.Expect(t, other, "hostname; grep -o root=/dev/ram0 /proc/cmdline", "second-server\nroot=/dev/ram0\n")
	step("reachable over SSH at %s", g.Address())
	if out, err := g.SSH(mine, "hostname"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("the first owner's key: %q, %v; want Permission denied", out, err)
	}
	undeployed()
	step("undeployed")
	call(http.MethodDelete, "/v1/nodes/bm1", nil, nil)
}
