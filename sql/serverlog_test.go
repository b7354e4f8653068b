package sql_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// Whatever goes wrong, what the server writes into its log is no credential: not
// the token, not what the agent sends of it, not what the table has.
func TestServerLogHoldsNoToken(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		// As PostgreSQL comes, and more talkative.
		"any server": {"log_parameter_max_length": "-1", "log_min_error_statement": "info", "log_min_messages": "info"},
		// Every statement, on the server that trellis up runs.
		"our server": {"log_statement": "all", "log_min_duration_statement": "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := pgtest.Dir(t)
			server := pgtest.OwnServer(t, pgtest.In(dir), func(o *postgres.Options) { maps.Copy(o.Settings, settings) })
			if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background()) //nolint:errcheck // the test is over
			blocker, err := pgx.Connect(t.Context(), server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer blocker.Close(context.Background()) //nolint:errcheck // the test is over
			s := newScene(t, conn)
			s.goWrong(t, blocker)

			log, err := os.ReadFile(filepath.Join(dir, "postgres.log"))
			if err != nil {
				t.Fatal(err)
			}
			for _, written := range []string{"token is unknown, revoked or expired", "permission denied", "statement timeout", "invalid input syntax for type uuid", "STATEMENT:", "a-marker"} {
				if !strings.Contains(string(log), written) {
					t.Errorf("the log has no %q: the test shows nothing", written)
				}
			}
			sent, err := hex.DecodeString(s.tokenHash)
			if err != nil {
				t.Fatal(err)
			}
			stored := sha256.Sum256(sent)
			for what, secret := range map[string]string{"token": s.token, "hash": s.tokenHash, "digest": hex.EncodeToString(stored[:])} {
				if i := strings.Index(strings.ToLower(string(log)), strings.ToLower(secret[:16])); i >= 0 {
					t.Errorf("the log holds the %s: …%s…", what, log[max(0, i-300):min(len(log), i+100)])
				}
			}
		})
	}
}

