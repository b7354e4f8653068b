package realtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/retry"
)

// mostFrame is the largest frame that is read, in bytes: what we expect takes 300.
const mostFrame = 64 << 10

// mostReason is how much of a server's reason is passed on, in bytes.
const mostReason = 200

// ErrAbsent is a server that has no Realtime: trellis, for one.
var ErrAbsent = errors.New("this server has no Realtime")

var (
	errRetopic = errors.New("another token, so another topic")
	errSilent  = errors.New("the subscription stands, but what the database sends does not arrive")
)

// RefusedError is a server that does not let us subscribe: trying soon again would not help.
type RefusedError struct{ Reason string }

// Error implements error.
func (r *RefusedError) Error() string { return "the server refuses the subscription: " + r.Reason }

// frame is a message of the protocol 1.0.0.
type frame struct {
	Topic   string          `json:"topic"`
	Event   string          `json:"event"`
	Payload json.RawMessage `json:"payload"`
	Ref     *string         `json:"ref"`
	JoinRef *string         `json:"join_ref,omitempty"`
}

// join is what phx_join asks for: broadcasts, and nothing else. replication_ready has a server
// that knows it end the channel if it cannot read what the database sends.
const join = `{"config":{"broadcast":{"ack":false,"self":false,"replication_ready":true},"presence":{"enabled":false},"postgres_changes":[],"private":false}}`

// The message of Realtime's system event with which it says that it reads what the database sends.
const replicationReady = "Replication connection established"

// callbacks are called by the goroutine of a session.
type callbacks struct {
	// joined: the subscription stands, and what was sent before may be lost. It may come again.
	joined func()
	// heard is called with each event of ours.
	heard func(event string)
	// deaf: no event has arrived, although the database was asked for one.
	deaf func()
}

// session subscribes to the topic until the subscription ends, and says why it did.
func (l *Listener) session(ctx context.Context, topic string, on callbacks) error {
	if topic == "" {
		return &RefusedError{Reason: "there is no token"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	conn.SetReadLimit(mostFrame)

	frames, broken := make(chan frame), make(chan error, 1)
	var begun sync.WaitGroup
	begun.Go(func() { broken <- read(ctx, conn, frames) })
	defer func() {
		cancel()
		_ = conn.CloseNow() // nothing is to be flushed
		begun.Wait()
	}()
	s := session{conn: conn, topic: "realtime:" + topic, patience: l.o.Patience}
	if err := s.push(ctx, s.topic, "phx_join", join); err != nil {
		return err
	}
	s.joinRef = s.ref
	beat := time.NewTicker(l.o.Beat)
	defer beat.Stop()
	unanswered := time.NewTimer(l.o.Patience)
	defer unanswered.Stop()
	// Both are set once joined.
	probe, deaf := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	probe.Stop()
	deaf.Stop()
	defer probe.Stop()
	defer deaf.Stop()
	joined := on.joined
	on.joined = func() {
		joined()
		if l.o.Probe != nil {
			probe.Reset(rand.N(l.o.ProbeWithin)) //nolint:gosec // so that agents which come back together ask once
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.again:
			if now := l.o.Topic(); now != topic {
				return errRetopic
			}
		case <-unanswered.C:
			if !s.joined {
				return errors.New("no answer to the subscription")
			}
		case <-beat.C:
			if s.beatRef != 0 {
				return errors.New("the server has become silent")
			}
			if err := s.push(ctx, "phoenix", "heartbeat", "{}"); err != nil {
				return err
			}
			s.beatRef = s.ref
		case err := <-broken:
			return err
		case <-probe.C:
			if !s.heard {
				begun.Go(func() { _ = l.o.Probe(ctx) }) // a database that is away: heartbeats tell
				deaf.Reset(l.o.Patience)
			}
		case <-deaf.C:
			if !s.heard {
				on.deaf()
				probe.Reset(retry.Jitter(l.o.Refused))
			}
		case f := <-frames:
			if err := s.take(f, on); err != nil {
				return err
			}
		}
	}
}

// connect opens the websocket.
func (l *Listener) connect(ctx context.Context) (*websocket.Conn, error) {
	address, err := l.o.address()
	if err != nil {
		return nil, err
	}
	// The context bounds the handshake alone.
	ctx, cancel := context.WithTimeout(ctx, l.o.Patience)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: l.client}) //nolint:bodyclose // the library does
	if err == nil {
		return conn, nil
	}
	if response == nil {
		return nil, fmt.Errorf("connect to Realtime: %w", withoutKey(err, l.o.APIKey))
	}
	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return nil, &RefusedError{Reason: fmt.Sprintf("the API key is not accepted (HTTP %d)", code)}
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return nil, fmt.Errorf("connect to Realtime: HTTP %d", code)
	default: // 404, or a page of something else
		return nil, fmt.Errorf("%w (HTTP %d)", ErrAbsent, code)
	}
}

