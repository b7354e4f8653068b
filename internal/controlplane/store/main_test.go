package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const snapshot = `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "terraform_vars": {"size": 3}, "workspace": "a"}`

// world is a database with a person of each role.
type world struct {
	*queuetest.World
	operator, stranger, viewer, admin *store.Store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t)}
	member := func(role string) *store.Store {
		id := uuid.New()
		w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, id, role)
		return w.open(t, id)
	}
	w.viewer, w.operator, w.admin = member("viewer"), member("operator"), member("admin")
	stranger := uuid.New()
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", stranger)
	w.stranger = w.open(t, stranger)
	return w
}

func (w *world) open(t *testing.T, user uuid.UUID) *store.Store {
	t.Helper()
	d := must[*store.Database](t, "Connect()")(store.Connect(t.Context(), w.URL, 2))
	t.Cleanup(d.Close)
	return d.As(user)
}

func (w *world) deploy(t *testing.T) store.Deployed {
	t.Helper()
	d, err := w.operator.Deploy(t.Context(), w.Cluster, provision.OperationApply, json.RawMessage(snapshot))
	if err != nil {
		t.Fatalf("Deploy() = %v, want nil", err)
	}
	return d
}

// agent is a registered agent that has claimed what is next.
func (w *world) agent(t *testing.T) (queue.Queue, *provision.Assignment) {
	t.Helper()
	one := queuetest.NewAgent("one")
	one.Host += ":/srv/a" // as an agent says it; people are told the host
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: one})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	return q, a
}

func line(text string) provision.LogChunk {
	return provision.LogChunk{Stream: provision.Stdout, Text: text, EmittedAt: time.Now()}
}

// page is what a list answers, but for where it goes on.
func page[T, K any](list []T, _ K, err error) ([]T, error) { return list, err }

func must[T any](t *testing.T, what string) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s = %v, want nil", what, err)
		}
		return value
	}
}
