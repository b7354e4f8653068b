//go:build metal

package redfish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

var update = flag.Bool("update", false, "write said.json")

// wrong is a fault, with what is expected of Ironic.
type wrong struct {
	name, asked string
	instance    map[string]any      // the server's instance_info
	driver      map[string]any      // what is wrong of its driver_info, which does away with the fault where it is corrected
	options     Options             // of its BMC
	make        func(*Server)       // makes the fault
	heal        func(*Server) error // does away with it
	way         string
	state       string
	fault       string
	text        string // a part of last_error, or of what refuses the request
	status      int
}

// wrongs are all that Ironic is shown. Those that take half a minute come first: sushy asks ten
// more times, every 3 s, after an answer of 500 and more.
func wrongs(images, gone string) []wrong {
	nothing := func(more map[string]any) map[string]any {
		info := map[string]any{"boot_iso": images + "/nothing.iso"}
		maps.Copy(info, more)
		return info
	}
	byBMC := map[string]any{"ramdisk_image_download_source": "http"}
	iso := map[string]any{"boot_iso": images + "/boot.iso"}
	password, back := func(s *Server) { s.SetPassword("another") }, func(s *Server) error { s.SetPassword("password"); return nil }
	stick, free := func(s *Server) { s.StickPower(blankID, true) }, func(s *Server) error { s.StickPower(blankID, false); return nil }
	faulty := func(f Fault) (make func(*Server), heal func(*Server) error) {
		var end func()
		return func(s *Server) { end = s.Fault(f) }, func(*Server) error { end(); return nil }
	}
	answers500, heals500 := faulty(Fault{Path: serviceRoot + "/Systems", Status: http.StatusInternalServerError})
	answers502, heals502 := faulty(Fault{Path: serviceRoot + "/Systems", Status: http.StatusBadGateway, HTML: "<html>Bad Gateway</html>"})
	answersHTML, healsHTML := faulty(Fault{Path: serviceRoot + "/Systems", Status: http.StatusOK, HTML: "<html>Sign in</html>"})
	insert500, insertHeals := faulty(Fault{Path: "*/VirtualMedia.InsertMedia", Status: http.StatusInternalServerError})
	reset500, resetHeals := faulty(Fault{Path: "*/ComputerSystem.Reset", Status: http.StatusInternalServerError})

	return []wrong{
		{name: "BMC answers 500", asked: "manage", make: answers500, heal: heals500, way: "manage", state: "enroll", text: "returned code 500. Base.1.15.InternalError"},
		{name: "BMC answers 502 as a proxy does", asked: "manage", make: answers502, heal: heals502, way: "manage", state: "enroll", text: "returned code 502. unknown error"},
		{name: "BMC answers HTML", asked: "manage", make: answersHTML, heal: healsHTML, way: "manage", state: "enroll", text: "Expecting value: line 1 column 1 (char 0)"},
		{name: "BMC password is wrong", asked: "manage", make: password, heal: back, way: "manage", state: "enroll", text: "returned code 401. Base.1.15.NoValidSession"},
		{name: "BMC is away", asked: "manage", make: (*Server).Away, heal: (*Server).Back, way: "manage", state: "enroll", text: "Redfish connection failed for node"},
		{name: "BMC has another certificate", asked: "manage", options: Options{TLS: true}, driver: map[string]any{"redfish_verify_ca": true}, way: "manage", state: "enroll", text: "CERTIFICATE_VERIFY_FAILED"},
		{name: "BMC has no such system", asked: "manage", driver: map[string]any{"redfish_system_id": SystemPath("33333333-3333-4333-8333-333333333333")}, way: "manage", state: "enroll", text: "333333333333 not found"},

		{name: "no image is named", asked: "active", instance: map[string]any{}, status: http.StatusBadRequest, state: "available", text: "Missing are: ['kernel', 'ramdisk']"},
		{name: "image is not found", asked: "active", instance: nothing(nil), way: "deleted", state: "deploy failed", text: "/nothing.iso failed, reason: Got HTTP code 404"},
		{name: "image is not found by the BMC", asked: "active", instance: nothing(byBMC), way: "deleted", state: "deploy failed", text: "Base.1.15.ResourceMissingAtURI"},
		{name: "image's server is away", asked: "active", instance: map[string]any{"boot_iso": gone + "/boot.iso"}, way: "deleted", state: "deploy failed", text: "Validation of image href"},
		{name: "image's server is away for the BMC", asked: "active", instance: map[string]any{"boot_iso": gone + "/boot.iso", "ramdisk_image_download_source": "http"}, way: "deleted", state: "deploy failed", text: "Base.1.15.CouldNotEstablishConnection"},
		{name: "kernel is not found", asked: "active", instance: map[string]any{"kernel": images + "/nothing", "ramdisk": images + "/boot.iso", "image_source": images + "/boot.iso"}, way: "deleted", state: "deploy failed", text: "/nothing failed, reason: Got HTTP code 404"},
		{name: "power does not change", asked: "active", instance: iso, make: stick, heal: free, way: "deleted", state: "deploy failed", text: "Failed to set node power state to power on"},
		{name: "BMC is away", asked: "active", instance: iso, make: (*Server).Away, heal: (*Server).Back, way: "deleted", state: "deploy failed", text: "Failed to prepare to deploy: Redfish connection failed"},
		{name: "BMC password is wrong", asked: "active", instance: iso, make: password, heal: back, way: "deleted", state: "deploy failed", text: "returned code 401"},
		{name: "BMC does not take the image", asked: "active", instance: iso, make: insert500, heal: insertHeals, way: "deleted", state: "deploy failed", text: "VirtualMedia.InsertMedia returned code 500"},
		{name: "BMC does not switch the power", asked: "active", instance: iso, make: reset500, heal: resetHeals, way: "deleted", state: "deploy failed", text: "Setting power state to power on failed"},

		{name: "BMC is away", instance: iso, make: (*Server).Away, heal: (*Server).Back, way: "wait", state: "active", fault: "power failure", text: "During sync_power_state, max retries exceeded"},
		{name: "BMC password is wrong", instance: iso, make: password, heal: back, way: "wait", state: "active", fault: "power failure", text: "returned code 401"},

		{name: "BMC is away", asked: "deleted", instance: iso, make: (*Server).Away, heal: (*Server).Back, way: "deleted", state: "error", text: "Failed to tear down: Redfish connection failed"},
		{name: "power does not change", asked: "deleted", instance: iso, make: stick, heal: free, way: "deleted", state: "error", text: "Failed to tear down: Failed to set node power state to power off"},
	}
}

