package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

var errContent = &queue.Error{Kind: queue.ContentRefused, Code: "54000", Message: "index row size 9016 exceeds the maximum 2704"}

// picky is a database that does not take what has the word poison in it; with
// everything, it takes nothing.
type picky struct {
	memQueue
	everything bool
}

func (q *picky) AppendLog(ctx context.Context, claim uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	if q.everything && len(chunks) > 0 || slices.ContainsFunc(chunks, func(c provision.LogChunk) bool { return strings.Contains(c.Text, "poison") }) {
		return 0, errContent
	}
	return q.memQueue.AppendLog(ctx, claim, first, chunks)
}

func (q *picky) Report(ctx context.Context, claim uuid.UUID, r provision.Report) error {
	if q.everything || strings.Contains(fmt.Sprint(r.Detail.Events, r.Detail.Resources, r.Detail.Drift), "poison") {
		return errContent
	}
	return q.memQueue.Report(ctx, claim, r)
}

// tally hears what is set aside.
type tally struct {
	unobserved
	counted map[string]int
}

func (o *tally) SetAside(kind string) { o.counted[kind]++ }

// deliverTo delivers what fill writes to a database, as a dead child's spool, and
// returns what was kept for people and what was counted.
func deliverTo(t *testing.T, q Queue, retried func(), fill func(*spool.Writer)) (kept []string, counted map[string]int, d Delivered) {
	t.Helper()
	file := newSpool(t)
	w := spool.NewWriter(file, nil)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	o := &tally{counted: map[string]int{}}
	d = run(t, NewPump(q, uuid.New(), file, PumpOptions{
		Observer: o, OnRetry: func(error) { retried() },
		SetAside: func(r Refused) error {
			kept = append(kept, fmt.Sprint(r.Kind, " ", r.Number))
			return nil
		},
	}))
	return kept, o.counted, d
}

// What the database does not take is set aside and told of, and nothing else is
// lost or waits for it.
func TestPoisonIsSetAside(t *testing.T) {
	t.Parallel()
	q := &picky{}
	kept, counted, d := deliverTo(t, q, func() { t.Error("a call is repeated as if the database were away") }, func(w *spool.Writer) {
		for i := range 20 {
			text := fmt.Sprintf("line %d\n", i)
			if i == 7 {
				text = "poison\n"
			}
			write(t, w, []provision.Stream{provision.Stdout, provision.Stderr}[i%2], text)
		}
		report := processing(provision.StagePlan)
		report.Detail.Events = []provision.Event{{Kind: "resource_started", Address: "poison"}}
		if err := w.Update(report); err != nil {
			t.Fatal(err)
		}
		write(t, w, provision.Stdout, "between\n")
		end := ended(provision.Success)
		end.Detail.Resources = []provision.Resource{{Address: "poison"}}
		end.Detail.Events = []provision.Event{{Kind: "resource_finished", Address: "good"}}
		if err := w.Update(end); err != nil {
			t.Fatal(err)
		}
	})
	if d.Result == nil || d.Result.Status != provision.Success {
		t.Fatalf("Run() = %+v, want SUCCESS", d)
	}
	if got, want := strings.Join(kept, ", "), "log 8, report 1, report 2"; got != want {
		t.Errorf("kept %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(counted), "map[log:1 report:2]"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
	text := q.text()
	for i := range 20 {
		if i != 7 && !strings.Contains(text, fmt.Sprintf("line %d\n", i)) {
			t.Errorf("line %d is lost", i)
		}
	}
	if c := q.chunks[7]; c.Stream != provision.System || !strings.Contains(c.Text, "7 bytes") || !strings.Contains(c.Text, "exceeds the maximum 2704") {
		t.Errorf("in place of the poison stands %+v, want a SYSTEM line that says what and why", c)
	}
	last := q.reports[len(q.reports)-1].Detail
	if last.Resources != nil || len(last.Events) != 1 || !strings.Contains(last.SetAside, "the resources. The database said: index row size") {
		t.Errorf("the end was reported with %+v, want all but the resources, and a note", last)
	}
}

// A database that refuses everything for its content is at fault itself: nothing is
// given up for that, and all is delivered once it is mended.
func TestNothingIsGivenUpForADatabaseThatRefusesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &picky{everything: true}
		retries := 0
		_, counted, d := deliverTo(t, q, func() {
			// The line first, then the report and the end.
			if retries++; retries == 5 {
				q.everything = false
			}
		}, func(w *spool.Writer) {
			write(t, w, provision.Stdout, "a\n")
			if err := errors.Join(w.Update(processing(provision.StagePlan)), w.Update(ended(provision.Success))); err != nil {
				t.Fatal(err)
			}
		})
		if d.Result == nil || q.text() != "a\n" || len(counted) > 0 {
			t.Errorf("Run() = %+v, log %q, set aside %v, want all of it and nothing set aside", d, q.text(), counted)
		}
	})
}

// A plan that the database did not take is not put before anybody to approve.
func TestPlanThatNobodyCanSeeIsNotApproved(t *testing.T) {
	t.Parallel()
	q := &picky{}
	_, _, d := deliverTo(t, planPicky{q}, func() {}, func(w *spool.Writer) {
		report := processing(provision.StagePlan)
		report.Detail.Plan = &provision.PlanSummary{Add: 1}
		end := ended(provision.AwaitingApproval)
		end.Detail.PlanDigest = strings.Repeat("a", 64)
		if err := errors.Join(w.Update(report), w.Update(end)); err != nil {
			t.Fatal(err)
		}
	})
	if last := q.reports[len(q.reports)-1]; last.Status != provision.Failed || last.Detail.ErrorCode != provision.CodePlanInvalid || d.Result == nil || d.Result.Status != provision.Failed {
		t.Errorf("the run ends as %s/%s, delivered %+v, want FAILED/plan_invalid", last.Status, last.Detail.ErrorCode, d.Result)
	}
}

// planPicky takes no plan.
type planPicky struct{ *picky }

func (q planPicky) Report(ctx context.Context, claim uuid.UUID, r provision.Report) error {
	if r.Detail.Plan != nil {
		return errContent
	}
	return q.picky.Report(ctx, claim, r)
}
