package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/webhook"
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
		wait = max(wait*3/4+rand.N(wait/2+1), a.After) //nolint:gosec // jitter, not a secret
		again = &wait
	}
	if n.options.Attempted != nil {
		n.options.Attempted(a.Arrived, again != nil && !a.Gone)
	}
	var disabled bool
	err = n.database.OwnerAsks(ctx, "tell what came of a message", "SELECT tendril.settle_delivery($1, $2, $3, $4, $5, $6, $7)",
		[]any{n.id, d.ID, a.Arrived, text, again, a.Gone, patience}, &disabled)
	switch {
	case err != nil && ctx.Err() == nil:
		n.options.Log.Error("what came of a message to a webhook cannot be kept; it will be sent again", "webhook", d.WebhookID, "delivery", d.ID, "error", err)
	case disabled:
		n.options.Log.Warn("a webhook is switched off, for nothing arrives there", "webhook", d.WebhookID, "error", a.Error)
	}
}

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

// sender sends messages.
type sender struct {
	key     *Key
	allowed Allowed
	base    string // URL of the console; "" where nobody said
	agent   string
}

func (s *sender) send(ctx context.Context, d delivery) webhook.Attempt {
	text, err := s.key.open(d.WebhookID, d.Sealed)
	if err != nil {
		return webhook.Attempt{Error: err.Error()}
	}
	to, err := s.allowed.parse(text)
	if err != nil {
		return webhook.Attempt{Error: err.Error()}
	}
	var m webhook.Message
	if err := json.Unmarshal(d.Payload, &m); err != nil {
		return webhook.Attempt{Error: fmt.Sprintf("the message cannot be read: %v", err)}
	}
	body, err := m.Body(d.Kind, s.base)
	if err != nil {
		return webhook.Attempt{Error: err.Error()}
	}
	return webhook.Receiver{ // without a proxy, whose address would be judged
		URL: to.String(), Secret: s.key.signing(d.WebhookID, d.Generation), Agent: s.agent,
		Control: s.allowed.control(s.allowed.host(to.Hostname())),
	}.Send(ctx, "msg_"+d.ID.String(), body)
}
