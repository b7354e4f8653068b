package sql_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// joining is what an agent says of itself.
const joining = `{"name": "one", "host": "h", "version": "1.2.3", "slots": 2, "operations": ["plan", "apply"]}`

// signedByAnyone says that a key that has not joined has signed.
const signedByAnyone = `SELECT pg_catalog.set_config('tendril.signing_key', pg_catalog.repeat('ab', 32), true), pg_catalog.set_config('tendril.nonce', '', true)`

// joiner is an agent with a key.
type joiner struct {
	w       *world
	key     ed25519.PublicKey
	address string
	nonces  int
}

func (w *world) newJoiner(t *testing.T) *joiner {
	t.Helper()
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &joiner{w: w, key: key, address: "192.0.2.7"}
}

func (j *joiner) fingerprint() string {
	sum := sha256.Sum256(j.key)
	return hex.EncodeToString(sum[:])
}

// standing is what a key is answered.
type standing struct {
	Status      string    `json:"status"`
	Code        string    `json:"code"`
	Seconds     int       `json:"seconds"`
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
}

// signed calls a function as the gateway does for a request that the key has signed.
func (j *joiner) signed(t *testing.T, query string, args ...any) (s standing, err error) {
	t.Helper()
	j.nonces++
	err = pgx.BeginFunc(t.Context(), j.w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('role', 'anon', true), set_config('tendril.signing_key', $1, true), set_config('tendril.address', $2, true), set_config('tendril.nonce', $3, true),
			set_config('tendril.signed_at', extract(epoch FROM clock_timestamp())::text, true), set_config('tendril.signed_until', extract(epoch FROM clock_timestamp() + interval '1 minute')::text, true)`,
			hex.EncodeToString(j.key), j.address, fmt.Sprintf("%016d", j.nonces)); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), query, args...).Scan(&s)
	})
	return s, err
}

func (j *joiner) request(t *testing.T, about string) (standing, error) {
	t.Helper()
	return j.signed(t, "SELECT public.request_join($1)", about)
}

func (j *joiner) mustRequest(t *testing.T) (code string) {
	t.Helper()
	s, err := j.request(t, joining)
	if err != nil || s.Status != "waiting" {
		t.Fatalf("request_join = %+v, %v, want one that waits", s, err)
	}
	return s.Code
}

func (j *joiner) wantStatus(t *testing.T, want string) {
	t.Helper()
	if s, err := j.signed(t, "SELECT public.join_status()"); err != nil || s.Status != want {
		t.Errorf("join_status = %+v, %v, want %s", s, err, want)
	}
}

func (j *joiner) approve(t *testing.T, user uuid.UUID, code string) error {
	t.Helper()
	return j.w.does(t, user, "SELECT public.approve_join($1, $2, $3)", code, j.w.cluster, j.fingerprint())
}

func TestJoinByCode(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	j := w.newJoiner(t)
	code := j.mustRequest(t)
	if !regexp.MustCompile(`^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$`).MatchString(code) {
		t.Errorf("code = %q, want XXXX-XXXX without vowels", code)
	}
	if _, err := j.signed(t, "SELECT public.check_agent($1)", hex.EncodeToString(j.key)); err == nil {
		t.Error("a key that has not joined may call")
	}
	typed := " " + strings.ToLower(strings.ReplaceAll(code, "-", " "))
	seen := mustAs[string](t, w, w.adminID, "SELECT concat_ws(' ', fingerprint, name, host, version, slots, operations, address) FROM public.join_request($1)", typed)
	if want := j.fingerprint() + " one h 1.2.3 2 {plan,apply} 192.0.2.7"; seen != want {
		t.Errorf("join_request = %q, want %q", seen, want)
	}
	j.wantStatus(t, "waiting")
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.approve_join($1, $2, repeat('0', 64))", typed, w.cluster), "PT409", "join_changed")
	wantRefusal(t, j.approve(t, w.operator, code), "PT404", "cluster_not_found")
	if err := j.approve(t, w.adminID, typed); err != nil {
		t.Fatal(err)
	}
	if audited := w.audited(t, w.cluster); !strings.HasPrefix(audited, "admin approve_join") || !strings.Contains(audited, j.fingerprint()) {
		t.Errorf("audited %q, want the fingerprint that the admin approved", audited)
	}
	if s, err := j.request(t, joining); err != nil || s.Status != "joined" || s.ClusterID != w.cluster || s.ClusterName != "prod" {
		t.Errorf("request_join = %+v, %v, want the cluster that it has joined", s, err)
	}
	if _, err := j.signed(t, "SELECT public.check_agent($1)", j.fingerprint()); err != nil {
		t.Errorf("check_agent with a key that has joined: %v", err)
	}
	if n := mustAs[int](t, w, w.adminID, "SELECT count(*) FROM public.join_request($1)", code); n != 0 {
		t.Error("a code counts twice")
	}
	w.asAdmin(t, "SELECT public.revoke_cluster_token($1, (SELECT id FROM public.cluster_tokens($1) WHERE fingerprint = $2))", w.cluster, j.fingerprint())
	j.wantStatus(t, "revoked")
	if s, err := j.request(t, joining); err != nil || s.Status != "revoked" {
		t.Errorf("request_join of a revoked key = %+v, %v, want revoked", s, err)
	}
}

func TestJoinIsRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	j := w.newJoiner(t)
	j.wantStatus(t, "expired")
	code := j.mustRequest(t)
	if !mustAs[bool](t, w, w.adminID, "SELECT public.refuse_join($1)", code) {
		t.Error("refuse_join = false, want true")
	}
	j.wantStatus(t, "refused")
	if audited := w.audited(t, w.org); !strings.HasPrefix(audited, "admin refuse_join") {
		t.Errorf("audited %q, want a refusal", audited)
	}
	if n := mustAs[int](t, w, w.adminID, "SELECT count(*) FROM public.join_request($1)", code); n != 0 {
		t.Error("a code counts after the refusal")
	}
	code = j.mustRequest(t)
	mustExec(t, w.conn, "UPDATE tendril.join_requests SET expires_at = clock_timestamp()")
	if id := mustAs[*uuid.UUID](t, w, w.adminID, "SELECT public.approve_join($1, $2, $3)", code, w.cluster, j.fingerprint()); id != nil {
		t.Error("an expired code was approved")
	}
	j.wantStatus(t, "expired")
}

// Wrong codes are counted of a person and of an organisation, and a right one is of no use then.
func TestCodesAreNotGuessed(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	j := w.newJoiner(t)
	code := j.mustRequest(t)
	for range 5 {
		if id := mustAs[*uuid.UUID](t, w, w.adminID, "SELECT public.approve_join('BBBB-BBBB', $1, repeat('0', 64))", w.cluster); id != nil {
			t.Fatal("a wrong code was approved")
		}
	}
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.join_request($1)", code), "PT429", "too_many_guesses")
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.refuse_join($1)", code), "PT429", "too_many_guesses")
	wantRefusal(t, j.approve(t, w.adminID, code), "PT429", "too_many_guesses")
	if err := w.does(t, w.stranger, "SELECT public.join_request($1)", code); err != nil {
		t.Errorf("another organisation's admin: %v, want one who may still type codes", err)
	}
	wantRefusal(t, w.does(t, w.operator, "SELECT public.join_request($1)", code), "PT403", "not_an_admin")

	others := map[uuid.UUID]string{uuid.New(): "admin", uuid.New(): "admin", uuid.New(): "admin", uuid.New(): "admin"}
	for other := range others {
		mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", w.org, other)
	}
	refused := 0
	for other := range others {
		for range 4 {
			if w.does(t, other, "SELECT public.join_request('BBBB-BBBB')") != nil {
				refused++
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d of 16 more wrong codes of four other admins were refused, want the 21st of the organisation", refused)
	}
	mustExec(t, w.conn, "UPDATE tendril.join_guesses SET at = at - interval '1 minute'")
	if err := j.approve(t, w.adminID, code); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

func TestJoinRequestsAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	var last *joiner
	for n := range 20 {
		last = w.newJoiner(t)
		last.address = fmt.Sprintf("2001:db8:0:1::%d", n+1)
		last.mustRequest(t)
	}
	last.mustRequest(t) // its own again
	next := w.newJoiner(t)
	next.address = "2001:db8:0:1:ffff::1"
	_, err := next.request(t, joining)
	wantRefusal(t, err, "PT429", "too_many_joins")
	next.address = "2001:db8:0:2::1"
	next.mustRequest(t)
	mustExec(t, w.conn, `INSERT INTO tendril.join_requests (public_key, code_digest, name, host, version, slots, expires_at)
		SELECT sha256(n::text::bytea), sha256(n::text::bytea), 'n', 'h', '1', 1, now() + interval '5 minutes' FROM generate_series(1, 1000) n`)
	next = w.newJoiner(t)
	_, err = next.request(t, joining)
	wantRefusal(t, err, "PT429", "too_many_joins")
	mustExec(t, w.conn, "UPDATE tendril.join_requests SET expires_at = now() - interval '2 hours'")
	mustExec(t, w.conn, "SELECT tendril.expire()")
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.join_requests"); n > 21 {
		t.Errorf("%d join requests are left, want what one call of expire() leaves", n)
	}
	next.mustRequest(t)
	for _, wrong := range []string{`{}`, `{"name": "", "host": "h", "version": "1", "slots": 1}`, `{"name": "n", "host": "h", "version": "1", "slots": 65}`,
		`{"name": "n", "host": "h", "version": "1", "slots": 1, "operations": "all"}`, `{"name": "n", "host": "h", "version": "1", "slots": "x"}`, `[]`, `null`} {
		_, err := next.request(t, wrong)
		wantRefusal(t, err, "PT422", "bad_join")
	}
}

func TestJoinByToken(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	var id uuid.UUID
	var token string
	create := func() {
		w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT token_id, token FROM public.create_join_token($1, 'a chart', '1 hour')", w.cluster).Scan(&id, &token)
		})
	}
	with := func(cluster string) string {
		return strings.TrimSuffix(joining, "}") + fmt.Sprintf(`, "cluster": %q, "token_hash": %q}`, cluster, hashOf(token))
	}
	create()
	if stored := one[string](t, w.conn, "SELECT jsonb_agg(to_jsonb(t))::text FROM tendril.join_tokens t"); strings.Contains(stored, token) || strings.Contains(stored, hashOf(token)) {
		t.Errorf("stored %s, want a digest of what is sent alone", stored)
	}
	j, thief := w.newJoiner(t), w.newJoiner(t)
	_, err := j.request(t, with("staging"))
	wantRefusal(t, err, "PT409", "other_cluster")
	for range 2 { // the answer may be lost
		if s, err := j.request(t, with("prod")); err != nil || s.Status != "joined" || s.ClusterID != w.cluster {
			t.Fatalf("request_join with a token = %+v, %v, want joined", s, err)
		}
	}
	if audited := w.audited(t, w.cluster); !strings.HasPrefix(audited, "join_by_token") || !strings.Contains(audited, j.fingerprint()) || !strings.Contains(audited, id.String()) {
		t.Errorf("audited %q, want fingerprint and token", audited)
	}
	_, err = thief.request(t, with("prod"))
	wantRefusal(t, err, "PT401", "join_token_invalid")

	create()
	mustExec(t, w.conn, "UPDATE tendril.join_tokens SET expires_at = clock_timestamp() WHERE id = $1", id)
	_, err = thief.request(t, with("prod"))
	wantRefusal(t, err, "PT401", "join_token_invalid")
	create()
	w.asAdmin(t, "SELECT public.revoke_cluster_token($1)", w.cluster)
	_, err = thief.request(t, with("prod"))
	wantRefusal(t, err, "PT401", "join_token_invalid")
	for _, valid := range []string{"59 seconds", "25 hours"} {
		wantRefusal(t, w.does(t, w.adminID, "SELECT public.create_join_token($1, '', $2)", w.cluster, valid), "PT422", "bad_join_token")
	}
}

// What says who has signed counts in sessions of the owner alone.
func TestOnlyTheGatewayNamesAKey(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	j := w.newJoiner(t)
	role := "joiner_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	mustExec(t, w.conn, "CREATE ROLE "+role+" LOGIN IN ROLE anon; SET SESSION AUTHORIZATION "+role)
	_, err := j.request(t, joining)
	wantRefusal(t, err, "PT401", "signature_missing")
	mustExec(t, w.conn, "RESET SESSION AUTHORIZATION; DROP ROLE "+role)
}
