package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/pgtest"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var contract = queuetest.Migrated

func migrate(t *testing.T, url string) error {
	t.Helper()
	_, err := tendrilsql.Migrate(t.Context(), url)
	return err
}

// Follows a log the way a terminal does, while an agent writes it.
func TestWatchSeesEveryLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	q, a := w.agent(t)

	looked := make(chan struct{}, 100)
	var text strings.Builder
	var last int64
	result := make(chan error, 1)
	go func() {
		result <- w.viewer.Watch(t.Context(), d.ID, func(ctx context.Context) (bool, error) {
			p, err := w.viewer.Provision(ctx, d.ID.String())
			if err != nil {
				return false, err
			}
			logs, err := w.viewer.Logs(ctx, d.ID, last, 100)
			if err != nil {
				return false, err
			}
			for _, row := range logs {
				text.WriteString(row.Text)
				last = row.Seq
			}
			looked <- struct{}{}
			return p.Status.Terminal(), nil
		})
	}()
	<-looked
	for i, word := range []string{"one\n", "two\n"} {
		if _, err := q.AppendLog(t.Context(), a.ClaimID, int64(i+1), []provision.LogChunk{line(word)}); err != nil {
			t.Fatal(err)
		}
		<-looked
	}
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatalf("Watch() = %v, want nil", err)
	}
	if text.String() != "one\ntwo\n" {
		t.Errorf("log followed = %q, want both lines", text.String())
	}
}

func TestWatchWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t)
	if err := migrate(t, own.URL); err != nil {
		t.Fatal(err)
	}
	s := must[*store.Store](t, "Open()")(store.Open(t.Context(), own.URL, uuid.New()))
	defer s.Close()
	looks, away := 0, 0
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.Watch(ctx, uuid.New(), func(ctx context.Context) (bool, error) {
		looks++
		switch {
		case looks == 1:
			own.Stop(t)
		case away == 1:
			own.Start(t)
		}
		_, err := s.Clusters(ctx)
		if err != nil {
			away++
		}
		return err == nil, err
	})
	if err != nil || away == 0 {
		t.Errorf("Watch() = %v after the database was away %d times, want nil after at least once", err, away)
	}
}

func TestWatchEndsWithTheCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := w.viewer.Watch(ctx, uuid.New(), func(context.Context) (bool, error) {
		cancel()
		return false, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Watch() = %v, want context.Canceled", err)
	}
	broken := errors.New("broken")
	if err := w.viewer.Watch(t.Context(), uuid.New(), func(context.Context) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("Watch() = %v, want what look returned", err)
	}
}
