package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	if !strings.HasPrefix(w.token, "tnd_") || len(w.token) != len("tnd_")+43 {
		t.Errorf("token has %d characters and begins %q, want tnd_ and 32 bytes in base64url", len(w.token), w.token[:4])
	}
	agent := w.newAgent(t, "one")
	stored := one[[]byte](t, w.conn, "SELECT digest FROM tendril.cluster_tokens")
	if strings.Contains(fmt.Sprintf("%x", stored), w.tokenHash) {
		t.Error("the table holds what the agent sends; want only a digest of it")
	}

	var newID uuid.UUID
	var newToken string
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT token_id, token FROM public.rotate_cluster_token($1, '1 hour')", w.cluster).Scan(&newID, &newToken)
	})
	old := w.tokenHash
	for _, hash := range []string{old, hashOf(newToken)} { // both, so that a rotation has no gap
		w.tokenHash = hash
		if _, err := agent.heartbeat(t); err != nil {
			t.Errorf("heartbeat during rotation: %v", err)
		}
	}
	mustExec(t, w.conn, "UPDATE tendril.cluster_tokens SET expires_at = clock_timestamp() - interval '1 second' WHERE id <> $1", newID)
	w.tokenHash = old
	_, err := agent.heartbeat(t)
	wantRefusal(t, err, "PT401", "token_invalid")
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.revoke_cluster_token($1, $2)", w.cluster, newID)
		return err
	})
	w.tokenHash = hashOf(newToken)
	_, err = agent.heartbeat(t)
	wantRefusal(t, err, "PT401", "token_invalid")
	_, err = w.conn.Exec(t.Context(), "SELECT public.rotate_cluster_token($1, '31 days')", w.cluster)
	wantRefusal(t, err, "PT422", "bad_overlap")
	for _, user := range []uuid.UUID{w.operator, w.stranger} {
		err := w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SELECT public.rotate_cluster_token($1)", w.cluster)
			return err
		})
		wantRefusal(t, err, "PT404", "cluster_not_found")
	}
	for _, hash := range []string{"", "x", strings.Repeat("0", 64), w.token, strings.ToUpper(old)} {
		w.tokenHash = hash
		_, err := agent.heartbeat(t)
		wantRefusal(t, err, "PT401", "token_invalid")
	}
}
