package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pveversions"
)

// calls are all that the driver makes, each with the versions that go-proxmox has an answer of.
// The others are read from PVE 9.2's recordings alone (recorded_test.go) and from the simulator.
var calls = map[string]string{
	"GET /version":                                               "6 7 8 9",
	"GET /access/permissions":                                    "7 8 9",
	"GET /nodes":                                                 "7 8 9",
	"GET /cluster/resources":                                     "7 8 9",
	"GET /cluster/nextid":                                        "7 8 9",
	"GET /nodes/{node}/storage":                                  "7 8 9",
	"GET /nodes/{node}/qemu":                                     "",
	"GET /nodes/{node}/qemu/{vmid}/config":                       "8 9",
	"PUT /nodes/{node}/qemu/{vmid}/config":                       "9",
	"GET /nodes/{node}/qemu/{vmid}/pending":                      "9",
	"PUT /nodes/{node}/qemu/{vmid}/resize":                       "9",
	"POST /nodes/{node}/qemu/{vmid}/clone":                       "7 8 9",
	"POST /nodes/{node}/qemu/{vmid}/migrate":                     "9",
	"DELETE /nodes/{node}/qemu/{vmid}":                           "8 9",
	"GET /nodes/{node}/qemu/{vmid}/status/current":               "7 8 9",
	"POST /nodes/{node}/qemu/{vmid}/status/start":                "8 9",
	"POST /nodes/{node}/qemu/{vmid}/status/stop":                 "8 9",
	"POST /nodes/{node}/qemu/{vmid}/status/shutdown":             "8 9",
	"GET /nodes/{node}/qemu/{vmid}/snapshot":                     "8 9",
	"POST /nodes/{node}/qemu/{vmid}/snapshot":                    "8 9",
	"DELETE /nodes/{node}/qemu/{vmid}/snapshot/{name}":           "8 9",
	"POST /nodes/{node}/qemu/{vmid}/snapshot/{n}/rollback":       "8 9",
	"POST /nodes/{node}/qemu/{vmid}/agent/ping":                  "7 8 9",
	"POST /nodes/{node}/qemu/{vmid}/agent/exec":                  "9",
	"GET /nodes/{node}/qemu/{vmid}/agent/exec-status":            "9",
	"GET /nodes/{node}/qemu/{vmid}/agent/file-read":              "7 8 9",
	"GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces": "9",
	"GET /nodes/{node}/tasks":                                    "9",
	"GET /nodes/{node}/tasks/{upid}/status":                      "7 8 9",
	"GET /nodes/{node}/tasks/{upid}/log":                         "7 8 9",
}

// callOf is the name of a request in calls, or "".
func callOf(method, path string) string {
	for name := range calls {
		verb, pattern, _ := strings.Cut(name, " ")
		if verb == method && alike(strings.Split(pattern, "/"), strings.Split(path, "/")) {
			return name
		}
	}
	return ""
}

// unasked are answers to what the driver does not ask with these parameters.
var unasked = map[string]string{
	"GET /access/permissions userid=userid":                    "it asks for its own token",
	"GET /access/permissions path=path&userid=userid":          "it asks for its own token",
	"GET /cluster/resources type=node":                         "it asks for machines only, and reads nodes from /nodes",
	"GET /nodes/node1/tasks/" + went + "/log limit=50&start=5": "it asks on only after 500 lines",
}

// Tasks that answers are recorded of.
const (
	went   = "UPID:node1:00000002:00000002:00000002:test:completed:root@pam:"
	failed = "UPID:node1:00000003:00000003:00000003:test:failed:root@pam:"
	runs   = "UPID:node1:00000001:00000001:00000001:test:running:root@pam:"
)

// reading is what the driver reads of a recorded answer.
type reading struct {
	answer string // pveversions.Answer.Name
	of     string // the versions; "": all that have the answer
	read   func(context.Context, *Driver) (any, error)
	want   string
}

