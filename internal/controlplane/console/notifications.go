package console

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (c *console) notificationPages() {
	c.page("GET /notifications", c.notifications)
	c.page("POST /notifications", c.addNotification)
	c.page("GET /notifications/{id}", c.notification)
	c.page("POST /notifications/{id}", c.changeNotification)
	c.page("POST /notifications/{id}/rotate", c.rotateNotification)
	c.page("POST /notifications/{id}/test", c.testNotification)
	c.page("POST /notifications/{id}/deliveries/{delivery}", c.redeliver)
	c.page("POST /notifications/{id}/remove", c.removeNotification)
}

// webhookEvents are what a webhook can be told.
var webhookEvents = []string{"awaiting_approval", "awaiting_input", "success", "failure", "cancelled", "drift", "health"}

// notificationsData is the list; with what was typed for a new one, and why not.
type notificationsData struct {
	Org      store.Org
	Ready    bool
	Webhooks []store.Webhook
	Form     webhookForm
}

// webhookForm is what is said of a webhook.
type webhookForm struct {
	Name, Kind, URL, Cluster, Workspace string
	Events                              []string
	Clusters                            []store.Cluster
	Refused                             *store.RefusedError
	New                                 bool
	Host                                string
}

// Chosen reports whether an event is chosen.
func (f webhookForm) Chosen(event string) bool { return slices.Contains(f.Events, event) }

// Choices are the events that there are.
func (webhookForm) Choices() []string { return webhookEvents }

// notifications is the list of who is told what.
func (c *console) notifications(w http.ResponseWriter, r *request) error {
	return c.showNotifications(w, r, http.StatusOK, webhookForm{Kind: "slack", Events: []string{"awaiting_approval", "awaiting_input", "failure", "drift", "health"}})
}

func (c *console) showNotifications(w http.ResponseWriter, r *request, status int, f webhookForm) (err error) {
	d := notificationsData{Org: r.org, Ready: c.Notifier.Ready(), Form: f}
	d.Form.New = true
	if d.Webhooks, err = r.store.Webhooks(r.Context(), r.org.ID); err != nil {
		return err
	}
	if d.Form.Clusters, err = clustersOf(r); err != nil {
		return err
	}
	c.render(w, r, status, "notifications", view{Nav: "notifications", Data: d})
	return nil
}

// clustersOf are those that a webhook can be restricted to.
func clustersOf(r *request) ([]store.Cluster, error) {
	const many = 500
	found, _, err := r.store.ListClusters(r.Context(), r.org.ID, "", many)
	return found, err
}

// addNotification makes a webhook and shows its secret, this once.
func (c *console) addNotification(w http.ResponseWriter, r *request) error {
	f, settings, err := readWebhook(w, r)
	if err != nil {
		return err
	}
	f.Kind = r.PostForm.Get("kind")
	settings.Kind = f.Kind
	id, secret, err := c.Notifier.Create(r.Context(), r.store, r.org.ID, f.URL, settings)
	if f.Refused = refusal(err); f.Refused != nil {
		return c.showNotifications(w, r, f.Refused.Status(), f)
	} else if err != nil {
		return err
	}
	if f.Kind == "slack" { // which verifies nothing
		c.redirect(w, r, "/notifications/"+id.String(), done("webhook-added", f.Name))
		return nil
	}
	return c.showSecret(w, r, id, f.Name, secret, true)
}

func (c *console) showSecret(w http.ResponseWriter, r *request, id uuid.UUID, name, secret string, isNew bool) error {
	c.render(w, r, http.StatusOK, "notificationsecret", view{Nav: "notifications",
		Data: map[string]any{"ID": id, "Name": name, "Secret": secret, "New": isNew}})
	return nil
}

// readWebhook reads the form that makes or changes a webhook.
func readWebhook(w http.ResponseWriter, r *request) (f webhookForm, s store.WebhookSettings, err error) {
	text := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	f = webhookForm{Name: text("name"), URL: text("url"), Cluster: text("cluster"), Workspace: text("workspace"), Events: r.PostForm["event"]}
	cluster, err := uuid.Parse(f.Cluster)
	if err != nil {
		cluster = uuid.Nil // any
	}
	// No event at all is refused by the database, not left as it is.
	s = store.WebhookSettings{Name: &f.Name, Events: append([]string{}, f.Events...), Cluster: &cluster, Workspace: &f.Workspace}
	return f, s, nil
}

// deliveriesShown is how many messages a webhook's page has.
const deliveriesShown = 50

// notificationData is one webhook with what was sent to it.
type notificationData struct {
	Org        store.Org
	Webhook    store.Webhook
	Deliveries []store.Delivery
	Form       webhookForm
}

// webhookOf finds the one that the path names.
func webhookOf(r *request) (store.Webhook, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return store.Webhook{}, refuse("webhook_not_found", strconv.Quote(r.PathValue("id")))
	}
	return r.store.Webhook(r.Context(), id)
}

func (c *console) notification(w http.ResponseWriter, r *request) error {
	h, err := webhookOf(r)
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
	if d.Form.Clusters, err = clustersOf(r); err != nil {
		return err
	}
	c.render(w, r, status, "notification", view{Nav: "notifications", Data: d})
	return nil
}

// changeNotification saves what the form says, or switches the webhook on or off.
func (c *console) changeNotification(w http.ResponseWriter, r *request) error {
	h, err := webhookOf(r)
	if err != nil {
		return err
	}
	f, settings, err := readWebhook(w, r)
	if err != nil {
		return err
	}
	said := done("webhook-saved")
	if enabled := r.PostForm.Get("enabled"); enabled != "" {
		on := enabled == "true"
		f.URL, settings = "", store.WebhookSettings{Enabled: &on}
		said = done("webhook-disabled", h.Name)
		if on {
			said = done("webhook-enabled", h.Name)
		}
	}
	_, err = c.Notifier.Change(r.Context(), r.store, h.ID, f.URL, settings)
	if f.Refused = refusal(err); f.Refused != nil {
		return c.showNotification(w, r, f.Refused.Status(), h, f)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/notifications/"+h.ID.String(), said)
	return nil
}

// rotateNotification makes another signing secret and shows it, this once.
func (c *console) rotateNotification(w http.ResponseWriter, r *request) error {
	h, err := webhookOf(r)
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
	return c.sendNotification(w, r, nil, done("webhook-test"))
}

func (c *console) redeliver(w http.ResponseWriter, r *request) error {
	delivery, err := uuid.Parse(r.PathValue("delivery"))
	if err != nil {
		return refuse("delivery_not_found")
	}
	return c.sendNotification(w, r, &delivery, done("webhook-again"))
}

func (c *console) sendNotification(w http.ResponseWriter, r *request, delivery *uuid.UUID, said flash) error {
	h, err := webhookOf(r)
	if err != nil {
		return err
	}
	if _, err := r.store.SendWebhook(r.Context(), h.ID, delivery); err != nil {
		no := refusal(err)
		if no == nil {
			return err
		}
		said = refusedFlash(no)
	}
	c.redirect(w, r, "/notifications/"+h.ID.String()+"#deliveries", said)
	return nil
}

func (c *console) removeNotification(w http.ResponseWriter, r *request) error {
	h, err := webhookOf(r)
	if err != nil {
		return err
	}
	if err := r.store.RemoveWebhook(r.Context(), h.ID); err != nil {
		return err
	}
	c.redirect(w, r, "/notifications", done("webhook-removed", h.Name))
	return nil
}
