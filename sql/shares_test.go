package sql_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const sealedShare = "-----BEGIN AGE ENCRYPTED FILE-----\n…"

// byKey has an agent join the cluster by key; 64 digits of the letter are the key.
func (w *world) byKey(t *testing.T, cluster uuid.UUID, letter string) (key, hash string) {
	t.Helper()
	key = strings.Repeat(letter, 64)
	raw, _ := hex.DecodeString(key)
	mustExec(t, w.conn, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, $3)", cluster, raw, "agent "+letter)
	sum := sha256.Sum256(raw)
	return key, hex.EncodeToString(sum[:])
}

// shared is what shared_identity answers to a request that the key has signed; "": none has.
func (w *world) shared(t *testing.T, signer, hash string) (text *string, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT set_config('tendril.signing_key', $1, true)", signer); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "SELECT public.shared_identity($1)", hash).Scan(&text)
	})
	return text, err
}

func (w *world) share(t *testing.T, hash, to, sealed string, expires any) error {
	t.Helper()
	_, err := w.conn.Exec(t.Context(), "SELECT public.share_identity($1, $2, $3, $4)", hash, to, sealed, expires)
	return err
}

// A share is stored by an agent of the cluster, and read by the agent alone whose key it is for.
func TestIdentityIsSharedWithOneKey(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	key, hash := w.byKey(t, w.cluster, "a")
	other, otherHash := w.byKey(t, w.cluster, "b")
	later := time.Now().Add(time.Hour)
	if text, err := w.shared(t, key, hash); text != nil || err != nil {
		t.Errorf("shared_identity() before a share = %v, %v, want null", text, err)
	}
	for _, sealed := range []string{sealedShare + "1", sealedShare + "2"} {
		if err := w.share(t, w.tokenHash, key, sealed, later); err != nil {
			t.Fatal(err)
		}
		if text, err := w.shared(t, key, hash); err != nil || text == nil || *text != sealed {
			t.Errorf("shared_identity() = %v, %v, want the newest, %q", text, err, sealed)
		}
	}
	if text, err := w.shared(t, other, otherHash); text != nil || err != nil {
		t.Errorf("shared_identity() of another agent = %v, %v, want null", text, err)
	}
	if text, err := w.shared(t, "", w.tokenHash); text != nil || err != nil {
		t.Errorf("shared_identity() of the agent with the token = %v, %v, want null", text, err)
	}
	if text, err := w.shared(t, other, hash); err == nil {
		t.Errorf("shared_identity() by the hash of a key that has not signed = %v, want a refusal", text)
	}
	if text, err := w.shared(t, key, w.tokenHash); text != nil || err != nil {
		t.Errorf("shared_identity() of a token, signed by the key = %v, %v, want null", text, err)
	}
	if got := one[string](t, w.conn, "SELECT string_agg(detail ->> 'agent' || ' ' || (detail ->> 'to' = $1)::text, ', ') FROM public.audit_events WHERE action = 'share_identity'", hash); got != "agent a true, agent a true" {
		t.Errorf("the audit says %q, want each share, with whom", got)
	}

	mustExec(t, w.conn, "UPDATE tendril.identity_shares SET expires_at = clock_timestamp()")
	if text, err := w.shared(t, key, hash); text != nil || err != nil {
		t.Errorf("shared_identity() after it expired = %v, %v, want null", text, err)
	}
	mustExec(t, w.conn, "SELECT * FROM tendril.expire()")
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.identity_shares"); n != 0 {
		t.Errorf("%d shares are kept after they expired, want none", n)
	}
}