// wide is a configuration as the driver reads it.
func wide(ctx context.Context, d *Driver, id int) (any, error) {
	g, err := d.read(ctx, "node1", id)
	if err != nil {
		return nil, err
	}
	disk, _ := g.disk()
	return fmt.Sprint(g.config["name"], " ", g.config["digest"], " cores ", g.cores(), " memory ", g.memory(), " agent ", g.agent(), " cloud-init ", g.cloudInit(),
		" mac ", g.mac(), " disks ", len(g.drives()), ", ", disk.volume, " ", disk.bytes>>30, " GiB, ", g.static()), nil
}

// begun sends what starts a task, as each step of the driver does.
func begun(method, path string) func(context.Context, *Driver) (any, error) {
	return func(ctx context.Context, d *Driver) (any, error) {
		var upid string
		_, err := d.client.once(ctx, method, path, nil, &upid)
		if m := upids.FindStringSubmatch(upid); err == nil && m == nil {
			return nil, fmt.Errorf("%q is no task", upid)
		}
		return upid, err
	}
}

// followed is how a task ended, and what its log said.
func followed(upid string) func(context.Context, *Driver) (any, error) {
	return func(ctx context.Context, d *Driver) (any, error) {
		said := &heard{}
		err := d.follow(ctx, upid, step{id: "x", label: "step", limit: time.Hour}, said)
		return said.lines, err
	}
}

// problems are what Check says, without those that name an answer which is not recorded.
func problems(ctx context.Context, d *Driver) (any, error) {
	var out []string
	for _, f := range d.Check(ctx) {
		if f.Problem != "" && !strings.Contains(f.Problem, "501") {
			out = append(out, f.Problem)
		}
	}
	return strings.Join(out, "; "), nil
}

func version(ctx context.Context, d *Driver) (any, error) {
	for _, f := range d.Check(ctx) {
		if f.What == "reach" {
			said, _, _ := strings.Cut(f.Detail, " at ")
			return said + f.Problem, nil
		}
	}
	return nil, errors.New("Check says nothing of it")
}

const (
	vm100 = "/nodes/node1/qemu/100"
	vm101 = "/nodes/node1/qemu/101"
	vm102 = "/nodes/node1/qemu/102"
)

var running = fmt.Sprintf("%+v", current{Status: "running", QMP: "running", Uptime: 170815})