// TestWhatIronicSays shows a real Ironic wrong BMCs and images, and compares what it says with
// said.json, by which others know it. Where the fault is gone the server can be used.
func TestWhatIronicSays(t *testing.T) {
	ctx, cancel := patience.Context(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	i := StartIronic(ctx, t, `[conductor]
power_state_change_timeout = 4
sync_power_state_interval = 2
power_state_sync_max_retries = 3
power_failure_recovery_interval = 2
`)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/boot.iso" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "an image")
	}))
	t.Cleanup(web.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	var mu sync.Mutex
	var all []Said
	t.Run("case", func(t *testing.T) {
		// Each is a node of its own; SQLite lets one of them write at a time.
		slots := make(chan struct{}, 3)
		for at, each := range wrongs(web.URL, gone.URL) {
			t.Run(cmp.Or(each.asked, "nothing asked")+"/"+each.name, func(t *testing.T) {
				t.Parallel()
				if at > 1 { // the first two wait most of the time
					slots <- struct{}{}
					defer func() { <-slots }()
				}
				s := each.show(ctx, t, i, "node-"+string(rune('a'+at)))
				mu.Lock()
				defer mu.Unlock()
				all = append(all, s)
			})
		}
	})
	slices.SortFunc(all, func(a, b Said) int { return cmp.Or(cmp.Compare(a.Case, b.Case), cmp.Compare(a.Asked, b.Asked)) })
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(all); err != nil {
		t.Fatal(err)
	}
	switch {
	case t.Failed():
	case *update:
		if err := os.WriteFile("said.json", text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(text.Bytes(), said):
		known, err := AllSaid()
		if err != nil {
			t.Fatal(err)
		}
		for at, each := range all {
			if at >= len(known) || each != known[at] {
				t.Errorf("Ironic says\n%+v\nand said.json has %d others (-update writes it)", each, len(known))
			}
		}
	}
}

// show makes the fault, and answers what Ironic said. It goes on to a server that can be used.
func (w wrong) show(ctx context.Context, t *testing.T, i *ironic.Ironic, name string) Said {
	t.Helper()
	_, c := start(t, w.options)
	described := c.s.Node(name, blankID)
	right, _ := described["driver_info"].(map[string]any)
	described["driver_info"] = merged(right, w.driver)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var enrolled ironic.Node
	must(i.Call(ctx, http.MethodPost, "/v1/nodes", described, &enrolled))
	ask := func(target string) error {
		return i.Again(ctx, func() error {
			return i.Call(ctx, http.MethodPut, "/v1/nodes/"+name+"/states/provision", map[string]any{"target": target}, nil)
		})
	}
	if w.asked != "manage" {
		must(i.To(ctx, name, "manage", "manageable"))
		must(i.To(ctx, name, "provide", "available"))
		must(i.Patch(ctx, name, set("/instance_info", w.instance)))
	}
	if w.asked == "" || w.asked == "deleted" {
		must(i.To(ctx, name, "active", "active"))
	}
	if w.make != nil {
		w.make(c.s)
	}
	shown := Said{Case: w.name, Asked: w.asked, Way: w.way}
	if w.asked != "" {
		err := ask(w.asked)
		var refused *ironic.StatusError
		if w.status != 0 && errors.As(err, &refused) {
			shown.Status, shown.Text = refused.Status, faultstring(t, refused.Error())
		} else {
			must(err)
		}
	}
	var n server
	look := func() {
		n = server{} // null in JSON leaves a field as it was
		must(i.Call(ctx, http.MethodGet, "/v1/nodes/"+name, nil, &n))
	}
	patience.AwaitShowing(t, "the state "+w.state+" "+w.fault, func() string { return n.String() }, func() bool {
		look()
		return n.State == w.state && n.Fault == w.fault && (n.LastError != "" || w.status != 0)
	})
	shown.State, shown.Fault, shown.Maintenance, shown.Power = n.State, n.Fault, n.Maintenance, n.Power
	if w.status == 0 {
		shown.Text = n.LastError
	}
	shown.Text = normal(shown.Text, enrolled.UUID)
	if shown.Status != w.status || !strings.Contains(shown.Text, w.text) {
		t.Errorf("Ironic says %d %q, want %d and %q", shown.Status, shown.Text, w.status, w.text)
	}

	if w.heal != nil {
		must(w.heal(c.s))
	}
	if len(w.driver) > 0 {
		if w.options.TLS {
			right["redfish_verify_ca"] = false
		}
		must(i.Patch(ctx, name, set("/driver_info", right)))
	}
	switch w.way {
	case "manage":
		must(i.To(ctx, name, "manage", "manageable"))
	case "deleted":
		must(ask("deleted"))
		patience.AwaitShowing(t, "the server to be available", func() string { return n.String() }, func() bool {
			look()
			return n.State == "available"
		})
	case "wait":
		patience.AwaitShowing(t, "Ironic to see that the fault is gone", func() string { return n.String() }, func() bool {
			look()
			return !n.Maintenance && n.Fault == "" && n.Power == "power on"
		})
	}
	// It leaves Ironic before its BMC is gone.
	if w.way == "wait" {
		must(i.To(ctx, name, "deleted", "available"))
	}
	must(i.Again(ctx, func() error { return i.Call(ctx, http.MethodDelete, "/v1/nodes/"+name, nil, nil) }))
	return shown
}

// server is what is read of a node.
type server struct {
	State       string `json:"provision_state"`
	Power       string `json:"power_state"`
	Fault       string `json:"fault"`
	Maintenance bool   `json:"maintenance"`
	LastError   string `json:"last_error"`
}

func (s server) String() string {
	return strings.Join([]string{s.State, s.Power, s.Fault, s.LastError}, " | ")
}

func merged(right, more map[string]any) map[string]any {
	all := maps.Clone(right)
	maps.Copy(all, more)
	return all
}

// faultstring is the fault in an answer of Ironic's API: JSON in a string of JSON.
func faultstring(t *testing.T, text string) string {
	t.Helper()
	var outer struct {
		Message string `json:"error_message"`
	}
	var inner struct {
		Fault string `json:"faultstring"`
	}
	_, body, _ := strings.Cut(text, "{")
	if err := json.Unmarshal([]byte("{"+body), &outer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := json.Unmarshal([]byte(outer.Message), &inner); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return inner.Fault
}

// normal takes out of a text what differs between two runs.
func normal(text, id string) string {
	text = strings.ReplaceAll(text, id, "NODE")
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "127.0.0.1:PORT")
	text = regexp.MustCompile(`port=\d+`).ReplaceAllString(text, "port=PORT")
	return regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(text, "0x0")
}