// present has an agent store a certificate for a key, by a request that the signer has signed.
func (w *world) present(t *testing.T, signer, hash, key, certificate string, expires time.Time) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('tendril.signing_key', $1, true), set_config('tendril.nonce', $2, true), set_config('tendril.signed_at', extract(epoch FROM clock_timestamp())::text, true),
			set_config('tendril.signed_until', extract(epoch FROM clock_timestamp() + interval '1 minute')::text, true)`, signer, uuid.NewString()); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), "SELECT public.share_identity($1, $2, $3, $4)", hash, key, certificate, expires)
		return err
	})
}

// waiting are the certificates that an agent of the cluster is shown.
func (w *world) waiting(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce(string_agg(concat_ws(' ', left(c ->> 'key', 1), c ->> 'certificate'), ', ' ORDER BY n), '') FROM jsonb_array_elements(public.check_agent($1) -> 'certificates') WITH ORDINALITY e (c, n)", w.tokenHash)
}

// A certificate stands where the share will, for all agents of the cluster to verify. It is nobody's
// share, and only the agent that it is presented for stores it.
func TestCertificateWaitsForAShare(t *testing.T) {
	t.Parallel()
	const certificate = "tendril-identity-certificate-1.e30."
	w := newContract(t)
	key, hash := w.byKey(t, w.cluster, "a")
	other, otherHash := w.byKey(t, w.cluster, "b")
	foreign := w.foreignAgent(t).w
	foreignKey, foreignHash := w.byKey(t, foreign.cluster, "f")
	later := time.Now().Add(time.Hour)
	for _, c := range []struct{ signer, hash, key string }{{key, hash, key}, {key, hash, key}, {other, otherHash, other}, {foreignKey, foreignHash, foreignKey}} {
		if err := w.present(t, c.signer, c.hash, c.key, certificate+c.key[:1], later); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := w.waiting(t), "b "+certificate+"b, a "+certificate+"a"; got != want {
		t.Errorf("check_agent() shows %q, want the cluster's, the newest first: %q", got, want)
	}
	if n := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'present_identity_certificate' AND detail ->> 'agent' IN ('agent a', 'agent b')"); n != 2 {
		t.Errorf("the audit has %d certificates, want each once", n)
	}
	if text, err := w.shared(t, key, hash); text != nil || err != nil {
		t.Errorf("shared_identity() = %v, %v, want null: a certificate is no share", text, err)
	}
	for name, c := range map[string]struct {
		signer, hash, key, certificate string
		expires                        time.Time
	}{
		"for another agent":          {other, otherHash, key, certificate, later},
		"by a token":                 {"", w.tokenHash, key, certificate, later},
		"too large":                  {key, hash, key, certificate + strings.Repeat("x", 8192), later},
		"expired":                    {key, hash, key, certificate, time.Now().Add(-time.Second)},
		"of an unknown kind":         {key, hash, key, "tendril-order-1.e30.", later},
		"before a share for another": {other, otherHash, key, certificate + sealedShare, later},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, w.present(t, c.signer, c.hash, c.key, c.certificate, c.expires), "PT422", "bad_share")
		})
	}
	if err := w.share(t, w.tokenHash, key, sealedShare, later); err != nil {
		t.Fatal(err)
	}
	mustExec(t, w.conn, "UPDATE tendril.agent_keys SET revoked_at = now() WHERE name = 'agent b'")
	if got := w.waiting(t); got != "" {
		t.Errorf("check_agent() shows %q, want nothing of an agent that has its share, or whose key is revoked", got)
	}
	mustExec(t, w.conn, "UPDATE tendril.agent_keys SET revoked_at = NULL")
	mustExec(t, w.conn, `INSERT INTO tendril.agent_keys (cluster_id, public_key, name) SELECT $1, sha256(n::text::bytea), 'many' FROM generate_series(1, 30) n`, w.cluster)
	mustExec(t, w.conn, `INSERT INTO tendril.identity_shares (key_id, shared_by, sealed, expires_at) SELECT id, id, 'tendril-identity-certificate-1.', now() + interval '1 hour' FROM tendril.agent_keys WHERE name = 'many'`)
	if n := strings.Count(w.waiting(t), "certificate"); n != 20 {
		t.Errorf("check_agent() shows %d certificates, want 20 at most", n)
	}
	mustExec(t, w.conn, "UPDATE tendril.identity_shares SET expires_at = clock_timestamp()")
	if got := w.waiting(t); got != "" {
		t.Errorf("check_agent() shows %q, want nothing that has expired", got)
	}
}

func TestShareIdentityRefuses(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	key, hash := w.byKey(t, w.cluster, "a")
	revoked, _ := w.byKey(t, w.cluster, "c")
	foreign, _ := w.byKey(t, w.foreignAgent(t).w.cluster, "f")
	mustExec(t, w.conn, "UPDATE tendril.agent_keys SET revoked_at = now() WHERE name = 'agent c'")
	later := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		to, sealed   string
		expires      any
		code, reason string
	}{
		"another cluster's key": {foreign, sealedShare, later, "PT404", "key_not_found"},
		"a revoked key":         {revoked, sealedShare, later, "PT404", "key_not_found"},
		"an unknown key":        {strings.Repeat("0", 64), sealedShare, later, "PT404", "key_not_found"},
		"no key":                {"key", sealedShare, later, "PT404", "key_not_found"},
		"plain text":            {key, "AGE-SECRET-KEY-1", later, "PT422", "bad_share"},
		"too much":              {key, sealedShare + strings.Repeat("x", 65536), later, "PT422", "bad_share"},
		"expired":               {key, sealedShare, time.Now().Add(-time.Second), "PT422", "bad_share"},
		"for too long":          {key, sealedShare, time.Now().Add(9 * 24 * time.Hour), "PT422", "bad_share"},
		"no time":               {key, sealedShare, nil, "PT422", "bad_share"},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, w.share(t, w.tokenHash, c.to, c.sealed, c.expires), c.code, c.reason)
		})
	}
	wantRefusal(t, w.share(t, strings.Repeat("0", 64), key, sealedShare, later), "PT401", "token_invalid")
	wantRefusal(t, w.share(t, hash, key, sealedShare, later), "PT401", "token_invalid") // not signed
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.identity_shares"); n != 0 {
		t.Errorf("%d shares were stored, want none", n)
	}
}

func TestAgentKeyByFingerprint(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	key, hash := w.byKey(t, w.cluster, "a")
	_, foreign := w.byKey(t, w.foreignAgent(t).w.cluster, "f")
	find := func(fingerprint string) (found *string, err error) {
		err = w.conn.QueryRow(t.Context(), "SELECT public.agent_key($1, $2)", w.tokenHash, fingerprint).Scan(&found)
		return found, err
	}
	for _, fingerprint := range []string{hash, hash[:22]} {
		if found, err := find(fingerprint); err != nil || found == nil || *found != key {
			t.Errorf("agent_key(%s) = %v, %v, want the key", fingerprint, found, err)
		}
	}
	if found, err := find(foreign); found != nil || err != nil {
		t.Errorf("agent_key(another cluster's) = %v, %v, want null", found, err)
	}
	for _, bad := range []string{hash[:20], strings.ToUpper(hash), "", hash + "0"} {
		_, err := find(bad)
		wantRefusal(t, err, "PT422", "bad_fingerprint")
	}
	mustExec(t, w.conn, "UPDATE tendril.agent_keys SET expires_at = clock_timestamp()")
	if found, err := find(hash); found != nil || err != nil {
		t.Errorf("agent_key() of an expired key = %v, %v, want null", found, err)
	}
}
