// Package realtimetest is Supabase's Realtime, as far as broadcasts go: a server of its protocol
// 1.0.0 that takes only what Supabase documents and answers with the documented frames, and the
// schema that a project's database has for it.
//
// It must not know what is broadcast, nor who hears it.
package realtimetest

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Key is the public key of a fake project.
const Key = "sb_publishable_realtimetest"

//go:embed frames/*.json
var frames embed.FS

// Frame is one of frames/, with what stands for what replaced.
func Frame(t testing.TB, name string, replace ...string) string {
	t.Helper()
	text, err := frames.ReadFile("frames/" + name + ".json")
	if err != nil {
		t.Fatalf("realtimetest: %v", err)
	}
	return strings.NewReplacer(replace...).Replace(strings.TrimSpace(string(text)))
}

// Behaviour is what a server does other than a good one would.
type Behaviour struct {
	// Status is what the handshake is answered with instead of 101.
	Status int
	// Reason refuses each join.
	Reason string
	// JoinAfter is how long a join waits for its reply; negative: for ever.
	JoinAfter time.Duration
	// Deaf leaves heartbeats unanswered.
	Deaf bool
	// Before are frames that are sent ahead of a join's reply.
	Before []string
}

// Server is a fake Realtime.
type Server struct {
	// URL is the project's: https://…
	URL string
	// Rest serves all paths but Realtime's; nil: nothing.
	Rest http.Handler

	server *httptest.Server
	t      testing.TB
	mu     sync.Mutex
	b      Behaviour
	open   []*socket
	joins  int // that were asked for
	beats  int
	dials  int
	change chan struct{} // closed at each change of these
}

// socket is one connection.
type socket struct {
	conn  *websocket.Conn
	topic string // joined; "": none
	ref   string // of its join
}

// Serve starts one that is good until Behave says otherwise.
func Serve(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, change: make(chan struct{})}
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.server.EnableHTTP2 = true // a project's speaks it, and websockets can't use it
	s.server.StartTLS()
	s.URL = s.server.URL
	t.Cleanup(func() {
		s.Cut()
		s.server.Close()
	})
	return s
}

// Transport trusts the server.
func (s *Server) Transport() *http.Transport { return s.server.Client().Transport.(*http.Transport) }

// Certificate is the server's, in DER.
func (s *Server) Certificate() []byte { return s.server.Certificate().Raw }

// Behave changes what the server does from now on.
func (s *Server) Behave(b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = b
}

func (s *Server) behaviour() Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b
}

// changed changes something, and wakes who waits for it.
func (s *Server) changed(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.change)
	s.change = make(chan struct{})
}

// Seen is what the server has seen.
type Seen struct {
	// Topics are joined now, without "realtime:".
	Topics []string
	// Dials, Joins and Beats are how often it was connected, asked to join and sent a heartbeat.
	Dials, Joins, Beats int
}

func (s *Server) seen() (Seen, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := Seen{Joins: s.joins, Beats: s.beats, Dials: s.dials}
	for _, o := range s.open {
		if o.topic != "" {
			seen.Topics = append(seen.Topics, strings.TrimPrefix(o.topic, "realtime:"))
		}
	}
	return seen, s.change
}

// Seen is what it has seen until now.
func (s *Server) Seen() Seen {
	seen, _ := s.seen()
	return seen
}

// Await waits until it has seen what is wanted.
func (s *Server) Await(what string, is func(Seen) bool) {
	s.t.Helper()
	ctx, cancel := patience.Context(s.t.Context(), 30*time.Second)
	defer cancel()
	for {
		seen, change := s.seen()
		if is(seen) {
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			s.t.Fatalf("realtimetest: waited for %s; seen: %+v", what, seen)
		}
	}
}

// AwaitTopic waits until a topic is joined.
func (s *Server) AwaitTopic(topic string) {
	s.t.Helper()
	s.Await("topic "+topic, func(seen Seen) bool { return slices.Contains(seen.Topics, topic) })
}

// Cut ends all connections, as a network does.
func (s *Server) Cut() {
	s.mu.Lock()
	open := slices.Clone(s.open)
	s.mu.Unlock()
	for _, o := range open {
		_ = o.conn.CloseNow()
	}
}

// Send sends a text to all that have joined; TOPIC, CHANNEL and REF are replaced.
func (s *Server) Send(text string) {
	s.send(func(string) bool { return true }, websocket.MessageText, text)
}

// SendBinary is Send of a binary frame.
func (s *Server) SendBinary(data string) {
	s.send(func(string) bool { return true }, websocket.MessageBinary, data)
}

