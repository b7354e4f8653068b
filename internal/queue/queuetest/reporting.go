package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func chunksAreStoredOnce(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	steps := []struct {
		first  int64
		chunks []provision.LogChunk
		want   int64
	}{
		{1, nil, 1},
		{1, []provision.LogChunk{line("a\n"), line("b\n")}, 3},
		{1, []provision.LogChunk{line("a\n"), line("b\n")}, 3},              // the reply was lost
		{2, []provision.LogChunk{line("b\n"), line("c\n"), line("d\n")}, 5}, // overlaps
		{1, nil, 5},
	}
	for _, s := range steps {
		got, err := q.AppendLog(t.Context(), a.ClaimID, s.first, s.chunks)
		if err != nil || got != s.want {
			t.Fatalf("AppendLog(%d, %d chunks) = %d, %v, want %d", s.first, len(s.chunks), got, err, s.want)
		}
	}
	if got, want := w.Log(t, id), "a\nb\nc\nd\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

func gapIsAnswered(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	next, err := q.AppendLog(t.Context(), a.ClaimID, 3, []provision.LogChunk{line("later\n")})
	if err != nil || next != 1 {
		t.Errorf("AppendLog(3) = %d, %v, want 1: the number expected", next, err)
	}
	if got := w.Log(t, id); got != "" {
		t.Errorf("log = %q, want nothing stored beyond a gap", got)
	}
}

func logTextSurvives(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	want := "quotes \" ' \\ \x1b[31mred\x1b[0m\ttab\r\n\u2028 ünï 🌱 " + strings.Repeat("x", 60_000)
	if _, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line(want)}); err != nil {
		t.Fatalf("AppendLog() = %v, want nil", err)
	}
	if got := w.Log(t, id); got != want {
		t.Errorf("log differs from what was sent: %d bytes, want %d", len(got), len(want))
	}
	_, err := q.AppendLog(t.Context(), a.ClaimID, 2, []provision.LogChunk{line(strings.Repeat("x", provision.MaxChunk+1))})
	_ = wantKind(t, "AppendLog(chunk too large)", err, queue.ContentRefused)
}

func reportRunsToSuccess(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	percent := 40
	mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Stage: provision.StageCheckout, Commit: strings.Repeat("a", 40)})
	mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Stage: provision.StagePlan, Engine: "terraform", EngineVersion: "1.11.4",
		Plan: &provision.PlanSummary{Add: 2}})
	mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Stage: provision.StageApply, Percent: &percent,
		Events: []provision.Event{{Kind: "resource_finished", Address: "terraform_data.a", At: time.Now()}}})
	if got, want := w.Text(t, "SELECT stage || ' ' || percent FROM public.provision_progress WHERE provision_id = $1", id), "apply 40"; got != want {
		t.Errorf("progress = %q, want %q", got, want)
	}
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{})
	got := w.Text(t, `SELECT concat_ws(' ', status, resolved_commit, engine, engine_version, plan_summary ->> 'add', finished_at >= started_at,
		(SELECT count(*) FROM public.provision_events e WHERE e.provision_id = p.id AND kind = 'resource_finished'))
		FROM public.provisions p WHERE id = $1`, id)
	if want := "SUCCESS " + strings.Repeat("a", 40) + " terraform 1.11.4 2 t 1"; got != want {
		t.Errorf("provision = %q, want %q", got, want)
	}
}

func reportTwiceIsHarmless(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	for range 2 {
		mustReport(t, q, a.ClaimID, provision.Processing, applying)
	}
	for range 2 {
		mustReport(t, q, a.ClaimID, provision.Failed, provision.Detail{ErrorCode: provision.CodeApplyFailed, ErrorMessage: "no"})
	}
	err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success})
	_ = wantKind(t, "Report(SUCCESS after FAILED)", err, queue.ClaimLost)
}

func movedTagIsRefused(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	mustReport(t, q, mustClaim(t, q).ClaimID, provision.Processing, provision.Detail{Commit: strings.Repeat("a", 40)})
	w.Deploy(t, "b")
	b := mustClaim(t, q)
	if b.PinnedCommit != strings.Repeat("a", 40) {
		t.Errorf("PinnedCommit = %q, want the commit of the first use", b.PinnedCommit)
	}
	err := q.Report(t.Context(), b.ClaimID, provision.Report{Status: provision.Processing, Detail: provision.Detail{Commit: strings.Repeat("b", 40)}})
	if e := wantKind(t, "Report(moved tag)", err, queue.Refused); e.Reason != string(provision.CodeTagMoved) {
		t.Errorf("reason = %q, want tag_moved", e.Reason)
	}
}

func sensitiveOutputHasNoValue(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{Outputs: map[string]provision.Output{
		"secret": {Type: []byte(`"string"`), Value: []byte(`"hunter22"`), Sensitive: true},
		"url":    {Type: []byte(`"string"`), Value: []byte(`"https://x"`)},
	}})
	got := w.Text(t, "SELECT outputs::text FROM public.provisions WHERE id = $1", id)
	if strings.Contains(got, "hunter22") || !strings.Contains(got, "https://x") {
		t.Errorf("outputs = %s, want the sensitive value dropped by SQL and the other kept", got)
	}
}

func unsavedStateIsKept(t *testing.T, w *World, open Open) {
	keeper, other := registered(t, w, open, "one"), registered(t, w, open, "two")
	w.Deploy(t, "a")
	a := mustClaim(t, keeper)
	yes, no := true, false
	mustReport(t, keeper, a.ClaimID, provision.Failed, provision.Detail{ErrorCode: provision.CodeStateUnsaved, StateUnsaved: &yes})
	id := w.Deploy(t, "a")
	if got, err := other.Claim(t.Context(), uuid.New()); got != nil || err != nil {
		t.Errorf("Claim() by another agent = %v, %v, want nothing", got, err)
	}
	a = mustClaim(t, keeper)
	if a.ProvisionID != id {
		t.Errorf("Claim() = %s, want %s", a.ProvisionID, id)
	}
	mustReport(t, keeper, a.ClaimID, provision.Success, provision.Detail{StateUnsaved: &no})
	w.Deploy(t, "a")
	mustClaim(t, other)
}
