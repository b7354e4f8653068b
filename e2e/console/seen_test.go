package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// seen is which of the site's pages were looked at, so that none is left out.
type seen struct {
	routes *http.ServeMux
	mu     sync.Mutex
	missed map[string]bool
}

// noPage are routes that answer with something else than a page of their own.
var noPage = map[string]string{
	"GET /assets/":                    "files",
	"GET /live":                       "a stream",
	"GET /api/":                       "JSON",
	"GET /api/v1/provisions/{ref}/":   "the streams below it",
	"GET /signin/start":               "leads to the issuer",
	"GET /signin/callback":            "leads on from there",
	"GET /deploy/declared":            "JSON for the form",
	"GET /provisions/{ref}/run":       "a part of the provision's page",
	"GET /provisions/{ref}/outcome":   "likewise",
	"GET /provisions/{ref}/inventory": "likewise",
}

// newSeen reads from the programs' text which pages there are: a page that is
// added is to be looked at, too.
func newSeen(t *testing.T) *seen {
	t.Helper()
	s := &seen{routes: http.NewServeMux(), missed: map[string]bool{}}
	mounted := regexp.MustCompile(`(?:\.page|\.Handle|\.HandleFunc)\("(GET /[^"]*)"`)
	for _, dir := range []string{"console", "signin", "site"} {
		files, err := filepath.Glob("../../internal/controlplane/" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range mounted.FindAllStringSubmatch(string(text), -1) {
				if route := m[1]; !strings.HasSuffix(file, "_test.go") && noPage[route] == "" && !s.missed[route] {
					s.routes.Handle(route, http.NotFoundHandler())
					s.missed[route] = true
				}
			}
		}
	}
	if len(s.missed) < 15 {
		t.Fatalf("%d pages are found: the test does not know any more how they are mounted", len(s.missed))
	}
	return s
}

// page looks at a page as it is: for people who see it badly in both themes, and
// for phones. Its state has a name, if a picture of it is to be kept.
func (s *seen) page(tab *browsertest.Tab, name ...string) {
	looks := browsertest.Looks()
	for _, look := range looks {
		tab.Look(look)
		if look.Width > 600 {
			tab.Axe()
		} else {
			tab.NoOverflow()
		}
		for _, name := range name {
			tab.Screenshot(name)
		}
	}
	tab.Look(looks[0])
	at, err := url.Parse(tab.URL())
	if err != nil {
		return // a browser has none such
	}
	_, route := s.routes.Handler(httptest.NewRequest(http.MethodGet, at.RequestURI(), nil))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missed, route)
}

// all fails the test for each page that nobody has looked at.
func (s *seen) all(t *testing.T) {
	t.Helper()
	for route := range s.missed {
		t.Errorf("no test looks at %s in a browser", route)
	}
}
