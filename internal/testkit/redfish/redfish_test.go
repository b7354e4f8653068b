package redfish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a service in front of a fake, and answers its administrator.
func start(t *testing.T, o Options) (*fake, client) {
	t.Helper()
	f := newFake(t)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
			t.Errorf("images that the service has left: %v, %v", left, err)
		}
	})
	return f, client{t: t, s: s, user: "admin", password: "password"}
}

const blankSystem = serviceRoot + "/Systems/" + blankID

func wantCalls(t *testing.T, f *fake, want ...string) {
	t.Helper()
	if got := f.did(); !slices.Equal(got, want) {
		t.Errorf("the hypervisor was asked for %q, want %q", got, want)
	}
}

func TestWhoMayEnter(t *testing.T) {
	t.Parallel()
	_, admin := start(t, Options{})
	nobody := client{t: t, s: admin.s}
	for _, path := range []string{"/redfish", "/redfish/", serviceRoot, serviceRoot + "/"} {
		nobody.get(path)
	}
	for _, c := range []client{
		nobody,
		{t: t, s: admin.s, user: "admin", password: "wrong"},
		{t: t, s: admin.s, user: "root", password: "password"},
		{t: t, s: admin.s, token: "made up"},
	} {
		for _, path := range []string{"/Systems", "/Systems/" + blankID, "/SessionService", "/nothing"} {
			answer := c.send(http.MethodGet, serviceRoot+path, nil)
			if answer.status != http.StatusUnauthorized || !strings.HasPrefix(answer.header.Get("WWW-Authenticate"), "Basic") {
				t.Errorf("%s of %q = %d, want 401 and how to sign in", path, c.user+c.token, answer.status)
			}
			if got := text(answer.body, "error", "code"); got != "Base.1.15.NoValidSession" {
				t.Errorf("%s of %q says %q", path, c.user+c.token, got)
			}
		}
	}
	admin.get(serviceRoot + "/Systems")
}

func TestSessions(t *testing.T) {
	t.Parallel()
	_, admin := start(t, Options{})
	nobody := client{t: t, s: admin.s}
	nobody.do(http.MethodPost, sessionPath, resource{"UserName": "admin", "Password": "wrong"}, http.StatusUnauthorized)
	answer := nobody.send(http.MethodPost, sessionPath, resource{"UserName": "admin", "Password": "password"})
	mine, made := client{t: t, s: admin.s, token: answer.header.Get("X-Auth-Token")}, answer.body
	if answer.status != http.StatusCreated || mine.token == "" || answer.header.Get("Location") != text(made, "@odata.id") {
		t.Fatalf("sign-in = %+v", answer)
	}
	if members := list(mine.get(sessionPath), "Members"); len(members) != 1 || text(members[0], "@odata.id") != text(made, "@odata.id") {
		t.Errorf("sessions = %v, want mine", members)
	}
	if got := text(mine.get(text(made, "@odata.id")), "UserName"); got != "admin" {
		t.Errorf("user of the session = %q", got)
	}
	mine.do(http.MethodDelete, text(made, "@odata.id"), nil, http.StatusNoContent)
	mine.do(http.MethodGet, serviceRoot+"/Systems", nil, http.StatusUnauthorized)

	mine.token = nobody.send(http.MethodPost, sessionPath, resource{"UserName": "admin", "Password": "password"}).header.Get("X-Auth-Token")
	mine.get(serviceRoot + "/Systems")
	admin.s.SetPassword("another")
	mine.do(http.MethodGet, serviceRoot+"/Systems", nil, http.StatusUnauthorized)
	admin.do(http.MethodGet, serviceRoot+"/Systems", nil, http.StatusUnauthorized)
	admin.password = "another"
	for range maxSessions {
		admin.do(http.MethodPost, sessionPath, resource{"UserName": "admin", "Password": "another"}, http.StatusCreated)
	}
	admin.do(http.MethodPost, sessionPath, resource{"UserName": "admin", "Password": "another"}, http.StatusServiceUnavailable)
	admin.do(http.MethodPost, serviceRoot+"/Managers/"+blankID+"/Actions/Manager.Reset", resource{"ResetType": "ForceRestart"}, http.StatusNoContent)
	if got := admin.s.Sessions(); got != 0 {
		t.Errorf("sessions after the BMC was restarted = %d, want 0", got)
	}
}

