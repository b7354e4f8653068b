package console

import (
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// deliveriesShown is how many messages a webhook's page has.
const deliveriesShown = 50

// notificationData is one webhook with what was sent to it.
type notificationData struct {
	Org        store.Org
	Webhook    store.Webhook
	Deliveries []store.Delivery
	Form       webhookForm
}

// webhook finds the one that the path names.
func (r *request) webhook() (store.Webhook, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return store.Webhook{}, &store.RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %q", r.PathValue("id"))}
	}
	return r.store.Webhook(r.Context(), id)
}

func (c *console) notification(w http.ResponseWriter, r *request) error {
	h, err := r.webhook()
	if err != nil {
		return err
	}
	f := webhookForm{Name: h.Name, Kind: h.Kind, Workspace: text(h.Workspace), Events: h.Events}
	if h.ClusterID != nil {
		f.Cluster = h.ClusterID.String()
	}
	return c.showNotification(w, r, http.StatusOK, h, f)
}

func (c *console) showNotification(w http.ResponseWriter, r *request, status int, h store.Webhook, f webhookForm) (err error) {
	d := notificationData{Org: r.org, Webhook: h, Form: f}
	d.Form.Host = h.Host
	if d.Deliveries, err = r.store.Deliveries(r.Context(), h.ID, nil, deliveriesShown); err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" && r.Method == http.MethodGet {
		c.part(w, r, "notification", "deliveries", d)
		return nil
	}
	if d.Form.Clusters, err = r.clusters(); err != nil {
		return err
	}
	c.render(w, r, status, "notification", view{Title: h.Name, Nav: "notifications", Data: d})
	return nil
}

// changeNotification saves what the form says, or switches the webhook on or off.
func (c *console) changeNotification(w http.ResponseWriter, r *request) error {
	h, err := r.webhook()
	if err != nil {
		return err
	}
	f, settings, err := readWebhook(w, r)
	if err != nil {
		return err
	}
	said := "Saved."
	if enabled := r.PostForm.Get("enabled"); enabled != "" {
		on := enabled == "true"
		f.URL, settings = "", store.WebhookSettings{Enabled: &on}
		said = map[bool]string{true: h.Name + " is told again.", false: h.Name + " is told nothing until it is enabled."}[on]
	}
	_, err = c.Notifier.Change(r.Context(), r.store, h.ID, f.URL, settings)
	if f.Refused = refusal(err); f.Refused != nil {
		return c.showNotification(w, r, f.Refused.Status(), h, f)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/notifications/"+h.ID.String(), flash{Kind: "success", Text: said})
	return nil
}

// rotateNotification makes another signing secret and shows it, this once.
func (c *console) rotateNotification(w http.ResponseWriter, r *request) error {
	h, err := r.webhook()
	if err != nil {
		return err
	}
	secret, err := c.Notifier.Change(r.Context(), r.store, h.ID, "", store.WebhookSettings{Rotate: true})
	if err != nil {
		return err
	}
	return c.showSecret(w, r, h.ID, h.Name, secret, false)
}

func (c *console) testNotification(w http.ResponseWriter, r *request) error {
	return c.sendNotification(w, r, nil, "A test is on its way: how it went stands below in a moment.")
}

func (c *console) redeliver(w http.ResponseWriter, r *request) error {
	delivery, err := uuid.Parse(r.PathValue("delivery"))
	if err != nil {
		return &store.RefusedError{Code: "PT404", Reason: "delivery_not_found", Message: "there is no such delivery"}
	}
	return c.sendNotification(w, r, &delivery, "It is sent once more.")
}

func (c *console) sendNotification(w http.ResponseWriter, r *request, delivery *uuid.UUID, said string) error {
	h, err := r.webhook()
	if err != nil {
		return err
	}
	told := flash{Kind: "success", Text: said}
	if _, err := r.store.SendWebhook(r.Context(), h.ID, delivery); err != nil {
		no := refusal(err)
		if no == nil {
			return err
		}
		told = flash{Kind: "error", Text: no.Error()}
	}
	c.redirect(w, r, "/notifications/"+h.ID.String()+"#deliveries", told)
	return nil
}

func (c *console) removeNotification(w http.ResponseWriter, r *request) error {
	h, err := r.webhook()
	if err != nil {
		return err
	}
	if err := r.store.RemoveWebhook(r.Context(), h.ID); err != nil {
		return err
	}
	c.redirect(w, r, "/notifications", flash{Kind: "success", Text: h.Name + " is removed."})
	return nil
}
