package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pveversions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret  = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
	tokenID = "ci@pve!tendril"
	// pace is how much faster the cluster and the driver are than real ones.
	pace = 60
)

// lab is a cluster of three nodes, with images, and a pool of it.
type lab struct {
	*testing.T
	pve    *pvesim.Server
	config pool.Config
	pace   float64
	limits limits
	upid   string // of the last task that exchange has started
}

func newLab(t *testing.T, options ...func(*pvesim.Options)) *lab {
	t.Helper()
	o := pvesim.Options{
		Speed: pace,
		Nodes: []pvesim.Node{{Name: "pve1", Cores: 16, Memory: 64 << 30, UsedMemory: 16 << 30, Load: 0.25}, {Name: "pve2", Cores: 16, Memory: 64 << 30}, {Name: "pve3", Cores: 16, Memory: 64 << 30}},
		Storages: []pvesim.Storage{
			{Name: "local", Type: "dir", Path: "/var/lib/vz", Content: "iso,vztmpl,backup,snippets,import", Size: 100 << 30},
			{Name: "disks", Type: "dir", Path: "/srv/disks", Content: "images,rootdir", Size: 400 << 30},
			{Name: "thick", Type: "lvm", Content: "images,rootdir", Size: 400 << 30},
			{Name: "nfs", Type: "nfs", Path: "/mnt/pve/nfs", Content: "images,rootdir", Size: 900 << 30, Shared: true},
		},
	}
	for _, change := range options {
		change(&o)
	}
	l := &lab{T: t, pve: pvesim.New(t, o), pace: o.Speed, limits: usual}
	image := func(node string, id int, name, storage string) {
		volume := func(what, suffix string) string {
			if storage == "thick" {
				return fmt.Sprintf("thick:vm-%d-%s", id, what)
			}
			return fmt.Sprintf("%s:%d/vm-%d-%s.%s", storage, id, id, what, suffix)
		}
		l.pve.Machine(node, id, map[string]string{
			"name": name, "memory": "1024", "cores": "1", "agent": "1", "ostype": "l26", "scsihw": "virtio-scsi-pci", "boot": "order=scsi0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
			"scsi0": volume("disk-0", "qcow2") + ",size=4G", "ide2": volume("cloudinit", "qcow2") + ",media=cdrom,size=4M",
		})
		l.pve.Template(id)
	}
	image("pve1", 9000, "debian-12", "disks")
	image("pve2", 9010, "debian-12", "disks")
	image("pve1", 9001, "thick-12", "thick")
	image("pve1", 9002, "shared-12", "nfs")
	l.pve.AddToken(pvesim.Token{ID: tokenID, Secret: secret, Separate: true})
	for _, who := range []string{"ci@pve", tokenID} {
		l.pve.Grant(who, "/vms", "PVEVMAdmin")
		l.pve.Grant(who, "/storage", "PVEDatastoreUser")
		l.pve.Grant(who, "/nodes", "Sys.Audit")
		l.pve.Grant(who, "/sdn/zones/localnetwork", "SDN.Use")
	}
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(tokenID+"="+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := l.pve.CAFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.config = pool.Config{Name: "lab", Kind: "proxmox", URL: l.pve.URL(), TokenFile: token, CAFile: ca, Timeout: 20 * time.Second}
	t.Cleanup(func() { l.checkShape() })
	return l
}

// driver opens the pool again, as a restarted agent does.
func (l *lab) driver() *Driver {
	l.Helper()
	d, err := open(l.config, l.pace, l.limits)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = d.Close() })
	return d
}

func (l *lab) context() context.Context {
	ctx, cancel := patience.Context(l.Context(), time.Minute)
	l.Cleanup(cancel)
	return ctx
}

const machineID = "0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a01"

func spec(change ...func(*pool.Spec)) pool.Spec {
	s := pool.Spec{
		ID: machineID, Name: "web-1", Workspace: "acme/prod", Node: "pve1", VMID: 500, Image: "debian-12", Cores: 2, Memory: 2048, Disk: 8,
		Init: pool.Init{User: "student", Password: "a-secret-of-a-guest", SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ann@example.org"}},
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func at(address string) func(*pool.Spec) {
	return func(s *pool.Spec) {
		s.Address, s.Gateway, s.Nameservers = netip.MustParsePrefix(address), netip.MustParseAddr("10.99.0.1"), []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("1.1.1.1")}
	}
}

func with(settings string) func(*pool.Spec) {
	return func(s *pool.Spec) { s.Settings = json.RawMessage(settings) }
}

func (l *lab) ref() pool.Ref {
	return pool.Ref{ID: machineID, Name: "web-1", ExternalID: "500", Node: "pve1"}
}

// heard is a Progress that remembers.
type heard struct {
	mu      sync.Mutex
	steps   []string
	lines   []string
	secrets []string
	last    int
	back    bool
}

func (h *heard) Step(id, label string, percent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.steps) == 0 || h.steps[len(h.steps)-1] != id {
		h.steps = append(h.steps, id)
	}
	h.back = h.back || percent < h.last || percent > 100
	h.last = percent
}

func (h *heard) Log(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) Secret(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secrets = append(h.secrets, text)
}

func (h *heard) said(part string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.lines, func(l string) bool { return strings.Contains(l, part) })
}

// marked are the machines that bear the mark.
func (l *lab) marked() []int {
	var out []int
	for _, id := range l.pve.IDs() {
		if c := l.pve.Config(id); c != nil && strings.Contains(c["description"], markLine+machineID) {
			out = append(out, id)
		}
	}
	return out
}

