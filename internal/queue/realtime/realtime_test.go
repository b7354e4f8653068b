package realtime_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/queue/realtime"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const topic = "tendril-a"

// options are an agent's, in a hurry.
func options(server *realtimetest.Server, log *lines) realtime.Options {
	return realtime.Options{
		Project: server.URL, APIKey: realtimetest.Key, Transport: server.Transport(), Topic: func() string { return topic },
		Log:  slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Beat: time.Hour, Patience: patience.For(10 * time.Second), Soon: time.Millisecond, Seldom: 20 * time.Millisecond, Refused: time.Millisecond,
	}
}

func start(t *testing.T, o realtime.Options) *realtime.Listener {
	t.Helper()
	l := realtime.New(o)
	t.Cleanup(l.Stop)
	l.Start()
	return l
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-patience.After(30 * time.Second):
		t.Fatalf("%s did not come", what)
	}
}

// none fails the test if a wake has come.
func none(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		t.Errorf("%s came", what)
	default:
	}
}

// joined starts a listener and takes the wakes of its beginning.
func joined(t *testing.T, server *realtimetest.Server, o realtime.Options) *realtime.Listener {
	t.Helper()
	l := start(t, o)
	await(t, "the first work", l.Work())
	await(t, "the first attention", l.Attention())
	server.AwaitTopic(topic)
	if !l.Wakes() {
		t.Error("Wakes() = false after a join that is trusted")
	}
	return l
}

func TestWakes(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	l := joined(t, server, options(server, new(lines)))
	server.Broadcast(topic, "work")
	await(t, "work", l.Work())
	none(t, "attention", l.Attention())
	server.Broadcast(topic, "attention")
	await(t, "attention", l.Attention())
	none(t, "work", l.Work())
	if seen := server.Seen(); seen.Dials != 1 || seen.Joins != 1 {
		t.Errorf("the server saw %+v, want one dial and one join", seen)
	}
}

// What else a server sends changes nothing, and wakes nobody.
func TestIgnoresWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	server.Behave(realtimetest.Behaviour{Before: []string{
		realtimetest.Frame(t, "broadcast", "EVENT", "work"), realtimetest.Frame(t, "presence"), "[]", "{",
		realtimetest.Frame(t, "joined", "REF", "77"), realtimetest.Frame(t, "joined", "TOPIC", "realtime:other"),
	}})
	l := joined(t, server, options(server, new(lines)))
	for _, text := range []string{
		"", "null", "[]", "{", "7", `"work"`, `{"topic":7}`, `{"topic":"TOPIC","event":"broadcast"}`, `{"topic":"TOPIC","event":"broadcast","payload":"work"}`,
		`{"topic":"TOPIC","event":"broadcast","payload":{"event":7}}`, `{"topic":"TOPIC","event":"broadcast","payload":{"event":"other"}}`,
		`{"topic":"realtime:other","event":"broadcast","payload":{"event":"work"}}`, `{"topic":"TOPIC","event":"work","payload":{}}`,
		`{"topic":"TOPIC","event":"phx_reply","payload":{"status":"error"},"ref":"99"}`, `{"topic":"phoenix","event":"phx_reply","payload":null,"ref":null}`,
		`{"topic":"realtime:other","event":"phx_close","payload":{}}`, `{"topic":"TOPIC","event":"system","payload":[]}`,
		strings.Repeat("[", 60000), "\xff\xfe",
		realtimetest.Frame(t, "presence"), realtimetest.Frame(t, "changes"), realtimetest.Frame(t, "system-postgres", "REASON", "no"),
	} {
		server.Send(text)
	}
	server.SendBinary("\x04\x12\x04\x00\x01TOPICwork{}")
	server.Broadcast(topic, "attention") // after all of it
	await(t, "attention", l.Attention())
	none(t, "work", l.Work())
	if seen := server.Seen(); seen.Dials != 1 || !l.Wakes() {
		t.Errorf("the server saw %+v, and Wakes() = %t, want one connection that goes on", seen, l.Wakes())
	}
}