func TestSessionsEndThatNobodyUses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{user: "admin", password: "password", sessionTimeout: time.Minute}
		s.sessions = []*session{{id: "1", token: "a token", used: time.Now()}}
		request := httptest.NewRequest(http.MethodGet, serviceRoot+"/Systems", nil)
		request.Header.Set("X-Auth-Token", "a token")
		for range 3 {
			time.Sleep(50 * time.Second)
			if err := s.authorize(request); err != nil {
				t.Fatalf("a session that is used = %v", err)
			}
		}
		time.Sleep(61 * time.Second)
		if err := s.authorize(request); err == nil || s.Sessions() != 0 {
			t.Errorf("a session that nobody has used for a minute = %v, and %d are left", err, s.Sessions())
		}
	})
}

// TestEveryLinkLeadsToAResource walks from the root over all that the service refers to.
func TestEveryLinkLeadsToAResource(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	seen := map[string]string{}
	var walk func(from string, in any)
	walk = func(from string, in any) {
		switch in := in.(type) {
		case []any:
			for _, each := range in {
				walk(from, each)
			}
		case map[string]any:
			path, _ := in["@odata.id"].(string)
			if _, known := seen[path]; path != "" && !known && !strings.Contains(path, "#") {
				seen[path] = from
				found := c.get(path)
				if text(found, "@odata.id") != path || !strings.HasPrefix(text(found, "@odata.type"), "#") || text(found, "Name") == "" {
					t.Errorf("%s, which %s refers to, does not say what it is: %v", path, from, found)
				}
				if !strings.HasSuffix(path, "s") && text(found, "Id") == "" && list(found, "Members") == nil {
					t.Errorf("%s has no Id", path)
				}
				walk(path, found)
			}
			for name, each := range in {
				if name != "@odata.id" {
					walk(from, each)
				}
			}
		}
	}
	walk("", map[string]any{"@odata.id": serviceRoot})
	for _, path := range []string{
		blankSystem, blankSystem + "/Processors/CPU0", blankSystem + "/Memory/DIMM0", blankSystem + "/EthernetInterfaces/525400123456",
		blankSystem + "/Storage/1/Drives/vda", blankSystem + "/Bios/Settings", serviceRoot + "/Managers/" + blankID + "/VirtualMedia/Cd",
		serviceRoot + "/Chassis/" + blankID + "/Thermal", serviceRoot + "/Chassis/" + bareID + "/Power", sessionPath,
	} {
		if _, found := seen[path]; !found {
			t.Errorf("nothing refers to %s", path)
		}
	}
	for _, path := range []string{"/nothing", "/Systems/1", "/Systems/" + blankID + "/Processors/CPU1", "/Systems/" + blankID + "/EthernetInterfaces/525400000000", "/Managers/" + blankID + "/VirtualMedia/Floppy", "/SessionService/Sessions/1"} {
		if got := text(c.do(http.MethodGet, serviceRoot+path, nil, http.StatusNotFound), "error", "code"); got != "Base.1.15.ResourceNotFound" {
			t.Errorf("%s says %q", path, got)
		}
	}
}

