package rpcgateway_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// ours are all statements that a gateway ever sends.
func ours() []string {
	return []string{
		rpcgateway.AsAnon, rpcgateway.ReadFunctions, "LISTEN tendril_hears_…; LISTEN pgrst; LISTEN tendril_work; LISTEN tendril_agent", "SELECT pg_notify($1, $2)",
		`SELECT to_json(f), current_setting('tendril.hold', true) FROM "public"."agent_heartbeat"("p_token_hash" => $1::text, "p_instance" => $2::uuid, "p_boot" => $3::uuid, "p_claims" => $4::uuid[]) AS f`,
		"-- ping", "-- still there?",
		`SELECT to_json(f) FROM "public"."register_agent"("p_token_hash" => $1::text, "p_agent" => $2::jsonb) AS f`,
		`SELECT to_json(f) FROM "public"."check_agent"("p_token_hash" => $1::text, "p_agent" => $2::jsonb) AS f`,
		`SELECT to_json(f) FROM "public"."check_agent"("p_token_hash" => $1::text) AS f`,
		`SELECT to_json(f) FROM "public"."agent_heartbeat"("p_token_hash" => $1::text, "p_instance" => $2::uuid, "p_boot" => $3::uuid, "p_claims" => $4::uuid[]) AS f`,
		`SELECT coalesce(json_agg(f), '[]'), count(*) FROM (SELECT * FROM "public"."fetch_next_provision"("p_token_hash" => $1::text, "p_instance" => $2::uuid, "p_boot" => $3::uuid, "p_claim_id" => $4::uuid)) AS f`,
		`SELECT to_json(f) FROM "public"."insert_provision_log"("p_token_hash" => $1::text, "p_claim_id" => $2::uuid, "p_first_chunk" => $3::bigint, "p_chunks" => $4::jsonb) AS f`,
		`SELECT "public"."update_provision_status"("p_token_hash" => $1::text, "p_claim_id" => $2::uuid, "p_status" => $3::text, "p_detail" => $4::jsonb)`,
		`SELECT coalesce(json_agg(f), '[]'), count(*) FROM "public"."fail_orphaned_provisions"("p_token_hash" => $1::text, "p_instance" => $2::uuid, "p_boot" => $3::uuid, "p_except" => $4::uuid[]) AS f`,
		`SELECT coalesce(json_agg(f), '[]'), count(*) FROM "public"."fail_orphaned_provisions"("p_token_hash" => $1::text, "p_instance" => $2::uuid, "p_boot" => $3::uuid) AS f`,
		`SELECT "public"."put_blob"("p_token_hash" => $1::text, "p_claim_id" => $2::uuid, "p_kind" => $3::text, "p_number" => $4::bigint, "p_part" => $5::integer, "p_parts" => $6::integer, "p_digest" => $7::text, "p_meta" => $8::jsonb, "p_data" => $9::text)`,
		`SELECT to_json(f) FROM "public"."get_blob"("p_token_hash" => $1::text, "p_claim_id" => $2::uuid, "p_kind" => $3::text, "p_number" => $4::bigint, "p_part" => $5::integer) AS f`,
	}
}

// The statements above are what is sent, and none is missing there.
func TestSendsTheseStatements(t *testing.T) {
	t.Parallel()
	exchanges, world := recorded.Agent(t)
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), world)
	wire := newTap(t, db.URL)
	url := serve(t, rpcgateway.Options{DatabaseURL: wire.url})
	for _, e := range exchanges {
		send(t, url, e.Request)
	}
	post(t, url, "check_agent", `{"p_token_hash":"x"}`) // an argument with a default may be missing
	send(t, url, recorded.Request{Path: postgrest.RPCPath("agent_heartbeat"), Header: map[string]string{"Prefer": "wait=1"}, Text: heartbeat})
	seen, known := wire.statements(t), ours()
	for _, statement := range known {
		// The comments ask whether a connection is there, after a silence only.
		if !slices.Contains(seen, statement) && !strings.HasPrefix(statement, "--") {
			t.Errorf("the gateway did not send %q", statement)
		}
	}
	for _, statement := range seen {
		if !slices.Contains(known, statement) {
			t.Errorf("the gateway sent %q, which is none of its statements", statement)
		}
	}
}

