package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// lookEvery is how often it is looked for what is due.
	lookEvery = time.Second
	// atOnce bounds what is under way, orgAtOnce about what is of one organisation,
	// eachAtOnce what is to one receiver: those that do not answer hold up messages of
	// their own only.
	atOnce, orgAtOnce, eachAtOnce = 64, 8, 2
	// lease is how long who took a message has it: more than an attempt takes.
	lease = time.Minute
	// patience is how long nothing may arrive before a webhook is switched off.
	patience = 3 * 24 * time.Hour
)

// waits are those between attempts, about a day together; after the last it is
// given up.
var waits = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 4 * time.Hour, 6 * time.Hour, 10 * time.Hour,
}

// Options say how to notify.
type Options struct {
	// Key may be nil: then no webhook can be set up, and none is served.
	Key     *Key
	Allowed Allowed
	// PublicURL is that of the console, for links.
	PublicURL string
	Version   string
	Log       *slog.Logger
	// Attempted, if set, is told of each attempt to deliver a message: whether it
	// arrived, and if not whether it is sent again.
	Attempted func(arrived, again bool)
}

// Notifier sends what is due. Whoever made it calls Run.
type Notifier struct {
	database  *store.Database
	options   Options
	sender    sender
	id        uuid.UUID
	lookEvery time.Duration
	waits     []time.Duration
	atOnce    int

	mu    sync.Mutex
	busy  map[uuid.UUID]int // messages under way, by webhook
	orgs  map[uuid.UUID]int // and by organisation
	total int
	freed chan struct{}
}

// New returns a notifier of the webhooks in a database.
func New(d *store.Database, o Options) *Notifier {
	return &Notifier{
		database: d, options: o, id: uuid.New(), lookEvery: lookEvery, waits: waits, atOnce: atOnce,
		busy: map[uuid.UUID]int{}, orgs: map[uuid.UUID]int{}, freed: make(chan struct{}, 1),
		sender: sender{key: o.Key, allowed: o.Allowed, base: strings.TrimSuffix(o.PublicURL, "/"), agent: "Tendril-Webhook/" + o.Version},
	}
}

// Run sends until the context ends. What is under way then is broken off, and
// sent again by whoever comes next.
func (n *Notifier) Run(ctx context.Context) {
	if n.options.Key == nil {
		return
	}
	var underway sync.WaitGroup
	defer underway.Wait()
	tick := time.NewTicker(n.lookEvery)
	defer tick.Stop()
	failing := false
	for {
		taken, err := n.take(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			n.options.Log.Error("what is to be told to webhooks cannot be read; trying again", "every", n.lookEvery, "error", err)
		}
		failing = err != nil
		for _, d := range taken {
			underway.Go(func() { n.deliver(ctx, d) })
		}
		if len(taken) > 0 {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return
		case <-n.freed:
		case <-tick.C:
		}
	}
}

// take takes what is due, as much as there is room for.
func (n *Notifier) take(ctx context.Context) (taken []delivery, err error) {
	n.mu.Lock()
	room, busy := n.atOnce-n.total, []uuid.UUID{}
	for webhook, count := range n.busy {
		if count >= eachAtOnce {
			busy = append(busy, webhook)
		}
	}
	for org, count := range n.orgs {
		if count >= orgAtOnce {
			busy = append(busy, org)
		}
	}
	n.mu.Unlock()
	if room <= 0 {
		return nil, nil
	}
	err = n.database.AsOwner(ctx, "look for what webhooks are to be told", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT * FROM tendril.take_deliveries($1, $2, $3, $4, $5)", n.id, room, orgAtOnce, busy, lease)
		if err != nil {
			return err
		}
		taken, err = pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
		return err
	})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range taken {
		n.busy[d.WebhookID]++
		n.orgs[d.OrgID]++
		n.total++
	}
	return taken, nil
}

