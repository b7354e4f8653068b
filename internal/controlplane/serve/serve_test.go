package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/serve"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func options(databaseURL string) (serve.Options, *outputtest.Buffer) {
	said := &outputtest.Buffer{}
	return serve.Options{
		Listen: "127.0.0.1:0", Version: "test",
		Gateway: rpcgateway.Options{DatabaseURL: databaseURL, Log: slog.New(slog.NewTextHandler(said, nil))},
	}, said
}

// start runs it until the test is over and returns its URL.
func start(t *testing.T, o serve.Options) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	urls, ended := make(chan string, 1), make(chan error, 1)
	o.Started = func(url string, _ int) { urls <- url }
	go func() { ended <- serve.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	select {
	case url := <-urls:
		return url
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run() = %v, want it to serve", err)
	}
	return ""
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	defer client.CloseIdleConnections()
	response, err := client.Get(url)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestServesAgentsAndHealth(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	o, _ := options(w.URL)
	url := start(t, o)
	client := &http.Client{Transport: &http.Transport{}}
	for path, want := range map[string]string{
		"/healthz":                     `200 {"status":"ok","version":"test","database":{"ok":true}}`,
		"/rest/v1/provisions":          "404 {\"code\":\"PGRST205\"",
		"/rest/v1/rpc/agent_heartbeat": "405 ",
		"/":                            "200 <!doctype html>", // where people sign in
	} {
		status, body := get(t, client, url+path)
		if !strings.HasPrefix(fmt.Sprintf("%d %s", status, body), want) {
			t.Errorf("GET %s = %d %s, want %s", path, status, body, want)
		}
	}
	// A path is for the gateway as it came: no redirect to a clean one.
	response, err := http.DefaultTransport.RoundTrip(mustRequest(t, url+"/rest/v1/rpc/../rpc/agent_heartbeat"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("a path with .. = %d, want 404", response.StatusCode)
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	return r
}

// Where the last agent is gone, nobody calls any more: its lease ends all the same.
func TestEndsLeasesWhereNoAgentCalls(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	o, said := options(w.URL)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := w.Deploy(t, "a")
	if a, err := q.Claim(t.Context(), uuid.New()); err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	q.Close()
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'")
	start(t, o)
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		return w.Status(t, id) == "FAILED/agent_lost" && strings.Contains(said.String(), "leases ran out")
	})
}

func TestSaysWhatADatabaseLacks(t *testing.T) {
	t.Parallel()
	empty := pgtest.New(t)
	older := pgtest.New(t, queuetest.Migrated)
	if _, err := older.Conn(t).Exec(t.Context(), "CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql AS 'SELECT 1'"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ url, says string }{
		"empty": {empty.URL, "no Tendril contract"},
		"older": {older.URL, "version 1 of the Tendril contract"},
	} {
		o, _ := options(c.url)
		err := serve.Run(t.Context(), o)
		if _, ok := errors.AsType[*rpcgateway.NotReadyError](err); !ok || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "trellis migrate") {
			t.Errorf("%s: Run() = %v, want it to say %q and to migrate", name, err, c.says)
		}
	}
	o, _ := options("postgres://x:s3cret-password@127.0.0.1:1/none?connect_timeout=1")
	err := serve.Run(t.Context(), o)
	if _, ok := errors.AsType[*store.UnreachableError](err); !ok || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Run(no database) = %v, want an UnreachableError without the password", err)
	}
}