func TestSystemIsWhatItsDomainIs(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	system := c.get(blankSystem)
	for _, each := range []struct {
		path []string
		want any
	}{
		{[]string{"Name"}, "bm1"},
		{[]string{"UUID"}, blankID},
		{[]string{"PowerState"}, "Off"},
		{[]string{"MemorySummary", "TotalSystemMemoryGiB"}, 1.0},
		{[]string{"ProcessorSummary", "LogicalProcessorCount"}, 2.0},
		{[]string{"Boot", "BootSourceOverrideMode"}, "Legacy"},
		{[]string{"Boot", "BootSourceOverrideEnabled"}, "Disabled"},
		{[]string{"Actions", "#ComputerSystem.Reset", "target"}, blankSystem + "/Actions/ComputerSystem.Reset"},
	} {
		if got := at(system, each.path...); got != each.want {
			t.Errorf("%s = %v, want %v", strings.Join(each.path, "/"), got, each.want)
		}
	}
	other := c.get(SystemPath(bareID))
	if got := text(other, "Boot", "BootSourceOverrideMode"); got != "UEFI" {
		t.Errorf("mode of a domain with OVMF = %q, want UEFI", got)
	}
	if got := at(other, "MemorySummary", "TotalSystemMemoryGiB"); got != 2.0 {
		t.Errorf("memory = %v GiB, want 2", got)
	}
	if got := text(c.get(blankSystem+"/EthernetInterfaces/525400123456"), "MACAddress"); got != "52:54:00:12:34:56" {
		t.Errorf("address of the network card = %q", got)
	}
	if got := number(c.get(blankSystem+"/Storage/1/Drives/vda"), "CapacityBytes"); got != 10<<30 {
		t.Errorf("capacity of the disk = %d", got)
	}
	if got := number(c.get(blankSystem+"/Processors/CPU0"), "TotalThreads"); got != 2 {
		t.Errorf("threads = %d, want 2", got)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	f, c := start(t, Options{})
	for _, each := range []struct {
		kind  string
		from  Power
		want  int
		calls []string
		then  Power
	}{
		{"On", Off, http.StatusNoContent, []string{"bm1: start as defined"}, On},
		{"On", On, http.StatusNoContent, nil, On},
		{"ForceOff", On, http.StatusNoContent, []string{"bm1: stop"}, Off},
		{"ForceOff", Off, http.StatusNoContent, nil, Off},
		{"GracefulShutdown", On, http.StatusNoContent, []string{"bm1: shut down"}, Off},
		{"GracefulShutdown", Off, http.StatusNoContent, nil, Off},
		{"ForceRestart", On, http.StatusNoContent, []string{"bm1: stop", "bm1: start as defined"}, On},
		{"ForceRestart", Off, http.StatusNoContent, []string{"bm1: start as defined"}, On},
		{"GracefulRestart", Off, http.StatusNoContent, []string{"bm1: start as defined"}, On},
		{"Nmi", On, http.StatusNoContent, []string{"bm1: interrupt"}, On},
		{"Nmi", Off, http.StatusConflict, nil, Off},
		{"Explode", On, http.StatusBadRequest, nil, On},
		{"", On, http.StatusBadRequest, nil, On},
	} {
		f.set(blankID, func(d *Domain) {
			d.Power, d.Running = each.from, nil
			if each.from == On {
				d.Running = copied(d.Document)
			}
		})
		c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": each.kind}, each.want)
		if got := f.did(); !slices.Equal(got, each.calls) {
			t.Errorf("%s of a server that is %s: %q, want %q", each.kind, each.from, got, each.calls)
		}
		if got := text(c.get(blankSystem), "PowerState"); got != string(each.then) {
			t.Errorf("power after %s = %s, want %s", each.kind, got, each.then)
		}
	}
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", `{"ResetType":`, http.StatusBadRequest)
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", `{"ResetType":"`+strings.Repeat("x", maxBody)+`"}`, http.StatusRequestEntityTooLarge)
}

func TestGracefulRestartWaitsForTheGuest(t *testing.T) {
	t.Parallel()
	f, c := start(t, Options{})
	f.set(blankID, func(d *Domain) { d.Power, d.Running = On, copied(d.Document) })
	f.mu.Lock()
	f.acpi = false
	f.mu.Unlock()
	for range 2 { // a second one waits for the same end
		c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "GracefulRestart"}, http.StatusNoContent)
	}
	wantCalls(t, f, "bm1: shut down", "bm1: shut down")
	f.set(blankID, func(d *Domain) { d.Power, d.Running = Off, nil })
	patience.Await(t, "the server to start again", func() bool { return f.power(blankID) == On })
	wantCalls(t, f, "bm1: start as defined")

	// One that never shuts down does not hold up the service's end.
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "GracefulRestart"}, http.StatusNoContent)
}

