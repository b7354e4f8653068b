//go:build metal

package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

const serverTemplate = `
provisioner "machine" {
  machine {
    name   = "db"
    pool   = "metal"
    image  = "debian"
    cores  = 4
    memory = 4096
    labels = { resource_class = "bm" }
  }
}
`

// As many workspaces as there are servers, each with a machine, by two agents, while those and Ironic
// are killed: every workspace gets a server of its own, and none is left being deployed for nobody.
func TestFleetOfBareMetal(t *testing.T) {
	t.Parallel()
	servers := 30
	if os.Getenv("METAL_TESTS") == "short" {
		servers = 6
	}
	ctx, cancel := patience.Context(t.Context(), 8*time.Minute)
	defer cancel()
	s := site.New(t)
	i := ironic.Start(t, ironic.Options{Fake: "deploy_delay = 1"})
	var names []string
	for n := range servers {
		names = append(names, fmt.Sprintf("r1-n%02d", n))
	}
	if err := i.Enroll(ctx, names...); err != nil {
		t.Fatal(err)
	}
	repo := s.Template("servers", map[string]string{"variables.tf": "", "tendril.hcl": serverTemplate})
	pools := managed + fmt.Sprintf("[[pools]]\nname = \"metal\"\nkind = \"ironic\"\nurl = %q\n[[pools.images]]\nname = \"debian\"\nsource = \"http://127.0.0.1/debian.raw\"\nchecksum = \"d41d8cd98f00b204e9800998ecf8427e\"\n", i.URL)
	identity := s.IdentityFile()
	var agents []*site.Agent
	for _, name := range []string{"one", "two"} {
		a := s.NewAgent(name, 4, pools)
		a.Set("TENDRIL_IDENTITY_FILE", identity)
		agents = append(agents, a.Start())
	}
	s.Await("the servers", "SELECT count(*) = $1 FROM public.pool_nodes WHERE online AND server ->> 'provision_state' = 'available'", servers)
	var runs []uuid.UUID
	deploy := func(n int) uuid.UUID { return s.DeployTemplate(repo, fmt.Sprintf("metal/w%02d", n), map[string]any{}) }
	for n := range servers {
		runs = append(runs, deploy(n))
	}
	s.Await("the first deployments", "SELECT count(*) >= 2 FROM public.provision_events WHERE kind = 'machine_found'")
	agents[0].Kill()
	agents[0].Start()
	s.Await("more of them", "SELECT count(*) >= 4 FROM public.provision_events WHERE kind = 'machine_found'")
	i.Kill()
	if err := i.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	agents[1].Terminate()
	agents[1].Start()
	for n, id := range runs {
		got := s.AwaitEnd(id)
		if got == "FAILED/agent_restarted" || got == "FAILED/agent_lost" { // it was killed before the machine bore its mark
			id = deploy(n)
			got = s.AwaitEnd(id)
		}
		if got != "SUCCESS" {
			t.Errorf("w%02d = %s: %s\n%s", n, got, s.Message(id), s.Log(t, id))
		}
	}
	if got, want := s.Text(t, "SELECT count(*) || ' ' || count(DISTINCT node) || ' ' || count(DISTINCT external_id) FROM public.machines WHERE status = 'running'"), fmt.Sprintf("%d %[1]d %[1]d", servers); got != want {
		t.Errorf("machines, their nodes and servers are %s, want %s", got, want)
	}
	if got := s.Text(t, "SELECT count(*)::text FROM public.machines m JOIN public.reservations r USING (workspace_id, name) WHERE m.node = r.node"); got != fmt.Sprint(servers) {
		t.Errorf("%s places are where their machines are, want %d", got, servers)
	}
	all, err := i.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]bool{}
	for _, n := range all {
		if n.ProvisionState != "active" || n.InstanceUUID == "" || owners[n.InstanceUUID] || n.Extra["tendril_machine"] != n.InstanceUUID {
			t.Errorf("the server %s is %s with the instance %q", n.Name, n.ProvisionState, n.InstanceUUID)
		}
		owners[n.InstanceUUID] = true
	}
	s.Await("the report of the servers", "SELECT count(*) = $1 FROM public.pool_nodes WHERE server ->> 'provision_state' = 'active' AND server ->> 'available' = 'false'", servers)
}