// However it ends, it begins again, and what was sent meanwhile is asked for.
func TestComesBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *realtimetest.Server){
		"connection cut": func(_ *testing.T, s *realtimetest.Server) { s.Cut() },
		"closed":         func(t *testing.T, s *realtimetest.Server) { s.Send(realtimetest.Frame(t, "close")) },
		"crashed":        func(t *testing.T, s *realtimetest.Server) { s.Send(realtimetest.Frame(t, "error")) },
		"shut down": func(t *testing.T, s *realtimetest.Server) {
			s.Send(realtimetest.Frame(t, "system-error", "REASON", "Too many messages per second"))
		},
		"huge frame": func(t *testing.T, s *realtimetest.Server) {
			s.Send(realtimetest.Frame(t, "broadcast", "EVENT", strings.Repeat("x", 1<<20)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := realtimetest.Serve(t)
			l := joined(t, server, options(server, new(lines)))
			end(t, server)
			server.Await("a second join", func(seen realtimetest.Seen) bool { return seen.Joins > 1 && len(seen.Topics) > 0 })
			await(t, "work", l.Work())
			await(t, "attention", l.Attention())
			patience.Await(t, "it has joined", l.Wakes)
			for range 2 { // what is left of the loss and the beginning
				select {
				case <-l.Work():
				default:
				}
			}
			server.Broadcast(topic, "work")
			await(t, "work", l.Work())
		})
	}
}

// A subscription counts once an event has arrived: the database may be unable to send.
func TestWakesAreProven(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	log := new(lines)
	o := options(server, log)
	var asked atomic.Int32
	var sends atomic.Bool
	o.ProbeWithin, o.Patience = time.Millisecond, patience.For(300*time.Millisecond)
	o.Probe = func(context.Context) error {
		asked.Add(1)
		if sends.Load() {
			server.Broadcast(topic, "probe")
		}
		return nil
	}
	l := start(t, o)
	await(t, "the first work", l.Work())
	patience.Await(t, "the log says that nothing arrives", func() bool { return strings.Contains(log.String(), "does not arrive") })
	if l.Wakes() {
		t.Error("Wakes() = true before an event has arrived")
	}
	patience.Await(t, "it is asked again", func() bool { return asked.Load() > 2 })
	sends.Store(true)
	patience.Await(t, "wakes arrive", l.Wakes)
	await(t, "work", l.Work())
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "wakes this agent again") {
		t.Errorf("the log = %s, want two lines", text)
	}
	if seen := server.Seen(); seen.Dials != 1 {
		t.Errorf("the server saw %d connections, want one that goes on", seen.Dials)
	}
}

// What another agent has asked for is good for all of the token.
func TestProbeOfAnother(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	o := options(server, new(lines))
	o.ProbeWithin = 24 * time.Hour
	o.Probe = func(context.Context) error {
		t.Error("the database was asked for an event, although one had arrived")
		return nil
	}
	l := start(t, o)
	server.AwaitTopic(topic)
	if l.Wakes() {
		t.Error("Wakes() = true before an event has arrived")
	}
	server.Broadcast(topic, "probe")
	patience.Await(t, "wakes arrive", l.Wakes)
}

func TestBeats(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	o := options(server, new(lines))
	o.Beat = 50 * time.Millisecond
	l := start(t, o)
	server.Await("four heartbeats", func(seen realtimetest.Seen) bool { return seen.Beats > 3 && seen.Dials == 1 })
	if !l.Wakes() {
		t.Error("Wakes() = false")
	}
}

// A network that has forgotten the connection ends nothing by itself.
func TestNoticesSilence(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	o := options(server, new(lines))
	o.Beat = 50 * time.Millisecond
	start(t, o)
	server.AwaitTopic(topic)
	server.Behave(realtimetest.Behaviour{Deaf: true})
	server.Await("a second connection", func(seen realtimetest.Seen) bool { return seen.Dials > 1 })
}

