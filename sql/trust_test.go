package sql_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	podIssuer  = "https://kubernetes.example"
	podSubject = "system:serviceaccount:tendril:tendril"
	podKeys    = `{"keys": [{"kty": "EC", "kid": "one", "crv": "P-256", "x": "a", "y": "b"}]}`
)

// trusts has an admin trust the issuer for a cluster, and returns the trust and its audience.
func (w *world) trusts(t *testing.T) (trust uuid.UUID, audience string) {
	t.Helper()
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT trust_id, audience FROM public.trust_issuer($1, $2, $3, $4)", w.cluster, podIssuer, []string{podSubject}, podKeys).Scan(&trust, &audience)
	})
	if audience != "tendril:"+w.cluster.String() {
		t.Fatalf("trust_issuer = %s, want an audience that names the cluster", audience)
	}
	return trust, audience
}

// account is what the gateway has verified of a token.
type account struct {
	Trust   uuid.UUID `json:"trust"`
	Subject string    `json:"subject"`
	Pod     string    `json:"pod"`
	PodUID  string    `json:"pod_uid"`
	Digest  string    `json:"digest"`
	Expires int64     `json:"expires"`
}

// newAccount is of a token that nobody has shown yet.
func newAccount(trust uuid.UUID, pod, uid string) account {
	token := uuid.New()
	return account{trust, podSubject, pod, uid, hex.EncodeToString(append(token[:], token[:]...)), time.Now().Add(5 * time.Minute).Unix()}
}

// joinsBy asks to join as the gateway does for a request with a token that it has verified.
func (j *joiner) joinsBy(t *testing.T, a account, request string) (standing, error) {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return j.signed(t, "WITH verified AS MATERIALIZED (SELECT set_config('tendril.service_account', $1, true)) SELECT public.request_join($2) FROM verified", string(text), request)
}

// A pod's key joins once by each token; the pod that replaces it ends its key at once, and what that
// ran; the keys of others go a day after they were last used.
func TestJoinByServiceAccount(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	trust, _ := w.trusts(t)
	first, other := w.newJoiner(t), w.newJoiner(t)
	shown := newAccount(trust, "tendril-0", "uid-1")
	for range 2 { // the second: an answer was lost
		if s, err := first.joinsBy(t, shown, joining); err != nil || s.Status != "joined" || s.ClusterID != w.cluster {
			t.Fatalf("request_join by a service account = %+v, %v, want joined", s, err)
		}
	}
	if audited := w.audited(t, w.cluster); !strings.HasPrefix(audited, "join_by_account") || !strings.Contains(audited, first.fingerprint()) || !strings.Contains(audited, "uid-1") || !strings.Contains(audited, podSubject) {
		t.Errorf("audited = %s, want who joined, and from which pod", audited)
	}
	thief := w.newJoiner(t)
	_, err := thief.joinsBy(t, shown, joining)
	wantRefusal(t, err, "PT401", "account_token_used")

	if s, err := other.joinsBy(t, newAccount(trust, "tendril-1", "uid-2"), joining); err != nil || s.Status != "joined" {
		t.Fatalf("another pod = %+v, %v, want joined", s, err)
	}
	first.wantStatus(t, "joined")

	// The StatefulSet has replaced the first pod.
	second := w.newJoiner(t)
	if s, err := second.joinsBy(t, newAccount(trust, "tendril-0", "uid-3"), joining); err != nil || s.Status != "joined" {
		t.Fatalf("the pod's successor = %+v, %v, want joined", s, err)
	}
	first.wantStatus(t, "revoked")
	other.wantStatus(t, "joined")

	// Its container has lost its data, and it is the same pod.
	third := w.newJoiner(t)
	if s, err := third.joinsBy(t, newAccount(trust, "renamed", "uid-3"), joining); err != nil || s.Status != "joined" {
		t.Fatalf("the pod once more = %+v, %v, want joined", s, err)
	}
	second.wantStatus(t, "revoked")
	other.wantStatus(t, "joined")

	mustExec(t, w.conn, "UPDATE tendril.agent_keys SET created_at = now() - interval '2 days' WHERE public_key = $1", []byte(other.key))
	if s, err := w.newJoiner(t).joinsBy(t, newAccount(trust, "tendril-9", "uid-9"), joining); err != nil || s.Status != "joined" {
		t.Fatalf("a further pod = %+v, %v, want joined", s, err)
	}
	other.wantStatus(t, "revoked")
	third.wantStatus(t, "joined")
}

