// Package realtime hears from Supabase's Realtime that an agent should ask the queue: the database
// broadcasts an event without content to a topic that only the holder of the agent's token, and
// the database, can compute. What arrives is a hint that anybody who knows the topic could send,
// and may be late, lost or repeated, so the queue is polled all the same.
//
//	         connect           phx_join            reply ok          an event
//	apart ───────────▶ open ───────────▶ joining ───────────▶ joined ──────────▶ wakes
//	  ▲  ◀── refused, cut, silent, phx_error, phx_close, another token ──┘ ◀──────┘
//	  └─ wait: from a second to 5 minutes; 10 minutes after a refusal, an hour without Realtime
//
// A subscription alone does not count: the database may not be able to send, or Realtime to read
// what it sends. So the database is asked for an event, and nothing relies on wakes until one has
// arrived.
//
// It speaks the Phoenix protocol 1.0.0 of https://supabase.com/docs/guides/realtime/protocol: one
// JSON object in each text frame. Whatever else arrives is ignored, and a frame above mostFrame
// ends the session.
//
// It must not know SQL, claims, or what an agent does when it is woken.
package realtime

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/retry"
)

// Topic is the topic on which the holder of a token is woken, from SHA-256 of the token in
// hexadecimal: tendril.wake_topic computes the same. "" for what is no hash.
func Topic(tokenHash string) string {
	hash, err := hex.DecodeString(tokenHash)
	if err != nil {
		return ""
	}
	digest := sha256.Sum256(hash)
	topic := sha256.Sum256(append([]byte("tendril wake 1:"), digest[:]...))
	return "tendril-" + hex.EncodeToString(topic[:])
}

// The events that the database sends: work to claim, a run to stop, and an answer to who asked
// whether events arrive.
const (
	eventWork      = "work"
	eventAttention = "attention"
	eventProbe     = "probe"
)

var events = []string{eventWork, eventAttention, eventProbe}

// Options say where Realtime is and what to hear.
type Options struct {
	// Project is the URL of the project, such as https://ref.supabase.co; APIKey its public key.
	Project, APIKey string
	// Transport connects; its proxy and its certificate authorities count.
	Transport http.RoundTripper
	// Topic is asked at each connection. "": nothing is heard.
	Topic func() string
	// Probe has the database send an event. It is called some time after joining, unless another
	// agent's has arrived by then. nil: a subscription is trusted.
	Probe func(context.Context) error
	// Log gets one line when events do not arrive, and one when they do again. May be nil.
	Log *slog.Logger

	// Beat is the time between heartbeats, 25 s when zero: Realtime cuts who is silent for longer.
	// Each must be answered before the next.
	Beat time.Duration
	// Patience bounds connecting and joining, each; 20 s when zero. Realtime waits some seconds
	// before it refuses.
	Patience time.Duration
	// ProbeWithin bounds the time until Probe is called, which is by chance; 5 s when zero.
	ProbeWithin time.Duration
	// Soon, Seldom and Refused are waits: after the first failure, at most, and after a refusal or
	// a probe in vain. 1 s, 5 min and 10 min when zero.
	Soon, Seldom, Refused time.Duration
}

// gone is how long nothing is tried where there is no Realtime.
const gone = time.Hour

// lasting is how long a session is to last for the next wait to be short again.
const lasting = time.Minute

// untoldFailures is how many sessions in a row may come to nothing before the log says so.
const untoldFailures = 5

// Listener is one subscription, which is made again whenever it is lost.
type Listener struct {
	o               Options
	client          *http.Client
	work, attention chan struct{}
	wakes           atomic.Bool
	again           chan struct{} // the topic may be another one

	cancel context.CancelFunc
	done   chan struct{}
	start  sync.Once
}

