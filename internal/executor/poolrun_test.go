package executor_test

import (
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/testkit/sshd"
)

const poolTemplate = `
provisioner "machine" {
  machine {
    for_each = var.names
    name     = each.key
    pool     = "lab"
    cores    = 2
    memory   = var.memory
    cloud_init {
      user     = "tester"
      password = "hunter2-of-the-template"
    }
    libvirt {
      network = "default"
    }
  }
}
`

// lab is a static pool of two machines that answer, and the database's part of placing
// machines in it.
type lab struct {
	*site
	url    string
	taken  map[string]string // by node
	cleans string            // a file with a line for each clean-up
	asked  [][]provision.PlaceWanted
}

func newLab(t *testing.T) *lab {
	t.Helper()
	s := newSite(t)
	s.manage()
	l := &lab{site: s, taken: map[string]string{}, cleans: filepath.Join(t.TempDir(), "cleaned")}
	l.job.Settings.Policy.PlainSensitive = true
	l.url = s.template(map[string]string{
		"variables.tf": "variable \"names\" { type = set(string) }\nvariable \"memory\" { type = number }\n", "tendril.hcl": poolTemplate,
	}, nil).URL
	var machines []pool.StaticMachine
	for _, name := range []string{"desk1", "desk2"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		accepting := make(chan struct{})
		go func() {
			defer close(accepting)
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				_ = connection.Close()
			}
		}()
		t.Cleanup(func() { _ = listener.Close(); <-accepting })
		machines = append(machines, pool.StaticMachine{Name: name, Address: netip.MustParseAddr("127.0.0.1"), SSHPort: listener.Addr().(*net.TCPAddr).Port})
	}
	clean := filepath.Join(t.TempDir(), "clean")
	if err := os.WriteFile(clean, []byte("#!/bin/sh\necho wiping $TENDRIL_NODE\necho $TENDRIL_NODE >> "+l.cleans+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	l.job.Pools = []pool.Config{{Name: "lab", Kind: "static", Timeout: deadline, Machines: machines, Clean: []string{clean}}}
	l.places = func(wants []provision.PlaceWanted) (placed []provision.Place) {
		l.asked = append(l.asked, wants)
		for _, w := range wants {
			for _, m := range machines {
				if by := l.taken[m.Name]; by == w.Name || by == "" {
					l.taken[m.Name] = w.Name
					placed = append(placed, provision.Place{Name: w.Name, Pool: "lab", Node: m.Name, Why: m.Name + " is free"})
					break
				}
			}
		}
		return placed
	}
	return l
}

func (l *lab) apply(operation provision.Operation, memory int, names ...string) (provision.Report, *child) {
	l.t.Helper()
	l.ask(l.url, "v1", "", map[string]any{"names": names, "memory": memory})
	l.job.Assignment.Operation = operation
	got, run := l.run()
	l.store(run)
	return got, run
}

func (l *lab) cleaned() []string {
	text, _ := os.ReadFile(l.cleans)
	return strings.Fields(string(text))
}

// Machines of a static pool are handed out where the database says, keep their places, and
// are made as new before they are given back.
func TestMachinesOfAPool(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	got, run := l.apply(provision.OperationApply, 1024, "ann", "bob")
	if got.Status != provision.Success {
		t.Fatalf("run = %s (%s), want success", got.Status, got.Detail.ErrorMessage)
	}
	listed := run.machines()
	if len(listed) != 2 || listed[0].Name != "ann" || listed[0].Node != "desk1" || listed[0].Status != provision.MachineRunning || listed[1].Node != "desk2" ||
		!slices.Equal(listed[0].IPAddresses, []string{"127.0.0.1"}) || listed[0].SSHPort != l.job.Pools[0].Machines[0].SSHPort {
		t.Fatalf("machines = %+v, want ann on desk1 and bob on desk2", listed)
	}
	if !slices.Contains(listed[0].Actions, provision.MachineReveals) || slices.Contains(listed[0].Actions, provision.MachinePowers) {
		t.Errorf("actions = %v: a static machine has the template's password and no power switch", listed[0].Actions)
	}
	if text := run.text(); !strings.Contains(text, "machine.ann goes to desk1: desk1 is free") || strings.Contains(text, "hunter2") {
		t.Errorf("the log is\n%s\nwant the place, and no password", text)
	}

	// Nothing to do, and another memory is no other machine.
	if got, run = l.apply(provision.OperationApply, 1024, "ann", "bob"); got.Status != provision.Success || strings.Contains(run.text(), "Plan:") {
		t.Errorf("again = %s\n%s\nwant nothing to do", got.Status, run.text())
	}
	if got, run = l.apply(provision.OperationApply, 2048, "ann", "bob"); got.Status != provision.Success || !strings.Contains(run.text(), "0 to create, 2 to change, 0 to replace, 0 to destroy") {
		t.Errorf("with more memory = %s (%s)\n%s", got.Status, got.Detail.ErrorMessage, run.text())
	}
	if cleaned := l.cleaned(); len(cleaned) > 0 {
		t.Errorf("cleaned %q, want nothing yet", cleaned)
	}

	// Fewer machines.
	got, run = l.apply(provision.OperationApply, 2048, "bob")
	if got.Status != provision.Success || len(run.freed) > 0 || !slices.Equal(l.cleaned(), []string{"desk1"}) || len(run.machines()) != 1 {
		t.Fatalf("with bob alone = %s (%s), gave back %q, cleaned %q, machines %+v; the database frees places at the end", got.Status, got.Detail.ErrorMessage, run.freed, l.cleaned(), run.machines())
	}
	if !strings.Contains(run.text(), "ann: wiping desk1") {
		t.Errorf("the log is\n%s\nwant what the clean-up said", run.text())
	}
	got, run = l.apply(provision.OperationDestroy, 2048, "bob")
	if got.Status != provision.Success || !slices.Equal(l.cleaned(), []string{"desk1", "desk2"}) || len(run.machines()) != 0 {
		t.Errorf("destroy = %s (%s), gave back %q, cleaned %q, machines %+v", got.Status, got.Detail.ErrorMessage, run.freed, l.cleaned(), run.machines())
	}
}

// Without room nothing is done, and the run says so by the code on which the database lets it
// wait. A machine that does not answer is no machine.
func TestMachinesWithoutAPlace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if r.Detail.Places != nil {
			return provision.Fail(provision.CodeNoRoom, "ann fits on no node of pool lab", nil)
		}
		return nil
	}
	got, run := l.apply(provision.OperationApply, 1024, "ann")
	if got.Status != provision.Failed || got.Detail.ErrorCode != provision.CodeNoRoom || len(run.machines()) != 0 || slices.Contains(run.stages(), provision.StageApply) {
		t.Errorf("without room = %s %s, %+v", got.Status, got.Detail.ErrorCode, run.machines())
	}

	l.refuse = nil
	l.job.Pools[0].Timeout = 100 * time.Millisecond
	l.job.Pools[0].Machines[0].Address = netip.MustParseAddr("127.0.0.2")
	l.job.Pools[0].Machines[0].SSHPort = 1
	got, run = l.apply(provision.OperationApply, 1024, "ann", "bob")
	if got.Status != provision.Failed || !strings.Contains(got.Detail.ErrorMessage, "desk1 of the pool lab did not answer at 127.0.0.2:1") {
		t.Errorf("with a machine that is off = %s: %s", got.Status, got.Detail.ErrorMessage)
	}
	if listed := run.machines(); len(listed) != 1 || listed[0].Name != "bob" || listed[0].Status != provision.MachineRunning {
		t.Errorf("machines = %+v, want bob alone", listed)
	}
}

