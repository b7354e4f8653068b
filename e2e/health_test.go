package e2e

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// A machine's health is followed from the template to the row: by an agent, at the address
// that a run has reported, and nowhere else.
func TestHealthOfAMachine(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(accepting.Wait)
	t.Cleanup(func() { _ = l.Close() })
	health := fmt.Sprintf("health {\n  tcp = %d\n  interval = 10\n  timeout = 5\n  unhealthy_after = 1\n}\n", l.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
	repo := s.Template("outputs", map[string]string{"tendril.hcl": health, "main.tf": `
output "machines" {
  value = { web = { address = "127.0.0.1", status = "running" }, idle = { status = "running" } }
}
`})
	s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 second'")
	a := s.NewAgent("one", 1, "")
	a.Set("TENDRIL_POLICY_CHECK_RANGES", "127.0.0.0/8")
	a.Start()
	if got := s.AwaitEnd(s.DeployTemplate(repo, "a", nil)); got != "SUCCESS" {
		t.Fatalf("deploy = %s", got)
	}
	is := func(health, why string) {
		t.Helper()
		s.Await("that the machine is "+health, "SELECT EXISTS (SELECT FROM public.machines WHERE name = 'web' AND health = $1 AND coalesce(health_why, '') LIKE $2)", health, why)
	}
	is("healthy", "")
	_ = l.Close()
	is("unhealthy", "%connection refused")
	// A row that aims the check elsewhere.
	s.Exec(t, `UPDATE tendril.machine_checks SET spec = jsonb_set(spec, '{target}', '"127.0.0.2"')`)
	is("unknown", "%deploy again%")
	if n := s.Text(t, "SELECT count(*)::text FROM tendril.machine_checks"); n != "1" {
		t.Errorf("%s machines are checked, want the one with an address", n)
	}
}
