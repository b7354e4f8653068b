package store_test

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// Two people of two organisations share one connection of a pooler in
// transaction mode: neither's role and claims may outlast a transaction.
func TestStoreThroughAPooler(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	url := pgbouncer.Start(t, w.URL, map[string]string{"default_pool_size": "1"}).URL(t, w.URL)
	open := func(user uuid.UUID) *store.Store {
		d := must[*store.Database](t, "Connect()")(store.Connect(t.Context(), url, 2))
		t.Cleanup(d.Close)
		return d.As(user)
	}
	operator, stranger := uuid.New(), uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'operator')", w.Org, operator)
	ours, theirs := open(operator), open(stranger)
	d, err := ours.Deploy(t.Context(), w.Cluster, provision.OperationApply, json.RawMessage(snapshot))
	if err != nil {
		t.Fatalf("Deploy() = %v, want nil", err)
	}
	var both sync.WaitGroup
	for range 20 {
		both.Go(func() {
			if p, err := ours.Provision(t.Context(), d.ID.String()); err != nil || p.ID != d.ID {
				t.Errorf("Provision() by its operator = %+v, %v, want it", p, err)
			}
		})
		both.Go(func() {
			if clusters, err := page(theirs.ListClusters(t.Context(), w.Org, "", 5)); err != nil || len(clusters) != 0 {
				t.Errorf("ListClusters() by a stranger = %+v, %v, want none", clusters, err)
			}
		})
	}
	both.Wait()
}
