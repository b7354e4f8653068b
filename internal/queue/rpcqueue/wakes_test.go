package rpcqueue_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/realtime"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
)

// project is a Supabase project: its database, Realtime, and what stands for PostgREST.
func project(t *testing.T) (*queuetest.World, *realtimetest.Server, rpcqueue.Options) {
	t.Helper()
	w := queuetest.NewWorld(t)
	w.Exec(t, realtimetest.Schema)
	server := realtimetest.Serve(t)
	server.Rest = gatewaytest.Handler(t, w, realtimetest.Key)
	server.Forward(w.URL)
	return w, server, rpcqueue.Options{
		URL: server.URL, APIKey: realtimetest.Key, CAFile: gatewaytest.CAFile(t, server.Certificate()), Token: w.Token, Agent: queuetest.NewAgent("one"),
	}
}

func awaitWake(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-patience.After(30 * time.Second):
		t.Fatalf("no wake for %s", what)
	}
}

// registered is a queue that has registered, and has heard an event; its first wakes are taken.
func registered(t *testing.T, w *queuetest.World, server *realtimetest.Server, o rpcqueue.Options) *rpcqueue.Queue {
	t.Helper()
	q := dial(t, o)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.AwaitTopic(realtime.Topic(w.Text(t, "SELECT encode(sha256($1::bytea), 'hex')", []byte(o.Token))))
	awaitWake(t, "the beginning", q.Work())
	patience.Await(t, "wakes arrive", func() bool { return q.Attention() != nil })
	drain(q)
	return q
}

// drain takes the wakes of what has just begun.
func drain(q *rpcqueue.Queue) {
	for {
		select {
		case <-q.Work():
		case <-q.Attention():
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

// An agent of a Supabase project has no connection to the database, and hears at once.
func TestRealtimeWakes(t *testing.T) {
	t.Parallel()
	w, server, o := project(t)
	q := registered(t, w, server, o)
	w.Exec(t, "UPDATE tendril.settings SET poll = '5 seconds'")
	if pulse, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil || pulse.Poll != time.Minute {
		t.Errorf("Heartbeat() = %+v, %v, want a poll each minute while wakes arrive", pulse, err)
	}

	id := w.Deploy(t, "a")
	awaitWake(t, "the deploy", q.Work())
	claim := uuid.New()
	a, err := q.Claim(t.Context(), claim)
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want the deploy", a, err)
	}
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	awaitWake(t, "the cancel", q.Attention())
	if pulse, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); err != nil || len(pulse.Cancel) != 1 {
		t.Errorf("Heartbeat() = %+v, %v, want the claim to be cancelled", pulse, err)
	}

	// Without Realtime everything is as it was.
	server.Behave(realtimetest.Behaviour{Status: http.StatusServiceUnavailable})
	server.Cut()
	awaitWake(t, "the end of the subscription", q.Work())
	patience.Await(t, "nothing wakes it", func() bool { return q.Attention() == nil })
	if pulse, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil || pulse.Poll != 5*time.Second {
		t.Errorf("Heartbeat() = %+v, %v, want what the database advises, for no wake arrives", pulse, err)
	}
}

func TestRealtimeFollowsTheToken(t *testing.T) {
	t.Parallel()
	w, server, o := project(t)
	var token atomic.Pointer[string]
	token.Store(&w.Token)
	o.TokenNow = func() string { return *token.Load() }
	q := registered(t, w, server, o)
	fresh := w.Text(t, "SELECT token FROM public.rotate_cluster_token($1, '0 seconds')", w.Cluster)
	token.Store(&fresh)
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatal(err)
	}
	server.AwaitTopic(realtime.Topic(w.Text(t, "SELECT encode(sha256($1::bytea), 'hex')", []byte(fresh))))
	awaitWake(t, "the new subscription", q.Work())
	drain(q)
	w.Deploy(t, "a")
	awaitWake(t, "the deploy", q.Work())
}

// Where the database sends nothing, or the address is no project's, no connection is tried.
func TestNoRealtime(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"plain database":  "DROP SCHEMA realtime CASCADE",
		"older database":  "CREATE OR REPLACE FUNCTION tendril.can_broadcast() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT null::boolean'",
		"PostgREST alone": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, server, o := project(t)
			if schema != "" {
				w.Exec(t, schema)
			} else {
				rest := server.Rest
				server.Rest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					r.URL.Path = "/rest/v1" + r.URL.Path
					rest.ServeHTTP(rw, r)
				})
				o.URL = server.URL + "/rpc"
			}
			q := dial(t, o)
			if _, err := q.Register(t.Context()); err != nil {
				t.Fatal(err)
			}
			// A websocket would be asked for before these calls are.
			for range 5 {
				if pulse, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil || pulse.Poll != 5*time.Second {
					t.Errorf("Heartbeat() = %+v, %v, want what the database advises", pulse, err)
				}
			}
			if seen := server.Seen(); seen.Dials != 0 || q.Attention() != nil {
				t.Errorf("the server was asked for a websocket %d times, and Attention() = %v; want neither", seen.Dials, q.Attention())
			}
		})
	}
}

func TestHears(t *testing.T) {
	t.Parallel()
	w, server, o := project(t)
	o.CallTimeout = patience.For(2 * time.Second)
	if err := rpcqueue.Hears(t.Context(), o); err != nil {
		t.Errorf("Hears() = %v, want nil", err)
	}
	w.Exec(t, "DROP TABLE realtime.messages_of_all_days")
	if err := rpcqueue.Hears(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not arrive") {
		t.Errorf("Hears() without a partition = %v, want that nothing arrives", err)
	}
	server.Behave(realtimetest.Behaviour{Reason: "PrivateOnly: This project only allows private channels"})
	err := rpcqueue.Hears(t.Context(), o)
	if _, refused := errors.AsType[*realtime.RefusedError](err); !refused {
		t.Errorf("Hears() of a private project = %v, want a RefusedError", err)
	}
	o.APIKey = ""
	if err := rpcqueue.Hears(t.Context(), o); !errors.Is(err, rpcqueue.ErrNoRealtime) {
		t.Errorf("Hears() without a key = %v, want ErrNoRealtime", err)
	}
}

// A subscription to which nothing is sent is no reason to poll seldom.
func TestRealtimeThatIsMute(t *testing.T) {
	t.Parallel()
	w, server, o := project(t)
	w.Exec(t, "DROP TABLE realtime.messages_of_all_days")
	probed, rest := make(chan struct{}), server.Rest
	once := sync.OnceFunc(func() { close(probed) })
	server.Rest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading a request: %v", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		rest.ServeHTTP(rw, r)
		if bytes.Contains(body, []byte(`"probe":true`)) {
			once()
		}
	})
	q := dial(t, o)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.AwaitTopic(realtime.Topic(w.Text(t, "SELECT encode(sha256($1::bytea), 'hex')", []byte(o.Token))))
	awaitWake(t, "the event that the agent asks for within five seconds", probed)
	if pulse, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil || pulse.Poll != 5*time.Second || q.Attention() != nil {
		t.Errorf("Heartbeat() = %+v, %v, and Attention() = %v, want what the database advises, for no wake arrives", pulse, err, q.Attention())
	}
}
