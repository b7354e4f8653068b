package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Webhook is somebody who is told by HTTP of what happens.
type Webhook struct {
	ID   uuid.UUID `db:"id" json:"id"`
	Name string    `db:"name" json:"name"`
	Kind string    `db:"kind" json:"kind" enum:"generic,slack"`
	// Host is all of the URL that is shown.
	Host   string   `db:"host" json:"host"`
	Events []string `db:"events" json:"events" nullable:"false"`
	// Cluster and Workspace restrict it; a * in Workspace is anything.
	ClusterID *uuid.UUID `db:"cluster_id" json:"cluster_id,omitempty"`
	Cluster   *string    `db:"cluster" json:"cluster,omitempty"`
	Workspace *string    `db:"workspace" json:"workspace,omitempty"`
	Enabled   bool       `db:"enabled" json:"enabled"`
	// DisabledWhy is failing or gone where no person has disabled it.
	DisabledWhy *string `db:"disabled_why" json:"disabled_why,omitempty"`
	// FailingSince is since when nothing has arrived.
	FailingSince *time.Time `db:"failing_since" json:"failing_since,omitempty"`
	CreatedAt    time.Time  `db:"created_at" json:"created_at"`
	Generation   int        `db:"generation" json:"-"`
}

// Delivery is one message to a webhook.
type Delivery struct {
	ID          uuid.UUID         `db:"id" json:"id"`
	Event       string            `db:"event" json:"event"`
	ProvisionID *uuid.UUID        `db:"provision_id" json:"provision_id,omitempty"`
	Status      string            `db:"status" json:"status" enum:"waiting,delivered,failed"`
	Attempts    []DeliveryAttempt `db:"attempts" json:"attempts" nullable:"false"`
	CreatedAt   time.Time         `db:"created_at" json:"created_at"`
	NextAt      *time.Time        `db:"next_at" json:"next_attempt_at,omitempty"`
	FinishedAt  *time.Time        `db:"finished_at" json:"finished_at,omitempty"`
	Payload     json.RawMessage   `db:"payload" json:"payload"`
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
	h.failing_since, h.created_at, h.generation FROM public.webhooks h LEFT JOIN public.clusters c ON c.id = h.cluster_id `

// Webhooks lists those of an organisation, by name.
func (s *Store) Webhooks(ctx context.Context, org uuid.UUID) ([]Webhook, error) {
	return rows[Webhook](ctx, s, "list the webhooks", selectedWebhooks+"WHERE h.org_id = $1 ORDER BY h.name", org)
}

// Webhook returns one.
func (s *Store) Webhook(ctx context.Context, id uuid.UUID) (Webhook, error) {
	found, err := rows[Webhook](ctx, s, "read the webhook", selectedWebhooks+"WHERE h.id = $1", id)
	if err == nil && len(found) == 0 {
		err = &RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %s that you may see", id)}
	}
	if err != nil {
		return Webhook{}, err
	}
	return found[0], nil
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
	return s.as(ctx, "make the webhook", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT public.create_webhook($1, $2, $3)", org, id, w)
		return err
	})
}

// ChangeWebhook changes what is said, and returns which signing secret counts.
func (s *Store) ChangeWebhook(ctx context.Context, id uuid.UUID, w WebhookSettings) (generation int, err error) {
	err = s.as(ctx, "change the webhook", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT public.change_webhook($1, $2)", id, w).Scan(&generation)
	})
	return generation, err
}

// RemoveWebhook removes one, and what was sent to it.
func (s *Store) RemoveWebhook(ctx context.Context, id uuid.UUID) error {
	return s.as(ctx, "remove the webhook", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT public.remove_webhook($1)", id)
		return err
	})
}

// SendWebhook sends a delivery once more; nil: a message that only tries.
func (s *Store) SendWebhook(ctx context.Context, id uuid.UUID, delivery *uuid.UUID) (sent uuid.UUID, err error) {
	err = s.as(ctx, "send to the webhook", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT public.send_webhook($1, $2)", id, delivery).Scan(&sent)
	})
	return sent, err
}
