package console_test

import (
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of a test with a browser is waiting for it: as many at once as there
	// are processors would leave those idle. Who says -parallel is obeyed.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))) // a number
	}
	pgtest.Main(browsertest.With(m))
}

// world is a console on a database of its own, with a person of each role.
type world struct {
	*queuetest.World
	database                          *store.Database
	pages                             http.Handler
	viewer, operator, admin, stranger person.Person
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t)}
	database, err := store.Connect(t.Context(), w.URL, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Close)
	w.database = database
	w.pages, err = console.New(console.Config{Database: database, Version: "v0.0-test", PublicURL: "https://trellis.example", TraceURL: "https://jaeger.example/trace/{trace_id}", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	member := func(role string) person.Person {
		p := person.Person{ID: uuid.New(), Name: "Some " + role, Browser: true}
		w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, p.ID, role)
		return p
	}
	w.viewer, w.operator, w.admin = member("viewer"), member("operator"), member("admin")
	w.stranger = person.Person{ID: uuid.New(), Name: "Some stranger", Browser: true}
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", w.stranger.ID)
	return w
}

// reply is an answer without its body, which ask has read.
type reply struct {
	StatusCode int
	Header     http.Header
}

// Cookies are those that it sets.
func (r *reply) Cookies() []*http.Cookie { return (&http.Response{Header: r.Header}).Cookies() }

// ask sends a request as a person; a form makes it a POST.
func (w *world) ask(t *testing.T, p person.Person, path string, form url.Values, cookies ...*http.Cookie) (*reply, string) {
	t.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	r := httptest.NewRequestWithContext(person.With(t.Context(), p), method, path, body)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	answer := httptest.NewRecorder()
	w.pages.ServeHTTP(answer, r)
	return &reply{answer.Code, answer.Result().Header}, answer.Body.String()
}

// get is a page that must be there.
func (w *world) get(t *testing.T, p person.Person, path string) string {
	t.Helper()
	answer, page := w.ask(t, p, path, nil)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s as %s = %d, want 200: %s", path, p.Name, answer.StatusCode, page)
	}
	return page
}
