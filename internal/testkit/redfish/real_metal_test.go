//go:build metal

package redfish

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// TestRealServer takes a machine of a real libvirt daemon through what a BMC is asked for: started
// from a virtual CD once and always, shut down, restarted, with a USB stick that is put in and
// taken out while it runs.
func TestRealServer(t *testing.T) {
	ctx, cancel := patience.Context(t.Context(), 5*time.Minute)
	defer cancel()
	l := NewLab(ctx, t, "bm1")
	host, s, media, id := l.Host, l.BMC, l.media, l.IDs[0]
	c := client{t: t, s: s, user: "admin", password: "password"}
	system, cd := SystemPath(id), serviceRoot+"/Managers/"+id+"/VirtualMedia/Cd"

	power := func() string { return text(c.get(system), "PowerState") }
	began := time.Now()
	reset := func(kind string) {
		t.Helper()
		t.Logf("%5.1f s: %s", time.Since(began).Seconds(), kind)
		c.do(http.MethodPost, system+"/Actions/ComputerSystem.Reset", resource{"ResetType": kind}, http.StatusNoContent)
	}
	starts := func() int { return strings.Count(host.Console("bm1.log"), "GUEST up") }
	up := func(times int) {
		t.Helper()
		patience.AwaitShowing(t, fmt.Sprintf("start %d of the guest", times), func() string { return host.Console("bm1.log") }, func() bool { return starts() == times })
	}

	if got := power(); got != "Off" {
		t.Fatalf("power of a new machine = %s, want Off", got)
	}
	c.do(http.MethodPost, cd+"/Actions/VirtualMedia.InsertMedia", resource{"Image": l.Web.URL + "/boot.iso"}, http.StatusNoContent)
	c.do(http.MethodPatch, system, resource{"Boot": resource{"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Once"}}, http.StatusNoContent)
	before := definition(ctx, t, host)
	reset("On")
	up(1)
	if got := definition(ctx, t, host); got != before {
		t.Errorf("a start from the CD, once, changed the domain's definition:\n%s\nwas\n%s", got, before)
	}
	if got := text(c.get(system), "Boot", "BootSourceOverrideEnabled"); got != "Disabled" {
		t.Errorf("boot override after the start that used it = %s, want Disabled", got)
	}

	stick := serviceRoot + "/Managers/" + id + "/VirtualMedia/UsbStick"
	c.do(http.MethodPost, stick+"/Actions/VirtualMedia.InsertMedia", resource{"Image": l.Web.URL + "/initrd.gz"}, http.StatusNoContent)
	patience.AwaitShowing(t, "the guest to see a USB stick", func() string { return host.Console("bm1.log") }, func() bool {
		running, err := host.Virsh(ctx, "domblklist", "bm1")
		return err == nil && strings.Contains(running, media)
	})
	c.do(http.MethodPost, stick+"/Actions/VirtualMedia.EjectMedia", nil, http.StatusNoContent)
	patience.Await(t, "the USB stick to be gone", func() bool {
		running, err := host.Virsh(ctx, "domblklist", "bm1")
		return err == nil && !strings.Contains(running, "sdb")
	})

	reset("GracefulShutdown")
	patience.Await(t, "the guest to shut down", func() bool { return power() == "Off" })
	c.do(http.MethodPatch, system, resource{"Boot": resource{"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Continuous"}}, http.StatusNoContent)
	reset("On")
	up(2)
	reset("GracefulRestart")
	up(3)
	reset("ForceRestart")
	up(4)
	reset("Nmi")
	reset("ForceOff")
	if got := power(); got != "Off" {
		t.Errorf("power after ForceOff = %s, want Off", got)
	}
	if got := text(c.get(system), "Boot", "BootSourceOverrideTarget"); got != "Cd" {
		t.Errorf("a boot override that is to stay = %s after three starts, want Cd", got)
	}

	c.do(http.MethodPatch, system, resource{"Boot": resource{"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}}, http.StatusNoContent)
	reset("On")
	if got := power(); got != "On" {
		t.Errorf("power after On = %s, want On", got)
	}
	// Its disk is empty: nothing of it comes up, and the CD is there still.
	if got, err := host.Virsh(ctx, "dumpxml", "bm1"); err != nil || !strings.Contains(got, "<boot dev='hd'/>") || !strings.Contains(got, media) {
		t.Errorf("a start without override is not from the disk with the CD inserted: %v\n%s", err, got)
	}
	c.do(http.MethodPost, cd+"/Actions/VirtualMedia.EjectMedia", nil, http.StatusNoContent)
	if got, err := host.Virsh(ctx, "dumpxml", "bm1"); err != nil || strings.Contains(got, media) {
		t.Errorf("the CD is in the drive after it was ejected: %v\n%s", err, got)
	}
	if left := l.Inserted(t); len(left) > 0 {
		t.Errorf("images that are kept after they were ejected: %v", left)
	}

	drives := c.get(system + "/Storage/1")
	if got := number(c.get(text(list(drives, "Drives")[0], "@odata.id")), "CapacityBytes"); got != 5<<30 {
		t.Errorf("capacity of the disk = %d, want 5 GiB", got)
	}
	if err := host.KillDaemon(ctx); err != nil {
		t.Fatal(err)
	}
	c.do(http.MethodGet, system, nil, http.StatusInternalServerError)
	if err := host.StartDaemon(ctx); err != nil {
		t.Fatal(err)
	}
	if got := power(); got != "On" {
		t.Errorf("power after the daemon was killed and started = %s, want On", got)
	}
}

// definition is how the domain starts next.
func definition(ctx context.Context, t *testing.T, host *hypervisors.Host) string {
	t.Helper()
	text, err := host.Virsh(ctx, "dumpxml", "--inactive", "bm1")
	if err != nil {
		t.Fatal(err)
	}
	return text
}
