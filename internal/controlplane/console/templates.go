package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
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

// Soon is true while it is being looked at.
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
	c.render(w, r, http.StatusOK, "templates", view{Title: "Templates", Nav: "templates", Data: d})
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
	c.render(w, r, status, "templatenew", view{Title: "Add a template", Nav: "templates", Data: f})
}

// addTemplate puts one into the catalogue.
func (c *console) addTemplate(w http.ResponseWriter, r *request) error {
	f, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	if _, err := r.store.TemplateByRef(r.Context(), r.org.ID, f.Name); err == nil {
		f.Wrong = map[string]string{"name": "There is a template of that name already."}
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
	c.redirect(w, r, templateURL(f.Template), flash{Kind: "success", Text: f.Name + " is in the catalogue. It is being looked at."})
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
		shown.Message = "It cannot be saved as it is."
	}
	f.Refused = &shown
	return true
}

// entry is the template that the path names.
func (r *request) entry() (store.Template, error) {
	return r.store.TemplateByRef(r.Context(), r.org.ID, r.PathValue("name"))
}

// removeTemplate takes one out of the catalogue. Its name has been typed, where
// there is script.
func (c *console) removeTemplate(w http.ResponseWriter, r *request) error {
	e, err := r.entry()
	if err != nil {
		return err
	}
	if _, err := r.store.RemoveTemplate(r.Context(), r.org.ID, e.Name); err != nil {
		return err
	}
	c.redirect(w, r, "/templates", flash{Kind: "success", Text: e.Name + " is not in the catalogue any more. What was deployed from it stays."})
	return nil
}

// inspectAgain has a version looked at once more.
func (c *console) inspectAgain(w http.ResponseWriter, r *request) error {
	e, err := r.entry()
	if err != nil {
		return err
	}
	version := r.PostForm.Get("version")
	if err := r.store.InspectTemplate(r.Context(), r.org.ID, e.Repo, version, e.Path); err != nil {
		return err
	}
	c.redirect(w, r, templateURL(e)+"?version="+escapeQuery(version), flash{Kind: "info", Text: "Version " + version + " is being looked at."})
	return nil
}