func TestSlowJoin(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	server.Behave(realtimetest.Behaviour{JoinAfter: 300 * time.Millisecond})
	joined(t, server, options(server, new(lines)))
	if seen := server.Seen(); seen.Dials != 1 {
		t.Errorf("the server saw %+v, want one connection", seen)
	}
}

// A join without an answer is given up, and said to be in vain once.
func TestJoinWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	server.Behave(realtimetest.Behaviour{JoinAfter: -1})
	log := new(lines)
	o := options(server, log)
	o.Patience = 200 * time.Millisecond
	l := start(t, o)
	server.Await("many joins", func(seen realtimetest.Seen) bool { return seen.Joins > 7 })
	none(t, "work", l.Work())
	if l.Wakes() {
		t.Error("Wakes() = true without a reply")
	}
	if n := strings.Count(log.String(), "the queue is polled instead"); n != 1 {
		t.Errorf("the log says %d times that the queue is polled, want once:\n%s", n, log)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		behaviour realtimetest.Behaviour
		key       string
		wants     string
	}{
		"wrong key":    {key: "sb_publishable_other", wants: "the API key is not accepted (HTTP 401)"},
		"forbidden":    {behaviour: realtimetest.Behaviour{Status: http.StatusForbidden}, wants: "the API key is not accepted (HTTP 403)"},
		"private only": {behaviour: realtimetest.Behaviour{Reason: "PrivateOnly: This project only allows private channels"}, wants: "This project only allows private channels"},
		"no reason":    {behaviour: realtimetest.Behaviour{Reason: " "}, wants: "it gives no reason"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := realtimetest.Serve(t)
			server.Behave(tc.behaviour)
			log := new(lines)
			o := options(server, log)
			if tc.key != "" {
				o.APIKey = tc.key
			}
			l := start(t, o)
			server.Await("three tries", func(seen realtimetest.Seen) bool { return seen.Dials > 2 })
			none(t, "work", l.Work())
			if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, tc.wants) || strings.Contains(text, o.APIKey) {
				t.Errorf("the log = %s, want one warning with %q", text, tc.wants)
			}
			if tc.key == "" {
				server.Behave(realtimetest.Behaviour{})
				await(t, "work", l.Work())
				if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "wakes this agent again") {
					t.Errorf("the log = %s, want a line that wakes arrive again", text)
				}
			}
		})
	}
}

// trellis has no Realtime, and nor has whatever page a proxy shows.
func TestAbsent(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusOK, http.StatusFound, http.StatusSeeOther, http.StatusMethodNotAllowed} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			server := realtimetest.Serve(t)
			server.Behave(realtimetest.Behaviour{Status: status})
			log := new(lines)
			l := start(t, options(server, log))
			patience.Await(t, "the log says so", func() bool { return strings.Contains(log.String(), "there is no Realtime") })
			time.Sleep(100 * time.Millisecond) // to see that nothing follows
			if seen := server.Seen(); seen.Dials != 1 {
				t.Errorf("the server saw %d tries, want one", seen.Dials)
			}
			if text := log.String(); strings.Contains(text, "WARN") {
				t.Errorf("the log = %s, want no warning", text)
			}
			none(t, "work", l.Work())
		})
	}
}

// A refusal that passes by itself is no business of an operator's.
func TestPassingTrouble(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]realtimetest.Behaviour{
		"initialising": {Reason: "InitializingProjectConnection: Realtime is initializing the project connection"},
		"unavailable":  {Status: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := realtimetest.Serve(t)
			server.Behave(b)
			log := new(lines)
			o := options(server, log)
			o.Soon, o.Seldom = 100*time.Millisecond, 100*time.Millisecond
			l := start(t, o)
			server.Await("a second try", func(seen realtimetest.Seen) bool { return seen.Dials > 1 })
			server.Behave(realtimetest.Behaviour{})
			await(t, "work", l.Work())
			if text := log.String(); text != "" {
				t.Errorf("the log = %s, want nothing", text)
			}
		})
	}
}