// withoutKey is the error without the URL's key: it is public, but long.
func withoutKey(err error, key string) error {
	if key == "" || !strings.Contains(err.Error(), key) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), key, "…"))
}

// read passes frames on until the connection ends. What is no frame is ignored: hints have no
// business with whatever else a server may send.
func read(ctx context.Context, conn *websocket.Conn, frames chan<- frame) error {
	for {
		kind, r, err := conn.Reader(ctx)
		if err != nil {
			return lostBy(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return lostBy(err)
		}
		var f frame
		if kind != websocket.MessageText || json.Unmarshal(text, &f) != nil {
			continue
		}
		select {
		case frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lostBy(err error) error { return fmt.Errorf("the connection to Realtime has ended: %w", err) }

// session is one subscription. It belongs to the goroutine that reads frames.
type session struct {
	conn     *websocket.Conn
	topic    string
	patience time.Duration
	ref      int // of what was sent last
	joinRef  int
	beatRef  int // of a heartbeat that is not answered; 0: none
	joined   bool
	heard    bool // an event has arrived
}

// push sends a message, with a reference that its reply will have.
func (s *session) push(ctx context.Context, topic, event, payload string) error {
	s.ref++
	ref := strconv.Itoa(s.ref)
	f := frame{Topic: topic, Event: event, Payload: json.RawMessage(payload), Ref: &ref}
	if event == "phx_join" {
		f.JoinRef = &ref
	}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageText, text); err != nil {
		return lostBy(err)
	}
	return nil
}

// take does what a frame says; an error ends the session.
func (s *session) take(f frame, on callbacks) error {
	ours := f.Topic == s.topic
	switch {
	case f.Event == "phx_reply" && f.Topic == "phoenix":
		if refersTo(f, s.beatRef) {
			s.beatRef = 0
		}
	case f.Event == "phx_reply" && ours && refersTo(f, s.joinRef) && !s.joined:
		var reply struct {
			Status   string `json:"status"`
			Response struct {
				Reason string `json:"reason"`
			} `json:"response"`
		}
		switch {
		case json.Unmarshal(f.Payload, &reply) != nil || reply.Status == "": // nonsense
		case reply.Status != "ok":
			return joinError(reply.Response.Reason)
		default:
			s.joined = true
			on.joined()
		}
	case f.Event == "system" && ours:
		var system struct {
			Status    string `json:"status"`
			Message   string `json:"message"`
			Extension string `json:"extension"`
		}
		switch {
		case json.Unmarshal(f.Payload, &system) != nil || system.Extension != "system":
		case system.Status == "error":
			return fmt.Errorf("the server ends the subscription: %s", clean(system.Message))
		case system.Message == replicationReady && s.joined:
			on.joined() // what was sent before it read the database is lost
		}
	case (f.Event == "phx_close" || f.Event == "phx_error") && ours:
		return errors.New("the server has ended the subscription")
	case f.Event == "broadcast" && ours && s.joined:
		var broadcast struct {
			Event string `json:"event"`
		}
		if json.Unmarshal(f.Payload, &broadcast) == nil && slices.Contains(events, broadcast.Event) {
			s.heard = true
			on.heard(broadcast.Event)
		}
	}
	return nil //nolint:nilerr // what is not understood is passed over
}

func refersTo(f frame, ref int) bool {
	return ref != 0 && f.Ref != nil && *f.Ref == strconv.Itoa(ref)
}

// passing are beginnings of reasons that pass by themselves, as Realtime's documentation has them.
var passing = []string{"InitializingProjectConnection", "IncreaseConnectionPool", "DatabaseLackOfConnections", "DatabaseConnectionRateLimitReached",
	"UnableToConnectToProject", "RealtimeRestarting", "ConnectionRateLimitReached", "ClientJoinRateLimitReached", "ChannelRateLimitReached",
	"TimeoutOnRpcCall", "ErrorOnRpcCall", "MissingPartition", "Unknown"}

func joinError(reason string) error {
	for _, p := range passing {
		if strings.HasPrefix(reason, p) {
			return fmt.Errorf("the server can't subscribe us now: %s", clean(reason))
		}
	}
	return &RefusedError{Reason: clean(reason)}
}

// clean is a server's text for a line of a log.
func clean(text string) string {
	text = strings.Join(strings.Fields(text[:min(len(text), mostReason)]), " ")
	if text == "" {
		return "it gives no reason"
	}
	return printable.Text(strings.ToValidUTF8(text, ""))
}
