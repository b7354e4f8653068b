package apidocs_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/net/html"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/controlplane/apidocs"
)

// The page has every operation, and nothing that the content security policy
// forbids; every link within it leads somewhere.
func TestPage(t *testing.T) {
	t.Parallel()
	rest := api.New(api.Config{Version: "v1.2.3", Log: slog.New(slog.DiscardHandler)})
	var page *apidocs.Page
	var err error
	var operations []string
	rest.Read(func(o *huma.OpenAPI) {
		page, err = apidocs.New(o, func(name string) string { return "/assets/" + name })
		for _, path := range o.Paths {
			for _, op := range []*huma.Operation{path.Get, path.Post, path.Put, path.Patch, path.Delete} {
				if op != nil {
					operations = append(operations, op.OperationID)
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	page.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/api/v1/docs", nil))
	text := recorder.Body.String()
	if recorder.Code != 200 || !strings.HasPrefix(recorder.Header().Get("Content-Type"), "text/html") || !strings.Contains(text, "v1.2.3") {
		t.Fatalf("GET /api/v1/docs = %d, %.200s, want the page", recorder.Code, text)
	}
	if len(operations) < 40 {
		t.Errorf("the document has %d operations, want all", len(operations))
	}
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	ids, links := map[string]bool{}, []string{}
	for node := range root.Descendants() {
		if node.Data == "script" || node.Data == "style" {
			t.Errorf("the page has a %s, which the policy forbids", node.Data)
		}
		for _, a := range node.Attr {
			switch {
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				t.Errorf("the page has an attribute %s, which the policy forbids", a.Key)
			case a.Key == "id" && ids[a.Val]:
				t.Errorf("the page has two elements with the id %s", a.Val)
			case a.Key == "id":
				ids[a.Val] = true
			case a.Key == "href" && strings.HasPrefix(a.Val, "#"):
				links = append(links, a.Val[1:])
			}
		}
	}
	for _, op := range operations {
		if !ids[op] {
			t.Errorf("the page does not have the operation %s", op)
		}
	}
	for _, link := range links {
		if !ids[link] {
			t.Errorf("the page leads to #%s, which is not there", link)
		}
	}
	if strings.Contains(text, "&#34;…&#34;") {
		t.Error("a command line has a field without a value that could be sent")
	}
	want := `curl -H &#34;Authorization: Bearer $TRELLIS_TOKEN&#34; \
  -X POST \
  -H &#39;Content-Type: application/json&#39; \
  -d &#39;{
  &#34;plan_digest&#34;: &#34;`
	if !strings.Contains(text, want) || !strings.Contains(text, "/api/v1/provisions/42/approve") {
		t.Errorf("the page has no command line for an approval, want %s", want)
	}
}