// New returns a Listener that does nothing until Start.
func New(o Options) *Listener {
	o.Beat = cmp.Or(o.Beat, 25*time.Second)
	o.Patience = cmp.Or(o.Patience, 20*time.Second)
	o.Soon, o.Seldom, o.Refused = cmp.Or(o.Soon, time.Second), cmp.Or(o.Seldom, 5*time.Minute), cmp.Or(o.Refused, 10*time.Minute)
	o.ProbeWithin = cmp.Or(o.ProbeWithin, 5*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Listener{
		o: o, client: &http.Client{Transport: o.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		work: make(chan struct{}, 1), attention: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}
}

// Start begins to listen, once.
func (l *Listener) Start() {
	l.start.Do(func() {
		var ctx context.Context
		ctx, l.cancel = context.WithCancel(context.Background())
		l.done = make(chan struct{})
		go l.run(ctx)
	})
}

// Stop ends it for good, and waits for what it has started.
func (l *Listener) Stop() {
	l.start.Do(func() {})
	if l.cancel != nil {
		l.cancel()
		<-l.done
	}
}

// Work receives when there may be work, Attention when a run may have to stop; both also when a
// subscription has begun or ended: what was sent meanwhile is lost.
func (l *Listener) Work() <-chan struct{} { return l.work }

// Attention is as Work.
func (l *Listener) Attention() <-chan struct{} { return l.attention }

// Wakes tells whether events arrive.
func (l *Listener) Wakes() bool { return l.wakes.Load() }

// Retopic has Topic asked at once: there may be another token.
func (l *Listener) Retopic() { wake(l.again) }

// WakeWork has Work receive, for news of work that came another way.
func (l *Listener) WakeWork() { wake(l.work) }

func (l *Listener) wakeAll() {
	wake(l.work)
	wake(l.attention)
}

// wake sends without waiting; several wakes may arrive as one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run subscribes again and again until ctx ends.
func (l *Listener) run(ctx context.Context) {
	defer close(l.done)
	waits := retry.Between(l.o.Soon, l.o.Seldom)
	t := teller{log: l.o.Log}
	for {
		topic := l.o.Topic()
		began := time.Now()
		arrive := func() {
			if !l.wakes.Swap(true) {
				t.arrive()
				l.wakeAll()
			}
		}
		err := l.session(ctx, topic, callbacks{
			joined: func() {
				if l.o.Probe == nil && !l.wakes.Load() {
					arrive()
				} else {
					l.wakeAll()
				}
			},
			heard: func(event string) { arrive(); l.hear(event) },
			deaf:  func() { t.tell(errSilent) },
		})
		if l.wakes.Swap(false) {
			l.wakeAll() // who relies on wakes is to poll more often again
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRetopic) {
			continue
		}
		t.lost(err)
		wait := waits.NextBackOff()
		switch {
		case time.Since(began) > lasting:
			waits.Reset()
			wait = waits.NextBackOff()
		case errors.Is(err, ErrAbsent):
			wait = retry.Jitter(gone)
		case isRefused(err):
			wait = retry.Jitter(l.o.Refused)
		}
		if !l.sleep(ctx, wait, topic) {
			return
		}
	}
}

// sleep waits, not longer once the topic is another one; false when ctx ends first.
func (l *Listener) sleep(ctx context.Context, d time.Duration, topic string) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-l.again:
			if l.o.Topic() != topic {
				return true
			}
		}
	}
}

func (l *Listener) hear(event string) {
	switch event {
	case eventWork:
		wake(l.work)
	case eventAttention:
		wake(l.attention)
	}
}

// Hears finds out whether an agent with these options would be woken: nil when an event that send
// has the database broadcast has arrived within Patience. With another error than a RefusedError or
// ErrAbsent, the network is in the way, or the database sends nothing.
func Hears(ctx context.Context, o Options, send func(context.Context) error) error {
	l := New(o)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sent error
	var sending sync.WaitGroup
	heard := false
	l.o.Probe = nil // what send does
	err := l.session(ctx, l.o.Topic(), callbacks{joined: func() {
		sending.Go(func() {
			if sent = send(ctx); sent != nil {
				cancel()
				return
			}
			if !retry.Sleep(ctx, l.o.Patience) {
				return
			}
			sent = errSilent
			cancel()
		})
	}, heard: func(event string) {
		if event == eventProbe {
			heard = true
			cancel()
		}
	}})
	cancel()
	sending.Wait()
	switch {
	case heard:
		return nil
	case sent != nil:
		return sent
	}
	return err
}

// teller tells the log once that no wake comes, and once that they do again.
type teller struct {
	log    *slog.Logger
	failed int
	told   bool
}

func (t *teller) arrive() {
	if t.told {
		t.log.Info("Supabase's Realtime wakes this agent again")
	}
	t.failed, t.told = 0, false
}

func (t *teller) lost(err error) {
	t.failed++
	switch {
	case t.told:
	case errors.Is(err, ErrAbsent):
		t.told = true
		t.log.Debug("there is no Realtime; the queue is polled", "error", err)
	case isRefused(err) || t.failed >= untoldFailures:
		t.tell(err)
	}
}

func (t *teller) tell(err error) {
	if !t.told {
		t.told = true
		t.log.Warn("Supabase's Realtime does not wake this agent; the queue is polled instead", "error", err)
	}
}

func isRefused(err error) bool {
	_, is := errors.AsType[*RefusedError](err)
	return is
}

// address is the websocket's, with the public key, which Realtime takes from nowhere else.
func (o Options) address() (string, error) {
	project, err := url.Parse(o.Project)
	if err != nil {
		return "", err
	}
	socket := project.JoinPath("realtime/v1/websocket")
	socket.RawQuery = url.Values{"apikey": {o.APIKey}, "vsn": {"1.0.0"}}.Encode()
	return socket.String(), nil
}
