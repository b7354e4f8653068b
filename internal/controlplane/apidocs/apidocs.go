// Package apidocs is the readable page of the REST API, made from its OpenAPI
// document: what there is, grouped, with an example of each. It is plain HTML, so
// it needs no script.
//
// It must not know what operations do, nor who asks: what the document says is no
// secret.
package apidocs

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var files embed.FS

// Page is the page.
type Page struct{ html []byte }

// New makes the page of an OpenAPI document. asset says where a file of the
// console's is served.
func New(document []byte, asset func(name string) string) (*Page, error) {
	var d openAPI
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	page, err := template.New("page.html").Funcs(template.FuncMap{"asset": asset}).ParseFS(files, "page.html")
	if err != nil {
		return nil, err
	}
	var html bytes.Buffer
	if err := page.Execute(&html, d.view()); err != nil {
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

var order = []string{"get", "post", "put", "patch", "delete"}

func (d openAPI) view() view {
	v := view{Version: d.Info.Version}
	paths := sortedKeys(d.Paths)
	for _, tag := range d.Tags {
		g := group{Name: tag.Name, Anchor: strings.ToLower(tag.Name), Description: tag.Description}
		for _, path := range paths {
			for _, method := range order {
				if op, ok := d.Paths[path][method]; ok && slices.Contains(op.Tags, tag.Name) {
					g.Operations = append(g.Operations, d.shown(strings.ToUpper(method), path, op))
				}
			}
		}
		if len(g.Operations) > 0 {
			v.Groups = append(v.Groups, g)
		}
	}
	for _, name := range sortedKeys(d.Components.Schemas) {
		v.Types = append(v.Types, named{name, d.fields(d.Components.Schemas[name])})
	}
	return v
}

func (d openAPI) shown(method, path string, op operation) shown {
	s := shown{ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, Description: op.Description, Curl: d.curl(method, path, op)}
	for _, p := range op.Parameters {
		s.Parameters = append(s.Parameters, field{Name: p.Name, In: p.In, Kind: p.Schema.kind(), Description: p.Description, Required: p.Required})
	}
	if op.RequestBody != nil {
		s.Body = d.fields(d.resolve(op.RequestBody.Content["application/json"].Schema))
	}
	for _, status := range sortedKeys(op.Responses) {
		r := op.Responses[status]
		a := answer{Status: status, Description: r.Description}
		for _, content := range r.Content {
			a.Type = content.Schema.name()
		}
		s.Responses = append(s.Responses, a)
	}
	return s
}

func (d openAPI) fields(s schema) []field {
	found := make([]field, 0, len(s.Properties))
	for _, name := range sortedKeys(s.Properties) {
		p := s.Properties[name]
		found = append(found, field{Name: name, Kind: p.kind(), Link: p.name(), Description: p.Description, Required: slices.Contains(s.Required, name)})
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
