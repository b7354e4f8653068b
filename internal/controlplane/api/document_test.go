package api_test

import (
	"crypto/sha256"
	"encoding/base64"
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
				t.Errorf("nothing is said of the field %s.%s: give it a doc tag in package wire", name, key)
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
			if op.Tags[0] == "Agents" { // its errors are PostgREST's
				continue
			}
			if op.Responses["401"].Description == "" && !forAnybody || op.Responses["503"].Content["application/problem+json"] == nil {
				t.Errorf("%s %s does not say what it answers when it fails", method, path)
			}
		}
	}
}

// What a CLI gets for a code is as the document says, which another package serves.
func TestTokenOfACLIIsAsDocumented(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const verifier = "a-verifier-that-only-the-cli-has-made-up-itself"
	code, challenge := sha256.Sum256([]byte("a code")), sha256.Sum256([]byte(verifier))
	w.Exec(t, "SELECT tendril.add_credential('cli_code', $1, $2, interval '2 minutes', 'laptop', $3)", w.people["viewer"], code[:], base64.RawURLEncoding.EncodeToString(challenge[:]))
	got := w.as(t, "", "POST", "/cli/token", `{"code": "a code", "verifier": "`+verifier+`"}`).want(t, "POST /cli/token", 200, "")
	if !strings.HasPrefix(got.text("token"), "trt_") || got.text("user.id") != w.people["viewer"].String() {
		t.Errorf("POST /cli/token = %s, want a token of who has let it in", got.body)
	}
}