// A template can't use a pool that the agent does not give to its workspace, nor settings that
// nobody knows.
func TestPoolsThatAreRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.job.Pools[0].Name = "office"
	if got, _ := l.apply(provision.OperationApply, 1024, "ann"); got.Detail.ErrorCode != provision.CodeVariablesInvalid || !strings.Contains(got.Detail.ErrorMessage, `The machine ann: the pool "lab" is not in this agent's configuration`) {
		t.Errorf("with another pool = %s: %s", got.Detail.ErrorCode, got.Detail.ErrorMessage)
	}
	l.job.Pools = nil
	if got, _ := l.apply(provision.OperationApply, 1024, "ann"); got.Detail.ErrorCode != provision.CodeVariablesInvalid {
		t.Errorf("without pools = %s: %s", got.Detail.ErrorCode, got.Detail.ErrorMessage)
	}
}

// What a run was interrupted at is done again whole: a machine that was to be replaced may be the
// one of before. A machine can't move to another pool, and power is refused where nobody switches.
func TestInterruptedMachinesOfAPool(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if got, _ := l.apply(provision.OperationApply, 1024, "ann"); got.Status != provision.Success {
		t.Fatalf("run = %s (%s), want success", got.Status, got.Detail.ErrorMessage)
	}
	l.editState(func(m map[string]any) {
		m["intent"] = map[string]any{"id": "1", "machine": m["id"], "action": "replace"}
		m["status"] = "creating"
	})
	got, run := l.apply(provision.OperationApply, 1024, "ann")
	if got.Status != provision.Success || !slices.Equal(l.cleaned(), []string{"desk1"}) || !strings.Contains(run.text(), "a run was interrupted while it replaced this machine") {
		t.Errorf("after a replacement that was interrupted: %s (%s), cleaned %q\n%s", got.Status, got.Detail.ErrorMessage, l.cleaned(), run.text())
	}

	// One that nobody could ask is compared again, and not made again.
	l.editState(func(m map[string]any) { m["status"] = "unknown" })
	got, run = l.apply(provision.OperationApply, 1024, "ann")
	if listed := run.machines(); got.Status != provision.Success || strings.Contains(run.text(), "Plan:") || len(listed) != 1 || listed[0].Status != provision.MachineRunning {
		t.Errorf("of a machine that could not be asked: %s, %+v\n%s", got.Status, listed, run.text())
	}

	l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann"}, "memory": 1024})
	snapshot := strings.Replace(string(l.job.Assignment.Snapshot), "{", `{"power": "stop", "targets": ["machine.ann"], `, 1)
	l.job.Assignment.Snapshot, l.job.Assignment.Operation = []byte(snapshot), provision.OperationPower
	got, _ = l.run()
	if got.Detail.ErrorCode != provision.CodeOperationRefused || !strings.Contains(got.Detail.ErrorMessage, "started and stopped elsewhere") {
		t.Errorf("power = %s %s: %s", got.Status, got.Detail.ErrorCode, got.Detail.ErrorMessage)
	}

	l.editState(func(m map[string]any) { m["wanted"].(map[string]any)["pool"] = "office" })
	got, _ = l.apply(provision.OperationApply, 1024, "ann")
	if got.Detail.ErrorCode != provision.CodePlacementRefused || !strings.Contains(got.Detail.ErrorMessage, "can't move to another (lab)") {
		t.Errorf("another pool = %s %s: %s", got.Status, got.Detail.ErrorCode, got.Detail.ErrorMessage)
	}
}

