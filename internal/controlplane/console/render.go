package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

//go:embed pages/*.html
var pageFiles embed.FS

// pages are the templates, each page's with the layout and the shared parts.
// pages/_*.html are parts; every other file is a page that defines "main".
type pages struct{ byName map[string]*template.Template }

func loadPages() (*pages, error) {
	parts, err := fs.Glob(pageFiles, "pages/_*.html")
	if err != nil {
		return nil, err
	}
	base, err := template.New("base").Funcs(functions()).ParseFS(pageFiles, parts...)
	if err != nil {
		return nil, fmt.Errorf("parse the pages' parts: %w", err)
	}
	files, err := fs.Glob(pageFiles, "pages/[a-z]*.html")
	if err != nil {
		return nil, err
	}
	p := &pages{byName: map[string]*template.Template{}}
	for _, file := range files {
		t, err := base.Clone()
		if err == nil {
			t, err = t.ParseFS(pageFiles, file)
		}
		if err != nil {
			return nil, fmt.Errorf("parse the page %s: %w", file, err)
		}
		p.byName[strings.TrimSuffix(path.Base(file), ".html")] = t
	}
	return p, nil
}

// view is what every page is given; Data is its own.
type view struct {
	Title string
	// Nav is the entry of the menu that the page belongs to, such as "home".
	Nav  string
	Data any

	// Set by render.
	Person  person.Person
	Org     store.Org
	Orgs    []store.Org
	Version string
	Path    string
	Flash   *flash
}

// render answers with a page.
func (c *console) render(w http.ResponseWriter, r *request, status int, name string, v view) {
	v.Person, v.Org, v.Orgs, v.Version, v.Path = r.person, r.org, r.orgs, c.Version, r.URL.Path
	v.Flash = takeFlash(w, r)
	c.execute(w, r, status, name, "layout", v)
}

// part answers with one template of a page, for htmx to put in its place.
func (c *console) part(w http.ResponseWriter, r *request, name, part string, data any) {
	c.execute(w, r, http.StatusOK, name, part, data)
}

// execute writes nothing until it has all: half a page is worse than an error.
func (c *console) execute(w http.ResponseWriter, r *request, status int, name, part string, data any) {
	var b bytes.Buffer
	if err := c.pages.byName[name].ExecuteTemplate(&b, part, data); err != nil {
		c.Log.Error("a page cannot be rendered", "page", name, "path", r.URL.Path, "error", err)
		http.Error(w, "This page cannot be shown. It has been logged.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	page := b.Bytes()
	if len(r.orgs) > 1 {
		page = ofOrg(page, r.org.ID)
	}
	_, _ = w.Write(page) // the reader is gone: nobody to tell
}

func escapeQuery(text string) string { return url.QueryEscape(text) }
