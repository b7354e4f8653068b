package rpcqueue_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/signature"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// tapped is a gateway that somebody listens in on, who can repeat what was sent.
type tapped struct {
	url     string
	gateway http.Handler
	mu      sync.Mutex
	sent    []sentRequest
}

type sentRequest struct {
	host, function string
	header         http.Header
	body           []byte
}

func tap(t *testing.T, w *queuetest.World) *tapped {
	t.Helper()
	tapped := &tapped{gateway: gatewaytest.HandlerForKeys(t, w, "")}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading a request: %v", err)
		}
		one := sentRequest{r.Host, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], r.Header.Clone(), body}
		tapped.mu.Lock()
		tapped.sent = append(tapped.sent, one)
		tapped.mu.Unlock()
		answer := tapped.pass(one)
		maps.Copy(rw.Header(), answer.Header())
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(answer.Body.Bytes())
	}))
	t.Cleanup(server.Close)
	tapped.url = server.URL
	return tapped
}

// pass has the gateway answer a request.
func (p *tapped) pass(s sentRequest) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/rest/v1/rpc/"+s.function, bytes.NewReader(s.body))
	r.Host, r.Header = s.host, s.header.Clone()
	answer := httptest.NewRecorder()
	p.gateway.ServeHTTP(answer, r)
	return answer
}

// A stamp that says only when an agent was last heard of is put on by a repeat as well.
var stamps = []string{"last_heartbeat_at", "last_seen_at", "last_used_at", "registered_at", "stamped_at", "reap_not_before"}

// rows are all rows of the contract, as one text for each table.
func rows(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	found, _ := conn.Query(t.Context(), `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relkind = 'r' AND c.relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) ORDER BY 1`)
	tables, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil || len(tables) < 30 {
		t.Fatalf("tables = %d, %v, want all", len(tables), err)
	}
	all := map[string]string{}
	for _, table := range tables {
		var text string
		query := fmt.Sprintf("SELECT coalesce(string_agg((to_jsonb(r) - $1::text[])::text, E'\n' ORDER BY to_jsonb(r)::text), '') FROM %s r", table)
		if err := conn.QueryRow(t.Context(), query, stamps).Scan(&text); err != nil {
			t.Fatalf("reading %s: %v", table, err)
		}
		all[table] = text
	}
	return all
}

