package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestUnreachable(t *testing.T) {
	t.Parallel()
	_, err := store.Connect(t.Context(), "postgres://me:s3cret-password@127.0.0.1:1/none", 1)
	if _, ok := errors.AsType[*store.UnreachableError](err); !ok {
		t.Fatalf("Connect(nothing there) = %v, want an UnreachableError", err)
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %q holds the password", err)
	}
	_, err = store.Connect(t.Context(), "postgres://me:s3cret-password@127.0.0.1:none/x", 1)
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Connect(bad URL) = %v, want an error without the password", err)
	}
}

func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t)
	if err := migrate(t, own.URL); err != nil {
		t.Fatal(err)
	}
	d := must[*store.Database](t, "Connect()")(store.Connect(t.Context(), own.URL, 1))
	defer d.Close()
	s := d.As(uuid.New())
	own.Stop(t)
	_, err := s.Orgs(t.Context())
	if _, ok := errors.AsType[*store.UnreachableError](err); !ok {
		t.Errorf("Orgs() of a stopped database = %v, want an UnreachableError", err)
	}
	own.Start(t)
	if _, err := s.Orgs(t.Context()); err != nil {
		t.Errorf("Orgs() after a restart = %v, want nil", err)
	}
}

func TestDatabaseWithoutContract(t *testing.T) {
	t.Parallel()
	_, err := store.Connect(t.Context(), pgtest.OwnServer(t).URL, 1)
	if refused, ok := errors.AsType[*store.RefusedError](err); !ok || !strings.Contains(refused.Hint, "trellis migrate") {
		t.Errorf("Connect(no roles, no contract) = %v, want a hint to migrate", err)
	}
	_, err = store.Connect(t.Context(), pgtest.New(t).URL, 1)
	if refused, ok := errors.AsType[*store.RefusedError](err); !ok || !strings.Contains(refused.Hint, "trellis migrate") {
		t.Errorf("Connect(no contract) = %v, want a hint to migrate", err)
	}
}

func TestBootstrap(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract)
	user := uuid.New()
	d := must[*store.Database](t, "Connect()")(store.Connect(t.Context(), db.URL, 1))
	defer d.Close()
	for i, want := range []bool{true, false} {
		if made, err := d.Bootstrap(t.Context(), user); made != want || err != nil {
			t.Errorf("Bootstrap() the %d. time = %t, %v, want %t", i+1, made, err, want)
		}
	}
	org := must[store.Org](t, "FindOrg()")(d.As(user).FindOrg(t.Context(), ""))
	must[store.NewCluster](t, "CreateCluster()")(d.As(user).CreateCluster(t.Context(), org.ID, "first"))
}

func TestCancelledContextStaysWhatItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.viewer.Orgs(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Orgs(cancelled) = %v, want context.Canceled", err)
	}
}
