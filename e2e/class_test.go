package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/pvesim"
)

// proxmox is a Proxmox cluster of three nodes with an image, and an agent that makes machines
// there.
type proxmox struct {
	*site.Site
	pve  *pvesim.Server
	repo string
	// token is USER@REALM!NAME=SECRET.
	token string
}

func newProxmox(t *testing.T, configure ...func(*site.Agent)) *proxmox {
	t.Helper()
	s := site.New(t)
	cluster, pools, token := site.Proxmox(t, 60)
	// Somebody else's, in the pool's own range.
	cluster.Machine("pve1", 201, map[string]string{"name": "net-ann", "memory": "1024", "cores": "1"})
	p := &proxmox{Site: s, pve: cluster, token: token, repo: s.Template("class", site.ClassTemplate(t))}
	a := s.NewAgent("one", 2, managed+strings.Replace(pools, "[[pools]]\n", "[[pools]]\nimport_ids = \"200-209\"\n", 1))
	a.Set("TENDRIL_POLICY_OPERATIONS", "plan,apply,destroy,state")
	for _, change := range configure {
		change(a)
	}
	a.Start()
	s.Await("the pool", "SELECT count(*) = 3 FROM public.pool_nodes WHERE online AND 'debian' = ANY (images)")
	return p
}

func (p *proxmox) deploy(workspace string, students ...string) uuid.UUID {
	p.T.Helper()
	return p.DeployTemplate(p.repo, workspace, map[string]any{"class": "net", "pool": "lab", "image": "debian", "students": students, "password": nil})
}

// succeeds wants a run to end well.
func (p *proxmox) succeeds(id uuid.UUID) {
	p.T.Helper()
	if got := p.AwaitEnd(id); got != "SUCCESS" {
		p.T.Fatalf("the run = %s: %s\n%s", got, p.Message(id), p.Log(p.T, id))
	}
}

// made are the cluster's machines that have a mark, as the machines of the table should be.
func (p *proxmox) made() string {
	p.T.Helper()
	return p.Text(p.T, "SELECT coalesce(string_agg(name || ' ' || external_id || ' ' || ip_addresses[1] || ' ' || status, '; ' ORDER BY name), '') FROM public.machines WHERE status <> 'gone'")
}

