package live_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	usual = 2 * time.Minute
	// sockets is about what a connection holds on either side: little, so that
	// little makes a reader slow.
	sockets = 64 << 10
)

// narrow is how clients connect.
var narrow = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) { // before it connects, or it does not count
		controlErr := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, sockets) })
		return errors.Join(controlErr, err)
	}}).DialContext(ctx, network, address)
}}

// world is a hub on a database with one provision, and a viewer who may see it.
type world struct {
	*queuetest.World
	hub       *live.Hub
	server    *httptest.Server
	viewer    uuid.UUID
	provision uuid.UUID
	stop      func() // ends the hub and waits for it
}

type option func(*live.Hub)

func newWorld(t *testing.T, limits live.Limits, opts ...option) *world {
	t.Helper()
	return worldOf(t, queuetest.NewWorld(t), "", limits, opts...)
}

// worldOf is a world whose hub reaches the database by another URL.
func worldOf(t *testing.T, q *queuetest.World, url string, limits live.Limits, opts ...option) *world {
	t.Helper()
	w := &world{World: q, viewer: uuid.New()}
	if url == "" {
		url = q.URL
	}
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, w.viewer)
	w.provision = w.queue(t)
	database, err := store.Connect(t.Context(), url, 8)
	if err != nil {
		t.Fatal(err)
	}
	w.hub = live.NewHub(database, slog.New(slog.DiscardHandler), limits)
	for _, opt := range opts {
		opt(w.hub)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.hub.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-ended
	}
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	w.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(sockets)
		return ctx
	}
	w.server.Start()
	t.Cleanup(func() {
		w.stop()
		w.server.Close()
		database.Close()
	})
	return w
}

// serve is what package api does around the hub. Person, provision and position
// are said by the query.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	who := uuid.MustParse(query.Get("person"))
	if r.URL.Path == "/live" {
		w.hub.ServeHTTP(rw, r.WithContext(person.With(r.Context(), person.Person{ID: who})))
		return
	}
	after, _ := strconv.ParseInt(query.Get("after"), 10, 64)
	f := live.Follower{Person: who, Provision: w.provision, After: after, Again: query.Has("again")}
	serve := w.hub.ServeLog
	if r.URL.Path == "/events" {
		serve = w.hub.ServeEvents
	}
	if err := serve(rw, r, f); err != nil {
		status := http.StatusServiceUnavailable
		if refused, ok := err.(*store.RefusedError); ok { //nolint:errorlint // it is not wrapped
			status = refused.Status()
		}
		http.Error(rw, err.Error(), status)
	}
}

func (w *world) queue(t *testing.T) (id uuid.UUID) {
	t.Helper()
	const snapshot = `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": %q}`
	if err := w.Conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id",
		w.Cluster, fmt.Sprintf(snapshot, "w"+uuid.NewString()[:8])).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// say appends rows to the log, as the database does it.
func (w *world) say(t *testing.T, count int) {
	t.Helper()
	for range count {
		if _, err := w.Conn.Exec(t.Context(), "SELECT tendril.system_line($1, 'row')", w.provision); err != nil {
			t.Error(err)
			return
		}
	}
}

// fill appends rows of that many bytes, without telling anybody.
func (w *world) fill(t *testing.T, count, bytes int) {
	t.Helper()
	w.Exec(t, `WITH first AS (SELECT tendril.take_seq($1, $2, 1) AS seq)
		INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
		SELECT $1, first.seq + n - 1, $3, 'STDOUT', left(repeat(md5(n::text), $4 / 32 + 1), $4), clock_timestamp() FROM first, generate_series(1, $2) n`,
		w.provision, count, w.Org, bytes)
}

// archive puts the rows that there are together, as it happens to old logs.
func (w *world) archive(t *testing.T) {
	t.Helper()
	w.Exec(t, "SELECT tendril.archive_part($1, $2)", w.provision, w.Org)
	var left int
	if err := w.Conn.QueryRow(t.Context(), "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1", w.provision).Scan(&left); err != nil || left > 0 {
		t.Errorf("rows that are not archived = %d, %v, want none", left, err)
	}
}

func (w *world) end(t *testing.T) {
	t.Helper()
	w.Exec(t, "SELECT tendril.end_provision($1, 'CANCELLED', NULL, NULL)", w.provision)
}

// reader is a client of one stream.
type reader struct {
	response *http.Response
	lines    *bufio.Scanner
	cancel   context.CancelFunc
}

// open asks for a stream; the query says what.
func (w *world) open(t *testing.T, path, query string, who uuid.UUID) *reader {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), usual)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path+"?person="+who.String()+"&"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := narrow.RoundTrip(request) //nolint:bodyclose // by close
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r := &reader{response: response, lines: bufio.NewScanner(response.Body), cancel: cancel}
	r.lines.Buffer(nil, 1<<20)
	t.Cleanup(r.close)
	return r
}

func (r *reader) close() {
	r.cancel()
	_ = r.response.Body.Close()
}

// message is one event of a stream, or a comment.
type message struct{ id, event, data, comment string }

// next reads one; false at the end of the stream.
func (r *reader) next() (m message, ok bool) {
	for r.lines.Scan() {
		line := r.lines.Text()
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && m != (message{}):
			return m, true
		case field == "id":
			m.id = value
		case field == "event":
			m.event = value
		case field == "data":
			m.data = value
		case field == "":
			m.comment = value
		}
	}
	return m, false
}

// until reads up to a message of that name and returns the ids of the rows before it.
func (r *reader) until(event string) (seqs []int64, last message, found bool) {
	for {
		m, ok := r.next()
		switch {
		case !ok:
			return seqs, m, false
		case m.event == event:
			return seqs, m, true
		case m.event == "log":
			var row store.LogRow
			if json.Unmarshal([]byte(m.data), &row) != nil || strconv.FormatInt(row.Seq, 10) != m.id {
				return seqs, m, false
			}
			seqs = append(seqs, row.Seq)
		}
	}
}

// follows reports whether these are from+1 … to, each once and in order.
func follows(seqs []int64, from, to int64) error {
	if int64(len(seqs)) != to-from {
		return fmt.Errorf("%d rows, want %d", len(seqs), to-from)
	}
	for i, seq := range seqs {
		if want := from + int64(i) + 1; seq != want {
			return fmt.Errorf("row %d in place of %d", seq, want)
		}
	}
	return nil
}

// listeners counts the sessions that listen, and kills them when asked to.
func (w *world) listeners(t *testing.T, kill bool) (count int) {
	t.Helper()
	query := "SELECT count(CASE WHEN $1 THEN pg_terminate_backend(pid) ELSE true END) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'trellis live' OFFSET 0) l"
	conn, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(t.Context(), query, kill).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}
