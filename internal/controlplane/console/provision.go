package console

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// provisionPages mounts the pages of provisions.
func (c *console) provisionPages() {
	c.page("GET /provisions", c.provisions)
	c.page("GET /provisions/{ref}", c.provision)
	c.page("GET /provisions/{ref}/run", c.provisionPart("run"))
	c.page("GET /provisions/{ref}/outcome", c.provisionPart("outcome"))
	c.page("GET /provisions/{ref}/inventory", c.provisionPart("inventory"))
	c.page("POST /provisions/{ref}/approve", c.onProvision(approve))
	c.page("POST /provisions/{ref}/reject", c.onProvision(reject))
	c.page("POST /provisions/{ref}/cancel", c.onProvision(cancel))
	c.page("POST /provisions/{ref}/retry", c.onProvision(retry))
	c.page("POST /provisions/{ref}/plan", c.onProvision(planAgain))
	c.page("POST /provisions/{ref}/destroy", c.onProvision(destroy))
}

// provision is one provision: how far it is, what it plans, prints and leaves, and
// what to do next.
func (c *console) provision(w http.ResponseWriter, r *request) error {
	p, err := c.runPage(r, true)
	if err != nil {
		return err
	}
	if number := strconv.FormatInt(p.Number, 10); r.PathValue("ref") != number {
		http.Redirect(w, r.Request, "/provisions/"+number, http.StatusFound)
		return nil
	}
	c.render(w, r, http.StatusOK, "provision", view{Title: "#" + strconv.FormatInt(p.Number, 10) + " " + cmp.Or(inspection(p.Provision), p.Workspace), Nav: "provisions", Data: p})
	return nil
}

// provisionPart answers with a part of that page as it is now.
func (c *console) provisionPart(name string) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		p, err := c.runPage(r, name == "inventory")
		if err != nil {
			return err
		}
		c.part(w, r, "provision", name, p)
		return nil
	}
}

// runPage reads what the page shows. whole: the resources as well.
func (c *console) runPage(r *request, whole bool) (*runPage, error) {
	p, err := r.provision()
	if err != nil {
		return nil, err
	}
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return nil, err
	}
	page := newRunPage(p, run, r)
	if whole {
		if page.Exists, err = r.store.Resources(r.Context(), run.WorkspaceID); err != nil {
			return nil, err
		}
	}
	if p.Operation == "refresh" && p.Status == "SUCCESS" {
		page.Drift, err = r.store.Drift(r.Context(), run.WorkspaceID)
	}
	return page, err
}

// provision is the one that the path names.
func (r *request) provision() (store.Provision, error) {
	p, err := r.store.Provision(r.Context(), r.PathValue("ref"))
	if _, ok := errors.AsType[*store.NotProvisionError](err); ok {
		err = &store.RefusedError{Code: "PT404", Reason: "provision_not_found", Message: "there is no provision " + strconv.Quote(r.PathValue("ref")) + " that you may see"}
	}
	return p, err
}
