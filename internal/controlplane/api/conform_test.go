package api_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checker checks answers by the served document, which it has checked itself by
// the schema of the OpenAPI specification.
type checker struct {
	mu       sync.Mutex
	document []byte
	paths    map[string]map[string]operation // by path and method in lower case
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by where they stand
	err      error
}

type operation struct {
	OperationID, Summary string
	Security             *[]map[string][]string // nil: as everywhere
	Tags                 []string
	Parameters           []struct{ Name, Description string }
	Responses            map[string]struct {
		Description string
		Content     map[string]any
	}
}

const documentURL = "https://trellis.example/api/v1/openapi.json"

var newChecker = func() func(http.Handler) *checker {
	var once sync.Once
	c := &checker{schemas: map[string]*jsonschema.Schema{}, compiler: jsonschema.NewCompiler()}
	return func(handler http.Handler) *checker {
		once.Do(func() { c.err = c.read(handler) })
		return c
	}
}()

func (c *checker) read(handler http.Handler) error {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/api/v1/openapi.json", nil))
	c.document = recorder.Body.Bytes()
	var d struct {
		Paths map[string]map[string]operation
	}
	if err := json.Unmarshal(c.document, &d); err != nil {
		return err
	}
	c.paths = d.Paths
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.document))
	if err != nil {
		return err
	}
	text, err := os.ReadFile("testdata/openapi-3.1.schema.json")
	if err != nil {
		return err
	}
	specification, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	const url = "https://spec.openapis.org/oas/3.1/schema/2022-10-07"
	c.compiler.AssertFormat()
	for name, doc := range map[string]any{url: specification, documentURL: document} {
		if err := c.compiler.AddResource(name, doc); err != nil {
			return err
		}
	}
	schema, err := c.compiler.Compile(url)
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

// template is the path of the document that a request's path is one of; "" where
// there is none.
func (c *checker) template(path string) string {
	given := strings.Split(path, "/")
	best := ""
	for template := range c.paths {
		parts := strings.Split(template, "/")
		fits := len(parts) == len(given)
		for i := 0; fits && i < len(parts); i++ {
			fits = parts[i] == given[i] || strings.HasPrefix(parts[i], "{")
		}
		if fits && (best == "" || strings.Count(template, "{") < strings.Count(best, "{")) {
			best = template
		}
	}
	return best
}

// check fails the test where the answer is not as the document says.
func (c *checker) check(t *testing.T, r *http.Request, a answer) {
	t.Helper()
	if c.err != nil {
		t.Fatalf("the document is not valid: %v", c.err)
	}
	template := c.template(r.URL.EscapedPath())
	op, known := c.paths[template][strings.ToLower(r.Method)]
	if !known {
		return // no operation's answer
	}
	said, ok := op.Responses[strconv.Itoa(a.status)]
	if !ok {
		t.Errorf("%s %s is answered %d, of which the document says nothing", r.Method, template, a.status)
		return
	}
	mediaType, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	if mediaType == "" && len(said.Content) == 0 && len(a.body) == 0 {
		return
	}
	if said.Content[mediaType] == nil {
		t.Errorf("%s %s is answered %d in %q, of which the document says nothing", r.Method, template, a.status, mediaType)
		return
	}
	if !strings.HasSuffix(mediaType, "json") {
		return
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace
	where := "#/paths/" + escape(template) + "/" + strings.ToLower(r.Method) + "/responses/" + strconv.Itoa(a.status) + "/content/" + escape(mediaType) + "/schema"
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
	if err != nil {
		t.Errorf("%s %s is answered %s: %v", r.Method, template, a.body, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	schema := c.schemas[where]
	if schema == nil {
		if schema, err = c.compiler.Compile(documentURL + where); err != nil {
			t.Errorf("the schema at %s: %v", where, err)
			return
		}
		c.schemas[where] = schema
	}
	if err := schema.Validate(body); err != nil {
		t.Errorf("%s %s is answered %d %.1000s, not as the document says: %v", r.Method, template, a.status, a.body, err)
	}
}
