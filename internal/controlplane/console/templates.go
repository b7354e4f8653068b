package console

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (c *console) templatePages() {
	c.page("GET /templates", c.templates)
	c.page("GET /templates/new", c.newTemplate)
	c.page("POST /templates/new", c.addTemplate)
	c.page("GET /templates/{name}", c.template)
	c.page("POST /templates/{name}", c.changeTemplate)
	c.page("POST /templates/{name}/version", c.addVersion)
	c.page("POST /templates/{name}/inspect", c.inspectAgain)
	c.page("POST /templates/{name}/remove", c.removeTemplate)
}

// listed is a template as the catalogue's page shows it.
type listed struct {
	store.Template
	Known store.Known
}

// Soon is true while it is being scanned.
func (l listed) Soon() bool { return soon(l.Known.Status, l.Known.Inspected) }

// URL is a template's page. One whose name is that of another page here is found
// by its id.
func (l listed) URL() string { return templateURL(l.Template) }

func templateURL(e store.Template) string {
	if e.Name == "new" || e.Name == "." || e.Name == ".." {
		return "/templates/" + e.ID.String()
	}
	return "/templates/" + url.PathEscape(e.Name)
}

// catalogue is the page of all templates, or of those that meet some words.
type catalogue struct {
	Items []listed
	Words string
	All   int // there are without the words
}

// Search reports whether one is offered.
func (c catalogue) Search() bool { return c.Words != "" || c.All >= searchedFrom }

// templates is the page of the catalogue.
func (c *console) templates(w http.ResponseWriter, r *request) error {
	all, err := r.store.Catalogue(r.Context(), r.org.ID)
	if err != nil {
		return err
	}
	d := catalogue{Words: strings.TrimSpace(r.URL.Query().Get("q")), All: len(all)}
	entries := choose(all, d.Words, wordsOf)
	known, err := r.store.KnownOf(r.Context(), r.org.ID, entries)
	if err != nil {
		return err
	}
	for i, e := range entries {
		d.Items = append(d.Items, listed{e, known[i]})
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "templates", "list", d)
		return nil
	}
	c.render(w, r, http.StatusOK, "templates", view{Nav: "templates", Data: d})
	return nil
}

// templateForm is what an admin fills in, and what was wrong with it.
type templateForm struct {
	store.Template
	Wrong   map[string]string // by the field's name
	Refused *store.RefusedError
}

// newTemplate is the form that adds a template.
func (c *console) newTemplate(w http.ResponseWriter, r *request) error {
	c.showNewTemplate(w, r, http.StatusOK, templateForm{Template: store.Template{Approval: "never"}})
	return nil
}

func (c *console) showNewTemplate(w http.ResponseWriter, r *request, status int, f templateForm) {
	c.render(w, r, status, "templatenew", view{Nav: "templates", Data: f})
}

// addTemplate puts one into the catalogue.
func (c *console) addTemplate(w http.ResponseWriter, r *request) error {
	f, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	if _, err := r.store.TemplateByRef(r.Context(), r.org.ID, f.Name); err == nil {
		f.Wrong = map[string]string{"name": refuse("template_exists").Message}
		c.showNewTemplate(w, r, http.StatusUnprocessableEntity, f)
		return nil
	}
	if f.ID, err = r.store.SaveTemplate(r.Context(), r.org.ID, f.Template); err != nil {
		if !f.refused(err) {
			return err
		}
		c.showNewTemplate(w, r, f.Refused.Status(), f)
		return nil
	}
	c.redirect(w, r, templateURL(f.Template), done("template-added", f.Name))
	return nil
}

func readTemplate(w http.ResponseWriter, r *request) (f templateForm, err error) {
	text := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	f.Template = store.Template{Name: text("name"), Repo: text("repo"), Path: text("path"), Version: text("version"), Description: text("description"), Approval: text("approval")}
	return f, nil
}

// refused takes what the database refuses to the fields that it names; false for
// other errors.
func (f *templateForm) refused(err error) bool {
	refused, ok := errors.AsType[*store.RefusedError](err)
	if !ok || refused.Status() >= http.StatusInternalServerError {
		return false
	}
	f.Refused, f.Wrong = refused, map[string]string{}
	if refused.Reason != "bad_template" {
		return true
	}
	var other []string
	for line := range strings.Lines(refused.Message) {
		name, message, found := strings.Cut(strings.TrimSpace(line), ": ")
		if name, ours := strings.CutPrefix(name, "p_"); found && ours {
			f.Wrong[name] = message
		} else {
			other = append(other, strings.TrimSpace(line))
		}
	}
	shown := *refused
	shown.Message = strings.Join(other, "\n")
	if len(other) == 0 {
		shown.Message = refuse("template_not_saved").Message
	}
	f.Refused = &shown
	return true
}

// entryOf is the template that the path names.
func entryOf(r *request) (store.Template, error) {
	return r.store.TemplateByRef(r.Context(), r.org.ID, r.PathValue("name"))
}

// removeTemplate takes one out of the catalogue. Its name has been typed, where
// there is script.
func (c *console) removeTemplate(w http.ResponseWriter, r *request) error {
	e, err := entryOf(r)
	if err != nil {
		return err
	}
	if _, err := r.store.RemoveTemplate(r.Context(), r.org.ID, e.Name); err != nil {
		return err
	}
	c.redirect(w, r, "/templates", done("template-removed", e.Name))
	return nil
}

// inspectAgain has a version looked at once more.
func (c *console) inspectAgain(w http.ResponseWriter, r *request) error {
	e, err := entryOf(r)
	if err != nil {
		return err
	}
	version := r.PostForm.Get("version")
	if err := r.store.InspectTemplate(r.Context(), r.org.ID, e.Repo, version, e.Path); err != nil {
		return err
	}
	c.redirect(w, r, templateURL(e)+"?version="+escapeQuery(version), noted("version-scan", version))
	return nil
}

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
	c.render(w, r, status, "template", view{Nav: "templates", Data: d})
}

func templatePage(r *request) (*templateData, error) {
	e, err := entryOf(r)
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
	e, err := entryOf(r)
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
	c.redirect(w, r, templateURL(e), done("template-saved", e.Name))
	return nil
}

// addVersion has a version looked at, and offers it from now on if that is asked
// for.
func (c *console) addVersion(w http.ResponseWriter, r *request) error {
	e, err := entryOf(r)
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
	said := done("version-scan", version)
	if offer {
		said = done("version-default", version)
	}
	c.redirect(w, r, templateURL(e)+"?version="+escapeQuery(version), said)
	return nil
}