// goWrong makes every call of an agent fail in every way there is.
func (s *scene) goWrong(t *testing.T, blocker *pgx.Conn) {
	t.Helper()
	arguments := map[string][]string{
		"register_agent": {"p_token_hash", "p_agent"}, "agent_heartbeat": {"p_token_hash", "p_instance", "p_boot", "p_claims"},
		"check_agent":          {"p_token_hash", "p_agent"},
		"fetch_next_provision": {"p_token_hash", "p_instance", "p_boot", "p_claim_id"}, "insert_provision_log": {"p_token_hash", "p_claim_id", "p_first_chunk", "p_chunks"},
		"append_provision_log":    {"p_token_hash", "p_claim_id", "p_first_chunk", "p_streams", "p_texts", "p_times"},
		"update_provision_status": {"p_token_hash", "p_claim_id", "p_status", "p_detail"}, "fail_orphaned_provisions": {"p_token_hash", "p_instance", "p_boot", "p_except"},
		"put_blob": {"p_token_hash", "p_claim_id", "p_kind", "p_number", "p_part", "p_parts", "p_digest", "p_meta", "p_data"},
		"get_blob": {"p_token_hash", "p_claim_id", "p_kind", "p_number", "p_part"},
	}
	types := map[string]string{
		"p_token_hash": "text", "p_agent": "jsonb", "p_instance": "uuid", "p_boot": "uuid", "p_claims": "uuid[]", "p_claim_id": "uuid", "p_first_chunk": "bigint",
		"p_chunks": "jsonb", "p_streams": "text[]", "p_texts": "text[]", "p_times": "timestamptz[]", "p_status": "text", "p_detail": "jsonb", "p_except": "uuid[]",
		"p_kind": "text", "p_number": "bigint", "p_part": "int", "p_parts": "int", "p_digest": "text", "p_meta": "jsonb", "p_data": "text",
	}
	// As PostgREST calls: the request's body is the one parameter.
	body := func(name string, values map[string]any) (string, string) {
		var columns, named []string
		for _, argument := range arguments[name] {
			columns = append(columns, argument+" "+types[argument])
			named = append(named, argument+" := a."+argument)
		}
		encoded, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("WITH request AS (SELECT $1::json AS body) SELECT f FROM request, json_to_record(body) AS a (%s), LATERAL public.%s(%s) f",
			strings.Join(columns, ", "), name, strings.Join(named, ", ")), string(encoded)
	}
	timeout := "0"
	call := func(role, query string, args ...any) error {
		return s.attempt(t, actor{role: role}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL statement_timeout = '"+timeout+"'"); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), query, args...)
			return err
		})
	}
	fails := func(what string, err error) {
		if err == nil {
			t.Errorf("%s = nil, want an error to look for in the log", what)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		good := map[string]any{"p_token_hash": s.tokenHash}
		for i, value := range functions[name].(forAgents).args(s) {
			argument := arguments[name][i+1]
			if text, ok := value.(string); ok && types[argument] == "jsonb" {
				value = json.RawMessage(text)
			}
			good[argument] = value
		}
		as := func(key string, value any) map[string]any {
			other := maps.Clone(good)
			other[key] = value
			return other
		}
		list := make([]any, len(arguments[name]))
		places := make([]string, len(list))
		for i, argument := range arguments[name] {
			places[i] = fmt.Sprintf("$%d", i+1)
			list[i] = good[argument]
			if raw, ok := list[i].(json.RawMessage); ok {
				list[i] = string(raw)
			}
		}
		direct := fmt.Sprintf("SELECT public.%s(%s)", name, strings.Join(places, ", "))
		query, _ := body(name, good)

		wrong := map[string]map[string]any{
			"the token itself": as("p_token_hash", s.token), "upper case": as("p_token_hash", strings.ToUpper(s.tokenHash)), "cut": as("p_token_hash", s.tokenHash[:63]),
		}
		for argument, value := range map[string]any{
			"p_claim_id": "no uuid", "p_instance": "no uuid", "p_boot": uuid.New(), "p_claims": []string{"no uuid"}, "p_except": []string{"no uuid"}, "p_first_chunk": "x", "p_status": "NO STATUS",
			"p_detail": json.RawMessage(`{"percent": 101}`), "p_chunks": json.RawMessage(`[{"text": "\u0000", "stream": "STDOUT", "at": "x"}]`),
			"p_agent": json.RawMessage(`{"instance_id": "00000000-0000-0000-0000-000000000000", "boot_id": "` + uuid.NewString() + `", "name": "n", "host": "h", "version": "1", "contract": 1, "slots": 1}`),
		} {
			if _, has := good[argument]; has && name != "check_agent" { // which takes what it is told
				wrong[argument] = as(argument, value)
			}
		}
		for what, values := range wrong {
			query, encoded := body(name, values)
			fails(name+", "+what, call("anon", query, encoded))
		}
		for _, token := range []string{s.token, strings.ToUpper(s.tokenHash)} {
			fails(name+" by a wrong token", call("anon", direct, append([]any{token}, list[1:]...)...))
		}
		_, encoded := body(name, good)
		fails(name+" by who may not", call("authenticated", direct, list...))
		fails(name+" by who may not", call("authenticated", query, encoded))
		fails(name+" by another name", call("anon", strings.Replace(direct, name, name+"s", 1), list...))
		mustExec(t, blocker, "BEGIN; LOCK TABLE tendril.cluster_tokens IN ACCESS EXCLUSIVE MODE")
		timeout = "100ms"
		fails(name+" that takes too long", call("anon", direct, list...))
		fails(name+" that takes too long", call("anon", query, encoded))
		timeout = "0"
		mustExec(t, blocker, "ROLLBACK")
		if err := call("anon", direct, list...); err != nil {
			t.Errorf("%s = %v, want nil", name, err)
		}
	}
	for _, query := range []string{
		"SELECT public.create_cluster('prod')", "SELECT public.create_cluster('not a name')", "SELECT public.rotate_cluster_token($1, '31 days')", "SELECT public.rotate_cluster_token($1)",
		"SELECT public.revoke_cluster_token($1)", "SELECT 1 / 0 FROM public.rotate_cluster_token($1)",
	} {
		args := []any{s.cluster}[:strings.Count(query, "$1")]
		_ = s.attempt(t, s.caller("rotate_cluster_token"), func(tx pgx.Tx) error { // some succeed: their token must not be there either
			_, err := tx.Exec(t.Context(), query, args...)
			return err
		})
	}
	// What stands in a statement is logged with it, so nobody may put a token there.
	_, err := s.conn.Exec(t.Context(), "SELECT public.register_agent('a-marker', '{}')", pgx.QueryExecModeSimpleProtocol)
	fails("a call with its arguments in the statement", err)
}