// The login role is no superuser, and anon was made by it: as after a migration
// by a role with CREATEROLE only.
func TestOwnerWithoutSuperuser(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	role := "owner_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	w.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'test'")
	t.Cleanup(func() {
		w.Exec(&cleaning{t}, "DROP OWNED BY "+role)
		w.Exec(&cleaning{t}, "DROP ROLE "+role)
	})
	url := "postgres://" + role + ":test@/" + w.Conn.Config().Database + "?host=" + w.Conn.Config().Host
	o, _ := options(url)
	if err := serve.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not own") {
		t.Errorf("Run(stranger) = %v, want it to say that the role does not own the contract", err)
	}
	w.Exec(t, "GRANT USAGE ON SCHEMA tendril TO "+role)
	w.Exec(t, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tendril TO "+role)
	if err := serve.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "GRANT anon, authenticated TO") {
		t.Errorf("Run(no member of anon and authenticated) = %v, want the statement to run", err)
	}
	w.Exec(t, "GRANT anon, authenticated TO "+role)
	url = start(t, o)
	if status, body := post(t, url+"/rest/v1/rpc/agent_heartbeat", `{"p_token_hash":"x","p_instance":null,"p_boot":null,"p_claims":[]}`); status != http.StatusUnauthorized && status != 422 {
		t.Errorf("a call = %d %s, want the function's own refusal", status, body)
	}
}

// cleaning is a test that is over: its context is.
type cleaning struct{ *testing.T }

func (c *cleaning) Context() context.Context { return context.WithoutCancel(c.T.Context()) }

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

func TestPortThatIsTaken(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	o, _ := options("postgres://nobody@127.0.0.1:1/none")
	o.Listen = taken.Addr().String()
	if err := serve.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "choose another address with --listen") {
		t.Errorf("Run(taken port) = %v, want it to say so", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pool := writeCertificate(t, cert, key)
	db := pgtest.New(t, queuetest.Migrated)
	o, said := options(db.URL)
	o.CertFile, o.KeyFile = cert, key
	url := start(t, o)
	if response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url + "/healthz"); err == nil {
		_ = response.Body.Close()
		t.Error("a client that does not know the certificate is served")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	if status, body := get(t, client, url+"/healthz"); status != http.StatusOK || !strings.HasPrefix(url, "https://") {
		t.Errorf("GET %s/healthz = %d %s, want 200 by https", url, status, body)
	}
	scan(t, strings.TrimPrefix(url, "https://"), pool)
	if text := said.String(); strings.Contains(text, "handshake") || strings.Contains(text, "http2") {
		t.Errorf("the log is %q, want no line for a handshake that fails, or who speaks no HTTP after it", text)
	}
	o.KeyFile = cert
	if err := serve.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("Run(wrong key) = %v, want an error that names the file", err)
	}
}

// scan says that it speaks HTTP/2, and does not.
func scan(t *testing.T, address string, pool *x509.CertPool) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the other side has
	if _, err := io.WriteString(conn, "HELO scanner.example, are you a mail server?\r\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn) // until it is hung up on
}

func writeCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for file, content := range map[string][]byte{certFile: certPEM, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return pool
}

// Drift is looked for, and old logs are taken care of, by whoever serves, however
// many do.
func TestDoesWhatIsDue(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	first, said := options(w.URL)
	second, _ := options(w.URL)
	id := w.Deploy(t, "a")
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "UPDATE public.workspaces SET drift_every = '1 day', drift_due_at = now()")
	// And of a log that is long over.
	w.Exec(t, "SELECT tendril.system_line($1, 'old')", id)
	w.Exec(t, "UPDATE tendril.claims SET ended_at = ended_at - interval '9 days'")
	w.Exec(t, "UPDATE public.provisions SET finished_at = finished_at - interval '9 days' WHERE id = $1", id)
	start(t, first)
	start(t, second)
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.provisions WHERE operation = 'refresh' AND status = 'QUEUED'") == "1"
	})
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.provision_log_archives WHERE provision_id = '"+id.String()+"'") == "1"
	})
	w.Exec(t, "UPDATE tendril.settings SET log_delete_after = '8 days' WHERE only_row")
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'delete_log'") == "1"
	})
	if got := w.Status(t, id); got != "SUCCESS" {
		t.Errorf("status of the apply = %s, want SUCCESS", got)
	}
}
