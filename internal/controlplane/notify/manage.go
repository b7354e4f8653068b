package notify

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Create makes a webhook as a person and returns the secret that its messages are
// signed with. An error of the URL is a *store.RefusedError like all others.
func (n *Notifier) Create(ctx context.Context, s *store.Store, org uuid.UUID, url string, w store.WebhookSettings) (id uuid.UUID, secret string, err error) {
	if !n.Ready() { // which is for those to know who may
		return uuid.Nil, "", cmp.Or(s.KeepsOrg(ctx, org), error(errNoKey))
	}
	id = uuid.New()
	if err := n.seal(id, url, &w); err != nil {
		return uuid.Nil, "", err
	}
	if err := s.CreateWebhook(ctx, org, id, w); err != nil {
		return uuid.Nil, "", err
	}
	return id, n.options.Key.Secret(id, 1), nil
}

// Change changes one; url "" stays as it is. It returns the signing secret that
// counts from now on.
func (n *Notifier) Change(ctx context.Context, s *store.Store, id uuid.UUID, url string, w store.WebhookSettings) (secret string, err error) {
	if !n.Ready() {
		return "", cmp.Or(s.KeepsWebhook(ctx, id), error(errNoKey))
	}
	if url != "" {
		if err := n.seal(id, url, &w); err != nil {
			return "", err
		}
	}
	generation, err := s.ChangeWebhook(ctx, id, w)
	if err != nil {
		return "", err
	}
	return n.options.Key.Secret(id, generation), nil
}

// Ready reports whether webhooks can be set up here.
func (n *Notifier) Ready() bool { return n != nil && n.options.Key != nil }

func (n *Notifier) seal(id uuid.UUID, url string, w *store.WebhookSettings) error {
	to, err := n.options.Allowed.parse(url)
	if bad, ok := errors.AsType[*BadURLError](err); ok {
		return &store.RefusedError{Code: "PT422", Reason: "bad_url", Message: bad.Error()}
	}
	if err != nil {
		return err
	}
	w.Host, w.URL = shown(to), n.options.Key.seal(id, to.String())
	return nil
}

var errNoKey = &store.RefusedError{
	Code: "PT409", Reason: "no_key", Message: "this control plane has no key of its own to keep URLs with, so it sends no notifications",
	Hint: "its administrator gives it one by --key-file",
}
