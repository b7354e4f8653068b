package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func recipient(letter string) string { return "age1" + strings.Repeat(letter, 58) }

// registerWith registers an agent that has a key, or none if it is "".
func (w *world) registerWith(t *testing.T, name, key string) (clusterKey string, err error) {
	t.Helper()
	about := fmt.Sprintf(`{"instance_id": %q, "boot_id": %q, "name": %q, "host": "h", "version": "1", "contract": 1, "slots": 1`, uuid.New(), uuid.New(), name)
	if key != "" {
		about += fmt.Sprintf(`, "age_public_key": %q`, key)
	}
	err = w.conn.QueryRow(t.Context(), "SELECT coalesce(public.register_agent($1, $2::jsonb) ->> 'age_public_key', 'none')", w.tokenHash, about+"}").Scan(&clusterKey)
	return clusterKey, err
}

func (w *world) setKey(t *testing.T, user uuid.UUID, key any) error {
	t.Helper()
	return w.try(t, "authenticated", user, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.set_cluster_key($1, $2)", w.cluster, key)
		return err
	})
}

func TestClusterKeyIsTheFirstAgents(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for i, c := range []struct{ key, want string }{
		{"", "none"}, {recipient("q"), recipient("q")}, {recipient("p"), recipient("q")}, {"", recipient("q")},
	} {
		if got, err := w.registerWith(t, fmt.Sprint("agent-", i), c.key); err != nil || got != c.want {
			t.Errorf("register_agent(key %q) answers the cluster's key %q, %v, want %q", c.key, got, err, c.want)
		}
	}
	if err := w.setKey(t, w.adminID, recipient("p")); err != nil {
		t.Fatal(err)
	}
	if got, err := w.registerWith(t, "after", recipient("q")); err != nil || got != recipient("p") {
		t.Errorf("register_agent() answers %q, %v, want what the admin has set", got, err)
	}
	if err := w.setKey(t, w.adminID, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := w.registerWith(t, "anew", recipient("z")); err != nil || got != recipient("z") {
		t.Errorf("register_agent() answers %q, %v, want its own key after the cluster's was taken away", got, err)
	}
	var audited string
	if err := w.conn.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', actor IS NULL, left(detail ->> 'age_public_key', 5), detail ->> 'agent'), ', ' ORDER BY id)
		FROM public.audit_events WHERE action = 'set_cluster_key'`).Scan(&audited); err != nil {
		t.Fatal(err)
	}
	if want := "t age1q agent-1, f age1p, f, t age1z anew"; audited != want {
		t.Errorf("audited = %q, want %q", audited, want)
	}
}

func TestClusterKeyIsARecipient(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, key := range []string{"x", "AGE-SECRET-KEY-1" + strings.Repeat("Q", 58), recipient("q") + "q", recipient("b"), recipient("q") + "\n" + recipient("q")} {
		_, err := w.registerWith(t, "one", key)
		wantRefusal(t, err, "PT422", "bad_agent")
		wantRefusal(t, w.setKey(t, w.adminID, key), "PT422", "bad_key")
	}
	wantRefusal(t, w.setKey(t, w.operator, recipient("q")), "PT404", "cluster_not_found")
	wantRefusal(t, w.setKey(t, w.stranger, recipient("q")), "PT404", "cluster_not_found")
}
