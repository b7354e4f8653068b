package scripts

import (
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// mirror serves a database of vulnerabilities as vuln.go.dev does.
func mirror(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := os.ReadFile(filepath.Join(dir, strings.TrimSuffix(filepath.FromSlash(r.URL.Path), ".gz")))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		z := gzip.NewWriter(w)
		_, _ = z.Write(content)
		_ = z.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// says is a server with one answer.
func says(t *testing.T, status int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	return server.URL
}

// What .ci/run lets pass must not be what is wrong.
func TestVulnerabilities(t *testing.T) {
	t.Parallel()
	pgtest.Tool(t, "govulncheck")
	local := func(name string) string {
		dir, err := filepath.Abs(filepath.Join("testdata/vulndb", name))
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const gone = "http://127.0.0.1:1" // a port that nobody is given
	const unchecked = "NOT CHECKED: the database of vulnerabilities, "
	for _, c := range []struct {
		name, database string
		code           int
		says           string
	}{
		{"called", "file://" + local("called"), 3, "seal.to calls age.Encrypt"},
		{"called, by a mirror", mirror(t, local("called")), 3, "GO-2026-0001"},
		{"not called", "file://" + local("uncalled"), 0, "No vulnerabilities found"},
		{"no copy there", "file:///nonexistent", 1, "no such file"},
		{"nobody there", gone, 75, unchecked + gone},
		{"what stands between ends the connection", strings.Replace(says(t, http.StatusOK), "http:", "https:", 1), 75, unchecked},
		{"a name that is none", "https://vuln.invalid", 75, unchecked},
		{"a proxy refuses", says(t, http.StatusForbidden), 75, "HTTP status 403"},
		{"not well", says(t, http.StatusBadGateway), 75, "HTTP status 502"},
		{"something else is there", says(t, http.StatusNotFound), 1, "is no database of vulnerabilities"},
		{"it only says that all is well", says(t, http.StatusOK), 1, ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := repository{t, ".."}.run([]string{"GOVULNDB=" + c.database, "NO_PROXY=*", "no_proxy=*"}, "scripts/vuln.sh", "./internal/seal")
			if code != c.code || !strings.Contains(stdout+stderr, c.says) {
				t.Errorf("vuln.sh = %d, want %d and %q:\n%s%s", code, c.code, c.says, stdout, stderr)
			}
			if loud := strings.Contains(stderr, "NOT CHECKED"); loud != (c.code == 75) {
				t.Errorf("NOT CHECKED is said: %v, with exit status %d", loud, c.code)
			}
		})
	}
}
