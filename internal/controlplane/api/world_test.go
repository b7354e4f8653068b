package api_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const snapshot = `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "terraform_vars": {"size": 3}, "workspace": "a"}`

// world is an API on a database with a person of each role.
type world struct {
	*queuetest.World
	database *store.Database
	handler  http.Handler
	logged   *outputtest.Buffer
	people   map[string]uuid.UUID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t), logged: &outputtest.Buffer{}, people: map[string]uuid.UUID{}}
	for _, role := range []string{"viewer", "operator", "admin"} {
		w.people[role] = uuid.New()
		w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, w.people[role], role)
	}
	w.people["stranger"] = uuid.New()
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", w.people["stranger"])
	var err error
	if w.database, err = store.Connect(t.Context(), w.URL, 6); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.database.Close)
	w.serve(t, api.Config{})
	return w
}

// serve has the world's API made anew, with what the test needs besides.
func (w *world) serve(t *testing.T, c api.Config) {
	t.Helper()
	c.Database, c.Version, c.Log = w.database, "test", slog.New(slog.NewTextHandler(w.logged, nil))
	entrance, err := signin.New(signin.Config{Database: w.database, Asset: func(name string) string { return name }, Log: c.Log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(entrance.Close)
	mux := http.NewServeMux()
	mux.Handle("/api/", api.New(c))
	entrance.Mount(mux) // of which the document tells
	w.handler = mux
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// text is a part of the answer by its path, such as "items.0.name"; "" where
// there is none.
func (a answer) text(path string) string {
	var value any
	if json.Unmarshal(a.body, &value) != nil {
		return ""
	}
	for key := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[key]
		case []any:
			i := int(key[0] - '0')
			if i >= len(v) {
				return ""
			}
			value = v[i]
		default:
			return ""
		}
	}
	if text, ok := value.(string); ok {
		return text
	}
	if value == nil {
		return ""
	}
	text, _ := json.Marshal(value)
	return string(text)
}

// as makes a request as somebody: a role, or "" for nobody. Headers are given as
// "Name: value".
func (w *world) as(t *testing.T, who, method, path, body string, headers ...string) answer {
	t.Helper()
	ctx := t.Context()
	if who != "" {
		id, ok := w.people[who]
		if !ok {
			t.Fatalf("there is no %s", who)
		}
		ctx = person.With(ctx, person.Person{ID: id, Name: who})
	}
	return w.ask(t, ctx, method, path, body, headers...)
}

func (w *world) ask(t *testing.T, ctx context.Context, method, path, body string, headers ...string) answer { //nolint:revive // the test comes first
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(ctx, method, "/api/v1"+path, reader)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, r)
	a := answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}
	newChecker(w.handler).check(t, r, a)
	return a
}

// want fails the test unless the answer has that status and, if one is given,
// that reason.
func (a answer) want(t *testing.T, what string, status int, reason string) answer {
	t.Helper()
	if a.status != status || reason != "" && a.text("reason") != reason {
		t.Fatalf("%s = %d %s, want %d %s", what, a.status, a.body, status, reason)
	}
	return a
}

// deploy queues the snapshot as the operator.
func (w *world) deploy(t *testing.T) answer {
	t.Helper()
	return w.as(t, "operator", "POST", "/provisions", `{"cluster": "prod", "config_snapshot": `+snapshot+`}`).want(t, "POST /provisions", http.StatusAccepted, "")
}
