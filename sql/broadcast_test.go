package sql_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
)

// withRealtime is a contract in a database that has what Realtime needs, as a project's.
func withRealtime(t *testing.T) *world {
	t.Helper()
	w := newContract(t)
	mustExec(t, w.conn, realtimetest.Schema)
	return w
}

type broadcast struct {
	Topic, Event, Payload string
	Private               bool
}

// broadcasts reads what was sent since it was read last.
func (w *world) broadcasts(t *testing.T) []broadcast {
	t.Helper()
	rows, err := w.conn.Query(t.Context(), "WITH gone AS (DELETE FROM realtime.messages RETURNING *) SELECT topic, event, (payload - 'id')::text, private FROM gone ORDER BY event, topic")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[broadcast])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// topicOf computes the topic as an agent does, from nothing but its token.
func topicOf(token string) string {
	hash := sha256.Sum256([]byte(token))
	digest := sha256.Sum256(hash[:])
	topic := sha256.Sum256(append([]byte("tendril wake 1:"), digest[:]...))
	return "tendril-" + hex.EncodeToString(topic[:])
}

func TestDeployIsBroadcast(t *testing.T) {
	t.Parallel()
	w := withRealtime(t)
	agent := w.newAgent(t, "one")
	w.broadcasts(t)

	w.deploy(t, w.operator, snapshot("a"))
	work := broadcast{Topic: topicOf(w.token), Event: "work", Payload: "{}"}
	if got := w.broadcasts(t); !slices.Equal(got, []broadcast{work}) {
		t.Errorf("broadcasts of a deploy = %v, want %v", got, work)
	}
	claim, provision := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "plan"}`)
	w.broadcasts(t)
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.cancel_provision($1)", provision)
		return err
	})
	attention := broadcast{Topic: topicOf(w.token), Event: "attention", Payload: "{}"}
	if got := w.broadcasts(t); !slices.Equal(got, []broadcast{attention}) {
		t.Errorf("broadcasts of a cancel = %v, want %v", got, attention)
	}
}

// What a reader of the messages has is good for nothing else.
func TestBroadcastTopicTellsNoToken(t *testing.T) {
	t.Parallel()
	w := withRealtime(t)
	w.deploy(t, w.operator, snapshot("a"))
	topic := strings.TrimPrefix(w.broadcasts(t)[0].Topic, "tendril-")
	raw, err := hex.DecodeString(topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, tried := range []string{topic, hashOf(topic), hashOf(string(raw))} {
		_, err := w.conn.Exec(t.Context(), "SELECT public.check_agent($1)", tried)
		wantRefusal(t, err, "PT401", "token_invalid")
	}
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.cluster_tokens WHERE encode(digest, 'hex') = $1", topic); n != 0 {
		t.Error("the topic is a digest")
	}
}

func TestBroadcastsGoToTokensInForce(t *testing.T) {
	t.Parallel()
	w := withRealtime(t)
	tokens := []string{w.token}
	rotate := func(overlap string) {
		w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
			var token string
			err := tx.QueryRow(t.Context(), "SELECT token FROM public.rotate_cluster_token($1, $2)", w.cluster, overlap).Scan(&token)
			tokens = append(tokens, token)
			return err
		})
	}
	topics := func() []string {
		w.deploy(t, w.operator, snapshot(uuid.NewString()))
		var all []string
		for _, b := range w.broadcasts(t) {
			all = append(all, b.Topic)
		}
		return all
	}
	want := func(of ...string) {
		t.Helper()
		var wanted []string
		for _, token := range of {
			wanted = append(wanted, topicOf(token))
		}
		slices.Sort(wanted)
		if got := topics(); !slices.Equal(got, wanted) {
			t.Errorf("topics = %v, want those of %d tokens, %v", got, len(of), wanted)
		}
	}
	rotate("1 hour")
	want(tokens...)
	rotate("0")
	want(tokens[2])
	for range 5 {
		rotate("1 hour")
	}
	want(tokens[len(tokens)-4:]...)
	mustExec(t, w.conn, "UPDATE tendril.cluster_tokens SET revoked_at = clock_timestamp()")
	want()
}

// A transaction tells an agent once, however much it queues.
func TestBroadcastOncePerTransaction(t *testing.T) {
	t.Parallel()
	w := withRealtime(t)
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		for range 20 {
			if _, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, snapshot(uuid.NewString())); err != nil {
				return err
			}
		}
		// the person who deploys must not learn an agent's topic
		var topic string
		if err := tx.QueryRow(t.Context(), "SELECT coalesce(current_setting('realtime.topic', true), '')").Scan(&topic); err != nil {
			return err
		}
		if topic != "" {
			t.Errorf("the transaction's realtime.topic = %q, want none", topic)
		}
		return nil
	})
	if got := w.broadcasts(t); len(got) != 1 {
		t.Errorf("broadcasts of 20 deploys in one transaction = %v, want one", got)
	}
	// One that is rolled back to a savepoint is sent by the next.
	tx, err := w.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"SAVEPOINT a", "SELECT tendril.notify('tendril_work', '" + w.cluster.String() + "')", "ROLLBACK TO a",
		"SELECT tendril.notify('tendril_work', '" + w.cluster.String() + "')"} {
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.broadcasts(t); len(got) != 1 {
		t.Errorf("broadcasts after a savepoint was rolled back to = %v, want one", got)
	}
}

// Whatever Realtime does, a deploy is a deploy.
func TestDeployWithoutWorkingRealtime(t *testing.T) {
	t.Parallel()
	const slow = 3 * time.Second // as long as a statement of anon may take
	const stub = "CREATE OR REPLACE FUNCTION realtime.send(payload jsonb, event text, topic text, private boolean DEFAULT true) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
	for name, broken := range map[string]string{
		"no schema":           "DROP SCHEMA realtime CASCADE",
		"no function":         "DROP FUNCTION realtime.send",
		"other signature":     "DROP FUNCTION realtime.send; CREATE FUNCTION realtime.send(topic text) RETURNS void LANGUAGE sql AS 'SELECT'",
		"no table":            "DROP TABLE realtime.messages",
		"no partition":        "DROP TABLE realtime.messages_of_all_days",
		"raises":              stub + "RAISE EXCEPTION 'no'; END $$",
		"is cancelled":        stub + "RAISE query_canceled; END $$",
		"fails an assertion":  stub + "RAISE assert_failure; END $$",
		"somebody else's":     "CREATE ROLE %s; ALTER FUNCTION realtime.send OWNER TO %s",
		"somebody's schema":   "CREATE ROLE %s; ALTER SCHEMA realtime OWNER TO %s",
		"takes too long":      stub + "PERFORM pg_sleep(60); END $$",
		"the table is locked": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := withRealtime(t)
			role := "other_" + strings.ReplaceAll(uuid.NewString(), "-", "")
			if strings.Contains(broken, "%s") {
				broken = strings.ReplaceAll(broken, "%s", role)
				t.Cleanup(func() { _, _ = w.conn.Exec(t.Context(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role) })
			}
			switch name {
			case "the table is locked":
				other := open(t, w.conn.Config().ConnString())
				tx, err := other.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(t.Context()) //nolint:errcheck // only for its lock
				if _, err := tx.Exec(t.Context(), "LOCK TABLE realtime.messages IN ACCESS EXCLUSIVE MODE"); err != nil {
					t.Fatal(err)
				}
			default:
				mustExec(t, w.conn, broken)
			}
			began := time.Now()
			var id uuid.UUID
			w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
				if name == "takes too long" {
					if _, err := tx.Exec(t.Context(), "SET LOCAL statement_timeout = '3s'"); err != nil {
						return err
					}
				}
				return tx.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.cluster, snapshot("a")).Scan(&id)
			})
			if took := time.Since(began); took > slow+2*time.Second {
				t.Errorf("the deploy took %v", took)
			}
			if status := one[string](t, w.conn, "SELECT status::text FROM public.provisions WHERE id = $1", id); status != "QUEUED" {
				t.Errorf("status = %s, want QUEUED", status)
			}
		})
	}
}

// What a wake costs a transaction: elsewhere next to nothing, on Supabase some rows.
func BenchmarkBroadcast(b *testing.B) {
	for name, tokens := range map[string]int{"no realtime": 0, "1 token": 1, "4 tokens": 4} {
		b.Run(name, func(b *testing.B) {
			conn := pgtest.New(b, migrated).Conn(b)
			exec := func(query string, args ...any) {
				if _, err := conn.Exec(b.Context(), query, args...); err != nil {
					b.Fatal(err)
				}
			}
			exec("INSERT INTO public.orgs (name) VALUES ('acme')")
			exec("SELECT public.create_cluster('prod')")
			if tokens > 0 {
				exec(realtimetest.Schema)
				exec("SELECT tendril.issue_token(id) FROM public.clusters, generate_series(2, $1)", tokens)
			}
			for b.Loop() {
				exec("SELECT tendril.notify('tendril_work', id) FROM public.clusters")
			}
		})
	}
}