// What the gateway has verified does not do where no admin has allowed it, or it has expired.
func TestServiceAccountsThatMayNotJoin(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	trust, audience := w.trusts(t)
	j := w.newJoiner(t)
	for name, change := range map[string]func(*account){
		"another subject": func(a *account) { a.Subject = "system:serviceaccount:other:tendril" },
		"an expired one":  func(a *account) { a.Expires = time.Now().Add(-time.Minute).Unix() },
		"a lasting one":   func(a *account) { a.Expires = time.Now().Add(48 * time.Hour).Unix() },
		"another trust":   func(a *account) { a.Trust = uuid.New() },
	} {
		a := newAccount(trust, "tendril-0", "uid")
		change(&a)
		if _, err := j.joinsBy(t, a, joining); err == nil {
			t.Errorf("%s joins", name)
		} else {
			wantRefusal(t, err, "PT401", "account_not_trusted")
		}
	}
	_, err := j.joinsBy(t, newAccount(trust, "tendril-0", "uid"), strings.TrimSuffix(joining, "}")+`, "cluster": "elsewhere"}`)
	wantRefusal(t, err, "PT409", "other_cluster")
	_, err = j.request(t, strings.TrimSuffix(joining, "}")+`, "service_account_token": "x.y.z"}`)
	wantRefusal(t, err, "PT401", "account_unverified")

	known := func(issuer, audience, subject string) (n int) {
		n = -1
		_ = pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), signedByAnyone)
			if err == nil {
				err = tx.QueryRow(t.Context(), "SELECT count(*) FROM public.trusted_keys($1, $2, $3)", issuer, audience, subject).Scan(&n)
			}
			return err
		})
		return n
	}
	if n := known(podIssuer, audience, podSubject); n != 1 {
		t.Errorf("trusted_keys of what is trusted = %d rows, want 1", n)
	}
	for _, asked := range [][3]string{{"https://other.example", audience, podSubject}, {podIssuer, "tendril:x", podSubject}, {podIssuer, audience, "system:serviceaccount:tendril:other"}} {
		if n := known(asked[0], asked[1], asked[2]); n != 0 {
			t.Errorf("trusted_keys(%v) = %d rows, want none", asked, n)
		}
	}
	mustExec(t, w.conn, "UPDATE tendril.trusted_issuers SET expires_at = clock_timestamp()")
	if n := known(podIssuer, audience, podSubject); n != 0 {
		t.Errorf("trusted_keys of an expired trust = %d rows, want none", n)
	}
	_, err = j.joinsBy(t, newAccount(trust, "tendril-0", "uid"), joining)
	wantRefusal(t, err, "PT401", "account_not_trusted")
	w.trusts(t) // once more replaces it
	if s, err := j.joinsBy(t, newAccount(trust, "tendril-0", "uid"), joining); err != nil || s.Status != "joined" {
		t.Errorf("request_join by a trust that was renewed = %+v, %v, want joined", s, err)
	}
	if gone := mustAs[bool](t, w, w.adminID, "SELECT public.untrust_issuer($1, $2)", w.cluster, trust); !gone {
		t.Error("untrust_issuer = false, want true")
	}
	_, err = w.newJoiner(t).joinsBy(t, newAccount(trust, "tendril-1", "uid"), joining)
	wantRefusal(t, err, "PT401", "account_not_trusted")
}

