package callaudit_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/callaudit"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Refused calls become one record a token and time, none is lost, and what is counted at the end is
// recorded then.
func TestRefusedCallsAreCounted(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	database, err := store.Connect(t.Context(), w.URL, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Close)
	user := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, user)
	by := func() person.Person { return person.Person{ID: user, Token: true, TokenID: uuid.New()} }
	flood := func(a *callaudit.Audit, p person.Person) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 50 {
					a.Refused(p, "")
				}
			})
		}
		all.Wait()
	}
	records := func(p person.Person) string {
		return w.Text(t, "SELECT count(*)::text || ' ' || coalesce(sum((detail ->> 'calls')::int), 0) FROM public.audit_events WHERE action = 'calls_refused' AND object_id = $1 AND actor = $2", p.TokenID, user)
	}

	slow := callaudit.New(database, slog.New(slog.DiscardHandler), time.Hour)
	one, two := by(), by()
	flood(slow, one)
	flood(slow, two)
	if got := records(one); got != "0 0" {
		t.Errorf("before its time the audit has %s, want nothing", got)
	}
	slow.Close()
	slow.Refused(one, "") // no more is counted
	for _, p := range []person.Person{one, two} {
		if got := records(p); got != "1 400" {
			t.Errorf("the records and calls = %s, want one of 400", got)
		}
	}

	quick := callaudit.New(database, slog.New(slog.DiscardHandler), 20*time.Millisecond)
	three := by()
	quick.Refused(three, "")
	patience.Await(t, "the first record", func() bool { return records(three) == "1 1" })
	quick.Refused(three, "")
	patience.Await(t, "the second record", func() bool { return records(three) == "2 2" })
	quick.Close()
}
