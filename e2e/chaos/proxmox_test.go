package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// hypervisorWorks is works with a class of machines on a simulated Proxmox cluster, where
// others have machines too.
type hypervisorWorks struct {
	*works
	own      *pgtest.Own
	agent    *site.Agent
	identity string
	cluster  *pvesim.Server
	others   []int // the VMIDs of machines that are not Tendril's
	digest   string
	random   *rand.Rand
	repo     string
}

// classWish is a class as one run wants it.
type classWish struct {
	operation string
	students  []string
	memory    int
}

func newHypervisor(t *testing.T, seed uint64, victim string) *hypervisorWorks {
	t.Helper()
	works, own := ownWorks(t, pgtest.Durable())
	if victim == "gateway" && works.Gateway == nil {
		works.Serve()
	}
	cluster, pools, _ := site.Proxmox(t, 60)
	w := &hypervisorWorks{works: works, own: own, identity: works.IdentityFile(), cluster: cluster, random: rand.New(rand.NewPCG(seed, seed))}
	w.others = cluster.IDs()
	for i := range 50 {
		id := 600 + i
		if i < 5 {
			id = 201 + 3*i // in the pool's own range
		}
		cluster.Machine(fmt.Sprintf("pve%d", i%3+1), id, map[string]string{"name": "net-ann", "memory": "128", "agent": "1", "boot": "order=scsi0", "scsi0": fmt.Sprintf("disks:%[1]d/vm-%[1]d-disk-0.qcow2,size=1G", id)})
		cluster.Run(id, i%2 == 0)
		w.others = append(w.others, id)
	}
	w.agent = w.works.agent("one", 1, pools)
	w.agent.ManageState(w.identity)
	w.agent.Start()
	w.repo = w.Template("class", site.ClassTemplate(t))
	w.Await("the pool", "SELECT count(*) = 3 FROM public.pool_nodes WHERE online AND 'debian' = ANY (images)")
	w.disguise()
	return w
}

// disguise has others' machines look like those of the state: their names, their tag, and
// descriptions that nearly say what a machine of the state says of itself.
func (w *hypervisorWorks) disguise() {
	w.T.Helper()
	const mark, other = "tendril-machine: ", "0b7c1f0e-5a77-4d0e-9a1c-2f4f8f1f5a02"
	ids, names := []string{other}, []string{"net-teacher", "net-ann", "debian"}
	for _, m := range w.state().Machines {
		ids, names = append(ids, m.ID), append(names, m.Wanted.Name)
	}
	for i, vmid := range w.others[3:] {
		id := ids[i%len(ids)]
		w.cluster.Edit(vmid, map[string]string{
			"name": names[i%len(names)], "tags": []string{"", "tendril", "lab;tendril"}[i%3],
			"description": []string{
				"", mark + other, mark + id[:30], mark + id + "0", "a copy of " + mark + id, mark + id + "\n" + mark + other, "tendril-machine:" + id, id, mark + "\ntendril-state: creating",
				strings.ToUpper(mark) + id, mark + strings.ToUpper(id),
			}[i%11],
		})
	}
	w.digest = w.foreign()
}

func (w *hypervisorWorks) foreign() string {
	return w.cluster.Digest(func(id int) bool { return slices.Contains(w.others, id) })
}

func (w *hypervisorWorks) state() *machines.State {
	w.T.Helper()
	state := &machines.State{}
	if w.Text(w.T, "SELECT count(*)::text FROM public.workspaces WHERE name = 'class' AND state_version IS NOT NULL") == "1" {
		var err error
		if state, err = machines.Read(w.OpenState(w.T, "class", 0, w.identity)); err != nil {
			w.T.Fatal(err)
		}
	}
	return state
}

func (w *hypervisorWorks) run(wish classWish) uuid.UUID {
	w.T.Helper()
	id := uuid.New()
	w.Exec(w.T, "INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4)", id, w.Cluster, wish.operation,
		site.SnapshotOf(w.repo, "class", map[string]any{"class": "net", "pool": "lab", "image": "debian", "students": wish.students, "memory": wish.memory, "password": nil}))
	return id
}