// Broadcast sends an event to all that have joined a topic.
func (s *Server) Broadcast(topic, event string) {
	s.send(func(joined string) bool { return joined == "realtime:"+topic }, websocket.MessageText, Frame(s.t, "broadcast", "EVENT", event))
}

func (s *Server) send(to func(topic string) bool, kind websocket.MessageType, text string) {
	s.mu.Lock()
	open := slices.Clone(s.open)
	s.mu.Unlock()
	for _, o := range open {
		if o.topic != "" && to(o.topic) {
			_ = o.conn.Write(context.Background(), kind, []byte(o.filled(text))) // one that has gone hears nothing
		}
	}
}

func (o *socket) filled(text string) string {
	return strings.NewReplacer("TOPIC", o.topic, "CHANNEL", strings.TrimPrefix(o.topic, "realtime:"), "REF", o.ref).Replace(text)
}

// Forward broadcasts what is written to realtime.messages of a database that has Schema, from now
// until the test is over.
func (s *Server) Forward(databaseURL string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), databaseURL)
	if err != nil {
		s.t.Fatalf("realtimetest: %v", err)
	}
	if _, err := conn.Exec(s.t.Context(), "LISTEN realtime_fake"); err != nil {
		s.t.Fatalf("realtimetest: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	s.t.Cleanup(func() {
		cancel()
		done.Wait()
		_ = conn.Close(context.Background())
	})
	done.Go(func() {
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			var row struct {
				Topic, Event string
				Private      bool
			}
			if err := json.Unmarshal([]byte(n.Payload), &row); err != nil {
				s.t.Errorf("realtimetest: %v", err)
			}
			if !row.Private { // private topics are others of the same name
				s.Broadcast(row.Topic, row.Event)
			}
		}
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/realtime/v1/websocket" {
		if s.Rest != nil {
			s.Rest.ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r)
		return
	}
	s.changed(func() { s.dials++ })
	if status := s.behaviour().Status; status != 0 {
		w.Header().Set("Location", "/signin")
		w.WriteHeader(status)
		return
	}
	if q := r.URL.Query(); q.Get("apikey") != Key || q.Get("vsn") != "1.0.0" || len(q) != 2 {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	o := &socket{conn: conn}
	s.changed(func() { s.open = append(s.open, o) })
	defer s.changed(func() { s.open = slices.DeleteFunc(s.open, func(other *socket) bool { return other == o }) })
	defer conn.CloseNow() //nolint:errcheck // it is over
	for {
		kind, text, err := conn.Read(context.Background())
		if err != nil {
			return
		}
		if kind != websocket.MessageText {
			s.t.Errorf("realtimetest: the client sent a binary frame")
			return
		}
		if err := s.take(o, text); err != nil {
			s.t.Errorf("realtimetest: the client sent %s: %v", text, err)
			return
		}
	}
}

// take answers a frame of the client's.
func (s *Server) take(o *socket, text []byte) error {
	var f struct {
		Topic, Event, Ref string
		JoinRef           string `json:"join_ref"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Ref == "" {
		return errors.New("no ref")
	}
	b := s.behaviour()
	answer := func(text string) {
		_ = o.conn.Write(context.Background(), websocket.MessageText, []byte(strings.NewReplacer("TOPIC", f.Topic, "REF", f.Ref).Replace(text)))
	}
	switch f.Event {
	case "heartbeat":
		if !same(string(text), Frame(s.t, "heartbeat", "REF", f.Ref)) {
			return errors.New("no heartbeat as documented")
		}
		if !b.Deaf {
			answer(Frame(s.t, "beaten"))
		}
		s.changed(func() { s.beats++ })
	case "phx_join":
		if !same(string(text), Frame(s.t, "join", "REF", f.Ref, "TOPIC", f.Topic)) || !strings.HasPrefix(f.Topic, "realtime:") || len(f.Topic) > 255 {
			return errors.New("no join as documented")
		}
		s.changed(func() { s.joins++ })
		for _, before := range b.Before {
			answer(before)
		}
		if b.JoinAfter < 0 {
			return nil
		}
		time.Sleep(b.JoinAfter) // the server that is played is slow
		if b.Reason != "" {
			answer(Frame(s.t, "refused", "REASON", b.Reason))
			return nil
		}
		// In this order, and at once: who is told that it has joined misses nothing from then on.
		s.changed(func() { answer(Frame(s.t, "joined")); o.topic, o.ref = f.Topic, f.Ref })
	default:
		return errors.New("no event of a listener's")
	}
	return nil
}

// same compares JSON.
func same(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, err := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err == nil && err2 == nil && string(p) == string(q)
}
