package api_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// The document is valid OpenAPI 3.1, and says something of everything in it.
func TestDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newChecker(w.handler)
	if c.err != nil {
		t.Fatalf("the document is not valid: %v", c.err)
	}
	if got := w.as(t, "", "GET", "/openapi.yaml", ""); got.status != 200 || !strings.Contains(string(got.body), "openapi: 3.1.0") {
		t.Errorf("GET /openapi.yaml = %d, want the document", got.status)
	}
	var d struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	if err := json.Unmarshal(c.document, &d); err != nil {
		t.Fatal(err)
	}
	for name, schema := range d.Components.Schemas {
		for key, field := range schema.Properties {
			if field.Description == "" {
				t.Errorf("nothing is said of the field %s.%s: add it to fields.go, or a doc tag", name, key)
			}
		}
	}
	for path, methods := range c.paths {
		for method, op := range methods {
			if op.Summary == "" || op.OperationID == "" || len(op.Tags) != 1 {
				t.Errorf("%s %s has summary %q, id %q and tags %v, want one of each", method, path, op.Summary, op.OperationID, op.Tags)
			}
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("nothing is said of %s %s's parameter %s", method, path, p.Name)
				}
			}
			forAnybody := op.Security != nil && len(*op.Security) == 0
			if op.Responses["401"].Description == "" && !forAnybody || op.Responses["503"].Content["application/problem+json"] == nil {
				t.Errorf("%s %s does not say what it answers when it fails", method, path)
			}
		}
	}
}