// succeed runs a wish, which must succeed, and counts what there is then.
func (w *hypervisorWorks) succeed(after string, wish classWish) {
	w.T.Helper()
	id := w.run(wish)
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		w.T.Errorf("the %s after %s = %s: %s, want SUCCESS\n%s", wish.operation, after, got, w.Message(id), w.Log(w.T, id))
	}
	w.countMachines(after, wish)
}

// changes is how many requests have asked the cluster for a change.
func (w *hypervisorWorks) changes() (n int) {
	for _, r := range w.cluster.Requests() {
		if r.Method != http.MethodGet {
			n++
		}
	}
	return n
}

// over reports whether a run has ended.
func (w *hypervisorWorks) over(id uuid.UUID) bool {
	w.T.Helper()
	return w.Text(w.T, "SELECT (status IN ('SUCCESS', 'FAILED', 'CANCELLED'))::text FROM public.provisions WHERE id = $1", id) == "true"
}

// strike kills one of them. It reports whether there was one to kill.
func (w *hypervisorWorks) strike(victim string) bool {
	w.T.Helper()
	switch victim {
	case "agent":
		w.agent.Kill()
		w.agent.Start()
	case "exec":
		children, err := process.Descendants(w.agent.Cmd.Process.Pid)
		if err != nil {
			w.T.Fatal(err)
		}
		killed := false
		for _, child := range children {
			if child.Parent == w.agent.Cmd.Process.Pid {
				killed = syscall.Kill(child.PID, syscall.SIGKILL) == nil || killed
			}
		}
		if !killed {
			return false
		}
	case "gateway":
		w.Gateway.Kill()
		w.aWhile(time.Second)
		w.Gateway.Start()
	case "database":
		w.own.Crash(w.T)
		w.aWhile(time.Second)
		w.own.Start(w.T)
		w.reconnect()
	case "hypervisor":
		if err := w.cluster.Faults("* *: cut"); err != nil {
			w.T.Fatal(err)
		}
		w.aWhile(time.Second)
		if err := w.cluster.Faults(""); err != nil {
			w.T.Fatal(err)
		}
	}
	return true
}

// aWhile passes a part of d that is drawn.
func (w *hypervisorWorks) aWhile(d time.Duration) {
	<-time.After(time.Duration(w.random.Int64N(int64(d))))
}

// The agent, a run's process, the server, the database and the way to the hypervisor are broken
// at any moment while a class is made, changed and destroyed on Proxmox. What exists after the
// next run is what is recorded, none is there twice, none is forgotten, and no machine of
// others was touched, however much it looks like one of the class.
func TestClassOnProxmoxKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	t.Logf("TENDRIL_SEED=%d", seed)
	for _, victim := range some("agent", "exec", "gateway", "database", "hypervisor") {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			w := newHypervisor(t, seed, victim)
			before := classWish{"apply", []string{"ann", "bob"}, 1024}
			w.succeed("nothing", before)
			for n, hit := 0, 0; hit < fewer(2, 20, 20); n++ {
				w.disguise()
				next := before
				writes := 14 // that a run of the kind comes to, at most
				switch w.random.IntN(4) {
				case 0: // all others
					next.students = []string{fmt.Sprint("a", n), fmt.Sprint("b", n)}
				case 1: // one more, one fewer
					next.students = []string{before.students[0], fmt.Sprint("c", n)}
				case 2:
					next.memory, writes = 1024*(2+n), 8
				case 3:
					next.operation, writes = "destroy", 6
				}
				from := w.changes()
				id := w.run(next)
				w.Await("its claim", "SELECT status <> 'QUEUED' FROM public.provisions WHERE id = $1", id)
				at := w.random.IntN(writes)
				await(t, "a request", func() bool { return w.changes() >= from+at || w.over(id) })
				w.aWhile(150 * time.Millisecond)
				if w.over(id) || !w.strike(victim) {
					counted.add("faults too late for a run of a class on Proxmox", 1)
				} else {
					hit++
					counted.add("faults while a class is made on Proxmox: "+victim, 1)
				}
				w.AwaitEnd(id)
				w.countMarks(fmt.Sprintf("the %s was broken at change %d of a run's", victim, at))
				after := fmt.Sprintf("the %s was broken at change %d of the %s", victim, at, next.operation)
				if w.random.IntN(3) == 0 { // what was half made is destroyed
					next.operation = "destroy"
				}
				w.succeed(after, next)
				if before = next; next.operation == "destroy" {
					before.operation = "apply"
					w.succeed(after+", and all was destroyed", before)
				}
			}
			w.succeed("all that", classWish{"destroy", before.students, before.memory})
			w.agent.Terminate()
			w.countLeftovers(w.agent)
			w.countRows()
		})
	}
}

