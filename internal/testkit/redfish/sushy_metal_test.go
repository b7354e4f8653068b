//go:build metal

package redfish

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"testing"
)

// reading is what sushy, the client of Ironic's driver, makes of a service. Whatever it needs and
// does not find is an error of Python's.
const reading = `
import json, sys, sushy
from sushy import auth
url, system_id, image = sys.argv[1:]
root = sushy.Sushy(url, auth=auth.SessionAuth(username='admin', password='password'))
s = root.get_system(system_id)
c, m = s.chassis[0], s.managers[0]
cd = [v for v in m.virtual_media.get_members() if sushy.VIRTUAL_MEDIA_CD in v.media_types][0]
stick = [v for v in m.virtual_media.get_members() if sushy.VIRTUAL_MEDIA_USBSTICK in v.media_types][0]
out = {
    'version': root.redfish_version,
    'systems': len(root.get_system_collection().get_members()),
    'power': s.power_state.value, 'name': s.name, 'health': s.status.health.value, 'led': s.indicator_led.value,
    'resets': sorted(v.value for v in s.get_allowed_reset_system_values()),
    'targets': sorted(v.value for v in s.get_allowed_system_boot_source_values()),
    'mode': s.boot.mode.value,
    'memory': s.memory_summary.size_gib, 'cpus': list(s.processors.summary)[0], 'arch': list(s.processors.summary)[1].value,
    'macs': s.ethernet_interfaces.summary and list(s.ethernet_interfaces.summary),
    'drives': s.storage.drives_sizes_bytes,
    'manager': [m.manager_type.value, m.firmware_version],
    'temperatures': [[t.name, t.reading_celsius, t.upper_threshold_critical, t.status.health.value] for t in c.thermal.temperatures],
    'fans': [[f.name, f.reading, f.reading_units.value, f.status.health.value] for f in c.thermal.fans],
    'supplies': [[p.name, p.power_capacity_watts, p.last_power_output_watts, p.status.health.value] for p in c.power.power_supplies],
    'bios': s.bios.attributes,
}
s.bios.set_attributes({'BootDelay': 7})
out['pending'] = s.bios.pending_attributes['BootDelay']
s.set_system_boot_options(sushy.BOOT_SOURCE_TARGET_CD, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)
cd.insert_media(image)
stick.insert_media(image)
cd.refresh()
out['inserted'] = [cd.inserted, cd.image == image, cd.image_name, cd.connected_via.value]
s.reset_system(sushy.RESET_ON)
s.refresh()
out['then'] = [s.power_state.value, s.boot.enabled.value, s.boot.target.value]
s.bios.refresh()
out['delay'] = s.bios.attributes['BootDelay']
cd.eject_media()
stick.eject_media()
cd.refresh()
out['ejected'] = cd.inserted
s.set_indicator_led(sushy.INDICATOR_LED_LIT)
s.bios.reset_bios()
print(json.dumps(out))
`

// TestSushyReadsAll has Ironic's own client read and change all that there is.
func TestSushyReadsAll(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "an image") }))
	defer web.Close()
	f, c := start(t, Options{})
	c.s.SetSensors(blankID, Sensors{CPU: 42, Inlet: 43, Fan: 4200, Supply: true, Watts: 180})
	out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", reading, c.s.URL(), SystemPath(blankID), web.URL+"/image.iso").Output()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		t.Fatalf("sushy: %v\n%s", err, ended.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("sushy prints %q: %v", out, err)
	}
	for name, want := range map[string]any{
		"version": "1.15.0", "systems": 2.0, "power": "Off", "name": "bm1", "health": "Warning", "led": "Off", "mode": "Legacy",
		"resets":  []any{"ForceOff", "ForceRestart", "GracefulRestart", "GracefulShutdown", "Nmi", "On"},
		"targets": []any{"Cd", "Hdd", "None", "Pxe"},
		"memory":  1.0, "cpus": 2.0, "arch": "x86", "macs": []any{"52:54:00:12:34:56"}, "drives": []any{float64(10 << 30)},
		"manager":      []any{"BMC", "1.0.0"},
		"temperatures": []any{[]any{"CPU Temp", 43.0, 95.0, "OK"}, []any{"Inlet Temp", 43.0, 47.0, "Warning"}},
		"fans":         []any{[]any{"Fan 1", 0.0, "RPM", "OK"}, []any{"Fan 2", 0.0, "RPM", "OK"}},
		"supplies":     []any{[]any{"Power Supply 1", 550.0, 2.0, "OK"}, []any{"Power Supply 2", 550.0, 2.0, "OK"}},
		"bios":         map[string]any{"BootDelay": 0.0, "Hyperthreading": "Enabled", "NumLock": "On", "ProcVirtualization": "Disabled"},
		"pending":      7.0, "delay": 7.0, "inserted": []any{true, true, "image.iso", "URI"}, "then": []any{"On", "Disabled", "None"}, "ejected": false,
	} {
		if !reflect.DeepEqual(got[name], want) {
			t.Errorf("sushy reads %s as %v, want %v", name, got[name], want)
		}
	}
	wantCalls(t, f, "bm1: define", "bm1: define", "bm1: start once from sda vda net", "bm1: exchange nothing at sda", "bm1: define", "bm1: detach sdb", "bm1: define")
	if got := c.s.Sessions(); got != 0 {
		t.Errorf("sessions that sushy has left = %d, want 0", got)
	}
}