// What an agent has signed changes nothing when it is sent again within the minute, in the
// same order and in any other: each call says once what it says, or its nonce is kept.
func TestRepeatedRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	spy := tap(t, w)
	agent := queuetest.NewAgent("one")
	q := dial(t, rpcqueue.Options{URL: spy.url, Key: w.Join(t, w.Token, "one"), Agent: agent})
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := q.Register(ctx)
	must(err)
	w.Deploy(t, "web")
	claim := uuid.New()
	a, err := q.Claim(ctx, claim)
	must(err)
	if a == nil {
		t.Fatal("Claim() = nil, want the provision")
	}
	_, err = q.Standing(ctx)
	must(err)
	_, err = q.FailOrphans(ctx, []uuid.UUID{claim})
	must(err)
	must(q.ReportPools(ctx, []queue.Pool{{Name: "lab", Kind: "static", Nodes: []queue.PoolNode{{Name: "n1", Online: true, Cores: 8, Memory: 16384, Images: []string{"debian"}}}}}))
	_, err = q.ReserveMachines(ctx, claim, []provision.PlaceWanted{{Name: "m1", Pool: "lab", Image: "debian", Cores: 1, Memory: 512}})
	must(err)
	must(q.ReleaseMachines(ctx, claim, []string{"m1"}))
	_, err = q.LeaseChecks(ctx, queue.CheckRoom{Checks: 1})
	must(err)
	must(q.ReportChecks(ctx, []queue.CheckResult{}))
	_, err = q.AppendLog(ctx, claim, 1, []provision.LogChunk{{Stream: "STDOUT", Text: "one\n", EmittedAt: time.Now()}})
	must(err)
	must(q.Report(ctx, claim, provision.Report{Status: provision.Processing, Detail: provision.Detail{Number: 1, Stage: provision.StagePlan}}))
	_, err = q.AppendLog(ctx, claim, 2, []provision.LogChunk{{Stream: "STDOUT", Text: "two\n", EmittedAt: time.Now()}})
	must(err)
	data := []byte("sealed")
	must(q.PutBlob(ctx, claim, queue.Blob{Kind: "result", Digest: fmt.Sprintf("%x", sha256.Sum256(data))}, data))
	if _, _, err = q.GetBlob(ctx, claim, "state", 0); !errors.Is(err, queue.ErrNoBlob) {
		t.Fatalf("GetBlob(state) = %v, want that there is none", err)
	}
	_, err = q.Heartbeat(ctx, queue.Beat{Claims: []uuid.UUID{claim}})
	must(err)
	spy.repeat(t, w, "while the run goes on")
	must(q.Report(ctx, claim, provision.Report{Status: provision.Failed, Detail: provision.Detail{Number: 2, ErrorCode: provision.CodeExecDied, ErrorMessage: "it did not work"}}))

	functions := map[string]bool{}
	for _, one := range spy.sent {
		functions[one.function] = true
	}
	want := []string{"agent_heartbeat", "check_agent", "fail_orphaned_provisions", "fetch_next_provision", "get_blob", "insert_provision_log", "lease_checks",
		"put_blob", "register_agent", "release_machines", "report_checks", "report_pools", "reserve_machines", "update_provision_status"}
	if got := slices.Sorted(maps.Keys(functions)); !slices.Equal(got, want) {
		t.Fatalf("functions called = %v, want %v", got, want)
	}
	spy.repeat(t, w, "when the run is over")
}

// repeat sends all that was sent again, forwards and backwards, and compares all rows.
func (p *tapped) repeat(t *testing.T, w *queuetest.World, when string) {
	t.Helper()
	p.mu.Lock()
	sent := slices.Clone(p.sent)
	p.mu.Unlock()
	before := rows(t, w.Conn)
	for _, order := range []string{"the same order", "the other way round"} {
		for _, one := range sent {
			if answer := p.pass(one); answer.Code >= http.StatusInternalServerError {
				t.Errorf("%s, sent again %s in %s, is answered %d: %s", one.function, when, order, answer.Code, answer.Body)
			}
		}
		after := rows(t, w.Conn)
		for table, was := range before {
			if after[table] != was {
				t.Errorf("repeated %s in %s, the requests changed %s\nfrom %s\n  to %s", when, order, table, was, after[table])
			}
		}
		slices.Reverse(sent)
	}
}

