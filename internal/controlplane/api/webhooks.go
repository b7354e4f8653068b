package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

type newWebhookInput struct {
	Keyed
	Body wire.NewWebhookInputBody
	OrgParam
}

// WebhookRef names a webhook.
type WebhookRef struct {
	ID uuid.UUID `path:"id" doc:"The webhook."`
}

type changeWebhookInput struct {
	WebhookRef
	Body wire.ChangeWebhookInputBody
}

type deliveriesInput struct {
	WebhookRef
	PageParams
}

type testInput struct {
	Keyed
	WebhookRef
}

type redeliverInput struct {
	Keyed
	WebhookRef
	Delivery uuid.UUID `path:"delivery" doc:"The delivery, of that webhook."`
}

func settings(f wire.WebhookFields, events []string) store.WebhookSettings {
	return store.WebhookSettings{Events: events, Cluster: f.ClusterID, Workspace: f.Workspace, Enabled: f.Enabled}
}

// webhookFault is a refusal of what a webhook is made of, with the field named.
func webhookFault(err error) error {
	refused, ok := errors.AsType[*store.RefusedError](err)
	if !ok || refused.Reason != "bad_url" && refused.Reason != "bad_webhook" {
		return err
	}
	field, message, ok := strings.Cut(refused.Message, ": ")
	if !ok {
		return err
	}
	return fault(refused.Status(), refused.Reason, "body."+field, message, "")
}

// webhooks registers who is told of what happens.
func (a *api) webhooks(h huma.API) {
	tag := []string{"Notifications"}
	add(a, h, huma.Operation{OperationID: "list-webhooks", Method: http.MethodGet, Path: "/webhooks", Tags: tag, Summary: "List webhooks by name"},
		func(ctx context.Context, in *OrgParam) (*listed[wire.Webhook], error) {
			s := a.as(ctx)
			org, err := s.FindOrg(ctx, in.Org)
			if err != nil {
				return nil, err
			}
			found, err := s.Webhooks(ctx, org.ID)
			return listAfter("webhooks", each(webhookOf, found), "", err)
		})
	onceSecret(a, h, huma.Operation{
		OperationID: "create-webhook", Method: http.MethodPost, Path: "/webhooks", Tags: tag, Summary: "Make a webhook", DefaultStatus: http.StatusCreated,
		Description: "Its URL must begin with https:// and be on the Internet, unless this server's administrator allows another. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newWebhookInput) (string, wire.MadeWebhook, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", wire.MadeWebhook{}, err
		}
		w := settings(in.Body.WebhookFields, in.Body.Events)
		w.Name, w.Kind = &in.Body.Name, in.Body.Kind
		id, secret, err := a.Notifier.Create(ctx, s, org.ID, in.Body.URL, w)
		if err != nil {
			return "", wire.MadeWebhook{}, webhookFault(err)
		}
		made, err := s.Webhook(ctx, id)
		return prefix + "/webhooks/" + id.String(), wire.MadeWebhook{Webhook: webhookOf(made), Secret: secret}, err
	})
	add(a, h, huma.Operation{OperationID: "get-webhook", Method: http.MethodGet, Path: "/webhooks/{id}", Tags: tag, Summary: "One webhook"},
		func(ctx context.Context, in *WebhookRef) (*answer[wire.Webhook], error) {
			found, err := a.as(ctx).Webhook(ctx, in.ID)
			return body(webhookOf, found, err)
		})
	add(a, h, huma.Operation{
		OperationID: "change-webhook", Method: http.MethodPatch, Path: "/webhooks/{id}", Tags: tag, Summary: "Change a webhook",
		Description: "What is not said stays. Enabling one that was disabled gives it another chance.",
	}, func(ctx context.Context, in *changeWebhookInput) (*answer[wire.Webhook], error) {
		w := settings(in.Body.WebhookFields, in.Body.Events)
		w.Name = in.Body.Name
		s := a.as(ctx)
		if _, err := a.Notifier.Change(ctx, s, in.ID, in.Body.URL, w); err != nil {
			return nil, webhookFault(err)
		}
		found, err := s.Webhook(ctx, in.ID)
		return body(webhookOf, found, err)
	})
	add(a, h, huma.Operation{OperationID: "remove-webhook", Method: http.MethodDelete, Path: "/webhooks/{id}", Tags: tag, Summary: "Remove a webhook, and what was sent to it"},
		func(ctx context.Context, in *WebhookRef) (*struct{}, error) {
			return nil, a.as(ctx).RemoveWebhook(ctx, in.ID)
		})
	add(a, h, huma.Operation{OperationID: "rotate-webhook", Method: http.MethodPost, Path: "/webhooks/{id}/rotate", Tags: tag, Summary: "Give a webhook a new signing secret"},
		func(ctx context.Context, in *WebhookRef) (*answer[wire.WebhookSecretBody], error) {
			answer := &answer[wire.WebhookSecretBody]{}
			var err error
			answer.Body.Secret, err = a.Notifier.Change(ctx, a.as(ctx), in.ID, "", store.WebhookSettings{Rotate: true})
			return answer, err
		})
	a.webhookDeliveries(h, tag)
}

func (a *api) webhookDeliveries(h huma.API, tag []string) {
	add(a, h, huma.Operation{
		OperationID: "list-deliveries", Method: http.MethodGet, Path: "/webhooks/{id}/deliveries", Tags: tag, Summary: "What was sent to a webhook, the latest first",
		Description: "With every attempt, its answer and its error. Kept for 30 days, 1,000 of each webhook. Admins see them.",
	}, func(ctx context.Context, in *deliveriesInput) (*listed[wire.Delivery], error) {
		var before *time.Time
		if err := decodeCursor("deliveries", in.Cursor, &before); err != nil {
			return nil, err
		}
		s := a.as(ctx)
		if err := s.KeepsWebhook(ctx, in.ID); err != nil { // an empty list would read as if nothing had been sent
			return nil, err
		}
		found, err := s.Deliveries(ctx, in.ID, before, in.Limit)
		next := ""
		if len(found) == in.Limit {
			next = encodeCursor("deliveries", found[len(found)-1].CreatedAt)
		}
		return listOf(each(deliveryOf, found), next), err
	})
	send := func(ctx context.Context, s *store.Store, webhook uuid.UUID, delivery *uuid.UUID) (string, wire.SentAnswer, error) {
		id, err := s.SendWebhook(ctx, webhook, delivery)
		return prefix + "/webhooks/" + webhook.String() + "/deliveries", wire.SentAnswer{ID: id}, err
	}
	once(a, h, huma.Operation{
		OperationID: "test-webhook", Method: http.MethodPost, Path: "/webhooks/{id}/test", Tags: tag, Summary: "Send a message that only tries", DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, s *store.Store, in *testInput) (string, wire.SentAnswer, error) {
		return send(ctx, s, in.ID, nil)
	})
	once(a, h, huma.Operation{
		OperationID: "redeliver", Method: http.MethodPost, Path: "/webhooks/{id}/deliveries/{delivery}/redeliver", Tags: tag, Summary: "Send a message once more", DefaultStatus: http.StatusAccepted,
		Description: "It has the id that it had, by which a receiver knows it again.",
	}, func(ctx context.Context, s *store.Store, in *redeliverInput) (string, wire.SentAnswer, error) {
		return send(ctx, s, in.ID, &in.Delivery)
	})
}