// deliver sends one message and says what came of it.
func (n *Notifier) deliver(ctx context.Context, d delivery) {
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.total--
		if n.busy[d.WebhookID]--; n.busy[d.WebhookID] == 0 {
			delete(n.busy, d.WebhookID)
		}
		if n.orgs[d.OrgID]--; n.orgs[d.OrgID] == 0 {
			delete(n.orgs, d.OrgID)
		}
		select {
		case n.freed <- struct{}{}:
		default:
		}
	}()
	a := n.sender.send(ctx, d)
	if ctx.Err() != nil {
		return // nobody knows whether it arrived: whoever comes next sends it again
	}
	text, err := json.Marshal(a)
	if err != nil {
		n.options.Log.Error("what came of a message cannot be told", "error", err)
		return
	}
	var again *time.Duration
	if d.Tried < len(n.waits) {
		wait := n.waits[d.Tried]
		wait = max(wait*3/4+rand.N(wait/2+1), a.after) //nolint:gosec // jitter, not a secret
		again = &wait
	}
	if n.options.Attempted != nil {
		n.options.Attempted(a.arrived, again != nil && !a.gone)
	}
	var disabled bool
	err = n.database.OwnerAsks(ctx, "tell what came of a message", "SELECT tendril.settle_delivery($1, $2, $3, $4, $5, $6, $7)",
		[]any{n.id, d.ID, a.arrived, text, again, a.gone, patience}, &disabled)
	switch {
	case err != nil && ctx.Err() == nil:
		n.options.Log.Error("what came of a message to a webhook cannot be kept; it will be sent again", "webhook", d.WebhookID, "delivery", d.ID, "error", err)
	case disabled:
		n.options.Log.Warn("a webhook is switched off, for nothing arrives there", "webhook", d.WebhookID, "error", a.Error)
	}
}

const (
	// sendLimit bounds one attempt, dialLimit its beginning.
	sendLimit = 15 * time.Second
	dialLimit = 5 * time.Second
	// answerBytes is how much of an answer is read, and thrown away: it may be a
	// stranger's, and has nothing to say but its status.
	answerBytes = 64 << 10
)

// delivery is a message that was taken to be sent.
type delivery struct {
	ID         uuid.UUID
	WebhookID  uuid.UUID
	OrgID      uuid.UUID
	Kind       string
	Generation int
	Sealed     []byte
	Event      string
	Payload    json.RawMessage
	Tried      int // before
}

// attempt is what came of sending.
type attempt struct {
	Code     int    `json:"code,omitempty"`
	Duration int64  `json:"duration_ms"`
	Error    string `json:"error,omitempty"`

	arrived bool
	gone    bool          // the receiver says that it wants no more
	after   time.Duration // the receiver says that it wants none before
}

// sender sends messages. Redirects are not followed: they would lead past what
// is allowed, with the signature.
type sender struct {
	key     *Key
	allowed Allowed
	base    string // URL of the console; "" where nobody said
	agent   string
}

func (s *sender) send(ctx context.Context, d delivery) (a attempt) {
	began := time.Now()
	defer func() { a.Duration = time.Since(began).Milliseconds() }()
	text, err := s.key.open(d.WebhookID, d.Sealed)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	to, err := s.allowed.parse(text)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	body, err := s.message(d)
	if err != nil {
		return attempt{Error: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return attempt{Error: "the webhook's URL cannot be used"} // the error shows it
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", s.agent)
	sign(request.Header, "msg_"+d.ID.String(), time.Now(), body, s.key.signing(d.WebhookID, d.Generation))
	transport := s.transport(to)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return attempt{Error: plainly(ctx, err)}
	}
	defer response.Body.Close() //nolint:errcheck // only read
	_, _ = io.CopyN(io.Discard, response.Body, answerBytes)
	a = attempt{Code: response.StatusCode, arrived: response.StatusCode/100 == 2, gone: response.StatusCode == http.StatusGone}
	switch {
	case a.arrived:
	case response.StatusCode/100 == 3:
		a.Error = "the receiver answered with a redirect, which is not followed: give the URL that it leads to"
	default:
		a.Error = "the receiver answered " + response.Status
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.after = time.Duration(min(max(seconds, 0), 3600)) * time.Second
	}
	return a
}

// transport is for one attempt: what is kept open to a receiver would have to be
// bounded, and messages are few.
func (s *sender) transport(to *url.URL) *http.Transport {
	dialer := &net.Dialer{Timeout: dialLimit, Control: s.allowed.control(s.allowed.host(to.Hostname()))}
	return &http.Transport{
		Proxy:       nil, // it would be the proxy's address that is looked at
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialLimit,
		MaxResponseHeaderBytes: answerBytes, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}
}

// plainly is an error without the URL in it.
func plainly(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return fmt.Sprintf("the receiver did not answer within %s", sendLimit)
	}
	if refused, ok := errors.AsType[*net.AddrError](err); ok {
		return refused.Err
	}
	// Their own words have addresses of this network in them.
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		if name.IsNotFound {
			return "there is no host " + name.Name
		}
		return "the address of " + name.Name + " cannot be found out now"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	text := err.Error()
	return text[:min(len(text), 500)]
}

// sign adds the headers of the Standard Webhooks specification.
func sign(h http.Header, id string, at time.Time, body, secret []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, stamp) // never fails
	_, _ = mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
