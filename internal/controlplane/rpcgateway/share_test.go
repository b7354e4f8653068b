package rpcgateway_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// One address whose calls take long, for a lock of its own cluster's perhaps,
// does not keep those of others waiting.
func TestSlowCallsOfOneAddress(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	conn := db.Conn(t)
	mustExec(t, conn, `CREATE FUNCTION public.slow() RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(60)';
		CREATE FUNCTION public.fast() RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION public.slow, public.fast TO anon`)
	url := serve(t, rpcgateway.Options{
		DatabaseURL: db.URL, MaxConns: 4, MaxCalls: 8, Functions: []string{"slow", "fast"}, StatementTimeout: 2 * time.Minute,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	call := func(address, function string) answer {
		return send(t, url, recorded.Request{Path: postgrest.RPCPath(function), Header: map[string]string{"X-Forwarded-For": address}, Text: "{}"})
	}
	if got := call("192.0.2.1", "fast"); got.status != http.StatusOK { // the functions are known from now on
		t.Fatalf("fast = %d %s, want 200", got.status, got.body)
	}
	var slow sync.WaitGroup
	refused := make(chan answer, 20)
	for range 20 {
		slow.Go(func() {
			if got := call("192.0.2.1", "slow"); strings.Contains(string(got.body), "from one address") {
				refused <- got
			}
		})
	}
	const asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
	for range 12 {
		<-refused // of 8 calls at once it has 4
	}
	sleeping := 0
	patience.Await(t, "its share of the connections to be taken", func() bool {
		return conn.QueryRow(t.Context(), asleep).Scan(&sleeping) == nil && sleeping >= 2
	})
	began := time.Now()
	if got := call("192.0.2.2", "fast"); got.status != http.StatusOK || time.Since(began) > 20*time.Second {
		t.Errorf("a call of another address = %d %s after %s, want 200 at once", got.status, got.body, time.Since(began))
	}
	if sleeping != 2 {
		t.Errorf("%d of 4 connections are one address's, want 2", sleeping)
	}
	ended := make(chan struct{})
	go func() {
		slow.Wait()
		close(ended)
	}()
	patience.Await(t, "the slow ones to end", func() bool {
		mustExec(t, conn, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// stalled is a body of so many bytes that then does not go on.
type stalled struct {
	*bytes.Reader
	waits, end chan struct{}
}

func (s stalled) Read(p []byte) (int, error) {
	if s.Len() == 0 {
		s.waits <- struct{}{}
		<-s.end
		return 0, io.ErrUnexpectedEOF
	}
	return s.Reader.Read(p)
}

// One address that sends large bodies slowly does not keep those of others out.
func TestSlowBodiesOfOneAddress(t *testing.T) {
	t.Parallel()
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	call := func(address string, body io.Reader) string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, postgrest.RPCPath("agent_heartbeat"), body)
		r.RemoteAddr, r.ContentLength = address+":1", -1
		w := httptest.NewRecorder()
		gateway.ServeHTTP(w, r)
		return w.Body.String()
	}
	const busy = "too many bytes"
	waits, end := make(chan struct{}), make(chan struct{})
	large := bytes.Repeat([]byte(" "), rpcgateway.DefaultMaxBody)
	var slow sync.WaitGroup
	for range 8 { // 64 MiB of 256
		slow.Go(func() { call("192.0.2.1", stalled{bytes.NewReader(large), waits, end}) })
	}
	for range 8 {
		<-waits
	}
	if said := call("192.0.2.1", strings.NewReader("{}")); !strings.Contains(said, busy) {
		t.Errorf("one more body of the address = %s, want it refused: it has its share", said)
	}
	if said := call("192.0.2.2", strings.NewReader("{}")); strings.Contains(said, busy) {
		t.Errorf("the body of another address = %s, want it read", said)
	}
	close(end)
	slow.Wait()
	if said := call("192.0.2.1", strings.NewReader("{}")); strings.Contains(said, busy) {
		t.Errorf("a body when the slow ones are over = %s, want it read", said)
	}
}

// unread is a client that does not read its answer.
type unread struct {
	*httptest.ResponseRecorder
	waits, end chan struct{}
}

func (u unread) Write(p []byte) (int, error) {
	u.waits <- struct{}{}
	<-u.end
	return len(p), nil
}

func TestSlowReader(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), `CREATE FUNCTION public.fast() RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION public.fast TO anon`)
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{DatabaseURL: db.URL, MaxCalls: 1, Functions: []string{"fast"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	call := func(w http.ResponseWriter) {
		gateway.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, postgrest.RPCPath("fast"), strings.NewReader("{}")))
	}
	slow := unread{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { call(slow) })
	<-slow.waits
	w := httptest.NewRecorder()
	if call(w); w.Code != http.StatusOK {
		t.Errorf("a call while another's answer is not read = %d %s, want 200", w.Code, w.Body)
	}
	close(slow.end)
	reading.Wait()
}