func TestBootOverride(t *testing.T) {
	t.Parallel()
	f, c := start(t, Options{})
	boot := func(target, enabled string) {
		t.Helper()
		c.do(http.MethodPatch, blankSystem, resource{"Boot": resource{"BootSourceOverrideTarget": target, "BootSourceOverrideEnabled": enabled}}, http.StatusNoContent)
	}
	restart := func(want, target, enabled string) {
		t.Helper()
		f.did()
		c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "ForceRestart"}, http.StatusNoContent)
		if calls := f.did(); calls[len(calls)-1] != "bm1: start "+want {
			t.Errorf("after %s of %s the hypervisor was asked for %q, want %q last", enabled, target, calls, want)
		}
		system := c.get(blankSystem)
		if got := text(system, "Boot", "BootSourceOverrideTarget") + " " + text(system, "Boot", "BootSourceOverrideEnabled"); got != target+" "+enabled {
			t.Errorf("boot override after the start = %q, want %s %s", got, target, enabled)
		}
	}
	restart("as defined", "None", "Disabled")
	boot("Cd", "Once")
	restart("once from sda vda net", "None", "Disabled")
	restart("as defined", "None", "Disabled")
	boot("Pxe", "Continuous")
	restart("once from net vda", "Pxe", "Continuous")
	restart("once from net vda", "Pxe", "Continuous")
	boot("Hdd", "Continuous")
	restart("once from vda net", "Hdd", "Continuous")
	boot("Cd", "Disabled")
	restart("as defined", "Cd", "Disabled")

	// What fails to start has not used up its override.
	boot("Cd", "Once")
	f.set(blankID, func(d *Domain) { d.Power, d.Running, f.fail = Off, nil, errors.New("no memory") })
	body := c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusInternalServerError)
	if got := text(body, "error", "message"); !strings.Contains(got, "no memory") {
		t.Errorf("a start that fails says %q", got)
	}
	f.set(blankID, func(*Domain) { f.fail = nil })
	restart("once from sda vda net", "None", "Disabled")

	for _, wrong := range []resource{
		{"Boot": resource{"BootSourceOverrideTarget": "Floppy"}},
		{"Boot": resource{"BootSourceOverrideEnabled": "Twice"}},
		{"Boot": resource{"BootSourceOverrideTarget": "Cd", "BootSourceOverrideMode": "OpenFirmware"}},
		{"IndicatorLED": "Red", "AssetTag": "taken"},
	} {
		c.do(http.MethodPatch, blankSystem, wrong, http.StatusBadRequest)
	}
	system := c.get(blankSystem)
	if text(system, "Boot", "BootSourceOverrideTarget") != "None" || text(system, "AssetTag") != "" {
		t.Errorf("a change that was refused has changed %v", system)
	}
	c.do(http.MethodPatch, blankSystem, resource{"IndicatorLED": "Lit", "AssetTag": "rack 7"}, http.StatusNoContent)
	if system = c.get(blankSystem); text(system, "IndicatorLED") != "Lit" || text(system, "AssetTag") != "rack 7" {
		t.Errorf("light and tag after they were changed: %v", system)
	}
}

// TestBootOrderOfDevices has a document that says the order by its devices.
func TestBootOrderOfDevices(t *testing.T) {
	t.Parallel()
	var document libvirtxml.Domain
	if err := document.Unmarshal(`<domain><devices>
<disk device='disk'><target dev='vda'/><boot order='2'/></disk>
<disk device='disk'><target dev='vdb'/></disk>
<disk device='cdrom'><target dev='sda'/></disk>
<disk device='disk'><target dev='sdb' bus='usb'/><alias name='` + stickAlias + `'/><boot order='3'/></disk>
<interface type='network'><boot order='1'/></interface></devices></domain>`); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{"Cd": " sda net vda", "Hdd": " vda vdb net", "Pxe": " net vda"} {
		changed := copied(&document)
		bootFrom(changed, target)
		if got := order(changed); got != want {
			t.Errorf("order with %s first =%s, want%s", target, got, want)
		}
	}
}

func TestMode(t *testing.T) {
	t.Parallel()
	f, c := start(t, Options{})
	change := resource{"Boot": resource{"BootSourceOverrideMode": "UEFI"}}
	f.set(blankID, func(*Domain) { f.fail = errors.New("Unable to find any firmware to satisfy 'efi'") })
	body := c.do(http.MethodPatch, blankSystem, change, http.StatusBadRequest)
	if got := text(body, "error", "message"); !strings.Contains(got, "Unable to find any firmware") {
		t.Errorf("UEFI without OVMF says %q", got)
	}
	f.set(blankID, func(*Domain) { f.fail = nil })
	f.did()
	c.do(http.MethodPatch, blankSystem, change, http.StatusNoContent)
	c.do(http.MethodPatch, blankSystem, change, http.StatusNoContent) // is so already
	wantCalls(t, f, "bm1: define")
	f.set(blankID, func(d *Domain) {
		if d.Document.OS.Firmware != "efi" {
			t.Errorf("firmware = %q, want efi", d.Document.OS.Firmware)
		}
	})
	c.do(http.MethodPatch, blankSystem, resource{"Boot": resource{"BootSourceOverrideMode": "Legacy"}}, http.StatusNoContent)
	if got := text(c.get(blankSystem), "Boot", "BootSourceOverrideMode"); got != "Legacy" {
		t.Errorf("mode = %q, want Legacy", got)
	}
}

