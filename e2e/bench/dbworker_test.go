package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// steps runs statements one by one, with values in place of {names}.
func steps(ctx context.Context, conn *pgx.Conn, values map[string]any, statements ...string) error {
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, "{"+name+"}", fmt.Sprint(value))
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, strings.NewReplacer(pairs...).Replace(statement)); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// worker is a registered agent with one connection of its login role, which
// asks as package pgqueue does. It stands for an agent in SQL, and no more.
type worker struct {
	conn           *pgx.Conn
	hash           string
	instance, boot uuid.UUID
}

// newWorkers registers as many agents.
func newWorkers(b *testing.B, w *queuetest.World, n int) []*worker {
	b.Helper()
	config, err := pgx.ParseConfig(w.AgentURL(b))
	if err != nil {
		b.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	sum := sha256.Sum256([]byte(w.Token))
	workers := make([]*worker, n)
	for i := range workers {
		conn, err := pgx.ConnectConfig(b.Context(), config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) })
		agent := queuetest.NewAgent(fmt.Sprint("bench-", uuid.New()))
		about, err := json.Marshal(agent)
		if err != nil {
			b.Fatal(err)
		}
		workers[i] = &worker{conn: conn, hash: hex.EncodeToString(sum[:]), instance: agent.Instance, boot: agent.Boot}
		if _, err := conn.Exec(b.Context(), "SELECT public.register_agent($1, $2::text::jsonb)", workers[i].hash, string(about)); err != nil {
			b.Fatal(err)
		}
	}
	return workers
}

// claim asks for work; pgx.ErrNoRows when there is none.
func (w *worker) claim(ctx context.Context, id uuid.UUID) error {
	var assignment json.RawMessage
	return w.conn.QueryRow(ctx, "SELECT to_jsonb(f) FROM public.fetch_next_provision($1, $2, $3, $4) f", w.hash, w.instance, w.boot, id).Scan(&assignment)
}

// beat sends a heartbeat without claims.
func (w *worker) beat(ctx context.Context) error {
	var reply json.RawMessage
	return w.conn.QueryRow(ctx, "SELECT public.agent_heartbeat($1, $2, $3, $4)", w.hash, w.instance, w.boot, []uuid.UUID{}).Scan(&reply)
}

// connections opens as many as superuser.
func connections(b *testing.B, url string, n int) []*pgx.Conn {
	b.Helper()
	conns := make([]*pgx.Conn, n)
	for i := range conns {
		conn, err := pgx.Connect(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) })
		conns[i] = conn
	}
	return conns
}
