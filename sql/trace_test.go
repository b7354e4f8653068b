package sql_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The database takes the traceparents that package tracing takes, from trellis and from PostgREST.
func TestTraceparents(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	text, err := os.ReadFile("../internal/tracing/testdata/traceparents.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Header string
		Valid  bool
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v, want some", len(cases), err)
	}
	for _, tc := range cases {
		for _, setting := range []string{"request.jwt.claims", "request.headers"} {
			want := map[bool]string{true: tc.Header}[tc.Valid]
			got := one[string](t, w.conn, `SELECT coalesce(tendril.traceparent(), '') FROM (SELECT set_config($1, jsonb_build_object('traceparent', $2::text)::text, false)) s`, setting, tc.Header)
			if mustExec(t, w.conn, "SELECT set_config($1, '', false)", setting); got != want {
				t.Errorf("traceparent() of %q in %s = %q, want %q", tc.Header, setting, got, want)
			}
		}
	}
}

func TestRunHasTheTraceOfWhoAskedForIt(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var id uuid.UUID
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT set_config('request.headers', jsonb_build_object('traceparent', $1::text)::text, true)", traceparent); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.cluster,
			`{"max_attempts": 2, "workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}}`).Scan(&id)
	})
	without := w.deploy(t, w.operator, snapshot("other"))
	if got := one[string](t, w.conn, "SELECT coalesce(traceparent, '') FROM public.provisions WHERE id = $1", without); got != "" {
		t.Errorf("a run without a trace has %q", got)
	}
	if err := w.try(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot, traceparent) VALUES ($1, $2, $3)", w.cluster, snapshot("w"), traceparent)
		return err
	}); err == nil {
		t.Error("a person can write the column, want a refusal: it has what the request says")
	}

	a := w.newAgent(t, "one")
	claim, first := a.mustClaim(t)
	if first != id {
		t.Fatalf("claimed %s, want %s", first, id)
	}
	if got := one[string](t, w.conn, "SELECT public.claim_trace($1, $2)", w.tokenHash, claim); got != traceparent {
		t.Errorf("claim_trace() = %q, want %q", got, traceparent)
	}
	if got := one[string](t, w.conn, "SELECT coalesce(public.claim_trace($1, $2), '')", w.foreignAgent(t).w.tokenHash, claim); got != "" {
		t.Errorf("claim_trace() of another cluster's claim = %q, want nothing", got)
	}
	a.mustReport(t, claim, "FAILED", `{"error_code": "init_failed"}`)
	if got := one[string](t, w.conn, "SELECT traceparent FROM public.provisions WHERE retry_of = $1", id); got != traceparent {
		t.Errorf("the next attempt has the trace %q, want that of the first", got)
	}
}
