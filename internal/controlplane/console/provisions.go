package console

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// provisionsPerPage is how many a page of the list has.
const provisionsPerPage = 50

// provisionList is the page of all provisions.
type provisionList struct {
	Items    []store.Provision
	Clusters []store.Place
	// Status, Operation, Cluster and Workspace are the filters as they were asked
	// for; "" is all.
	Status, Operation, Cluster, Workspace string
	WorkspaceName                         string // of the one asked for
	First, Next                           string // addresses of other pages
	Self                                  string // this one's
	// Looked is how many were looked through for this page, where there are more
	// that nobody has looked at; 0 where the page is full or at the end.
	Looked int
}

// Statuses and Operations are what can be chosen.
func (provisionList) Statuses() []provision.Status {
	return []provision.Status{provision.Queued, provision.Processing, provision.AwaitingApproval, provision.Success, provision.Failed, provision.Cancelled}
}

func (provisionList) Operations() []provision.Operation { return provision.Operations }

// Filtered reports whether anything is left out.
func (l provisionList) Filtered() bool { return l.Status+l.Operation+l.Cluster+l.Workspace != "" }

// provisions lists an organisation's provisions, newest first.
func (c *console) provisions(w http.ResponseWriter, r *request) error {
	asked := r.URL.Query()
	l := &provisionList{Status: asked.Get("status"), Operation: asked.Get("operation"), Cluster: asked.Get("cluster"), Workspace: asked.Get("workspace")}
	var filter store.ProvisionFilter
	if slices.Contains(l.Statuses(), provision.Status(l.Status)) {
		filter.Statuses = []provision.Status{provision.Status(l.Status)}
	}
	if slices.Contains(provision.Operations, provision.Operation(l.Operation)) {
		filter.Operations = []provision.Operation{provision.Operation(l.Operation)}
	}
	var err error
	if l.Clusters, err = r.store.Places(r.Context(), r.org.ID); err != nil {
		return err
	}
	for _, place := range l.Clusters {
		if l.Cluster == place.Name || l.Cluster == place.ID.String() {
			l.Cluster, filter.Cluster = place.Name, place.ID
		}
	}
	if l.Workspace != "" {
		found, err := r.store.WorkspaceByRef(r.Context(), r.org.ID, filter.Cluster, l.Workspace)
		if err != nil {
			return err
		}
		l.Workspace, l.WorkspaceName, filter.Workspace = found.ID.String(), found.Name, found.ID
	}
	if l.Cluster != "" && filter.Cluster == uuid.Nil {
		return &store.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: "there is no cluster " + strconv.Quote(l.Cluster) + " here"}
	}
	before, _ := strconv.ParseInt(asked.Get("before"), 10, 64) // else from the newest on
	items, following, err := r.store.ListProvisions(r.Context(), r.org.ID, filter, max(0, before), provisionsPerPage)
	if err != nil {
		return err
	}
	l.Items = items
	l.Self = l.at(before)
	if before > 0 {
		l.First = l.at(0)
	}
	if following > 0 {
		l.Next = l.at(following)
		if len(items) < provisionsPerPage {
			l.Looked = store.Window
		}
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "provisions", "list", l)
		return nil
	}
	c.render(w, r, http.StatusOK, "provisions", view{Title: "Provisions", Nav: "provisions", Data: l})
	return nil
}

// at is the address of the list from a number on.
func (l *provisionList) at(before int64) string {
	q := url.Values{}
	for name, value := range map[string]string{"status": l.Status, "operation": l.Operation, "cluster": l.Cluster, "workspace": l.Workspace} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if before > 0 {
		q.Set("before", strconv.FormatInt(before, 10))
	}
	if len(q) == 0 {
		return "/provisions"
	}
	return "/provisions?" + q.Encode()
}

// Template is a provision's template in short.
func (provisionList) Template(p store.Provision) string { return templateOf(p) }

// Took is how long it ran, or runs; "" where it waits.
func (provisionList) Took(p store.Provision) string {
	switch {
	case p.StartedAt == nil || p.FinishedAt == nil && p.Status != provision.Processing:
		return ""
	case p.FinishedAt == nil:
		return duration((&runPage{Provision: p}).Took()) + " so far"
	}
	return duration((&runPage{Provision: p}).Took())
}
