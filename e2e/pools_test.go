package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
)

const deskTemplate = `
provisioner "machine" {
  machine {
    for_each = var.names
    name     = each.key
    pool     = "desks"
    cores    = 1
    memory   = 512
    cloud_init {
      user     = "tester"
      password = var.password
    }
  }
}
`

// Machines of a pool go where the database says, and two workspaces never get one between
// them: a run without room waits until a machine is given back.
func TestMachinesOfAStaticPool(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	repo := s.Template("desks", map[string]string{
		"variables.tf": "variable \"names\" { type = set(string) }\nvariable \"password\" {\n  type      = string\n  sensitive = true\n  default   = \"hunter2-for-all\"\n}\n",
		"tendril.hcl":  deskTemplate,
	})
	pools := managed + "[[pools]]\nname = \"desks\"\nkind = \"static\"\nworkspaces = [\"class/**\"]\n"
	for _, name := range []string{"desk1", "desk2"} {
		port := site.Accepting(t).Addr().(*net.TCPAddr).Port
		pools += fmt.Sprintf("[[pools.machines]]\nname = %q\naddress = \"127.0.0.1\"\nssh_port = %d\n", name, port)
	}
	s.NewAgent("one", 2, pools).Start()
	s.Await("the pool", "SELECT count(*) = 2 FROM public.pool_nodes WHERE online")
	deploy := func(workspace string, names ...string) uuid.UUID {
		t.Helper()
		return s.DeployTemplate(repo, workspace, map[string]any{"names": names})
	}
	machines := func() string {
		t.Helper()
		return s.Text(t, "SELECT coalesce(string_agg(w.name || ' ' || m.name || ' ' || m.node || ' ' || m.status, '; ' ORDER BY w.name, m.name), '') FROM public.machines m JOIN public.workspaces w ON w.id = m.workspace_id WHERE m.status <> 'gone'")
	}
	a := deploy("class/a", "ann", "bob")
	if got := s.AwaitEnd(a); got != "SUCCESS" {
		t.Fatalf("the first class = %s: %s\n%s", got, s.Message(a), s.Log(t, a))
	}
	if got := machines(); got != "class/a ann desk1 running; class/a bob desk2 running" && got != "class/a ann desk2 running; class/a bob desk1 running" {
		t.Errorf("machines: %s", got)
	}
	if log := s.Log(t, a); !strings.Contains(log, "machine.ann goes to desk") || strings.Contains(log, "hunter2") {
		t.Errorf("the log is\n%s\nwant where ann goes, and no password", log)
	}

	b := deploy("class/b", "cid")
	s.Await("the second class to wait", "SELECT status = 'QUEUED' AND coalesce(waits_for, '') LIKE 'cid fits on no node of pool desks%' FROM public.provisions WHERE id = $1", b)
	if got := s.Text(t, "SELECT string_agg(reason, ',') FROM public.why_waiting($1)", b); got != "no_room" {
		t.Errorf("why_waiting() = %s", got)
	}
	a = deploy("class/a", "bob")
	if got := s.AwaitEnd(a); got != "SUCCESS" {
		t.Fatalf("one machine fewer = %s: %s\n%s", got, s.Message(a), s.Log(t, a))
	}
	if got := s.AwaitEnd(b); got != "SUCCESS" {
		t.Fatalf("the second class = %s: %s\n%s", got, s.Message(b), s.Log(t, b))
	}
	if got := s.Text(t, "SELECT count(*) || ' ' || count(DISTINCT node) FROM public.machines WHERE status = 'running'"); got != "2 2" {
		t.Errorf("machines and their nodes: %s (%s), want 2 2", got, machines())
	}

	// Another organisation's way in: a workspace that the pool is not for.
	other := deploy("acme/prod", "eve")
	if got := s.AwaitEnd(other); got != "FAILED/variables_invalid" || !strings.Contains(s.Message(other), "not in this agent's configuration, or not for this workspace") {
		t.Errorf("a workspace that may not use the pool = %s: %s", got, s.Message(other))
	}
	var destroy uuid.UUID
	if err := s.Conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) SELECT cluster_id, 'destroy', config_snapshot FROM public.provisions WHERE id = $1 RETURNING id", a).Scan(&destroy); err != nil {
		t.Fatal(err)
	}
	if got := s.AwaitEnd(destroy); got != "SUCCESS" {
		t.Errorf("destroy = %s: %s", got, s.Message(destroy))
	}
	if got := s.Text(t, "SELECT string_agg(name, ' ') FROM public.reservations"); got != "cid" {
		t.Errorf("reserved: %s, want cid alone", got)
	}
}