// editState changes what the state says of its first machine.
func (l *lab) editState(edit func(machine map[string]any)) {
	l.t.Helper()
	var state map[string]any
	if err := json.Unmarshal(l.managed.state, &state); err != nil {
		l.t.Fatal(err)
	}
	edit(state["machines"].([]any)[0].(map[string]any))
	text, err := json.Marshal(state)
	if err != nil {
		l.t.Fatal(err)
	}
	l.managed.state = text
}

// overSSH gives the lab's two machines a real SSH server each, and its template commands.
func (l *lab) overSSH(commands ...string) (servers []*sshd.Server) {
	l.t.Helper()
	keys, err := pool.NewKeys()
	if err != nil {
		l.t.Fatal(err)
	}
	config := &l.job.Pools[0]
	config.SSHUser, config.SSHKey = "setup", keys.Login
	for i := range config.Machines {
		s := sshd.New(l.t, sshd.Options{Authorized: []string{keys.Public(keys.Login)}})
		config.Machines[i].SSHPort, config.Machines[i].HostKey = int(s.Addr.Port()), s.HostKey
		servers = append(servers, s)
	}
	run, err := json.Marshal(commands)
	if err != nil {
		l.t.Fatal(err)
	}
	l.url = l.template(map[string]string{
		"variables.tf": "variable \"names\" { type = set(string) }\nvariable \"memory\" { type = number }\n",
		"tendril.hcl":  strings.Replace(poolTemplate, "  machine {", "  after { run = "+string(run)+" }\n  machine {", 1),
	}, nil).URL
	return servers
}

