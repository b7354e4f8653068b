package sql_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// world is an organisation with one person of each role, a cluster and its
// token, in a database of its own.
type world struct {
	conn                                *pgx.Conn
	org, cluster                        uuid.UUID
	viewer, operator, adminID, stranger uuid.UUID
	token, tokenHash                    string
	tokenID                             uuid.UUID
}

func newContract(t *testing.T) *world {
	t.Helper()
	return newWorld(t, pgtest.New(t, migrated).Conn(t))
}

func newWorld(t *testing.T, conn *pgx.Conn) *world {
	t.Helper()
	// The database that it was copied from may be minutes old: not away, though.
	mustExec(t, conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() WHERE only_row")
	w := &world{conn: conn, viewer: uuid.New(), operator: uuid.New(), adminID: uuid.New(), stranger: uuid.New()}
	w.org = w.addOrg(t, "acme", map[uuid.UUID]string{w.viewer: "viewer", w.operator: "operator", w.adminID: "admin"})
	w.addOrg(t, "elsewhere", map[uuid.UUID]string{w.stranger: "admin"})
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token_id, token FROM public.create_cluster('prod')").Scan(&w.cluster, &w.tokenID, &w.token)
	})
	w.tokenHash = hashOf(w.token)
	return w
}

// applying asks for the acknowledgement of the apply, with the commit that it
// needs.
const applying = `{"stage": "apply", "commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func (w *world) addOrg(t *testing.T, name string, members map[uuid.UUID]string) uuid.UUID {
	t.Helper()
	var org uuid.UUID
	if err := w.conn.QueryRow(t.Context(), "INSERT INTO public.orgs (name) VALUES ($1) RETURNING id", name).Scan(&org); err != nil {
		t.Fatalf("add org %s: %v", name, err)
	}
	for user, role := range members {
		mustExec(t, w.conn, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", org, user, role)
	}
	return org
}

// try runs do in a transaction of the given role and user, as PostgREST would,
// and commits it.
func (w *world) try(t *testing.T, role string, user uuid.UUID, do func(tx pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		claims := fmt.Sprintf(`{"sub": %q, "role": %q}`, user, role)
		if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true)", claims); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
			return err
		}
		return do(tx)
	})
}

func (w *world) as(t *testing.T, role string, user uuid.UUID, do func(tx pgx.Tx) error) {
	t.Helper()
	if err := w.try(t, role, user, do); err != nil {
		t.Fatalf("as %s: %v", role, err)
	}
}

func snapshot(workspace string) string {
	return fmt.Sprintf(`{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1.2.0"},
		"terraform_vars": {"project_name": "acme"}, "workspace": %q}`, workspace)
}

func (w *world) tryDeploy(t *testing.T, user uuid.UUID, snapshot string) (uuid.UUID, error) {
	t.Helper()
	var id uuid.UUID
	err := w.try(t, "authenticated", user, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.cluster, snapshot).Scan(&id)
	})
	return id, err
}

func (w *world) deploy(t *testing.T, user uuid.UUID, snapshot string) uuid.UUID {
	t.Helper()
	id, err := w.tryDeploy(t, user, snapshot)
	if err != nil {
		t.Fatalf("deploy: %v", err)
	}
	return id
}

func (w *world) status(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT status FROM public.provisions WHERE id = $1", provision)
}

func (w *world) statusAndCode(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT status || coalesce('/' || error_code, '') FROM public.provisions WHERE id = $1", provision)
}

// log returns a provision's log as "seq stream text" lines and fails the test
// when its numbers are not 1, 2, 3, …
func (w *world) log(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	rows, err := w.conn.Query(t.Context(), "SELECT seq, stream_type, log_chunk FROM public.provision_logs WHERE provision_id = $1 ORDER BY seq", provision)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	var seq, want int64
	var stream, text string
	_, err = pgx.ForEachRow(rows, []any{&seq, &stream, &text}, func() error {
		if want++; seq != want {
			return fmt.Errorf("seq = %d, want %d", seq, want)
		}
		fmt.Fprintf(&all, "%d %s %s", seq, stream, text)
		return nil
	})
	if err != nil {
		t.Fatalf("log of %s: %v", provision, err)
	}
	return all.String()
}

// agent is one registered agent that speaks SQL.
type agent struct {
	w              *world
	instance, boot uuid.UUID
	name, host     string
	contract       int // 0: this program's own, or the database's if that is older
}

func (w *world) newAgent(t *testing.T, name string) *agent {
	t.Helper()
	a := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: name, host: name + ".example"}
	if err := a.register(t); err != nil {
		t.Fatalf("register %s: %v", name, err)
	}
	return a
}

// foreignAgent is an agent of another cluster, in another organisation.
func (w *world) foreignAgent(t *testing.T) *agent {
	t.Helper()
	other := *w
	w.as(t, "authenticated", w.stranger, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster('theirs')").Scan(&other.cluster, &other.token)
	})
	other.tokenHash = hashOf(other.token)
	return other.newAgent(t, "foreign")
}

func (a *agent) call(t *testing.T, into any, query string, args ...any) error {
	t.Helper()
	return a.w.try(t, "anon", uuid.Nil, func(tx pgx.Tx) error {
		err := tx.QueryRow(t.Context(), query, args...).Scan(into)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
}

func (a *agent) register(t *testing.T) error {
	t.Helper()
	var reply json.RawMessage
	about, err := json.Marshal(map[string]any{
		"instance_id": a.instance, "boot_id": a.boot, "name": a.name, "host": a.host, "version": "test", "contract": cmp.Or(a.contract, min(queue.Contract, one[int](t, a.w.conn, "SELECT tendril.contract_version()"))), "slots": 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.call(t, &reply, "SELECT public.register_agent($1, $2)", a.w.tokenHash, about)
}

type pulse struct {
	Cancel, Lost []uuid.UUID
}

func (a *agent) heartbeat(t *testing.T, claims ...uuid.UUID) (pulse, error) {
	t.Helper()
	if claims == nil {
		claims = []uuid.UUID{}
	}
	var p pulse
	err := a.call(t, &p, "SELECT public.agent_heartbeat($1, $2, $3, $4)", a.w.tokenHash, a.instance, a.boot, claims)
	return p, err
}

// claim takes the next provision; uuid.Nil when there is none.
func (a *agent) claim(t *testing.T, claimID uuid.UUID) (uuid.UUID, error) {
	t.Helper()
	var provision uuid.UUID
	err := a.call(t, &provision, "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, $4)", a.w.tokenHash, a.instance, a.boot, claimID)
	return provision, err
}

// mustClaim takes the next provision under a new claim id.
func (a *agent) mustClaim(t *testing.T) (claim, provision uuid.UUID) {
	t.Helper()
	claim = uuid.New()
	provision, err := a.claim(t, claim)
	if err != nil || provision == uuid.Nil {
		t.Fatalf("claim = %v, %v, want a provision", provision, err)
	}
	return claim, provision
}

func (a *agent) report(t *testing.T, claim uuid.UUID, status, detail string) error {
	t.Helper()
	var void any
	return a.call(t, &void, "SELECT public.update_provision_status($1, $2, $3, $4)::text", a.w.tokenHash, claim, status, detail)
}

func (a *agent) mustReport(t *testing.T, claim uuid.UUID, status, detail string) {
	t.Helper()
	if err := a.report(t, claim, status, detail); err != nil {
		t.Fatalf("update_provision_status(%s, %s): %v", status, detail, err)
	}
}

func (a *agent) lines(t *testing.T, claim uuid.UUID, first int64, texts ...string) (int64, error) {
	t.Helper()
	chunks := make([]map[string]any, len(texts))
	for i, text := range texts {
		chunks[i] = map[string]any{"stream": "STDOUT", "text": text, "at": time.Now()}
	}
	encoded, err := json.Marshal(chunks)
	if err != nil {
		t.Fatal(err)
	}
	var next int64
	err = a.call(t, &next, "SELECT public.insert_provision_log($1, $2, $3, $4)", a.w.tokenHash, claim, first, encoded)
	return next, err
}

func (a *agent) sweep(t *testing.T) []uuid.UUID {
	t.Helper()
	return a.sweepBut(t)
}

// sweepBut leaves claims out.
func (a *agent) sweepBut(t *testing.T, except ...uuid.UUID) []uuid.UUID {
	t.Helper()
	var swept []uuid.UUID
	if err := a.call(t, &swept, "SELECT coalesce(array_agg(s), '{}') FROM public.fail_orphaned_provisions($1, $2, $3, $4) s", a.w.tokenHash, a.instance, a.boot, except); err != nil {
		t.Fatalf("fail_orphaned_provisions: %v", err)
	}
	return swept
}

// expire makes a claim's lease run out, with the pulse young enough to reap.
func (w *world) expire(t *testing.T, claim uuid.UUID) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1", claim)
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp(), reap_not_before = '-infinity'")
}

// age moves the end of a provision, and of what ran it, into the past.
func (w *world) age(t *testing.T, provision uuid.UUID, ago string) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE tendril.claims SET ended_at = ended_at - $2::interval WHERE provision_id = $1", provision, ago)
	mustExec(t, w.conn, "UPDATE public.provisions SET finished_at = finished_at - $2::interval WHERE id = $1", provision, ago)
}

// notification is the payload of the next NOTIFY that the connection listens for.
func (w *world) notification(t *testing.T) string {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	defer cancel()
	n, err := w.conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("waiting for a notification: %v", err)
	}
	return n.Payload
}

func mustExec(t *testing.T, conn *pgx.Conn, query string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func one[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var value T
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// wantRefusal fails the test unless err carries the SQLSTATE and the reason
// (its DETAIL), and returns the message.
func wantRefusal(t *testing.T, err error, state, reason string) string {
	t.Helper()
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != state || reason != "" && pg.Detail != reason {
		t.Fatalf("error = %v (%+v), want %s %s", err, pg, state, reason)
	}
	return pg.Message
}