// found are the machines of the cluster that are not others', as MARK VMID.
func (w *hypervisorWorks) found() (marked []string) {
	w.T.Helper()
	for _, id := range w.cluster.IDs() {
		if slices.Contains(w.others, id) {
			continue
		}
		mark := ""
		for line := range strings.SplitSeq(w.cluster.Config(id)["description"], "\n") {
			if m, ok := strings.CutPrefix(line, "tendril-machine: "); ok {
				mark += m
			}
		}
		marked = append(marked, fmt.Sprint(mark, " ", id))
	}
	slices.Sort(marked)
	return marked
}

// countMarks wants the state to know each machine that was made, also that of a run that was
// killed, and others' machines to be as they were.
func (w *hypervisorWorks) countMarks(after string) {
	w.T.Helper()
	known, seen := map[string]bool{}, map[string]bool{}
	for _, m := range w.state().Machines {
		known[m.ID] = true
	}
	for _, m := range w.found() {
		mark, _, _ := strings.Cut(m, " ")
		if mark != "" && (!known[mark] || seen[mark]) {
			w.T.Errorf("after %s: the cluster has %s, which the state does not know, or has it twice", after, m)
		}
		seen[mark] = true
	}
	if w.foreign() != w.digest {
		w.T.Errorf("after %s: somebody else's machine was changed", after)
	}
}

// countMachines compares the cluster with the sealed state, by marks, and with the tables.
func (w *hypervisorWorks) countMachines(after string, wish classWish) {
	w.T.Helper()
	w.countMarks(after)
	kept, names, exist := []string{}, []string{}, []string{}
	for _, m := range w.state().Machines {
		kept, names = append(kept, m.ID+" "+m.ExternalID), append(names, m.Wanted.Name)
		if m.InDoubt() || m.Status != "running" {
			w.T.Errorf("after %s: the state has %s as %s, in doubt: %t, want it running", after, m.Wanted.Name, m.Status, m.InDoubt())
		}
	}
	found := w.found()
	for _, m := range found {
		_, id, _ := strings.Cut(m, " ")
		exist = append(exist, id)
		var vmid int
		if _, err := fmt.Sscan(id, &vmid); err != nil {
			w.T.Fatal(err)
		}
		config := w.cluster.Config(vmid)
		memory := fmt.Sprint(wish.memory)
		if config["name"] == "net-teacher" {
			memory = "4096"
		}
		if config["running"] != "true" || config["lock"] != "" || config["memory"] != memory || !strings.Contains(config["description"], "tendril-state: ready") {
			w.T.Errorf("after %s: VM %s is %v, want it running, complete, with %s MiB", after, id, config, memory)
		}
	}
	tables := map[string][]string{}
	for what, query := range map[string]string{
		"machines":     "SELECT coalesce(string_agg(external_id || CASE status WHEN 'running' THEN '' ELSE '=' || status END, ' '), '') FROM public.machines WHERE status <> 'gone'",
		"resources":    "SELECT coalesce(string_agg(external_id, ' '), '') FROM public.resources WHERE type = 'machine'",
		"reservations": "SELECT coalesce(string_agg(vm_id::text, ' '), '') FROM public.reservations",
	} {
		tables[what] = strings.Fields(w.Text(w.T, query))
	}
	want := []string{}
	if wish.operation != "destroy" {
		for _, s := range append([]string{"teacher"}, wish.students...) {
			want = append(want, "net-"+s)
		}
	}
	for all := range maps.Values(tables) {
		slices.Sort(all)
	}
	for _, all := range [][]string{kept, names, exist, want} {
		slices.Sort(all)
	}
	if !slices.Equal(found, kept) || !slices.Equal(names, want) {
		w.T.Errorf("after %s: the cluster has %q, the state %q named %q, want %q once in each", after, found, kept, names, want)
	}
	for what, has := range tables {
		if !slices.Equal(has, exist) {
			w.T.Errorf("after %s: the cluster has %q, the table of %s %q", after, exist, what, has)
		}
	}
	counted.add("machines on Proxmox that were counted", len(found))
}
