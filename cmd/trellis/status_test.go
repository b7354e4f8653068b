package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// printed is what "trellis status N" shows.
func printed(t *testing.T, p wire.Provision) string {
	t.Helper()
	var out bytes.Buffer
	a := newApp("trellis", func(string) string { return "" }, nil, terminal{Writer: &out}, terminal{Writer: &out})
	if err := printProvision(a, &cobra.Command{}, p); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The clock of this machine may be hours off: ages are by the database's.
func TestAgesAreByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	began := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	p := wire.Provision{Number: 3, Status: provision.Processing, CreatedAt: began.Add(-time.Minute), StartedAt: &began, AsOf: began.Add(90 * time.Second),
		Stages: []wire.StageTime{{Attempt: 1, Stage: provision.StagePlan, StartedAt: began.Add(80 * time.Second)}}}
	var out bytes.Buffer
	a := newApp("trellis", func(string) string { return "" }, nil, terminal{Writer: &out}, terminal{Writer: &out})
	if err := printList(a, &cobra.Command{}, []wire.Provision{p}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, "2 min 1 min 30 s") {
		t.Errorf("status = %q, want an age of 150 s and 90 s so far", got)
	}
	if got := printed(t, p); !strings.Contains(got, "  10 s so far\n") {
		t.Errorf("status 3 = %q, want 10 s so far", got)
	}
	if got := statusLine(p); !strings.HasSuffix(got, "1m30s") {
		t.Errorf("statusLine() = %q, want 1m30s", got)
	}
}

// Each reason that the database knows comes with a next step, but for one that
// ends by itself.
func TestEachReasonHasANextStep(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"workspace_locked": "trellis unlock a/b", "workspace_held": "trellis release a/b", "workspace_busy": "trellis logs 7 --follow",
		"workspace_reserved": "trellis status 7", "awaits_approval": "trellis approve 9, or trellis reject 9",
		"higher_priority": "trellis cancel NUMBER", "queued_behind": "trellis cancel NUMBER", "cluster_paused": "trellis clusters resume prod",
		"no_agent": "tendril run", "set_down": "No action needed", "home_away": "data directory", "state_kept": "trellis release w", "agent_too_old": "Upgrade the agents of cluster prod.",
		"operation_refused": "policy.operations", "slots_busy": "slots", "engine_missing": "trellis logs 7", "not_due": "trellis logs 7",
	} {
		detail := json.RawMessage(`{"number": 7, "workspace": "a/b", "cluster": "prod", "by": "ada"}`)
		got := printed(t, wire.Provision{Number: 9, Workspace: "w", Why: []wire.Reason{{Reason: reason, Message: "it is so", Detail: detail}}})
		if !strings.Contains(got, "waits      It is so. By ada.\n             → ") || !strings.Contains(got, want) {
			t.Errorf("%s is shown as %q, want the sentence and %q", reason, got, want)
		}
	}
	reserved := wire.Reason{Reason: "workspace_reserved", Message: "m", Detail: json.RawMessage(`{"number": 7, "status": "AWAITING_APPROVAL"}`)}
	if got := printed(t, wire.Provision{Why: []wire.Reason{reserved}}); !strings.Contains(got, "trellis approve 7, or trellis reject 7") {
		t.Errorf("reserved for an approval = %q, want who decides", got)
	}
	unknown := wire.Reason{Reason: "of_a_later_database", Message: "it is so", Detail: json.RawMessage(`{}`)}
	if got := printed(t, wire.Provision{Why: []wire.Reason{unknown}}); !strings.Contains(got, "It is so.\n") || strings.Contains(got, "→") {
		t.Errorf("a reason that is not known = %q, want the sentence alone", got)
	}
}

func TestListSaysWhereToLook(t *testing.T) {
	t.Parallel()
	list := func(p wire.Provision) string {
		var out bytes.Buffer
		a := newApp("trellis", func(string) string { return "" }, nil, terminal{Writer: &out}, terminal{Writer: &out})
		if err := printList(a, &cobra.Command{}, []wire.Provision{p}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	waits := wire.Provision{Status: provision.Queued, Waiting: "the cluster is paused", Why: []wire.Reason{{Reason: "cluster_paused"}}}
	if got := list(waits); !strings.Contains(got, "the cluster is paused\n") || !strings.Contains(got, "trellis status NUMBER") {
		t.Errorf("status of what waits = %q, want why, and where to look", got)
	}
	if got := list(wire.Provision{Status: provision.Success}); strings.Contains(got, "trellis status") {
		t.Errorf("status of what is over = %q, want nothing to look at", got)
	}
}

func TestStatusOfALockedState(t *testing.T) {
	t.Parallel()
	got := printed(t, wire.Provision{Workspace: "a/b", StateLock: &wire.HeldLock{Number: 4, ID: "12ab", Who: "ada@laptop", Created: "2026-01-02"}})
	want := "  lock       When run 4 wanted the state, it was locked by ada@laptop since 2026-01-02 (id 12ab).\n" +
		"             → If the holder will not come back: trellis unlock a/b --state-lock 12ab\n"
	if !strings.Contains(got, want) {
		t.Errorf("status = %s\nwant in it %s", got, want)
	}
}

func TestStatusOfARun(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.Local)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	ended := func(seconds int) *time.Time { t := at(seconds); return &t }
	stage, percent := provision.StageApply, 40
	p := wire.Provision{
		Number: 3, Status: provision.Processing, CreatedAt: began, StartedAt: ended(2), AsOf: at(75), Stage: &stage, Percent: &percent,
		Plan: &provision.PlanSummary{Add: 2, Destroy: 1},
		Stages: []wire.StageTime{
			{Attempt: 1, Stage: provision.StageQueued, StartedAt: began, EndedAt: ended(2)}, {Attempt: 1, Stage: provision.StagePlan, StartedAt: at(2), EndedAt: ended(10)},
			{Attempt: 1, Stage: provision.StageApproval, StartedAt: at(10), EndedAt: ended(60)}, {Attempt: 2, Stage: provision.StageQueued, StartedAt: at(60), EndedAt: ended(60)},
			{Attempt: 2, Stage: provision.StageApply, StartedAt: at(61)}, {Attempt: 2, Stage: provision.StageDone, StartedAt: at(75), EndedAt: ended(75)},
		},
	}
	for i := range 12 {
		p.Running = append(p.Running, provision.Running{Address: "aws_instance.web[" + string(rune('a'+i)) + "]", Action: "create", Since: at(70)})
	}
	p.Running[1].Action = ""
	got := printed(t, p)
	for _, want := range []string{
		"  plan       2 to add, 1 to destroy\n",
		"  now        apply 40 %\n",
		"  works on   aws_instance.web[a] (create)  5.0 s\n             aws_instance.web[b]  5.0 s\n",
		"             … and 2 more\n",
		"  stages     1 queued   2026-01-01 00:00:00  2.0 s\n             1 plan     2026-01-01 00:00:02  8.0 s\n" +
			"             1 approval 2026-01-01 00:00:10  50 s\n             2 queued   2026-01-01 00:01:00  0.0 s\n             2 apply    2026-01-01 00:01:01  14 s so far\n             2 done     2026-01-01 00:01:15\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("status 3 = %s\nwant in it %q", got, want)
		}
	}
	p.Status, p.FinishedAt = provision.Success, ended(75)
	if got := printed(t, p); strings.Contains(got, "works on") || strings.Contains(got, "now  ") {
		t.Errorf("status of what is over = %s, want nothing that goes on", got)
	}
}