func TestChangesAreForWhatTheClientHasSeen(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	change := resource{"Boot": resource{"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Once"}}
	c.match = c.send(http.MethodGet, blankSystem, nil).header.Get("ETag")
	c.do(http.MethodPatch, blankSystem, change, http.StatusNoContent)
	c.do(http.MethodPatch, blankSystem, change, http.StatusPreconditionFailed) // it has another tag now
	c.match = "*"
	c.do(http.MethodPatch, blankSystem, change, http.StatusNoContent)
}

func TestVirtualMedia(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/image.iso", r.URL.Path == "/secret.iso" && user+password == "mesecret":
			_, _ = io.WriteString(w, "an image")
		case r.URL.Path == "/secret.iso":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/large.iso":
			w.Header().Set("Content-Length", "11")
			_, _ = io.WriteString(w, "01234567890")
		case r.URL.Path == "/stream.iso":
			for range 1000 { // without a length
				_, _ = io.WriteString(w, "01234567890")
			}
		case r.URL.Path == "/cut.iso":
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "0123")
		case r.URL.Path == "/empty.iso":
		case r.URL.Path == "/broken.iso":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			http.NotFound(w, r)
		}
	}))
	defer web.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	f, c := start(t, Options{MaxImage: 10})
	drive := serviceRoot + "/Managers/" + blankID + "/VirtualMedia/Cd"
	insert, eject := drive+"/Actions/VirtualMedia.InsertMedia", drive+"/Actions/VirtualMedia.EjectMedia"
	for _, each := range []struct {
		body    resource
		want    int
		message string
	}{
		{resource{}, http.StatusBadRequest, "ActionParameterMissing"},
		{resource{"Image": "nfs://server/image.iso"}, http.StatusBadRequest, "ActionParameterValueFormatError"},
		{resource{"Image": "file:///etc/passwd"}, http.StatusBadRequest, "ActionParameterValueFormatError"},
		{resource{"Image": web.URL + "/nothing.iso"}, http.StatusBadRequest, "ResourceMissingAtURI"},
		{resource{"Image": web.URL + "/secret.iso"}, http.StatusBadRequest, "AccessDenied"},
		{resource{"Image": web.URL + "/broken.iso"}, http.StatusBadRequest, "GeneralError"},
		{resource{"Image": web.URL + "/empty.iso"}, http.StatusBadRequest, "ResourceAtUriInUnknownFormat"},
		{resource{"Image": web.URL + "/cut.iso"}, http.StatusBadRequest, "CouldNotEstablishConnection"},
		{resource{"Image": web.URL + "/large.iso"}, http.StatusInsufficientStorage, "InsufficientStorage"},
		{resource{"Image": web.URL + "/stream.iso"}, http.StatusInsufficientStorage, "InsufficientStorage"},
		{resource{"Image": gone.URL + "/image.iso"}, http.StatusBadRequest, "CouldNotEstablishConnection"},
		{resource{"Image": web.URL + "/image.iso", "WriteProtected": false}, http.StatusBadRequest, "PropertyValueNotInList"},
	} {
		body := c.do(http.MethodPost, insert, each.body, each.want)
		if got := text(list(body, "error", "@Message.ExtendedInfo")[0], "MessageId"); got != "Base.1.15."+each.message {
			t.Errorf("%v says %q, want %s", each.body, got, each.message)
		}
		if image, there := c.get(drive)["Image"]; image != nil || !there {
			t.Errorf("after %v the drive has %v", each.body, image)
		}
	}
	wantCalls(t, f)

	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/secret.iso", "UserName": "me", "Password": "secret"}, http.StatusNoContent)
	wantCalls(t, f, "bm1: define")
	file := ""
	f.set(blankID, func(d *Domain) { file = d.Document.Devices.Disks[1].Source.File.File })
	if content, err := os.ReadFile(file); err != nil || string(content) != "an image" {
		t.Errorf("the domain's CD has %q, %v", content, err)
	}
	if got := c.get(drive); got["Inserted"] != true || got["Image"] != web.URL+"/secret.iso" || got["ImageName"] != "secret.iso" {
		t.Errorf("the drive says %v", got)
	}
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/image.iso"}, http.StatusConflict)
	c.do(http.MethodPost, eject, nil, http.StatusNoContent)
	c.do(http.MethodPost, eject, resource{}, http.StatusNoContent) // it is empty already
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an image that was ejected: %v, want none", err)
	}
	f.set(blankID, func(d *Domain) {
		if in := d.Document.Devices.Disks[1].Source; in != nil && in.File.File != "" {
			t.Errorf("the domain has the CD %s after it was ejected", in.File.File)
		}
	})

	// While a server runs its drive changes at once; and where the hypervisor refuses, nothing is kept.
	f.set(blankID, func(d *Domain) { d.Power, d.Running = On, copied(d.Document) })
	f.did()
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/image.iso"}, http.StatusNoContent)
	wantCalls(t, f, "bm1: exchange sda", "bm1: define")
	c.do(http.MethodPost, eject, nil, http.StatusNoContent)
	wantCalls(t, f, "bm1: exchange nothing at sda", "bm1: define")
	f.set(blankID, func(*Domain) { f.fail = errors.New("refused") })
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/image.iso"}, http.StatusInternalServerError)
	f.set(blankID, func(*Domain) { f.fail = nil })
	if left, err := os.ReadDir(c.s.dir); err != nil || len(left) > 0 {
		t.Errorf("images after a change that was refused: %v, %v", left, err)
	}
	// The image that is in a drive when the service ends is removed then, as start's clean-up checks.
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/image.iso"}, http.StatusNoContent)
}

