package store_test

import (
	"reflect"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// A provision's page tells of an archived log what it told of its rows: how many
// there are, and with which each stage began.
func TestRunOfAnArchivedLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.deploy(t)
	q, a := w.agent(t)
	for n, stage := range []provision.Stage{provision.StageCheckout, provision.StageValidate, provision.StagePlan} {
		if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: stage}}); err != nil {
			t.Fatal(err)
		}
		if _, err := q.AppendLog(t.Context(), a.ClaimID, int64(2*n+1), []provision.LogChunk{line("one\n"), line("two\n")}); err != nil {
			t.Fatal(err)
		}
	}
	before := must[store.Run](t, "Run()")(w.viewer.Run(t.Context(), d.ID))
	if before.Lines < 6 || len(before.Starts) < 2 {
		t.Fatalf("Run() = %d lines, starts %v, want those that were written", before.Lines, before.Starts)
	}
	w.Exec(t, "SELECT tendril.archive_part($1, $2)", d.ID, w.Org)
	after := must[store.Run](t, "Run()")(w.viewer.Run(t.Context(), d.ID))
	if !reflect.DeepEqual(after.Starts, before.Starts) || after.Lines != before.Lines {
		t.Errorf("Run() of the archived log = %d lines, starts %v, want %d, %v", after.Lines, after.Starts, before.Lines, before.Starts)
	}
	if end := must[int64](t, "LogEnd()")(w.viewer.LogEnd(t.Context(), d.ID)); end != before.Lines {
		t.Errorf("LogEnd() = %d, want %d", end, before.Lines)
	}
	if end := must[int64](t, "LogEnd()")(w.stranger.LogEnd(t.Context(), d.ID)); end != 0 {
		t.Errorf("LogEnd() as a stranger = %d, want 0", end)
	}
}
