package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A request that is sent twice is carried out once, whoever comes second.
func TestRequestsAreAnsweredAgain(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	digest, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	begin := func(user uuid.UUID, key, d string) (answer *string, err error) {
		err = w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT public.begin_request($1, $2) ->> 'answer'", key, d).Scan(&answer)
		})
		return answer, err
	}
	finish := func(user uuid.UUID, key, d string, answer any) error {
		return w.does(t, user, "SELECT public.finish_request($1, $2, '/here', $3)", key, d, answer)
	}
	if answer, err := begin(w.operator, "k", digest); answer != nil || err != nil {
		t.Fatalf("begin_request = %v, %v, want nothing yet", answer, err)
	}
	if err := finish(w.operator, "k", digest, `{"n": 1}`); err != nil {
		t.Fatal(err)
	}
	if answer, err := begin(w.operator, "k", digest); err != nil || answer == nil || *answer != `{"n": 1}` {
		t.Errorf("begin_request of the same = %v, %v, want the first answer", answer, err)
	}
	_, err := begin(w.operator, "k", other)
	wantRefusal(t, err, "PT422", "request_key_reused")
	if answer, err := begin(w.adminID, "k", other); answer != nil || err != nil {
		t.Errorf("begin_request of somebody else's key = %v, %v, want nothing: keys are one's own", answer, err)
	}
	wantRefusal(t, finish(w.operator, "k", digest, nil), "PT409", "request_under_way")
	wantRefusal(t, finish(w.operator, "large", digest, `"`+strings.Repeat("x", 1<<16)+`"`), "PT413", "answer_too_large")
	wantRefusal(t, finish(w.operator, "", digest, nil), "PT422", "bad_request_key")
	_, err = begin(w.operator, strings.Repeat("k", 201), digest)
	wantRefusal(t, err, "PT422", "bad_request_key")

	// While one is carried out the other is told, and waits for nothing.
	held := w.another(t)
	mustExec(t, held, "BEGIN")
	mustExec(t, held, "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", `{"sub": "`+w.operator.String()+`"}`)
	mustExec(t, held, "SELECT public.begin_request('busy', $1)", digest)
	_, err = begin(w.operator, "busy", digest)
	wantRefusal(t, err, "PT409", "request_under_way")
	mustExec(t, held, "ROLLBACK")

	mustExec(t, w.conn, "UPDATE tendril.requests SET made_at = made_at - interval '25 hours'")
	if answer, err := begin(w.operator, "k", other); answer != nil || err != nil {
		t.Errorf("begin_request a day later = %v, %v, want nothing: it is forgotten", answer, err)
	}
	mustExec(t, w.conn, "INSERT INTO tendril.requests SELECT $1, 'old' || n, $2, '', NULL, now() - interval '2 days' FROM generate_series(1, 5) n", w.operator, digest)
	mustExec(t, w.conn, "INSERT INTO tendril.requests SELECT $1, 'new' || n, $2, '', NULL FROM generate_series(1, 9999) n", w.operator, digest)
	wantRefusal(t, finish(w.operator, "one more", digest, nil), "PT429", "too_many_request_keys")
	const expire = "SELECT removed FROM tendril.expire(3) WHERE what = 'tendril.requests'"
	if first, second := one[int](t, w.conn, expire), one[int](t, w.conn, expire); first != 3 || second < 2 {
		t.Errorf("expire(3) = %d requests, then %d, want 3 and the rest", first, second)
	}
	if err := finish(w.operator, "one more", digest, nil); err != nil {
		t.Errorf("finish_request with room again = %v, want nil", err)
	}
	// Few that are large are as much.
	mustExec(t, w.conn, "CREATE TEMP TABLE large AS SELECT to_jsonb(string_agg(md5(n::text), '')) AS answer FROM generate_series(1, 2000) n")
	mustExec(t, w.conn, "INSERT INTO tendril.requests SELECT $1, 'large' || n, $2, '', answer FROM large, generate_series(1, 400) n", w.viewer, digest)
	wantRefusal(t, finish(w.viewer, "one more", digest, nil), "PT429", "too_many_request_keys")
}

// The list of a cluster's tokens has nothing that would let anybody use one.
func TestClusterTokensAreListed(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "SELECT public.rotate_cluster_token($1, '1 hour')", w.cluster)
	var listed string
	var count, valid int
	err := w.try(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT count(*), count(*) FILTER (WHERE expires_at IS NULL), jsonb_agg(to_jsonb(t)) FROM public.cluster_tokens($1) t", w.cluster).Scan(&count, &valid, &listed)
	})
	if err != nil || count != 2 || valid != 1 {
		t.Errorf("cluster_tokens = %d, %d of them for good, %v, want 2, one that expires", count, valid, err)
	}
	if strings.Contains(listed, "digest") || strings.Contains(listed, one[string](t, w.conn, "SELECT encode(digest, 'hex') FROM tendril.cluster_tokens LIMIT 1")) {
		t.Errorf("cluster_tokens = %s, want no digest", listed)
	}
	wantRefusal(t, w.does(t, w.operator, "SELECT public.cluster_tokens($1)", w.cluster), "PT404", "cluster_not_found")
}

// What is not settled may still become another answer, by the same request alone; what is settled
// stays.
func TestRequestsAreSettledOnce(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	digest, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	finish := func(d, answer string, status any, settled bool) error {
		return w.does(t, w.operator, "SELECT public.finish_request('k', $1, '/here', $2, $3, $4)", d, answer, status, settled)
	}
	wantKept := func(want string) {
		t.Helper()
		var got string
		err := w.try(t, "authenticated", w.operator, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT (k ->> 'answer') || ' ' || coalesce(k ->> 'status', '-') || ' ' || (k ->> 'settled') FROM public.begin_request('k', $1) k", digest).Scan(&got)
		})
		if err != nil || got != want {
			t.Errorf("begin_request = %q, %v, want %q", got, err, want)
		}
	}
	for _, step := range []struct {
		digest, answer string
		status         any
		settled        bool
		refused, kept  string
	}{
		{digest, "1", nil, false, "", "1 - false"},
		{other, "2", nil, true, "PT409", "1 - false"},
		{digest, "3", 200, true, "PT422", "1 - false"},
		{digest, "4", nil, false, "", "4 - false"},
		{digest, "5", 404, true, "", "5 404 true"},
		{digest, "6", nil, true, "PT409", "5 404 true"},
		{digest, "7", nil, false, "PT409", "5 404 true"},
	} {
		err := finish(step.digest, step.answer, step.status, step.settled)
		if got := strings.Fields(answerOf(err))[0]; got != step.refused && (step.refused != "" || err != nil) {
			t.Errorf("finish_request %s = %v, want %q", step.answer, err, step.refused)
		}
		wantKept(step.kept)
	}
}