// Whatever is sent, by whom ever, even with a token that is good: no 5xx, no
// panic, an error body where it is no success, and no SQL that is not ours.
func FuzzGateway(f *testing.F) {
	exchanges, world := recorded.Agent(f)
	db := pgtest.New(f, queuetest.Migrated)
	mustExec(f, db.Conn(f), world)
	wire := newTap(f, db.URL)
	log := &outputtest.Buffer{}
	gateway, err := rpcgateway.New(f.Context(), rpcgateway.Options{
		DatabaseURL: wire.url, Rate: -1, StatementTimeout: time.Minute, LogAll: true, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(gateway.Close)
	documented, _ := recorded.Documented(f)
	for _, e := range slices.Concat(documented, exchanges) {
		method := e.Request.Method
		if method == "" {
			method = http.MethodPost
		}
		f.Add(method, e.Request.Path, "", contentType(e.Request), e.Request.Payload())
	}
	for _, body := range odd(f) {
		f.Add(http.MethodPost, postgrest.RPCPath("check_agent"), "", postgrest.ContentType, body)
		f.Add(http.MethodPost, postgrest.RPCPath("register_agent"), "", postgrest.ContentType, body)
		f.Add(http.MethodPost, postgrest.RPCPath("agent_heartbeat"), "", postgrest.ContentType, body)
		f.Add(http.MethodPost, postgrest.RPCPath("insert_provision_log"), "", postgrest.ContentType, body)
		f.Add(http.MethodPost, postgrest.RPCPath("update_provision_status"), "", postgrest.ContentType, body)
	}
	for _, path := range []string{"/rest/v1/rpc/", "/rest/v1/rpc/../x", "/rest/v1/rpc/agent_heartbeat/", "/rest/v1/rpc/agent_heartbeat\x00", "/rest/v1/rpc/\xff", "", "*",
		`/rest/v1/rpc/x";DROP TABLE orgs;--`, "/rest/v1/rpc/" + strings.Repeat("ü", 5000)} {
		f.Add(http.MethodPost, path, "select=*", "", []byte("{}"))
	}
	known := ours()
	f.Fuzz(func(t *testing.T, method, path, query, kind string, body []byte) {
		request := &http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Content-Type": {kind}},
			Body: http.NoBody, ContentLength: int64(len(body)), RemoteAddr: "192.0.2.1:1", Host: "gateway.example",
		}
		if len(body) > 0 {
			request.Body = readCloser{bytes.NewReader(body)}
		}
		recorder := httptest.NewRecorder()
		gateway.ServeHTTP(recorder, request.WithContext(t.Context()))
		if recorder.Code >= 500 {
			t.Errorf("%s %q %q = %d %s, want no error of ours", method, path, body, recorder.Code, recorder.Body)
		}
		if recorder.Code >= 400 {
			var e postgrest.Error
			if err := json.Unmarshal(recorder.Body.Bytes(), &e); err != nil || e.Code == "" || e.Message == "" {
				t.Errorf("%s %q %q = %d %q, want an error's body", method, path, body, recorder.Code, recorder.Body)
			}
		}
		for _, statement := range wire.statements(t) {
			if !slices.Contains(known, statement) {
				t.Errorf("the gateway sent %q, which is none of its statements", statement)
			}
		}
	})
	if f.Failed() {
		f.Logf("%s", log)
	}
	if strings.Contains(log.String(), tokenHash) {
		f.Error("the log has the token's hash")
	}
}

// tokenHash is what the recorded agent sends.
const tokenHash = "06d93b44d6fd044185f3ffde443495ee8b49af9cbb06579033bab051e3196e81"

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

func contentType(r recorded.Request) string {
	if kind, ok := r.Header["Content-Type"]; ok {
		return kind
	}
	return postgrest.ContentType
}

// odd are bodies with arguments of all functions, so that each takes the ones
// it knows from one of them at least.
func odd(f *testing.F) [][]byte {
	f.Helper()
	base := func() map[string]any {
		return map[string]any{"p_token_hash": tokenHash, "p_instance": "a6000000-0000-4000-8000-000000000001", "p_boot": "b0000000-0000-4000-8000-000000000001"}
	}
	var bodies [][]byte
	for _, text := range []string{
		``, ` `, `{`, `null`, `5`, `"x"`, `[]`, `[{"a":1}]`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", "{\"a\":\"\x00\"}", `{"\u0000":1}`, `{"\ud800":1}`,
		strings.Repeat("[", 20000), strings.Repeat(`{"a":`, 20000), `{"a":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `}`,
		`{"p_token_hash":1e999999}`, `{"p_token_hash":"` + tokenHash + `","p_agent":` + strings.Repeat("[", 400) + strings.Repeat("]", 400) + `}`,
	} {
		bodies = append(bodies, []byte(text))
	}
	add := func(fields map[string]any) {
		body, err := json.Marshal(fields)
		if err != nil {
			f.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	values := []any{
		nil, true, 0, -1, 1.5, json.Number("1e400"), json.Number("123456789012345678901234567890"), json.Number("1e-400"), json.Number("9223372036854775807"),
		"", "x", "\x00", "\u2028", "'; DROP TABLE orgs; --", "$1", "{}", "{{1},{2}}", "[1:2]={1,2}", "{{{{{{{1}}}}}}}", `{"a`, "infinity", "NaN",
		strings.Repeat("x", 100_000), []any{}, []any{1, "x", nil, []any{}}, []any{[]any{[]any{[]any{[]any{[]any{[]any{1}}}}}}}, map[string]any{}, map[string]any{"a": nil},
	}
	for _, value := range values {
		// Each argument in turn, with all others good.
		for _, name := range []string{"p_token_hash", "p_instance", "p_boot", "p_claims"} {
			fields := base()
			fields["p_claims"] = []any{}
			fields[name] = value
			add(fields)
		}
		claim := map[string]any{"p_token_hash": tokenHash, "p_claim_id": "cc000000-0000-4000-8000-000000000001"}
		for _, name := range []string{"p_claim_id", "p_first_chunk", "p_chunks"} {
			fields := map[string]any{"p_first_chunk": 1, "p_chunks": []any{map[string]any{"stream": value, "text": value, "at": value}}}
			for k, v := range claim {
				fields[k] = v
			}
			fields[name] = value
			add(fields)
		}
		for _, name := range []string{"p_status", "p_detail"} {
			fields := map[string]any{"p_status": "PROCESSING", "p_detail": map[string]any{"n": value, "stage": value, "percent": value, "plan": value, "outputs": value,
				"resources": value, "events": value, "commit": value, "local_state": value, "state_unsaved": value}}
			for k, v := range claim {
				fields[k] = v
			}
			fields[name] = value
			add(fields)
		}
		for _, field := range []string{"instance_id", "boot_id", "name", "host", "version", "contract", "slots", ""} {
			agent := map[string]any{"instance_id": "a6000000-0000-4000-8000-000000000001", "boot_id": "b0000000-0000-4000-8000-000000000001",
				"name": "one", "host": "one.example", "version": "1", "contract": 2, "slots": 2}
			agent[field] = value
			add(map[string]any{"p_token_hash": tokenHash, "p_agent": agent})
		}
	}
	return bodies
}
