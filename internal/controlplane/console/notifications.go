package console

import (
	"net/http"
	"slices"
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

// webhookEvents are what can be told, in the words of the page.
var webhookEvents = []struct{ Name, Title string }{
	{"awaiting_approval", "A plan awaits approval"},
	{"success", "A provision has succeeded"},
	{"failure", "A provision has failed"},
	{"cancelled", "A provision was cancelled"},
	{"drift", "A workspace has drifted"},
}

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

// Told reports whether an event is chosen.
func (f webhookForm) Told(event string) bool { return slices.Contains(f.Events, event) }

// Choices are the events that there are.
func (webhookForm) Choices() any { return webhookEvents }

// notifications is the list of who is told what.
func (c *console) notifications(w http.ResponseWriter, r *request) error {
	return c.showNotifications(w, r, http.StatusOK, webhookForm{Kind: "slack", Events: []string{"awaiting_approval", "failure", "drift"}})
}

func (c *console) showNotifications(w http.ResponseWriter, r *request, status int, f webhookForm) (err error) {
	d := notificationsData{Org: r.org, Ready: c.Notifier.Ready(), Form: f}
	d.Form.New = true
	if d.Webhooks, err = r.store.Webhooks(r.Context(), r.org.ID); err != nil {
		return err
	}
	if d.Form.Clusters, err = r.clusters(); err != nil {
		return err
	}
	c.render(w, r, status, "notifications", view{Title: "Notifications", Nav: "notifications", Data: d})
	return nil
}

// clusters are those that a webhook can be restricted to.
func (r *request) clusters() ([]store.Cluster, error) {
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
		c.redirect(w, r, "/notifications/"+id.String(), flash{Kind: "success", Text: f.Name + " is added. Send a test to see whether it arrives."})
		return nil
	}
	return c.showSecret(w, r, id, f.Name, secret, true)
}

func (c *console) showSecret(w http.ResponseWriter, r *request, id uuid.UUID, name, secret string, isNew bool) error {
	c.render(w, r, http.StatusOK, "notificationsecret", view{Title: "Signing secret", Nav: "notifications",
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
