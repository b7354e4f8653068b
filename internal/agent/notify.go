package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/webhook"
)

// InputWebhook is where an agent says that a run waits for a person's work.
type InputWebhook struct {
	// Receiver is nil for nobody. It is asked for each message, because a signing secret may
	// have changed.
	Receiver func() (webhook.Receiver, error)
	Kind     string // as package webhook has them
}

const (
	// maxNotices is how many messages wait to be sent; more are dropped.
	maxNotices = 100
	// noticePatience is how long the agent tries to send a message.
	noticePatience = 10 * time.Minute
	// lastNotices is how long an agent that ends sends what waits.
	lastNotices = 15 * time.Second
)

// notice is that a run has begun to wait for a person.
type notice struct {
	about claimAbout
	claim uuid.UUID
	at    time.Time
}

// notifier sends notices one after the other, in a goroutine of the boot.
type notifier struct {
	to      InputWebhook
	log     *slog.Logger
	waiting chan notice
	cluster *webhook.Named // before it runs
}

func newNotifier(to InputWebhook, log *slog.Logger) *notifier {
	return &notifier{to: to, log: log, waiting: make(chan notice, maxNotices)}
}

// awaitsInput is called once the database knows that a run waits. It doesn't block.
func (n *notifier) awaitsInput(s *claimFiles) {
	if n.to.Receiver == nil {
		return
	}
	select {
	case n.waiting <- notice{s.about, s.claim, time.Now()}:
	default:
		n.logOf(s.about).Warn("nobody is notified that this run waits for a person: too many messages wait to be sent")
	}
}

func (n *notifier) logOf(a claimAbout) *slog.Logger {
	return n.log.With("provision", a.Number, "workspace", a.Name)
}

// run sends notices until ctx ends, and then those that wait, once.
func (n *notifier) run(ctx context.Context) {
	for {
		select {
		case one := <-n.waiting:
			n.send(ctx, one)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastNotices)
			defer cancel()
			for {
				select {
				case one := <-n.waiting:
					n.try(last, one)
				default:
					return
				}
			}
		}
	}
}

// send tries until the message has arrived, or is given up.
func (n *notifier) send(ctx context.Context, one notice) {
	waits := retry.Between(time.Second, time.Minute)
	for {
		a := n.try(ctx, one)
		if a.Arrived || a.Gone {
			return
		}
		wait := max(waits.NextBackOff(), a.After)
		if time.Since(one.at)+wait > noticePatience {
			n.logOf(one.about).Error("nobody was notified that this run waits for a person: given up")
			return
		}
		if !retry.Sleep(ctx, wait) {
			n.try(context.WithoutCancel(ctx), one)
			return
		}
	}
}

func (n *notifier) try(ctx context.Context, one notice) (a webhook.Attempt) {
	receiver, err := n.to.Receiver()
	var body []byte
	if err == nil {
		body, err = n.message(one).Body(n.to.Kind, "")
	}
	if err != nil {
		a.Error = err.Error()
	} else {
		a = receiver.Send(ctx, "msg_"+one.claim.String(), body)
	}
	if !a.Arrived {
		n.logOf(one.about).Warn("the notification that this run waits for a person did not arrive (manual.notification_webhook)", "code", a.Code, "error", a.Error)
	}
	return a
}

// message has ids and names, as the control plane's event of the same type has.
func (n *notifier) message(one notice) webhook.Message {
	return webhook.Message{
		Type: "awaiting_input", Timestamp: one.at.UTC().Format("2006-01-02T15:04:05.000Z"),
		Data: webhook.Data{
			Cluster: n.cluster, Workspace: &webhook.Named{ID: one.about.Workspace, Name: one.about.Name},
			Provision: &webhook.Provision{
				ID: one.about.Provision, Number: one.about.Number, Operation: string(one.about.Operation), Status: string(provision.AwaitingInput),
			},
		},
	}
}