// TestOthersAreServedWhileAnImageArrives has two clients that insert an image at the same time,
// and a third that asks for something else: the image that arrives last is refused.
func TestOthersAreServedWhileAnImageArrives(t *testing.T) {
	t.Parallel()
	asked, arrive := make(chan struct{}, 2), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-arrive
		_, _ = io.WriteString(w, "an image")
	}))
	defer web.Close()
	f, c := start(t, Options{})
	drive := serviceRoot + "/Managers/" + blankID + "/VirtualMedia/Cd"
	statuses := make(chan int, 2)
	for range 2 {
		go func() {
			statuses <- c.send(http.MethodPost, drive+"/Actions/VirtualMedia.InsertMedia", resource{"Image": web.URL + "/image.iso"}).status
		}()
	}
	for range 2 {
		<-asked
	}
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	close(arrive)
	got := []int{<-statuses, <-statuses}
	slices.Sort(got)
	if !slices.Equal(got, []int{http.StatusNoContent, http.StatusConflict}) {
		t.Errorf("two images at the same time = %v, want one that is taken and one that is refused", got)
	}
	// The server runs meanwhile, and its drive is changed as one that runs.
	wantCalls(t, f, "bm1: start as defined", "bm1: exchange sda", "bm1: define")
}

func TestVirtualStick(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a config drive") }))
	defer web.Close()
	f, c := start(t, Options{})
	drive := serviceRoot + "/Managers/" + blankID + "/VirtualMedia/UsbStick"
	insert, eject := drive+"/Actions/VirtualMedia.InsertMedia", drive+"/Actions/VirtualMedia.EjectMedia"
	if got := c.get(drive)["MediaTypes"]; !reflect.DeepEqual(got, []any{"USBStick"}) {
		t.Errorf("media of the stick = %v", got)
	}
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/drive"}, http.StatusNoContent)
	wantCalls(t, f, "bm1: define")
	f.set(blankID, func(d *Domain) {
		if stick := d.Document.Devices.Disks[2]; !isStick(&stick) || stick.Target.Bus != "usb" || stick.Target.Dev != "sdb" || stick.ReadOnly == nil {
			t.Errorf("the stick is %+v", stick)
		}
	})
	c.do(http.MethodPatch, blankSystem, resource{"Boot": resource{"BootSourceOverrideTarget": "Hdd", "BootSourceOverrideEnabled": "Once"}}, http.StatusNoContent)
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	wantCalls(t, f, "bm1: start once from vda net")
	if got := list(c.get(blankSystem+"/Storage/1"), "Drives"); len(got) != 1 {
		t.Errorf("disks of a server with a stick = %v, want its own", got)
	}
	c.do(http.MethodPost, eject, nil, http.StatusNoContent)
	wantCalls(t, f, "bm1: detach sdb", "bm1: define")
	c.do(http.MethodPost, insert, resource{"Image": web.URL + "/drive"}, http.StatusNoContent)
	wantCalls(t, f, "bm1: attach sdb", "bm1: define")

	// A domain without a CD drive gets one when it starts next.
	cd := serviceRoot + "/Managers/" + bareID + "/VirtualMedia/Cd"
	c.do(http.MethodPost, cd+"/Actions/VirtualMedia.InsertMedia", resource{"Image": web.URL + "/drive"}, http.StatusNoContent)
	wantCalls(t, f, "bm2: define")
	f.set(bareID, func(d *Domain) {
		if len(d.Document.Devices.Disks) != 1 || d.Document.Devices.Disks[0].Device != "cdrom" || d.Document.Devices.Disks[0].Source == nil {
			t.Errorf("the drive of a domain that had none: %+v", d.Document.Devices.Disks)
		}
	})
}

