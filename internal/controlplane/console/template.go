package console

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostUsers are the workspaces that a template's page shows.
const mostUsers = 200

// templateData is what the page of one template shows.
type templateData struct {
	store.Template
	URL string
	// Version is the one that is looked at; Offered is the catalogue's own.
	Version, Offered string
	Known            declared
	Versions         []store.TemplateVersion
	UsedBy           []store.Usage
	// Newer is a tag above the one offered; "" if that is the newest.
	Newer string
	Form  templateForm
	// Asked is a version that was to be added, and what was wrong with it.
	Asked, AskedWrong string
}

// template is the page of one template.
func (c *console) template(w http.ResponseWriter, r *request) error {
	d, err := templatePage(r)
	if err != nil {
		return err
	}
	c.showTemplate(w, r, http.StatusOK, d)
	return nil
}

func (c *console) showTemplate(w http.ResponseWriter, r *request, status int, d *templateData) {
	c.render(w, r, status, "template", view{Title: d.Name, Nav: "templates", Data: d})
}

func templatePage(r *request) (*templateData, error) {
	e, err := r.entry()
	if err != nil {
		return nil, err
	}
	d := &templateData{Template: e, URL: templateURL(e), Offered: e.Version, Version: cmp.Or(r.URL.Query().Get("version"), e.Version), Form: templateForm{Template: e}}
	ctx, org := r.Context(), r.org.ID
	if d.Known.Inspection, err = r.store.TemplateVariables(ctx, org, e.Repo, d.Version, e.Path); err != nil {
		return nil, err
	}
	if d.Versions, err = r.store.TemplateVersions(ctx, org, e.Repo); err != nil {
		return nil, err
	}
	for _, version := range []string{d.Version, d.Offered} {
		if !slices.ContainsFunc(d.Versions, func(v store.TemplateVersion) bool { return v.Version == version }) {
			d.Versions = append([]store.TemplateVersion{{Version: version}}, d.Versions...)
		}
	}
	i := slices.IndexFunc(d.Versions, func(v store.TemplateVersion) bool { return v.Tag })
	offered := slices.IndexFunc(d.Versions, func(v store.TemplateVersion) bool { return v.Version == d.Offered })
	if i >= 0 && i < offered && d.Versions[offered].Tag { // the newest come first
		d.Newer = d.Versions[i].Version
	}
	d.UsedBy, err = r.store.UsedBy(ctx, org, e.Repo, e.Path, mostUsers)
	return d, err
}

// Required and Optional are the variables that the version declares.
func (d *templateData) Required() []provision.Variable { return d.those(true) }

// Optional are those that have a default.
func (d *templateData) Optional() []provision.Variable { return d.those(false) }

func (d *templateData) those(required bool) (found []provision.Variable) {
	for _, v := range d.Known.Variables {
		if v.Required == required {
			found = append(found, v)
		}
	}
	return found
}

// changeTemplate saves what an admin has changed of a template: all but its name.
func (c *console) changeTemplate(w http.ResponseWriter, r *request) error {
	e, err := r.entry()
	if err != nil {
		return err
	}
	f, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	f.Name, f.ID = e.Name, e.ID
	if _, err := r.store.SaveTemplate(r.Context(), r.org.ID, f.Template); err != nil {
		if !f.refused(err) {
			return err
		}
		d, err := templatePage(r)
		if err != nil {
			return err
		}
		d.Form = f
		c.showTemplate(w, r, f.Refused.Status(), d)
		return nil
	}
	c.redirect(w, r, templateURL(e), flash{Kind: "success", Text: e.Name + " is saved."})
	return nil
}

// addVersion has a version looked at, and offers it from now on if that is asked
// for.
func (c *console) addVersion(w http.ResponseWriter, r *request) error {
	e, err := r.entry()
	if err != nil {
		return err
	}
	f, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	version, offer := f.Version, r.PostForm.Get("offer") != ""
	if offer {
		changed := e
		changed.Version = version
		_, err = r.store.SaveTemplate(r.Context(), r.org.ID, changed)
	} else {
		err = r.store.InspectTemplate(r.Context(), r.org.ID, e.Repo, version, e.Path)
	}
	if err != nil {
		if !f.refused(err) {
			return err
		}
		d, err := templatePage(r)
		if err != nil {
			return err
		}
		d.Asked, d.AskedWrong = version, strings.TrimSpace(cmp.Or(f.Wrong["version"], f.Refused.Message))
		c.showTemplate(w, r, f.Refused.Status(), d)
		return nil
	}
	text := "Version " + version + " is being looked at."
	if offer {
		text = "Version " + version + " is offered from now on."
	}
	c.redirect(w, r, templateURL(e)+"?version="+escapeQuery(version), flash{Kind: "success", Text: text})
	return nil
}