var readings = []reading{
	{answer: "GET /version", of: "6", read: version, want: "Proxmox VE 6.6-6"},
	{answer: "GET /version", of: "7", read: version, want: "Proxmox VE 7.7-7"},
	{answer: "GET /version", of: "8", read: version, want: "Proxmox VE 8.4-1"},
	{answer: "GET /version", of: "9", read: version, want: "Proxmox VE 9.1-1"},
	{answer: "GET /version", of: "6", read: problems, want: "Proxmox VE 6.6-6 is older than what this was made for"},
	// 7 and 8 have VM.Monitor for what is done by the guest agent; go-proxmox has 7's privileges also
	// for 9, where VM.Monitor is gone.
	{answer: "GET /access/permissions", of: "7 8", read: problems, want: ""},
	{answer: "GET /access/permissions", of: "9", read: problems, want: "root@pam!test lacks VM.GuestAgent.Audit at /vms and below, to learn machines' addresses; root@pam!test lacks VM.GuestAgent.Unrestricted at /vms and below, to run the commands of after { }"},
	{answer: "GET /access/permissions path=path", read: func(ctx context.Context, d *Driver) (any, error) { return d.privileges(ctx, "path", true) }, want: "map[permission:true]"},
	{answer: "GET /nodes", read: func(ctx context.Context, d *Driver) (any, error) { return d.nodes(ctx) },
		want: fmt.Sprintf("%+v", []nodeRow{
			{"node1", "online", 0.00348605577689243, 12, 11508809728, 33568288768}, {"node2", "online", 0.00722831505483549, 4, 1838854144, 16651751424},
			{"node3", "online", 0.00821557582405153, 4, 1858961408, 16668868608}, {"node4", "online", 0.00748876684972541, 8, 2268295168, 65919561728},
		})},
	{answer: "GET /cluster/resources", read: func(ctx context.Context, d *Driver) (any, error) { return d.everywhere(ctx) },
		want: fmt.Sprintf("%+v", []machineRow{
			{VMID: 100, Name: "server1", Node: "node2", Type: "qemu", Status: "running"}, {VMID: 101, Name: "leap154", Node: "node1", Type: "qemu", Template: 1, Status: "stopped"},
			{VMID: 102, Name: "machine-test", Node: "node1", Type: "qemu", Status: "stopped", Tags: "go-proxmox+cloud-init"}, {VMID: 200, Name: "VM 200", Node: "node1", Type: "qemu", Status: "stopped"},
		})},
	{answer: "GET /nodes/node1/storage", read: func(ctx context.Context, d *Driver) (any, error) { return d.storagesOf(ctx, "node1") },
		want: fmt.Sprintf("%+v", []storageRow{
			{"local", "dir", "images,rootdir,vztmpl,backup,iso,snippets", 0, 1, 60000000000, 50000000000}, {"local-lvm", "lvmthin", "images,rootdir", 0, 1, 120000000000, 100000000000},
		})},
	// It has no storage for disks.
	{answer: "GET /nodes/cinode/storage", read: func(ctx context.Context, d *Driver) (any, error) { return d.storagesOf(ctx, "cinode") }, want: "[]"},
	// The answer to a clone is written by hand: Proxmox's is a task. None is not taken for one.
	{answer: "POST " + vm101 + "/clone", read: func(ctx context.Context, d *Driver) (any, error) {
		m := &making{Driver: d, spec: spec(func(s *pool.Spec) { s.VMID = 0 }), progress: &heard{}}
		id, upid, err := m.clone(ctx, &image{guest: &guest{id: 101, node: "node1"}, target: "node1"}, true)
		if err != nil {
			return nil, err
		}
		_, err = followed(upid)(ctx, d)
		return id, err
	}, want: `100, error: step: Proxmox answers "", which is no task`},
	{answer: "GET /cluster/nextid", read: func(ctx context.Context, d *Driver) (any, error) {
		var next number
		return &next, d.client.get(ctx, "/cluster/nextid", nil, &next)
	}, want: "100"},
	{answer: "GET /cluster/nextid vmid=100", read: func(ctx context.Context, d *Driver) (any, error) {
		return "free", (&making{Driver: d, spec: spec()}).foreign(ctx, "node1", 100)
	}, want: "free"},
	{answer: "GET /cluster/nextid vmid=200", read: func(ctx context.Context, d *Driver) (any, error) {
		err := (&making{Driver: d, spec: spec()}).foreign(ctx, "node1", 200)
		return errors.Is(err, pool.ErrForeign), nil
	}, want: "true"},
	{answer: "GET " + vm101 + "/status/current", read: func(ctx context.Context, d *Driver) (any, error) {
		return d.current(ctx, &guest{id: 101, node: "node1"})
	}, want: running},
	{answer: "GET " + vm102 + "/status/current", read: func(ctx context.Context, d *Driver) (any, error) {
		return d.current(ctx, &guest{id: 102, node: "node1"})
	}, want: fmt.Sprintf("%+v", current{Status: "running", Uptime: 1234})},
	{answer: "GET " + vm100 + "/config", read: func(ctx context.Context, d *Driver) (any, error) { return wide(ctx, d, 100) },
		want: "test-vm abc123def456 cores 2 memory 2048 agent false cloud-init false mac bc:24:11:2e:c5:4a disks 1, local-lvm:vm-100-disk-0 32 GiB, []"},
	{answer: "GET " + vm101 + "/config", read: func(ctx context.Context, d *Driver) (any, error) { return wide(ctx, d, 101) },
		want: "matt abc123def456 cores 2 memory 2048 agent false cloud-init false mac bc:24:11:2e:c5:4a disks 4, local-lvm:vm-101-disk-0 32 GiB, [192.168.1.10]"},
	{answer: "GET " + vm102 + "/config", read: func(ctx context.Context, d *Driver) (any, error) { return wide(ctx, d, 102) },
		want: "wide abc123def456beyondten cores 4 memory 4096 agent false cloud-init false mac 00:00:00:00:00:00 disks 2, local-lvm:vm-102-disk-0 32 GiB, [10.0.0.20]"},
	{answer: "PUT " + vm100 + "/config", read: func(ctx context.Context, d *Driver) (any, error) {
		f, err := d.Import(ctx, "node1", 100, spec())
		return fmt.Sprint(f.Name, " ", f.ExternalID, " ", f.Node, " ", f.Cores, " ", f.Memory, " ", f.Disk), err
	}, want: "test-vm 100 node1 2 2048 32"},
	{answer: "GET " + vm101 + "/pending", read: func(ctx context.Context, d *Driver) (any, error) {
		return d.pending(ctx, &guest{id: 101, node: "node1"})
	}, want: "[cores]"},
	// None is the one that a change makes, so nothing is removed.
	{answer: "GET " + vm100 + "/snapshot", read: func(ctx context.Context, d *Driver) (any, error) {
		m := &making{Driver: d, spec: spec(), progress: &heard{}}
		return "none", m.haveSnapshot(ctx, &guest{id: 100, node: "node1"}, false)
	}, want: "none"},
	{answer: "GET /nodes/node1/tasks", read: func(ctx context.Context, d *Driver) (any, error) {
		targets, open, err := d.cloning(ctx, "node1")
		return fmt.Sprint(targets, open), err
	}, want: "[] 0"},
	{answer: "POST " + vm100 + "/status/start", read: begun(http.MethodPost, vm100+"/status/start"), want: "UPID:node1:00000005:00000005:00000005:qmstart:100:root@pam:"},
	{answer: "POST " + vm100 + "/status/stop", read: begun(http.MethodPost, vm100+"/status/stop"), want: "UPID:node1:00000006:00000006:00000006:qmstop:100:root@pam:"},
	{answer: "POST " + vm100 + "/status/shutdown", read: begun(http.MethodPost, vm100+"/status/shutdown"), want: "UPID:node1:00000007:00000007:00000007:qmshutdown:100:root@pam:"},
	{answer: "POST " + vm100 + "/snapshot", read: begun(http.MethodPost, vm100+"/snapshot"), want: "UPID:node1:0000000D:0000000D:0000000D:qmsnapshot:100:root@pam:"},
	{answer: "POST " + vm100 + "/snapshot/snap1/rollback", read: begun(http.MethodPost, vm100+"/snapshot/snap1/rollback"), want: "UPID:node1:0000000E:0000000E:0000000E:qmrollback:100:root@pam:"},
	{answer: "DELETE " + vm100 + "/snapshot/snap2", read: begun(http.MethodDelete, vm100+"/snapshot/snap2"), want: "UPID:node1:0000000F:0000000F:0000000F:qmdelsnapshot:100:root@pam:"},
	{answer: "DELETE /nodes/node1/qemu/999", read: begun(http.MethodDelete, "/nodes/node1/qemu/999"), want: "UPID:node1:0000000C:0000000C:0000000C:qmdestroy:999:root@pam:"},
	{answer: "POST " + vm101 + "/migrate", read: begun(http.MethodPost, vm101+"/migrate"), want: "UPID:node1:0000B001:0000B001:0000B001:qmigrate:101:root@pam:"},
	{answer: "PUT " + vm101 + "/resize", read: begun(http.MethodPut, vm101+"/resize"), want: "UPID:node1:0000B002:0000B002:0000B002:qmresize:101:root@pam:"},
	{answer: "GET /nodes/node1/tasks/" + went + "/status", read: followed(went), want: "[  task started   processing step 1   processing step 2   processing step 3   task completed successfully]"},
	{answer: "GET /nodes/node1/tasks/" + went + "/log limit=50&start=0", read: followed(went), want: "[  task started   processing step 1   processing step 2   processing step 3   task completed successfully]"},
	{answer: "GET /nodes/node1/tasks/" + failed + "/status", read: followed(failed), want: "[], error: step: the task ended with: some error occurred (" + failed + ")"},
	{answer: "GET /nodes/node1/tasks/" + runs + "/status", read: unfinished, want: "[  task started   processing...], error: step: context canceled"},
	{answer: "GET /nodes/node1/tasks/" + runs + "/log", read: unfinished, want: "[  task started   processing...], error: step: context canceled"},
	{answer: "GET /nodes/node1/tasks/UPID:node1:00000099:00000099:00000099:watchme:99:root@pam:/status", read: followed("UPID:node1:00000099:00000099:00000099:watchme:99:root@pam:"), want: "[  line one   line two]"},
	{answer: "GET /nodes/node1/tasks/UPID:node1:00000099:00000099:00000099:watchme:99:root@pam:/log", read: followed("UPID:node1:00000099:00000099:00000099:watchme:99:root@pam:"), want: "[  line one   line two]"},
	{answer: "GET /nodes/node1/tasks/UPID:node1:000000AA:000000AA:000000AA:emptylog:AA:root@pam:/status", read: followed("UPID:node1:000000AA:000000AA:000000AA:emptylog:AA:root@pam:"), want: "[]"},
	{answer: "GET /nodes/node1/tasks/UPID:node1:000000AA:000000AA:000000AA:emptylog:AA:root@pam:/log", read: followed("UPID:node1:000000AA:000000AA:000000AA:emptylog:AA:root@pam:"), want: "[]"},
	{answer: "GET /nodes/cinode/tasks/UPID:cinode:0000D001:0000D001:0000D001:imgdel:cidata:root@pam:/status", read: followed("UPID:cinode:0000D001:0000D001:0000D001:imgdel:cidata:root@pam:"), want: "[]"},
	{answer: "POST " + vm101 + "/agent/ping", read: func(ctx context.Context, d *Driver) (any, error) {
		_, err := d.client.once(ctx, http.MethodPost, vm101+"/agent/ping", nil, nil)
		return "there", err
	}, want: "there"},
	{answer: "POST " + vm101 + "/agent/exec", read: executed, want: "[hello]"},
	{answer: "GET " + vm101 + "/agent/exec-status", read: executed, want: "[hello]"},
	{answer: "GET " + vm101 + "/agent/file-read", read: func(ctx context.Context, d *Driver) (any, error) {
		return d.hostKeys(ctx, &guest{id: 101, node: "node1"})
	}, want: "[hello world hello world hello world]"},
	{answer: "GET " + vm101 + "/agent/network-get-interfaces", read: func(ctx context.Context, d *Driver) (any, error) {
		g, err := d.read(ctx, "node1", 101)
		if err != nil {
			return nil, err
		}
		return d.reported(ctx, g)
	}, want: "[10.0.0.10]"},
}