// A class is made on Proxmox where the database says, a smaller one destroys whom it no longer
// wants alone, and a machine of somebody else is left as it is.
func TestClassOnProxmox(t *testing.T) {
	t.Parallel()
	p := newProxmox(t)
	foreign := p.pve.Digest(func(int) bool { return true })
	id := p.deploy("class/a", "ann", "bob", "cid")
	p.succeeds(id)
	const all = "net-ann 200 10.0.0.50 running; net-bob 202 10.0.0.51 running; net-cid 203 10.0.0.52 running; net-teacher 204 10.0.0.53 running"
	if got := p.made(); got != all {
		t.Errorf("machines: %s, want %s", got, all)
	}
	if got := p.Text(t, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM (SELECT count(*) AS n FROM public.machines WHERE status = 'running' GROUP BY node) c"); got != "1 1 2" {
		t.Errorf("machines of each node: %s, want them spread", got)
	}
	log := p.Log(t, id)
	for _, want := range []string{"machine.net-teacher goes to pve", "4 to create"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if _, secret, _ := strings.Cut(p.token, "="); strings.Contains(log, secret) {
		t.Error("the log has the token")
	}

	id = p.deploy("class/a", "ann", "bob", "cid")
	p.succeeds(id)
	if log := p.Log(t, id); !strings.Contains(log, "No changes") {
		t.Errorf("a second deploy of the same says\n%s", log)
	}

	// One that somebody deletes by hand is made again, where it was.
	p.pve.Remove(202)
	id = p.deploy("class/a", "ann", "bob", "cid")
	p.succeeds(id)
	if log := p.Log(t, id); !strings.Contains(log, "+ machine.net-bob (it is gone)") || !strings.Contains(log, "Plan: 1 to create, 0 to change, 0 to replace, 0 to destroy.") {
		t.Errorf("after one was deleted by hand the deploy says\n%s", log)
	}
	if got := p.made(); got != all {
		t.Errorf("machines: %s, want %s", got, all)
	}

	p.succeeds(p.deploy("class/a", "bob"))
	if got, want := p.made(), "net-bob 202 10.0.0.51 running; net-teacher 204 10.0.0.53 running"; got != want {
		t.Errorf("a smaller class: %s, want %s", got, want)
	}
	p.succeeds(p.operate(id, "destroy", `{}`))
	if got := p.Text(t, "SELECT (SELECT count(*) FROM public.machines WHERE status <> 'gone') || ' ' || (SELECT count(*) FROM public.reservations)"); got != "0 0" {
		t.Errorf("machines and places that are left: %s, want none", got)
	}
	if got := p.pve.Digest(func(int) bool { return true }); got != foreign {
		t.Error("the cluster is not as it was before: a machine is left, or somebody else's was changed")
	}
}

// A machine of somebody's that has the name is taken over on an admin's word alone, where it is and
// with its own address, and is the class's from then on.
func TestMachineIsImported(t *testing.T) {
	t.Parallel()
	p := newProxmox(t)
	p.pve.Edit(201, map[string]string{"ipconfig0": "ip=10.9.9.9/24", "description": "theirs"})
	first := p.deploy("class/a", "ann")
	p.succeeds(p.operate(first, "destroy", `{}`))
	id := p.operate(first, "state", `{"state": {"command": "import", "args": ["machine.net-ann", "pve1/201"]}}`)
	p.succeeds(id)
	if got := p.made(); got != "net-ann 201 10.9.9.9 running" && got != "net-ann 201 10.9.9.9 stopped" {
		t.Errorf("machines: %s, want the one that was imported\n%s", got, p.Log(t, id))
	}
	if got, want := p.Text(t, "SELECT string_agg(r.name || ' ' || r.node || ' ' || r.vm_id || ' ' || (r.address IS NULL), '; ') FROM public.reservations r"), "net-ann pve1 201 true"; got != want {
		t.Errorf("places: %s, want %s", got, want)
	}
	if got := p.pve.Config(201)["description"]; !strings.Contains(got, "tendril-machine: ") || !strings.HasSuffix(got, "theirs") {
		t.Errorf("the machine is described as %q", got)
	}
	id = p.deploy("class/a", "ann")
	p.succeeds(id)
	if log := p.Log(t, id); !strings.Contains(log, "Plan: 1 to create, 1 to change, 0 to replace, 0 to destroy.") {
		t.Errorf("the deploy after it says\n%s\nwant the teacher made, and ann resized where she is", log)
	}
	if got := p.made(); !strings.HasPrefix(got, "net-ann 201 10.9.9.9 ") {
		t.Errorf("machines: %s", got)
	}
	p.succeeds(p.operate(first, "destroy", `{}`))
	if p.pve.Config(201) != nil || p.Text(t, "SELECT count(*)::text FROM public.reservations") != "0" {
		t.Error("a destroy left the machine, or its place")
	}
}

// operate queues another operation with the snapshot of a run.
func (p *proxmox) operate(like uuid.UUID, operation, more string) (id uuid.UUID) {
	p.T.Helper()
	if err := p.Conn.QueryRow(p.T.Context(), "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) SELECT cluster_id, $2, config_snapshot || $3 FROM public.provisions WHERE id = $1 RETURNING id", like, operation, more).Scan(&id); err != nil {
		p.T.Fatal(err)
	}
	return id
}

// Two classes of 20 that are deployed at once on the same three nodes get VMIDs and addresses
// of their own, and the nodes get as many machines each as the score says.
func TestTwoClassesAtOnce(t *testing.T) {
	t.Parallel()
	p := newProxmox(t)
	p.pve.Speed(200)
	foreign := p.pve.Digest(func(int) bool { return true })
	var runs []uuid.UUID
	for _, workspace := range []string{"class/a", "class/b"} {
		// All 20 of a size, so that equal nodes are to have equally many.
		runs = append(runs, p.DeployTemplate(p.repo, workspace, map[string]any{
			"class": strings.ReplaceAll(workspace, "/", "-"), "pool": "lab", "image": "debian", "student_count": 19,
			"cores": 1, "memory": 1024, "teacher_cores": 1, "teacher_memory": 1024, "password": nil,
		}))
	}
	for _, id := range runs {
		p.succeeds(id)
	}
	if got := p.Text(t, "SELECT count(*) || ' ' || count(DISTINCT external_id) || ' ' || count(DISTINCT ip_addresses[1]) FROM public.machines WHERE status = 'running'"); got != "40 40 40" {
		t.Errorf("machines, VMIDs and addresses: %s, want 40 of each", got)
	}
	// What the cluster itself has, not what was recorded.
	made, perNode, addresses := 0, map[string]int{}, map[string]bool{}
	for _, id := range p.pve.IDs() {
		config := p.pve.Config(id)
		if !strings.Contains(config["description"], "tendril-machine: ") {
			continue
		}
		made++
		perNode[config["node"]]++
		addresses[config["ipconfig0"]] = true
		if row := p.Text(t, "SELECT coalesce(max(name || ' ' || node || ' ip=' || ip_addresses[1] || '/24,gw=10.0.0.1'), '') FROM public.machines WHERE external_id = $1", strconv.Itoa(id)); row != config["name"]+" "+config["node"]+" "+config["ipconfig0"] {
			t.Errorf("VM %d is recorded as %q, and is %v", id, row, config)
		}
	}
	if made != 40 || len(addresses) != 40 {
		t.Errorf("the cluster has %d machines with %d addresses, want 40 of each", made, len(addresses))
	}
	for _, node := range []string{"pve1", "pve2", "pve3"} {
		if n := perNode[node]; n < 13 || n > 14 {
			t.Errorf("node %s has %d of 40 machines, want 13 or 14: %v", node, n, perNode)
		}
	}
	for _, id := range runs {
		p.succeeds(p.operate(id, "destroy", `{}`))
	}
	if p.pve.Digest(func(int) bool { return true }) != foreign {
		t.Error("after both were destroyed the cluster is not as it was before")
	}
}