// Requests of somebody who has listened in, or who has another key.
func TestForgedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	spy := tap(t, w)
	key := w.Join(t, w.Token, "one")
	agent := queuetest.NewAgent("one")
	q := dial(t, rpcqueue.Options{URL: spy.url, Key: key, Agent: agent})
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatal(err)
	}
	beat := spy.sent[len(spy.sent)-1]
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	resigned := func(by ed25519.PrivateKey, at time.Time) func(*sentRequest) {
		return func(s *sentRequest) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.host+"/rest/v1/rpc/"+s.function, nil)
			r.Header = s.header
			if err := signature.Sign(r, s.body, by, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		alter func(*sentRequest)
		want  int
	}{
		"as it was":                 {alter: func(*sentRequest) {}, want: http.StatusOK},
		"signed again, by the same": {alter: resigned(key, time.Now()), want: http.StatusOK},
		"without its signature":     {alter: func(s *sentRequest) { s.header.Del(signature.Input) }, want: http.StatusUnauthorized},
		"to another function":       {alter: func(s *sentRequest) { s.function = "check_agent" }, want: http.StatusUnauthorized},
		"to another host":           {alter: func(s *sentRequest) { s.host = "other.example" }, want: http.StatusUnauthorized},
		"with another body":         {alter: func(s *sentRequest) { s.body = bytes.Replace(s.body, []byte("["), []byte("[ "), 1) }, want: http.StatusUnauthorized},
		"cut":                       {alter: func(s *sentRequest) { s.body = s.body[:len(s.body)-1] }, want: http.StatusUnauthorized},
		"by a clock that is wrong":  {alter: resigned(key, time.Now().Add(-2*time.Minute)), want: http.StatusUnauthorized},
		"by a clock that is ahead":  {alter: resigned(key, time.Now().Add(2*time.Minute)), want: http.StatusUnauthorized},
		"by a stranger in its name": {alter: resigned(stranger, time.Now()), want: http.StatusUnauthorized},
		"by a stranger in its own": {alter: func(s *sentRequest) {
			s.body = bytes.ReplaceAll(s.body, []byte(agentkey.Fingerprint(key.Public().(ed25519.PublicKey))), []byte(agentkey.Fingerprint(stranger.Public().(ed25519.PublicKey))))
			resigned(stranger, time.Now())(s)
		}, want: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			one := beat
			one.header, one.body = beat.header.Clone(), slices.Clone(beat.body)
			c.alter(&one)
			if answer := spy.pass(one); answer.Code != c.want {
				t.Errorf("status = %d, want %d: %s", answer.Code, c.want, answer.Body)
			}
		})
	}

	// Without the gateway the setting says nothing: an agent's own login may make it too.
	direct, err := pgx.Connect(t.Context(), w.AgentURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(context.Background()) //nolint:errcheck // a test's
	_, err = direct.Exec(t.Context(), fmt.Sprintf("SET tendril.signing_key = '%x'; SET tendril.signed_at = '%d'; SET tendril.nonce = ''", []byte(key.Public().(ed25519.PublicKey)), time.Now().Unix()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = direct.Exec(t.Context(), "SELECT public.check_agent($1, '{\"name\": \"one\"}')", agentkey.Fingerprint(key.Public().(ed25519.PublicKey)))
	if err == nil || !strings.Contains(err.Error(), "PT401") {
		t.Errorf("an agent's own login that says which key has signed: %v, want PT401", err)
	}
}

// A key is revoked with what it asked for, and what runs ends as that of a lost agent.
func TestRevokedKey(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	spy := tap(t, w)
	old := w.Join(t, w.Token, "one")
	agent := queuetest.NewAgent("one")
	q := dial(t, rpcqueue.Options{URL: spy.url, Key: old, Agent: agent})
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := dial(t, rpcqueue.Options{URL: spy.url, Key: old, Agent: agent})
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Deploy(t, "web")
	claim := uuid.New()
	if a, err := q.Claim(t.Context(), claim); err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want the provision", a, err)
	}
	if err := q.RotateKey(t.Context(), private); err != nil {
		t.Fatalf("RotateKey() = %v, want nil", err)
	}
	if err := first.RotateKey(t.Context(), private); err != nil {
		t.Errorf("RotateKey(), whose first answer was lost = %v, want nil", err)
	}
	if pulse, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); err != nil || len(pulse.Lost) > 0 {
		t.Errorf("Heartbeat() after RotateKey = %+v, %v, want it signed with the new key", pulse, err)
	}
	q = dial(t, rpcqueue.Options{URL: spy.url, Key: old, Agent: agent})
	renewed := dial(t, rpcqueue.Options{URL: spy.url, Key: private, Agent: agent})
	for name, one := range map[string]queue.Queue{"the old key, for a while": q, "the new key": renewed} {
		if pulse, err := one.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); err != nil || len(pulse.Lost) > 0 {
			t.Errorf("Heartbeat(%s) = %+v, %v, want its lease renewed", name, pulse, err)
		}
	}
	if got := w.Text(t, `SELECT string_agg((t.fingerprint = $2)::text || coalesce(host(t.last_address::inet), '-'), ' ') FROM public.cluster_tokens($1) t WHERE t.name = 'one' AND t.last_used_at IS NOT NULL`,
		w.Cluster, agentkey.Fingerprint(public)); !strings.Contains(got, "true") || strings.Contains(got, "-") {
		t.Errorf("the keys' last use = %q, want both with an address", got)
	}
	w.Exec(t, "SELECT public.revoke_cluster_token($1, (SELECT id FROM tendril.agent_keys WHERE public_key = $2))", w.Cluster, []byte(old.Public().(ed25519.PublicKey)))
	for name, one := range map[string]queue.Queue{"the old key": q, "the new key": renewed} {
		if _, err := one.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); queue.KindOf(err) != queue.Unauthorized {
			t.Errorf("Heartbeat(%s, revoked) = %v, want it unauthorized", name, err)
		}
	}
	if status := w.Text(t, "SELECT status || ' ' || error_code FROM public.provisions WHERE workspace_id IN (SELECT id FROM public.workspaces WHERE name = 'web')"); status != "FAILED agent_lost" {
		t.Errorf("the run = %q, want it given up at once", status)
	}
}