func executed(ctx context.Context, d *Driver) (any, error) {
	said := &heard{}
	err := d.exec(ctx, &guest{id: 101, node: "node1"}, "echo hello", said)
	return said.lines, err
}

// until ends a context when a line is said.
type until struct {
	heard
	line string
	end  context.CancelFunc
}

func (u *until) Log(format string, args ...any) {
	u.heard.Log(format, args...)
	if u.said(u.line) {
		u.end()
	}
}

// unfinished follows a task that goes on until its second line was said.
func unfinished(ctx context.Context, d *Driver) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := &until{line: "processing...", end: cancel}
	err := d.follow(ctx, runs, step{id: "x", label: "step", limit: time.Hour}, said)
	return said.lines[:min(2, len(said.lines))], err
}

// Each answer of PVE 6 to 9 to a call that the driver makes is read by the driver's own client,
// over TLS, and says to it what it says.
func TestVersions(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, major := range pveversions.Majors {
		recorded := map[string]bool{}
		server := pveversions.Serve(t, major)
		d, err := open(pool.Config{Name: "old", Kind: "proxmox", URL: server.URL, CA: server.CA, Token: "root@pam!test=" + secret, Nodes: []string{"node1"}, Timeout: patience.For(20 * time.Second)}, pace, usual)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := patience.Context(t.Context(), time.Minute)
		for _, a := range pveversions.Of(major) {
			if call := callOf(a.Method, a.Path); call != "" {
				recorded[call] = true
			}
			for _, r := range readings {
				if r.answer != a.Name || r.of != "" && !slices.Contains(strings.Fields(r.of), strconv.Itoa(major)) {
					continue
				}
				before := server.Given(a.Name)
				value, err := r.read(ctx, d)
				if n, ok := value.(*number); ok {
					value = *n
				}
				got := fmt.Sprintf("%+v", value)
				if err != nil {
					got += ", error: " + err.Error()
				}
				if got != r.want {
					t.Errorf("PVE %d, %s is read as\n\t%s\nwant\n\t%s", major, a.Name, got, r.want)
				}
				if server.Given(a.Name) == before {
					t.Errorf("PVE %d, %s was not asked for", major, a.Name)
				}
			}
			switch reason := unasked[a.Name]; {
			case callOf(a.Method, a.Path) == "":
			case reason != "":
				used[a.Name] = true
			case server.Given(a.Name) == 0:
				t.Errorf("PVE %d, %s is recorded, and nothing reads it", major, a.Name)
			}
		}
		cancel()
		_ = d.Close()
		for call, of := range calls {
			if slices.Contains(strings.Fields(of), strconv.Itoa(major)) != recorded[call] {
				t.Errorf("PVE %d, %s: an answer is recorded: %v, and calls says otherwise", major, call, recorded[call])
			}
		}
		t.Logf("PVE %d: answers to %d of %d calls are read", major, len(recorded), len(calls))
	}
	for name := range unasked {
		if !used[name] {
			t.Errorf("no version has %s", name)
		}
	}
}

