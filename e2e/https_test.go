package e2e

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"

	"github.com/tendril-run/tendril/e2e/site"
)

// An agent in a customer's network: no credential of a database, HTTPS through
// the proxy that the network has and to nowhere else, and an authority of the
// network's own. It is set up as for Supabase.
func TestDeployOverHTTPSOnly(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	gateway := gatewaytest.Serve(t, s.World)
	proxy := newWayOut(t, "example.com:443", gateway.Address)
	gate := t.TempDir()
	repo := s.Template("hello", map[string]string{"main.tf": slowApply(gate)})
	a := s.NewAgent("one", 1, "")
	a.Env = slices.DeleteFunc(a.Env, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_QUEUE_URL=") })
	// example.com is in the gateway's certificate, and known to the proxy alone.
	a.Set("SUPABASE_URL", "https://example.com")
	a.Set("SUPABASE_ANON_KEY", gateway.APIKey)
	a.Set("SSL_CERT_FILE", gateway.CAFile)
	a.Set("HTTPS_PROXY", proxy.URL)
	a.Start()
	wantNoDatabase(t, s, a)

	id := s.DeployTemplate(repo, "a", nil)
	s.AwaitLine(id, "applying")
	if got := s.Status(t, id); got != "PROCESSING" {
		t.Errorf("status when its lines can be read = %s, want PROCESSING: they are live", got)
	}
	wantNoDatabase(t, s, a)
	release(t, gate)
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s: %s", got, s.Message(id))
	}
	if log := s.Log(t, id); !strings.HasSuffix(log, "Done.\n") { // also checks that rows are numbered 1…n
		t.Errorf("log ends with %q, want the last line to say that it is done", log[max(0, len(log)-60):])
	}

	// Nothing wakes this agent: it asks while something runs.
	endless := s.Template("endless", map[string]string{"main.tf": slowApply(t.TempDir())})
	id = s.DeployTemplate(endless, "b", nil)
	s.AwaitLine(id, "applying")
	asked := time.Now()
	s.Exec(t, "SELECT public.cancel_provision($1)", id)
	if got := s.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("the cancelled provision = %s: %s", got, s.Message(id))
	}
	t.Logf("the cancel took %s", time.Since(asked))
	a.Terminate()
	if n := proxy.connections(); n == 0 || n > 10 {
		t.Errorf("connections through the proxy = %d, want a few that are kept", n)
	}
	if strings.Contains(a.Out.String(), gateway.APIKey) || strings.Contains(a.Out.String(), s.Token) {
		t.Errorf("the agent's log has a key or the token:\n%s", a.Out)
	}
}

// wantNoDatabase checks that neither the agent's environment nor its
// configuration names a database, and that it is connected with none.
func wantNoDatabase(t *testing.T, s *site.Site, a *site.Agent) {
	t.Helper()
	a.AwaitOutput("registered")
	config, err := os.ReadFile(a.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range append(strings.Split(string(config), "\n"), a.Env...) {
		// By its beginning: further in, a token may have any two letters.
		if strings.HasPrefix(entry, "PG") || strings.Contains(entry, "postgres") {
			t.Errorf("the agent is told of a database: %s", entry)
		}
	}
	if got := s.Text(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tendril %'"); got != "0" {
		t.Errorf("database connections of agents = %s, want none", got)
	}
}

// wayOut is a proxy that lets pass what goes to one name, which nobody else can
// resolve.
type wayOut struct {
	*httptest.Server
	name, address string

	mu     sync.Mutex
	passed int
	conns  sync.WaitGroup
}

func newWayOut(t *testing.T, name, address string) *wayOut {
	t.Helper()
	p := &wayOut{name: name, address: address}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		p.conns.Wait()
	})
	return p
}

func (p *wayOut) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// ServeHTTP implements http.Handler.
func (p *wayOut) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host != p.name {
		http.Error(w, "nothing else goes out here", http.StatusForbidden)
		return
	}
	there, err := net.Dial("tcp", p.address)
	if err != nil {
		http.Error(w, "it is not there", http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close()
		return
	}
	p.mu.Lock()
	p.passed++
	p.mu.Unlock()
	p.conns.Go(func() {
		defer here.Close() //nolint:errcheck // it ends with the other side
		_, _ = io.Copy(here, there)
	})
	p.conns.Go(func() {
		defer there.Close() //nolint:errcheck // it ends with the other side
		_, _ = io.Copy(there, buffered)
	})
}