// What waits for an agent is listed for its key alone, and stays in the queue.
func TestPendingProvisions(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	gateway := gatewaytest.HandlerForKeys(t, w, "")
	key := w.Join(t, w.Token, "one")
	_, otherToken := w.NewCluster(t, "other")
	public := key.Public().(ed25519.PublicKey)
	ask := func(by ed25519.PrivateKey, path string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, nil)
		if by != nil {
			if err := signature.Sign(r, nil, by, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		answer := httptest.NewRecorder()
		gateway.ServeHTTP(answer, r)
		return answer
	}
	path := func(of ed25519.PublicKey) string {
		return fmt.Sprintf("/api/v1/providers/%x/contracts/pending-provision", []byte(of))
	}
	if answer := ask(key, path(public)); answer.Code != http.StatusOK || answer.Body.String() != "[]" {
		t.Errorf("with nothing queued: %d %s, want []", answer.Code, answer.Body)
	}
	first := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/acme/vm", "version": "v1"}, "workspace": "one", "terraform_vars": {"cores": 2}, "requester_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"}`)
	w.Deploy(t, "two")
	for range 2 { // it takes nothing
		var contracts []struct {
			Contract uuid.UUID         `json:"contract_id"`
			Action   string            `json:"action"`
			Offering map[string]string `json:"offering"`
			Config   map[string]int    `json:"instance_config"`
			SSH      string            `json:"requester_ssh_pubkey"`
		}
		answer := ask(key, path(public))
		if err := json.Unmarshal(answer.Body.Bytes(), &contracts); err != nil || len(contracts) != 2 {
			t.Fatalf("answer = %d %s (%v), want two contracts", answer.Code, answer.Body, err)
		}
		if c := contracts[0]; c.Contract != first || c.Action != "provision" || c.Offering["id"] != "https://git.example/acme/vm@v1" || c.Config["cores"] != 2 || !strings.HasPrefix(c.SSH, "ssh-ed25519 ") {
			t.Errorf("the first = %+v, want what was deployed first", c)
		}
	}
	for name, c := range map[string]struct {
		by   ed25519.PrivateKey
		path string
		want int
	}{
		"unsigned":                  {nil, path(public), http.StatusUnauthorized},
		"another's":                 {w.Join(t, otherToken, "two"), path(public), http.StatusUnauthorized},
		"a key that has not joined": {strangerKey(t), "", http.StatusUnauthorized},
		"no key":                    {key, "/api/v1/providers/me/contracts/pending-provision", http.StatusUnauthorized},
	} {
		if c.path == "" {
			c.path = path(c.by.Public().(ed25519.PublicKey))
		}
		if answer := ask(c.by, c.path); answer.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, answer.Code, answer.Body, c.want)
		}
	}
	if answer := ask(w.Join(t, otherToken, "three"), ""); answer.Code != http.StatusNotFound {
		t.Errorf("no path: %d, want 404", answer.Code)
	}
}

func strangerKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