// The answers must be told from those that the driver can't read.
func TestVersionsOfOtherAnswers(t *testing.T) {
	t.Parallel()
	server := pveversions.Serve(t, 7)
	d, err := open(pool.Config{Name: "old", Kind: "proxmox", URL: server.URL, CA: server.CA, Token: "root@pam!test=" + secret, Timeout: patience.For(20 * time.Second)}, pace, usual)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	var api *apiError
	if _, err := d.machinesOf(t.Context(), "node1"); !errors.As(err, &api) || api.status != http.StatusNotImplemented {
		t.Errorf("what was not recorded is read as %v", err)
	}
	var rows []machineRow
	if err := d.client.get(t.Context(), vm101+"/status/current", url.Values{}, &rows); err == nil {
		t.Error("a machine's status is read as a list")
	}
}

// A privilege that does not propagate holds for no machine, so that the token does not see all.
func TestPrivilegesThatDoNotPropagate(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.config.Storages, l.config.Networks = []string{"disks"}, []string{"vmbr0"}
	for _, path := range []string{"/vms", "/storage", "/sdn/zones/localnetwork"} {
		l.pve.Revoke(tokenID, path)
	}
	l.pve.GrantAt(tokenID, "/vms", "PVEVMAdmin")
	l.pve.GrantAt(tokenID, "/storage/disks", "PVEDatastoreUser")
	l.pve.GrantAt(tokenID, "/sdn/zones/localnetwork/vmbr0", "SDN.Use")
	ref := l.ref()
	ref.ExternalID = "" // or it would be known that no machine has the VMID
	if _, err := l.driver().Look(l.context(), ref); !errors.Is(err, pool.ErrUnreachable) || errors.Is(err, pool.ErrGone) {
		t.Errorf("Look() = %v, want that the token does not see all machines", err)
	}
	said, _ := findings(l.driver().Check(l.context()))
	if !strings.Contains(said, "lacks VM.Audit, VM.Clone") || strings.Contains(said, "Datastore") || !strings.Contains(said, "lacks SDN.Use at /sdn/zones/localnetwork/vmbr0 and below") {
		t.Errorf("Check() says %s, want that privileges on machines and on the bridge's VLANs are missing", said)
	}
}

// A log without lines is shown as one line, whose number the first real line gets.
func TestLogThatIsStillEmpty(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	begin := l.pve.HoldTasks()
	said, made := &heard{}, make(chan error, 1)
	d, ctx := l.driver(), l.context()
	go func() {
		_, err := d.Create(ctx, spec(at("10.99.0.50/24")), said)
		made <- err
	}()
	patience.Await(t, "the driver to have read the log of the clone, which has not begun, and to read it again", func() bool {
		reads := 0
		for _, r := range l.pve.Requests() {
			if strings.HasSuffix(r.Path, "/log") {
				reads++
			}
		}
		return reads >= 2
	})
	begin()
	if err := <-made; err != nil || said.said("no content") || !said.said("creating a clone of VM 9000 with ID 500") {
		t.Errorf("Create() = %v, said %q, want the log's first line and not that it was empty", err, said.lines)
	}
}
