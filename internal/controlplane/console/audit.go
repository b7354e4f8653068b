package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// auditData is a page of an organisation's audit events.
type auditData struct {
	Org              store.Org
	Events           []auditEvent
	Actions, Objects []string
	Action, Object   string
	Actor            string
	// Person is the actor that is asked for.
	Person   actor
	Narrowed bool
	Pager    pager
}

// Kept is the filter that the form does not show.
func (d auditData) Kept() map[string]string { return map[string]string{"actor": d.Actor} }

// auditEvent is an event with its details in their order.
type auditEvent struct {
	store.AuditEvent
	Details []detail
	Href    string // of the object's page; "" where there is none
}

type detail struct{ Name, Value string }

func (c *console) audit(w http.ResponseWriter, r *request) error {
	d := auditData{Org: r.org}
	if !atLeast(r.org.Role, "admin") { // they would see an empty list, and take it for the truth
		c.render(w, r, http.StatusForbidden, "audit", view{Nav: "audit", Data: d})
		return nil
	}
	q := r.URL.Query()
	d.Action, d.Object, d.Actor = q.Get("action"), q.Get("object"), q.Get("actor")
	f := store.AuditFilter{Action: d.Action, Object: d.Object}
	if actor, err := uuid.Parse(d.Actor); err == nil && actor != uuid.Nil {
		f.Actor = actor
	} else {
		d.Actor = "" // what is no id is no filter
	}
	before, _ := strconv.ParseInt(q.Get("before"), 10, 64) // else the first page
	events, next, err := r.store.Audit(r.Context(), r.org.ID, f, before, rowsOfPage)
	if err != nil {
		return err
	}
	if d.Actions, d.Objects, err = r.store.AuditWords(r.Context(), r.org.ID); err != nil {
		return err
	}
	for _, event := range events {
		d.Events = append(d.Events, auditEvent{AuditEvent: event, Details: details(event.Detail), Href: objectPath(event)})
	}
	narrowed := url.Values{}
	for name, value := range map[string]string{"action": d.Action, "object": d.Object, "actor": d.Actor} {
		if value != "" {
			narrowed.Set(name, value)
		}
	}
	d.Narrowed = len(narrowed) > 0
	if d.Person = actorOf("", d.Actor); len(events) > 0 {
		d.Person.Name = events[0].ActorName
	}
	if before > 0 {
		d.Pager.First = "/audit?" + narrowed.Encode()
	}
	if next > 0 {
		narrowed.Set("before", strconv.FormatInt(next, 10))
		d.Pager.Next = "/audit?" + narrowed.Encode()
		if len(events) < rowsOfPage {
			d.Pager.Searched = store.Window
		}
	}
	c.render(w, r, http.StatusOK, "audit", view{Nav: "audit", Data: d})
	return nil
}

// details takes an object's fields apart, by name; what is empty is left out.
func details(raw json.RawMessage) []detail {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	var found []detail
	for name, value := range fields {
		if text := plain(value); text != "" {
			found = append(found, detail{sentence(name), text})
		}
	}
	slices.SortFunc(found, func(a, b detail) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// plain is JSON as a sentence has it: lists and objects without their signs.
func plain(raw json.RawMessage) string {
	var value any
	_ = json.Unmarshal(raw, &value) // the database has no other
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any, map[string]any:
		var list []json.RawMessage
		var parts []string
		if json.Unmarshal(raw, &list) == nil {
			for _, item := range list {
				parts = append(parts, plain(item))
			}
		} else {
			for _, field := range details(raw) {
				parts = append(parts, strings.ToLower(field.Name)+" "+field.Value)
			}
		}
		return strings.Join(parts, ", ")
	}
	return string(raw)
}

// objectPath is the page of what an event is about.
func objectPath(d store.AuditEvent) string {
	if d.Called == "" || d.ObjectID == nil {
		return ""
	}
	switch d.Object {
	case "cluster", "template":
		return "/" + d.Object + "s/" + url.PathEscape(d.Called)
	case "workspace":
		return workspacePath(d.ObjectID.String())
	case "provision":
		return "/provisions/" + d.ObjectID.String()
	}
	return ""
}
