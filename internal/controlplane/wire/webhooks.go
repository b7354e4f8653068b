package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Webhook is somebody who is told by HTTP of what happens.
type Webhook struct {
	ID           uuid.UUID  `json:"id" doc:"Its id."`
	Name         string     `json:"name" doc:"What it is called."`
	Kind         string     `json:"kind" enum:"generic,slack" doc:"What its messages look like."`
	Host         string     `json:"host" doc:"All of its URL that can be read again."`
	Events       []string   `json:"events" nullable:"false" doc:"Its events."`
	ClusterID    *uuid.UUID `json:"cluster_id,omitempty" doc:"The cluster that it is restricted to. Absent: any."`
	Cluster      *string    `json:"cluster,omitempty" doc:"The name of that cluster."`
	Workspace    *string    `json:"workspace,omitempty" doc:"What the names of the workspaces that it is restricted to are like; * is anything."`
	Enabled      bool       `json:"enabled" doc:"Whether it is told anything."`
	DisabledWhy  *string    `json:"disabled_why,omitempty" doc:"Why it was disabled automatically: failing (nothing arrived for three days), or gone (it answered 410)."`
	FailingSince *time.Time `json:"failing_since,omitempty" doc:"Since when nothing has arrived."`
	CreatedAt    time.Time  `json:"created_at" doc:"When it was made."`
}

// Delivery is one message to a webhook.
type Delivery struct {
	ID          uuid.UUID         `json:"id" doc:"Its id."`
	Event       string            `json:"event" doc:"What it tells of; test for one that only tries."`
	ProvisionID *uuid.UUID        `json:"provision_id,omitempty" doc:"The provision that it is about."`
	Status      string            `json:"status" enum:"waiting,delivered,failed" doc:"How it stands; failed: it was given up."`
	Attempts    []DeliveryAttempt `json:"attempts" nullable:"false" doc:"Each time that it was sent, the oldest first."`
	CreatedAt   time.Time         `json:"created_at" doc:"When it was made."`
	NextAt      *time.Time        `json:"next_attempt_at,omitempty" doc:"When it is sent next, while it waits."`
	FinishedAt  *time.Time        `json:"finished_at,omitempty" doc:"When it arrived, or was given up."`
	Payload     json.RawMessage   `json:"payload" doc:"What is sent to a generic webhook, but for the URL of the page."`
}

// DeliveryAttempt is what came of sending a message once.
type DeliveryAttempt struct {
	At         time.Time `json:"at" doc:"When it ended."`
	Code       int       `json:"code,omitempty" doc:"The HTTP status that it was answered. Absent: it was not."`
	DurationMS int64     `json:"duration_ms" doc:"How long it took, in milliseconds."`
	Error      string    `json:"error,omitempty" doc:"Why it did not arrive."`
}

// WebhookFields are what people say of a webhook.
type WebhookFields struct {
	ClusterID *uuid.UUID `json:"cluster_id,omitempty" doc:"Only what happens in this cluster. The id of zeros lifts that again."`
	Workspace *string    `json:"workspace,omitempty" maxLength:"200" doc:"Only what happens in workspaces whose name matches; * matches anything. Empty matches all." example:"prod-*"`
	Enabled   *bool      `json:"enabled,omitempty" doc:"Whether it is told anything. true gives one that was switched off another chance."`
}

// NewWebhookInputBody makes a webhook.
type NewWebhookInputBody struct {
	Name   string   `json:"name" minLength:"1" maxLength:"100" doc:"What it is called." example:"deploys"`
	Events []string `json:"events,omitempty" required:"true" minItems:"1" enum:"awaiting_approval,awaiting_input,success,failure,cancelled,drift,health" doc:"Its events."`
	Kind   string   `json:"kind,omitempty" enum:"generic,slack" default:"generic" doc:"slack: messages as Slack's incoming webhooks take them, and others that do."`
	URL    string   `json:"url" maxLength:"2000" doc:"Where to. Nobody can read it again but for its host." example:"https://hooks.example/tendril"`
	WebhookFields
}

// MadeWebhook is a webhook with its secret.
type MadeWebhook struct {
	Webhook
	Secret string `json:"secret" doc:"Verifies signatures. Shown in this answer only." example:"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"`
}

// ChangeWebhookInputBody changes a webhook; what is absent stays.
type ChangeWebhookInputBody struct {
	Name   *string  `json:"name,omitempty" minLength:"1" maxLength:"100" doc:"What it is called." example:"deploys"`
	Events []string `json:"events,omitempty" enum:"awaiting_approval,awaiting_input,success,failure,cancelled,drift,health" doc:"Its events. Absent: unchanged."`
	URL    string   `json:"url,omitempty" maxLength:"2000" doc:"Another URL. Absent: as it is."`
	WebhookFields
}

// WebhookSecretBody is a new signing secret.
type WebhookSecretBody struct {
	Secret string `json:"secret" doc:"The new one; that before counts no more. Shown in this answer only."`
}

// SentAnswer answers what sends a message.
type SentAnswer struct {
	ID uuid.UUID `json:"id" doc:"The delivery: how it goes stands in the list of deliveries."`
}