// Commands run once in each new machine, over SSH where it has no guest agent. One in which they
// failed, or may have begun when a run died, is replaced: nothing runs twice unnoticed.
func TestCommandsInMachinesOfAPool(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	servers := l.overSSH("echo it prints $(cat secret 2>/dev/null); test ! -e broken", "touch done")
	got, run := l.apply(provision.OperationApply, 1024, "ann", "bob")
	if got.Status != provision.Success || !strings.Contains(run.text(), "ann: it prints") || !strings.Contains(run.text(), "bob: it prints") {
		t.Fatalf("run = %s (%s)\n%s\nwant success and what the commands print", got.Status, got.Detail.ErrorMessage, run.text())
	}
	for i, s := range servers {
		if len(s.Commands()) != 2 || len(s.Authorized()) != 1 || s.Users()[0] != "setup" || len(s.Asked()) > 0 {
			t.Errorf("machine %d ran %q for %q, was asked for %q and lets in %q", i, s.Commands(), s.Users(), s.Asked(), s.Authorized())
		}
	}
	if got, _ = l.apply(provision.OperationApply, 2048, "ann", "bob"); got.Status != provision.Success || len(servers[0].Commands()) != 2 {
		t.Errorf("with more memory = %s (%s), ran %q", got.Status, got.Detail.ErrorMessage, servers[0].Commands())
	}

	// A run dies while they run: the intent stands, and the machine has not been told of.
	l.editState(func(m map[string]any) {
		m["intent"] = map[string]any{"id": "1", "machine": m["id"], "action": "create", "external_id": "desk1"}
		m["status"], m["unfinished"] = "creating", true
		delete(m, "node")
		delete(m, "external_id")
	})
	got, run = l.apply(provision.OperationApply, 2048, "ann", "bob")
	if got.Status != provision.Success || !slices.Equal(l.cleaned(), []string{"desk1"}) || !strings.Contains(run.text(), "-/+ machine.ann (a run was interrupted while commands ran in this machine") || len(servers[0].Commands()) != 4 {
		t.Errorf("after a run that died: %s (%s), cleaned %q, ran %q\n%s", got.Status, got.Detail.ErrorMessage, l.cleaned(), servers[0].Commands(), run.text())
	}

	// A command fails.
	if err := os.WriteFile(filepath.Join(servers[1].Home, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann", "bob"}, "memory": 2048})
	snapshot := strings.Replace(string(l.job.Assignment.Snapshot), "{", `{"replace": ["machine.bob"], "targets": ["machine.bob"], `, 1)
	l.job.Assignment.Snapshot, l.job.Assignment.Operation = []byte(snapshot), provision.OperationApply
	got, run = l.run()
	l.store(run)
	if got.Status != provision.Failed || !strings.Contains(got.Detail.ErrorMessage, "failed: it ended with status 1. The next deploy replaces it") {
		t.Errorf("with a command that fails = %s (%s)", got.Status, got.Detail.ErrorMessage)
	}
	if listed := run.machines(); len(listed) != 2 || listed[1].Status != provision.MachineFailed {
		t.Errorf("machines = %+v, want bob failed", listed)
	}

	// Another machine answers at an address.
	l.job.Pools[0].Machines[1].HostKey = servers[0].HostKey
	got, _ = l.apply(provision.OperationApply, 2048, "ann", "bob")
	if got.Status != provision.Failed || !strings.Contains(got.Detail.ErrorMessage, "as setup: "+servers[1].Addr.String()+": the host key shown there is SHA256:") {
		t.Errorf("with another host key = %s (%s)", got.Status, got.Detail.ErrorMessage)
	}
}

// importing has a Proxmox pool with a machine 120 of somebody's, which may be imported.
func importing(t *testing.T) (*lab, *pvesim.Server) {
	t.Helper()
	l := newLab(t)
	const id, secret = "ci@pve!tendril", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
	server := pvesim.New(t, pvesim.Options{
		Speed: 60, Nodes: []pvesim.Node{{Name: "pve1", Cores: 8, Memory: 32 << 30}},
		Storages: []pvesim.Storage{{Name: "disks", Type: "dir", Path: "/srv/disks", Content: "images,rootdir", Size: 400 << 30}},
	})
	server.Machine("pve1", 120, map[string]string{"name": "old", "description": "their notes", "cores": "2", "memory": "1024", "ipconfig0": "ip=10.0.0.9/24"})
	server.Machine("pve1", 121, map[string]string{"name": "other", "description": "tendril-machine: 0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a01"})
	server.AddToken(pvesim.Token{ID: id, Secret: secret, Separate: true})
	for _, who := range []string{"ci@pve", id} {
		server.Grant(who, "/", "PVEAdmin")
	}
	ca, err := server.CAFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l.job.Pools = []pool.Config{{Name: "lab", Kind: "proxmox", URL: server.URL(), Token: id + "=" + secret, CAFile: ca, Timeout: deadline, ImportIDs: []int{100, 149}}}
	l.places = func(wants []provision.PlaceWanted) (placed []provision.Place) {
		l.asked = append(l.asked, wants)
		for _, w := range wants {
			placed = append(placed, provision.Place{Name: w.Name, Pool: w.Pool, Node: "pve1", VMID: w.VMID})
		}
		return placed
	}
	l.url = l.template(map[string]string{
		"variables.tf": "variable \"names\" { type = set(string) }\nvariable \"memory\" { type = number }\n",
		"tendril.hcl":  strings.Replace(poolTemplate, "pool     = \"lab\"", "pool     = \"lab\"\n    image    = \"debian-12\"", 1),
	}, nil).URL
	return l, server
}

// imports asks for a machine of the pool as the template's.
func (l *lab) imports(where string, names ...string) (provision.Report, *child) {
	l.t.Helper()
	l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann", "bob"}, "memory": 1024})
	state, err := json.Marshal(provision.StateCommand{Command: "import", Args: []string{"machine." + names[0], where}})
	if err != nil {
		l.t.Fatal(err)
	}
	snapshot := strings.Replace(string(l.job.Assignment.Snapshot), "{", `{"state": `+string(state)+`, `, 1)
	l.job.Assignment.Snapshot, l.job.Assignment.Operation = []byte(snapshot), provision.OperationState
	got, run := l.run()
	l.store(run)
	return got, run
}

// A machine that exists is taken over by its id: it is marked, recorded and otherwise left as it
// is, and the next plan has nothing to do to it. What the pool's operator has not let be imported,
// what bears another mark, and what nobody wants, is not touched.
func TestMachineIsImported(t *testing.T) {
	t.Parallel()
	l, server := importing(t)
	before := server.Config(121)["description"]
	for where, want := range map[string]string{
		"pve1/121": "another machine's mark",
		"pve1/150": "the pool lab does not let the machine 150 be imported",
		"pve1/149": "importing VM 149",
		"120":      "write NODE/ID, such as pve1/123",
	} {
		got, run := l.imports(where, "ann")
		if got.Status != provision.Failed || got.Detail.ErrorCode != provision.CodeStateFailed || !strings.Contains(got.Detail.ErrorMessage, want) {
			t.Errorf("import of %s = %s %s: %s, want %q", where, got.Status, got.Detail.ErrorCode, got.Detail.ErrorMessage, want)
		}
		if reserved := where == "pve1/121" || where == "pve1/149"; reserved != slices.Contains(run.freed, "ann") {
			t.Errorf("import of %s gave back %q", where, run.freed)
		}
	}
	if got, _ := l.imports("pve1/120", "zoe"); !strings.Contains(got.Detail.ErrorMessage, "the template wants no such machine. Nothing was changed") {
		t.Errorf("import of what nobody wants = %s: %s", got.Status, got.Detail.ErrorMessage)
	}
	if server.Config(121)["description"] != before || server.Config(120)["description"] != "their notes" {
		t.Fatalf("a machine was touched: %v, %v", server.Config(120), server.Config(121))
	}

	l.asked = nil
	got, run := l.imports("pve1/120", "ann")
	if got.Status != provision.Success {
		t.Fatalf("import = %s: %s\n%s", got.Status, got.Detail.ErrorMessage, run.text())
	}
	listed := run.machines()
	if len(listed) != 1 || listed[0].Name != "ann" || listed[0].ExternalID != "120" || listed[0].Node != "pve1" || !slices.Equal(listed[0].IPAddresses, []string{"10.0.0.9"}) || slices.Contains(listed[0].Actions, provision.MachineReveals) {
		t.Errorf("machines = %+v, want ann as 120 on pve1, without the template's password", listed)
	}
	if text := server.Config(120)["description"]; !strings.Contains(text, "tendril-machine: ") || !strings.HasSuffix(text, "their notes") {
		t.Errorf("the machine is described as %q", text)
	}
	if len(l.asked) != 1 || l.asked[0][0].VMID != 120 || l.asked[0][0].Node != "pve1" || l.asked[0][0].Cores != 2 || len(run.freed) > 0 {
		t.Errorf("reserved %+v, gave back %q", l.asked, run.freed)
	}
	if got, _ := l.imports("pve1/120", "ann"); !strings.Contains(got.Detail.ErrorMessage, "the state has a machine of that name already: 120") {
		t.Errorf("a second import = %s: %s", got.Status, got.Detail.ErrorMessage)
	}
	l.ask(l.url, "v1", "", map[string]any{"names": []string{"ann"}, "memory": 1024})
	l.job.Assignment.Operation = provision.OperationPlan
	if got, run = l.run(); got.Status != provision.Success || strings.Contains(run.text(), "Plan:") {
		t.Errorf("the plan after it = %s: %s\n%s\nwant nothing to do", got.Status, got.Detail.ErrorMessage, run.text())
	}
	if got, run = l.apply(provision.OperationDestroy, 1024, "ann"); got.Status != provision.Success || server.Config(120) != nil || server.Config(121) == nil {
		t.Errorf("destroy = %s: %s\n%s", got.Status, got.Detail.ErrorMessage, run.text())
	}
}

// An import of which nobody knows what became of it leaves its intent. No other run makes, changes
// or destroys the machine, in which nothing of the template's runs; the same import completes it.
func TestImportThatWasInterrupted(t *testing.T) {
	t.Parallel()
	l, server := importing(t)
	l.job.Pools[0].Timeout = 2 * time.Second // the hypervisor is away for the rest of the run
	if err := server.Faults("PUT /nodes/pve1/qemu/120/config: cut\nGET /cluster/resources #2-9999: lost"); err != nil {
		t.Fatal(err)
	}
	if got, run := l.imports("pve1/120", "ann"); got.Status != provision.Failed || len(run.freed) > 0 {
		t.Fatalf("import = %s: %s, gave back %q\n%s\nwant a failure after which nobody knows", got.Status, got.Detail.ErrorMessage, run.freed, run.text())
	}
	if err := server.Faults(""); err != nil {
		t.Fatal(err)
	}
	l.job.Pools[0].Timeout = deadline
	marked := server.Config(120)
	if !strings.Contains(marked["description"], "tendril-machine: ") {
		t.Fatalf("the machine is described as %q, want that it was marked", marked["description"])
	}
	for _, operation := range []provision.Operation{provision.OperationApply, provision.OperationDestroy} {
		if got, run := l.apply(operation, 2048, "ann"); got.Status != provision.Failed || !strings.Contains(got.Detail.ErrorMessage, "The import of the machine ann was interrupted") {
			t.Errorf("%s after it = %s: %s\n%s", operation, got.Status, got.Detail.ErrorMessage, run.text())
		}
	}
	if !maps.Equal(server.Config(120), marked) {
		t.Errorf("the machine is %v, want it as it was: %v", server.Config(120), marked)
	}
	if got, _ := l.imports("pve1/122", "ann"); !strings.Contains(got.Detail.ErrorMessage, "a machine with its mark exists already, as 120 on node pve1") {
		t.Errorf("import of another one = %s: %s", got.Status, got.Detail.ErrorMessage)
	}
	got, run := l.imports("pve1/120", "ann")
	if listed := run.machines(); got.Status != provision.Success || server.Config(120)["description"] != marked["description"] || len(listed) != 1 || listed[0].ExternalID != "120" {
		t.Errorf("the same import = %s: %s, %+v", got.Status, got.Detail.ErrorMessage, listed)
	}
	// What another run was at work on is not given another identity.
	l.editState(func(m map[string]any) {
		m["intent"] = map[string]any{"id": "1", "machine": m["id"], "action": "replace"}
		m["status"] = "creating"
	})
	if got, _ := l.imports("pve1/120", "ann"); !strings.Contains(got.Detail.ErrorMessage, "a run was interrupted while it was at work on the machine of that name") {
		t.Errorf("import over a machine in doubt = %s: %s", got.Status, got.Detail.ErrorMessage)
	}
}
