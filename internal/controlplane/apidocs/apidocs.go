// Package apidocs is the readable page of the REST API, made from its OpenAPI
// document: what there is, grouped, with an example of each. It is plain HTML, so
// it needs no script.
//
// It must not know what operations do, nor who reads it: the document holds no
// secret.
package apidocs

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed page.html
var files embed.FS

// Page is the page.
type Page struct{ html []byte }

// New makes the page of an OpenAPI document. asset says where a file of the
// console's is served.
func New(o *huma.OpenAPI, asset func(name string) string) (*Page, error) {
	page, err := template.New("page.html").Funcs(template.FuncMap{"asset": asset}).ParseFS(files, "page.html")
	if err != nil {
		return nil, err
	}
	var html bytes.Buffer
	if err := page.Execute(&html, document{o}.view()); err != nil {
		return nil, fmt.Errorf("make the page of the OpenAPI document: %w", err)
	}
	return &Page{html.Bytes()}, nil
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.html))
}

// view is what the page shows.
type view struct {
	Version string
	Groups  []group
	Types   []named
}

type group struct {
	Name, Anchor, Description string
	Operations                []shown
}

type shown struct {
	ID, Method, Path, Summary, Description string
	Parameters                             []field
	Body                                   []field
	Responses                              []answer
	Curl                                   string
}

type named struct {
	Name   string
	Fields []field
}

type field struct {
	Name, In, Kind, Link, Description string
	Required                          bool
}

type answer struct {
	Status, Description, Type string
}

// operations are those of a path, by their methods, in the page's order.
func operations(path *huma.PathItem) []*huma.Operation {
	return slices.DeleteFunc([]*huma.Operation{path.Get, path.Post, path.Put, path.Patch, path.Delete}, func(op *huma.Operation) bool { return op == nil })
}

func (d document) view() view {
	v := view{Version: d.Info.Version}
	for _, tag := range d.Tags {
		g := group{Name: tag.Name, Anchor: strings.ToLower(tag.Name), Description: tag.Description}
		for _, path := range sortedKeys(d.Paths) {
			for _, op := range operations(d.Paths[path]) {
				if slices.Contains(op.Tags, tag.Name) {
					g.Operations = append(g.Operations, d.shown(path, op))
				}
			}
		}
		if len(g.Operations) > 0 {
			v.Groups = append(v.Groups, g)
		}
	}
	schemas := d.Components.Schemas.Map()
	for _, name := range sortedKeys(schemas) {
		v.Types = append(v.Types, named{name, d.fields(schemas[name])})
	}
	return v
}

func (d document) shown(path string, op *huma.Operation) shown {
	s := shown{ID: op.OperationID, Method: op.Method, Path: path, Summary: op.Summary, Description: op.Description, Curl: d.curl(path, op)}
	for _, p := range op.Parameters {
		s.Parameters = append(s.Parameters, field{Name: p.Name, In: p.In, Kind: kind(p.Schema), Description: p.Description, Required: p.Required})
	}
	if body := jsonBody(op); body != nil {
		s.Body = d.fields(d.resolve(body))
	}
	for _, status := range sortedKeys(op.Responses) {
		r := op.Responses[status]
		a := answer{Status: status, Description: r.Description}
		for _, content := range r.Content {
			a.Type = name(content.Schema)
		}
		s.Responses = append(s.Responses, a)
	}
	return s
}

func (document) fields(s *huma.Schema) []field {
	found := make([]field, 0, len(s.Properties))
	for _, called := range sortedKeys(s.Properties) {
		p := s.Properties[called]
		found = append(found, field{Name: called, Kind: kind(p), Link: name(p), Description: p.Description, Required: slices.Contains(s.Required, called)})
	}
	// What must be there comes first.
	slices.SortStableFunc(found, func(a, b field) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return found
}
