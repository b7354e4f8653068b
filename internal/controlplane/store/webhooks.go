package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Webhook is somebody who is told by HTTP of what happens.
type Webhook struct {
	ID   uuid.UUID `db:"id"`
	Name string    `db:"name"`
	Kind string    `db:"kind"`
	// Host is all of the URL that is shown.
	Host   string   `db:"host"`
	Events []string `db:"events"`
	// Cluster and Workspace restrict it; a * in Workspace is anything.
	ClusterID *uuid.UUID `db:"cluster_id"`
	Cluster   *string    `db:"cluster"`
	Workspace *string    `db:"workspace"`
	Enabled   bool       `db:"enabled"`
	// DisabledWhy is failing or gone where no person has disabled it.
	DisabledWhy *string `db:"disabled_why"`
	// FailingSince is since when nothing has arrived.
	FailingSince *time.Time `db:"failing_since"`
	CreatedAt    time.Time  `db:"created_at"`
}

// Delivery is one message to a webhook.
type Delivery struct {
	ID          uuid.UUID         `db:"id"`
	Event       string            `db:"event"`
	ProvisionID *uuid.UUID        `db:"provision_id"`
	Status      string            `db:"status"`
	Attempts    []DeliveryAttempt `db:"attempts"`
	CreatedAt   time.Time         `db:"created_at"`
	NextAt      *time.Time        `db:"next_at"`
	FinishedAt  *time.Time        `db:"finished_at"`
	Payload     json.RawMessage   `db:"payload"`
}

// DeliveryAttempt is what came of sending a message once.
type DeliveryAttempt struct {
	At         time.Time `json:"at"`
	Code       int       `json:"code,omitempty"` // 0: there was no answer
	DurationMS int64     `json:"duration_ms"`
	Error      string    `json:"error,omitempty"`
}

// WebhookSettings are what a webhook is made of; nil stays as it is. "" is no
// restriction. URL is sealed.
type WebhookSettings struct {
	Name      *string    `json:"name,omitempty"`
	Kind      string     `json:"kind,omitempty"`
	Host      string     `json:"host,omitempty"`
	URL       []byte     `json:"url,omitempty"`
	Events    []string   `json:"-"` // empty and not nil: none, which is refused
	Cluster   *uuid.UUID `json:"-"`
	Workspace *string    `json:"-"`
	Enabled   *bool      `json:"enabled,omitempty"`
	Rotate    bool       `json:"rotate,omitempty"`
}

// MarshalJSON implements json.Marshaler: an empty restriction is null, one that
// stays is left out.
func (w WebhookSettings) MarshalJSON() ([]byte, error) {
	type plain WebhookSettings
	text, err := json.Marshal(plain(w))
	if err != nil {
		return nil, err
	}
	all := map[string]any{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	if w.Events != nil {
		all["events"] = w.Events
	}
	if w.Cluster != nil {
		if all["cluster_id"] = *w.Cluster; *w.Cluster == uuid.Nil {
			all["cluster_id"] = nil
		}
	}
	if w.Workspace != nil {
		if all["workspace"] = *w.Workspace; *w.Workspace == "" {
			all["workspace"] = nil
		}
	}
	return json.Marshal(all)
}

const selectedWebhooks = `SELECT h.id, h.name, h.kind, h.host, h.events, h.cluster_id, c.name AS cluster, h.workspace, h.enabled, h.disabled_why,
	h.failing_since, h.created_at FROM public.webhooks h LEFT JOIN public.clusters c ON c.id = h.cluster_id `

// Webhooks lists those of an organisation, by name.
func (s *Store) Webhooks(ctx context.Context, org uuid.UUID) ([]Webhook, error) {
	return rows[Webhook](ctx, s, "list the webhooks", selectedWebhooks+"WHERE h.org_id = $1 ORDER BY h.name", org)
}

// Webhook returns one.
func (s *Store) Webhook(ctx context.Context, id uuid.UUID) (Webhook, error) {
	found, err := rows[Webhook](ctx, s, "read the webhook", selectedWebhooks+"WHERE h.id = $1", id)
	return first(found, err, &RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %s, or you have no access to it", id)})
}

// KeepsWebhook refuses who is no admin where the webhook is, in the words of what
// only admins do with it.
func (s *Store) KeepsWebhook(ctx context.Context, id uuid.UUID) error {
	may, err := one[bool](ctx, s, "look for the webhook",
		"SELECT EXISTS (SELECT FROM public.webhooks h JOIN public.org_members m ON m.org_id = h.org_id WHERE h.id = $1 AND m.user_id = $2 AND m.role = 'admin') AS answer", id, s.user)
	if err == nil && !may {
		err = &RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %s where you are admin", id)}
	}
	return err
}

// KeepsOrg refuses who is no admin of the organisation, likewise.
func (s *Store) KeepsOrg(ctx context.Context, org uuid.UUID) error {
	may, err := one[bool](ctx, s, "look for the organisation",
		"SELECT EXISTS (SELECT FROM public.org_members WHERE org_id = $1 AND user_id = $2 AND role = 'admin') AS answer", org, s.user)
	if err == nil && !may {
		err = &RefusedError{Code: "PT404", Reason: "org_not_found", Message: fmt.Sprintf("there is no organisation %s where you are admin", org)}
	}
	return err
}

// Deliveries lists what was sent to a webhook, the latest first, at most limit
// that were made before; nil: the latest. Admins see them.
func (s *Store) Deliveries(ctx context.Context, webhook uuid.UUID, before *time.Time, limit int) ([]Delivery, error) {
	return rows[Delivery](ctx, s, "list the deliveries", `
		SELECT id, event, provision_id, status, attempts, created_at, next_at, finished_at, payload FROM public.webhook_deliveries
		WHERE webhook_id = $1 AND ($2::timestamptz IS NULL OR created_at < $2) ORDER BY created_at DESC LIMIT $3`, webhook, before, limit)
}

// CreateWebhook makes one of that id.
func (s *Store) CreateWebhook(ctx context.Context, org, id uuid.UUID, w WebhookSettings) error {
	return s.do(ctx, "make the webhook", "SELECT FROM public.create_webhook($1, $2, $3)", org, id, w)
}

// ChangeWebhook changes what is said, and returns which signing secret counts.
func (s *Store) ChangeWebhook(ctx context.Context, id uuid.UUID, w WebhookSettings) (generation int, err error) {
	return one[int](ctx, s, "change the webhook", "SELECT public.change_webhook($1, $2) AS answer", id, w)
}

// RemoveWebhook removes one, and what was sent to it.
func (s *Store) RemoveWebhook(ctx context.Context, id uuid.UUID) error {
	return s.do(ctx, "remove the webhook", "SELECT FROM public.remove_webhook($1)", id)
}

// SendWebhook sends a delivery once more; nil: a message that only tries.
func (s *Store) SendWebhook(ctx context.Context, id uuid.UUID, delivery *uuid.UUID) (sent uuid.UUID, err error) {
	return one[uuid.UUID](ctx, s, "send to the webhook", "SELECT public.send_webhook($1, $2) AS answer", id, delivery)
}