func TestBIOS(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	bios := blankSystem + "/Bios"
	settings := text(c.get(bios), "@Redfish.Settings", "SettingsObject", "@odata.id")
	for _, wrong := range []resource{{"Colour": "red"}, {"BootDelay": "long"}, {"NumLock": 1}, {"BootDelay": 1.5}} {
		c.do(http.MethodPatch, settings, resource{"Attributes": wrong}, http.StatusBadRequest)
	}
	c.do(http.MethodPatch, settings, resource{"Attributes": resource{"BootDelay": 5, "NumLock": "Off"}}, http.StatusNoContent)
	shows := func(path string, delay int, lock string) {
		t.Helper()
		got := c.get(path)
		if number(got, "Attributes", "BootDelay") != delay || text(got, "Attributes", "NumLock") != lock || text(got, "Attributes", "Hyperthreading") != "Enabled" {
			t.Errorf("%s has %v, want BootDelay %d and NumLock %s", path, got["Attributes"], delay, lock)
		}
	}
	restart := func() {
		t.Helper()
		c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "ForceRestart"}, http.StatusNoContent)
	}
	shows(bios, 0, "On")
	shows(settings, 5, "Off")
	restart()
	shows(bios, 5, "Off")
	c.do(http.MethodPost, bios+"/Actions/Bios.ResetBios", nil, http.StatusNoContent)
	shows(bios, 5, "Off")
	restart()
	shows(bios, 0, "On")
}

