package site_test

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
)

// What is long and has no secret is gzipped for who takes that; what tells a
// secret, repeats what was asked, or goes on as it happens, is not.
func TestWhatIsCompressed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	token, err := signin.NewToken(t.Context(), w.site.Database(), w.member(t, "admin"), "a test")
	if err != nil {
		t.Fatal(err)
	}
	id := w.Deploy(t, "a").String()
	line := strings.Repeat("a line like others\n", 200)
	w.Exec(t, "SELECT tendril.system_line($1, $2)", id, line)
	ask := func(method, path, body, encoding string) (http.Header, io.Reader) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept-Encoding", encoding)
		response, err := w.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response.Header, response.Body
	}
	provision := "/api/v1/provisions/" + id
	for path, has := range map[string]string{
		"/api/v1/openapi.json": `"openapi"`, "/api/v1/docs": "<h1", console.AssetURL("app.css"): "--", console.AssetURL("vendor/htmx.js"): "htmx",
		provision + "/logs": "a line like others", provision + "/logs?format=text": line,
	} {
		header, body := ask("GET", path, "", "gzip")
		if header.Get("Content-Encoding") != "gzip" || !strings.Contains(header.Get("Vary"), "Accept-Encoding") {
			t.Errorf("GET %s = %v, want it gzipped, and told apart by caches", path, header)
			continue
		}
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			t.Errorf("GET %s: %v", path, err)
			continue
		}
		if text, err := io.ReadAll(unpacked); err != nil || !strings.Contains(string(text), has) {
			t.Errorf("GET %s = %.200s, %v, want %s in it", path, text, err, has)
		}
		if plain, _ := ask("GET", path, "", "identity"); plain.Get("Content-Encoding") != "" {
			t.Errorf("GET %s of who takes no gzip comes as %s", path, plain.Get("Content-Encoding"))
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/api/v1/templates", `{"name": "t", "repo": "https://git.example/a/b", "version": "v1", "description": "` + strings.Repeat("x", 1900) + `"}`},
		{"GET", "/api/v1/clusters?cursor=" + strings.Repeat("x", 1900), ""},
		{"GET", "/provisions?workspace=" + strings.Repeat("x", 1900), ""},
	} {
		if header, _ := ask(c.method, c.path, c.body, "gzip"); header.Get("Content-Encoding") != "" {
			t.Errorf("%s %.40s comes as %s, want it as it is", c.method, c.path, header.Get("Content-Encoding"))
		}
	}
	header, stream := ask("GET", provision+"/logs/stream", "", "gzip")
	if first, err := bufio.NewReader(stream).ReadString('\n'); err != nil || header.Get("Content-Encoding") != "" || !strings.HasPrefix(first, "retry: ") {
		t.Errorf("a stream begins with %q, %v, as %q, want it as it is, at once", first, err, header.Get("Content-Encoding"))
	}
}