func TestAnotherToken(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	var now atomic.Pointer[string]
	set := func(topic string) { now.Store(&topic) }
	set(topic)
	o := options(server, new(lines))
	o.Topic = func() string { return *now.Load() }
	o.Soon, o.Seldom = time.Hour, time.Hour // it is no failure
	l := joined(t, server, o)
	l.Retopic() // the same
	set("tendril-b")
	l.Retopic()
	server.AwaitTopic("tendril-b")
	await(t, "work", l.Work())
	server.Await("the first topic left", func(seen realtimetest.Seen) bool { return len(seen.Topics) == 1 })

	// While it waits after a failure, too.
	server.Behave(realtimetest.Behaviour{Reason: "PrivateOnly: no"})
	server.Cut()
	patience.Await(t, "it is no longer joined", func() bool { return !l.Wakes() })
	server.Behave(realtimetest.Behaviour{})
	set("tendril-c")
	l.Retopic()
	server.AwaitTopic("tendril-c")
}

// By way of the proxy that is set, and of none without it.
func TestProxy(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	var through atomic.Int32
	proxy := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		through.Add(1)
		target, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { _, _ = buffered.WriteTo(target); target.Close() }()              //nolint:errcheck // a proxy
		go func() { _, _ = target.(*net.TCPConn).WriteTo(client); client.Close() }() //nolint:errcheck // a proxy
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go proxy.Serve(listener) //nolint:errcheck // until it is closed
	t.Cleanup(func() { _ = proxy.Close() })
	transport := server.Transport().Clone()
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: listener.Addr().String()})
	t.Cleanup(transport.CloseIdleConnections)
	o := options(server, new(lines))
	o.Transport = transport
	joined(t, server, o)
	if through.Load() == 0 {
		t.Error("the connection went past the proxy")
	}
}

func TestHears(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	sends := func(event string) func(context.Context) error {
		return func(context.Context) error {
			server.AwaitTopic(topic)
			server.Broadcast(topic, event)
			return nil
		}
	}
	if err := realtime.Hears(t.Context(), options(server, new(lines)), sends("probe")); err != nil {
		t.Errorf("Hears() = %v, want nil", err)
	}
	o := options(server, new(lines))
	o.Patience = patience.For(500 * time.Millisecond)
	if err := realtime.Hears(t.Context(), o, sends("work")); err == nil || !strings.Contains(err.Error(), "does not arrive") {
		t.Errorf("Hears() of what is not sent = %v, want that it does not arrive", err)
	}
	no := errors.New("no")
	if err := realtime.Hears(t.Context(), o, func(context.Context) error { return no }); !errors.Is(err, no) {
		t.Errorf("Hears() = %v, want what send says", err)
	}
	server.Behave(realtimetest.Behaviour{Status: http.StatusNotFound})
	if err := realtime.Hears(t.Context(), o, sends("probe")); !errors.Is(err, realtime.ErrAbsent) {
		t.Errorf("Hears() = %v, want ErrAbsent", err)
	}
}

// Nothing is connected before Start, and Stop waits.
func TestNeverStarted(t *testing.T) {
	t.Parallel()
	server := realtimetest.Serve(t)
	l := realtime.New(options(server, new(lines)))
	l.Retopic()
	l.Stop()
	l.Start()
	if seen := server.Seen(); seen.Dials != 0 || l.Wakes() {
		t.Errorf("the server saw %+v of a listener that was stopped before it began", seen)
	}
}

func TestTopic(t *testing.T) {
	t.Parallel()
	hash := sha256.Sum256([]byte("tnd_a"))
	text := hex.EncodeToString(hash[:])
	got := realtime.Topic(text)
	if want := "tendril-"; !strings.HasPrefix(got, want) || len(got) != len(want)+64 || strings.Contains(got, text) {
		t.Errorf("Topic() = %q, want a digest that is not the hash", got)
	}
	if got := realtime.Topic("no hash"); got != "" {
		t.Errorf("Topic() of no hash = %q, want none", got)
	}
}