func TestHealth(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	chassis := serviceRoot + "/Chassis/" + blankID
	health := func() string {
		t.Helper()
		system, whole := text(c.get(blankSystem), "Status", "HealthRollup"), text(c.get(chassis), "Status", "Health")
		if system != whole {
			t.Errorf("health of the system = %s, and of its chassis %s", system, whole)
		}
		return system
	}
	if got := number(list(c.get(chassis+"/Thermal"), "Fans")[0], "Reading"); got != 0 || health() != "OK" {
		t.Errorf("a server that is off: its fan turns at %d, and its health is %s", got, health())
	}
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	for _, each := range []struct {
		change func(*Sensors)
		want   string
	}{
		{func(*Sensors) {}, "OK"},
		{func(s *Sensors) { s.CPU = 85 }, "Warning"},
		{func(s *Sensors) { s.CPU = 95 }, "Critical"},
		{func(s *Sensors) { s.Inlet = 43 }, "Warning"},
		{func(s *Sensors) { s.Fan = 0 }, "Critical"},
		{func(s *Sensors) { s.Supply = false }, "Warning"},
		{func(s *Sensors) { s.Supply, s.CPU = false, 96 }, "Critical"},
	} {
		now := Healthy()
		each.change(&now)
		c.s.SetSensors(blankID, now)
		if got := health(); got != each.want {
			t.Errorf("health with %+v = %s, want %s", now, got, each.want)
		}
	}
	c.s.SetSensors(blankID, Sensors{CPU: 90, Inlet: 25, Fan: 100, Watts: 200})
	thermal, power := c.get(chassis+"/Thermal"), c.get(chassis+"/Power")
	temperature, fan, supply := list(thermal, "Temperatures")[0], list(thermal, "Fans")[1], list(power, "PowerSupplies")[1]
	if number(temperature, "ReadingCelsius") != 90 || text(temperature, "Status", "Health") != "Warning" || text(temperature, "PhysicalContext") != "CPU" {
		t.Errorf("temperature = %v", temperature)
	}
	if number(fan, "Reading") != 100 || text(fan, "ReadingUnits") != "RPM" || text(fan, "Status", "Health") != "Critical" {
		t.Errorf("fan = %v", fan)
	}
	if text(supply, "Status", "Health") != "Critical" || text(supply, "Status", "State") != "UnavailableOffline" || number(list(power, "PowerSupplies")[0], "LastPowerOutputWatts") != 200 {
		t.Errorf("power supplies = %v", power["PowerSupplies"])
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	heal := c.s.Fault(Fault{Method: http.MethodGet, Path: blankSystem, Status: http.StatusInternalServerError})
	c.do(http.MethodGet, blankSystem, nil, http.StatusInternalServerError)
	c.do(http.MethodGet, blankSystem+"/Bios", nil, http.StatusInternalServerError)
	c.do(http.MethodPatch, blankSystem, resource{"AssetTag": "x"}, http.StatusNoContent)
	c.get(SystemPath(bareID))
	heal()
	heal() // twice does nothing
	c.get(blankSystem)

	c.s.Fault(Fault{Path: "*/Thermal", Status: http.StatusServiceUnavailable, HTML: "<html>503</html>", Times: 2})
	for range 2 {
		if answer := c.send(http.MethodGet, serviceRoot+"/Chassis/"+blankID+"/Thermal", nil); answer.status != http.StatusServiceUnavailable || answer.header.Get("Content-Type") != "text/html" {
			t.Errorf("a fault of HTML = %+v", answer)
		}
	}
	c.get(serviceRoot + "/Chassis/" + blankID + "/Thermal")

	heal = c.s.Fault(Fault{Path: blankSystem, Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.s.URL()+blankSystem, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := http.DefaultClient.Do(request); !errors.Is(err, context.DeadlineExceeded) { //nolint:bodyclose // there is none
		t.Errorf("a request that takes an hour = %v, want the caller's deadline", err)
	}
	heal()
	c.s.Fault(Fault{Path: blankSystem, Delay: time.Millisecond, Times: 1})
	c.get(blankSystem) // late, and as usual

	c.s.StickPower(blankID, true)
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	if got := text(c.get(blankSystem), "PowerState"); got != "Off" {
		t.Errorf("power of a server whose power is stuck = %s, want Off", got)
	}
	c.s.StickPower(blankID, false)
	c.do(http.MethodPost, blankSystem+"/Actions/ComputerSystem.Reset", resource{"ResetType": "On"}, http.StatusNoContent)
	if got := text(c.get(blankSystem), "PowerState"); got != "On" {
		t.Errorf("power after that = %s, want On", got)
	}
	if got := c.s.Requests(); !slices.Contains(got, "GET "+blankSystem) || got[0] != "GET "+blankSystem {
		t.Errorf("requests = %q", got)
	}
}

func TestAway(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{})
	address := c.s.URL()
	c.s.Away()
	c.s.Away()
	if response, err := http.Get(address + serviceRoot); err == nil || !strings.Contains(err.Error(), "refused") {
		if err == nil {
			_ = response.Body.Close()
		}
		t.Errorf("a BMC that is away = %v, want a connection that is refused", err)
	}
	for range 2 {
		if err := c.s.Back(); err != nil {
			t.Fatal(err)
		}
	}
	if c.s.URL() != address {
		t.Errorf("a BMC that is back listens at %s, want %s", c.s.URL(), address)
	}
	c.get(blankSystem)
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	_, c := start(t, Options{TLS: true})
	if response, err := http.Get(c.s.URL() + serviceRoot); err == nil || !strings.Contains(err.Error(), "certificate") {
		if err == nil {
			_ = response.Body.Close()
		}
		t.Errorf("a client that checks = %v, want an error of the certificate", err)
	}
	careless := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := careless.Get(c.s.URL() + serviceRoot)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("a client that does not check = %s", response.Status)
	}
}

func TestWrongOptions(t *testing.T) {
	t.Parallel()
	if _, err := New(newFake(t), Options{Dir: "/no/such/directory"}); err == nil {
		t.Error("New without a directory: no error")
	}
	for _, url := range []string{"", "tcp://host", "unix://", "/run/libvirt"} {
		if _, err := Libvirt(url); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", url)) {
			t.Errorf("Libvirt(%q) = %v", url, err)
		}
	}
	d, err := Libvirt("unix:///no/such/socket")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Domains(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/socket") {
		t.Errorf("domains of a daemon that is not there: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Domain(t.Context(), blankID); err == nil {
		t.Error("a domain of a connection that is closed: no error")
	}
}

func TestAllSaid(t *testing.T) {
	t.Parallel()
	all, err := AllSaid()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, each := range all {
		name := each.Case + ", " + each.Asked
		if seen[name] || each.Text == "" || each.State == "" || each.Way == "" && each.Status == 0 {
			t.Errorf("%s is there twice or says too little: %+v", name, each)
		}
		seen[name] = true
	}
	if len(all) < 20 {
		t.Errorf("%d cases, want all that Ironic was shown", len(all))
	}
}
