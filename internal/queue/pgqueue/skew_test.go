package pgqueue_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// The database serves the first agent's own statements as on its first day, sent
// by a login that may do nothing else.
func TestFirstAgent(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	config, err := pgx.ParseConfig(w.AgentURL(t))
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // as then
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the test is over
	queuetest.FirstAgent(t, w, func(t *testing.T, call queuetest.Recorded) []byte {
		t.Helper()
		row := conn.QueryRow(t.Context(), call.SQL, call.Arguments(t)...)
		switch call.Function {
		case "update_provision_status":
			if err := row.Scan(nil); err != nil {
				t.Fatalf("%s: %v", call.Body(t), err)
			}
			return nil
		case "fail_orphaned_provisions":
			return encoded[[]uuid.UUID](t, call, row)
		case "fetch_next_provision":
			var answer json.RawMessage
			if err := row.Scan(&answer); errors.Is(err, pgx.ErrNoRows) {
				return []byte("[]")
			} else if err != nil {
				t.Fatalf("%s: %v", call.Body(t), err)
			}
			return []byte("[" + string(answer) + "]")
		case "insert_provision_log":
			return encoded[int64](t, call, row)
		}
		return encoded[json.RawMessage](t, call, row)
	})
}

// encoded is the one value of a row, as JSON.
func encoded[T any](t *testing.T, call queuetest.Recorded, row pgx.Row) []byte {
	t.Helper()
	var value T
	if err := row.Scan(&value); err != nil {
		t.Fatalf("%s: %v", call.Body(t), err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