// shape is one method as the official API describes it.
type shape struct {
	Parameters map[string]struct {
		Type     string `json:"type"`
		Optional number `json:"optional"`
		Enum     []string
		Minimum  *number
		Maximum  *number
		Max      *number `json:"maxLength"`
		Pattern  string
	}
}

// shapes reads the official API's shape, which lies beside the repository; nil without it.
func shapes(t *testing.T) map[string]shape {
	t.Helper()
	data := pveversions.Beside(t, "pve-api-facts.json")
	if data == nil {
		return nil
	}
	var out map[string]shape
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// checkShape compares all requests that the driver sent with the official API, and with calls.
func (l *lab) checkShape() {
	all := shapes(l.T)
	seen := map[string]bool{}
	for _, r := range l.pve.Requests() {
		if path := strings.TrimPrefix(r.Path, "/api2/json"); callOf(r.Method, path) == "" {
			l.Errorf("%s %s is missing from calls: say there which versions have an answer to it", r.Method, path)
		}
		key := fmt.Sprint(r.Method, r.Path, r.Values)
		if all == nil || r.Values == nil || seen[key] {
			continue
		}
		seen[key] = true
		if problem := misshapen(all, r); problem != "" {
			l.Errorf("%s %s %v: %s", r.Method, r.Path, r.Values, problem)
		}
	}
}

// undescribed are methods that the shape leaves out; the recordings have them.
var undescribed = regexp.MustCompile(`/snapshot(/[^/]+(/rollback)?)?$`)

func misshapen(all map[string]shape, r pvesim.Request) string {
	path := strings.TrimPrefix(r.Path, "/api2/json")
	if undescribed.MatchString(path) {
		return ""
	}
	for name, s := range all {
		verb, pattern, _ := strings.Cut(name, " ")
		if verb != r.Method || !alike(strings.Split(pattern, "/"), strings.Split(path, "/")) {
			continue
		}
		if problem := s.misfit(pattern, r.Values); problem != "" {
			return problem
		}
		return ""
	}
	return "the official API has no such method"
}

func alike(pattern, path []string) bool {
	return slices.EqualFunc(pattern, path, func(p, q string) bool { return p == q || strings.HasPrefix(p, "{") })
}

func (s shape) misfit(pattern string, values map[string][]string) string {
	for name, p := range s.Parameters {
		if _, given := values[name]; !given && p.Optional == 0 && !strings.Contains(pattern, "{"+name+"}") {
			return name + " is missing"
		}
	}
	indexed := regexp.MustCompile(`\d+$`)
	for name, v := range values {
		p, ok := s.Parameters[name]
		if !ok {
			if p, ok = s.Parameters[indexed.ReplaceAllString(name, "[n]")]; !ok {
				return name + " is unknown"
			}
		}
		if len(v) > 1 && p.Type != "array" {
			return name + " is given several times"
		}
		n, err := strconv.ParseFloat(v[0], 64)
		switch {
		case (p.Type == "integer" || p.Type == "number") && err != nil:
			return name + " is no number"
		case p.Type == "boolean" && v[0] != "0" && v[0] != "1":
			return name + " is no boolean"
		case p.Minimum != nil && n < float64(*p.Minimum), p.Maximum != nil && n > float64(*p.Maximum):
			return name + " is out of range"
		case p.Max != nil && len(v[0]) > int(*p.Max):
			return name + " is too long"
		case len(p.Enum) > 0 && !slices.Contains(p.Enum, v[0]):
			return name + " is none of " + strings.Join(p.Enum, ", ")
		}
	}
	return ""
}

// dying is a driver of an agent that dies when a request of its is cut: it sends none after the
// n-th.
func (l *lab) dying(n int) *Driver {
	d := l.driver()
	d.client.http.Transport = &mortal{inner: d.client.http.Transport, left: n}
	return d
}

type mortal struct {
	mu    sync.Mutex
	inner http.RoundTripper
	left  int
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	if counted(r.URL.Path) {
		m.left--
	}
	dead := m.left < 0
	m.mu.Unlock()
	if dead {
		return nil, errors.New("the agent is dead")
	}
	return m.inner.RoundTrip(r)
}

func (m *mortal) CloseIdleConnections() { m.inner.(*http.Transport).CloseIdleConnections() }

// The check of each request's shape must be able to fail.
func TestShapeIsChecked(t *testing.T) {
	t.Parallel()
	all := shapes(t)
	if all == nil {
		t.Skip("requests are not compared with the official API: there is no shared/pve-api-facts.json beside the repository")
	}
	for path, values := range map[string]map[string][]string{
		"/nodes/pve1/qemu/100/clone":        {"newid": {"101"}, "fulll": {"1"}},
		"/nodes/pve1/qemu/101/clone":        {"name": {"x"}},
		"/nodes/pve1/qemu/102/clone":        {"newid": {"99"}},
		"/nodes/pve1/qemu/103/clone":        {"newid": {"101"}, "full": {"true"}},
		"/nodes/pve1/qemu/104/clone":        {"newid": {"101", "102"}},
		"/nodes/pve1/qemu/105/status/begin": {},
	} {
		if misshapen(all, pvesim.Request{Method: "POST", Path: "/api2/json" + path, Values: values}) == "" {
			t.Errorf("POST %s %v is taken for right", path, values)
		}
	}
	if problem := misshapen(all, pvesim.Request{Method: "POST", Path: "/api2/json/nodes/pve1/qemu/100/clone", Values: map[string][]string{"newid": {"101"}, "full": {"1"}}}); problem != "" {
		t.Error(problem)
	}
}