// What an admin may not trust, one of another organisation above all.
func TestIssuersThatAreNotTrusted(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	_, audience := w.trusts(t)
	many := `{"keys": [` + strings.TrimSuffix(strings.Repeat(`{"kty": "EC"},`, 10_000), ",") + `]}`
	seventeen := `{"keys": [` + strings.TrimSuffix(strings.Repeat(`{"kty": "EC"},`, 17), ",") + `]}`
	for name, change := range map[string][4]any{
		"no issuer":            {"", []string{podSubject}, podKeys, nil},
		"an issuer of two":     {"https://a b", []string{podSubject}, podKeys, nil},
		"another's audience":   {podIssuer, []string{podSubject}, podKeys, "tendril:" + uuid.NewString()},
		"no subject":           {podIssuer, []string{}, podKeys, nil},
		"any subject":          {podIssuer, []string{"system:serviceaccount:tendril:*"}, podKeys, nil},
		"a person":             {podIssuer, []string{"ada"}, podKeys, nil},
		"no keys":              {podIssuer, []string{podSubject}, `{"keys": []}`, nil},
		"keys of no set":       {podIssuer, []string{podSubject}, `[]`, nil},
		"null":                 {podIssuer, []string{podSubject}, nil, nil},
		"10,000 keys":          {podIssuer, []string{podSubject}, many, nil},
		"17 keys":              {podIssuer, []string{podSubject}, seventeen, nil},
		"a short RSA key":      {podIssuer, []string{podSubject}, `{"keys": [{"kty": "RSA", "e": "AQAB", "n": "` + strings.Repeat("x", 171) + `"}]}`, nil},
		"a long RSA key":       {podIssuer, []string{podSubject}, `{"keys": [{"kty": "RSA", "e": "AQAB", "n": "` + strings.Repeat("x", 2731) + `"}]}`, nil},
		"a shared secret":      {podIssuer, []string{podSubject}, `{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`, nil},
		"a private key":        {podIssuer, []string{podSubject}, `{"keys": [{"kty": "EC", "d": "c2VjcmV0"}]}`, nil},
		"a key that is no key": {podIssuer, []string{podSubject}, `{"keys": ["x"]}`, nil},
	} {
		err := w.does(t, w.adminID, "SELECT public.trust_issuer($1, $2, $3, $4, $5)", w.cluster, change[0], change[1], change[2], change[3])
		if err == nil {
			t.Errorf("%s is trusted", name)
			continue
		}
		wantRefusal(t, err, "PT422", "bad_issuer")
	}
	wantRefusal(t, w.does(t, w.stranger, "SELECT public.trust_issuer($1, $2, $3, $4)", w.cluster, podIssuer, []string{podSubject}, podKeys), "PT404", "cluster_not_found")

	// Nobody takes another cluster's place, not by an audience that names both either.
	elsewhere := one[uuid.UUID](t, w.conn, "INSERT INTO public.clusters (org_id, name) SELECT org_id, 'elsewhere' FROM public.org_members WHERE user_id = $1 RETURNING id", w.stranger)
	mustExec(t, w.conn, "UPDATE public.org_members SET role = 'admin' WHERE user_id = $1", w.stranger)
	wantRefusal(t, w.does(t, w.stranger, "SELECT public.trust_issuer($1, $2, $3, $4, $5)", elsewhere, podIssuer, []string{podSubject}, podKeys, audience), "PT422", "bad_issuer")
	both := fmt.Sprintf("tendril:%s:%s", w.cluster, elsewhere)
	if err := w.does(t, w.adminID, "SELECT public.trust_issuer($1, $2, $3, $4, $5)", w.cluster, podIssuer, []string{podSubject}, podKeys, both); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, w.does(t, w.stranger, "SELECT public.trust_issuer($1, $2, $3, $4, $5)", elsewhere, podIssuer, []string{podSubject}, podKeys, both), "PT409", "audience_taken")
	for i := range 18 {
		if err := w.does(t, w.adminID, "SELECT public.trust_issuer($1, $2, $3, $4)", w.cluster, fmt.Sprintf("%s/%d", podIssuer, i), []string{podSubject}, podKeys); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.trust_issuer($1, $2, $3, $4)", w.cluster, podIssuer+"/more", []string{podSubject}, podKeys), "PT409", "too_many_issuers")
	if n := mustAs[int](t, w, w.adminID, "SELECT count(*) FROM public.trusted_issuers($1) WHERE key_ids = '{one}'", w.cluster); n != 20 {
		t.Errorf("trusted_issuers has %d rows, want 20", n)
	}
}
