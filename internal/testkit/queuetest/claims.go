package queuetest

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func claimOnceAndAgain(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	claim := uuid.New()
	first, err := q.Claim(t.Context(), claim)
	if err != nil || first == nil || first.ProvisionID != id || first.ClaimID != claim || first.Workspace != "a" || first.Operation != provision.OperationApply {
		t.Fatalf("Claim() = %+v, %v, want provision %s on workspace a", first, err, id)
	}
	if waited := first.Waited(); waited < 0 || waited > time.Minute {
		t.Errorf("Claim() has waited %s, want what the database says: a moment", waited)
	}
	again, err := q.Claim(t.Context(), claim)
	if err != nil || again == nil || again.ProvisionID != id {
		t.Errorf("Claim(same id) = %+v, %v, want the same provision", again, err)
	}
	other, err := q.Claim(t.Context(), uuid.New())
	if err != nil || other != nil {
		t.Errorf("Claim(new id) = %+v, %v, want nothing: one row, one claim", other, err)
	}
}

func claimNothing(t *testing.T, w *World, open Open) {
	a, err := registered(t, w, open, "one").Claim(t.Context(), uuid.New())
	if a != nil || err != nil {
		t.Errorf("Claim(empty queue) = %v, %v, want nil, nil", a, err)
	}
}

func cancelComesByHeartbeat(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	p, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}})
	if err != nil || len(p.Cancel) != 1 || p.Cancel[0] != a.ClaimID || len(p.Lost) != 0 {
		t.Errorf("Heartbeat() = %+v, %v, want the claim to be cancelled", p, err)
	}
	err = q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply after cancel)", err, queue.CancelRequested)
	mustReport(t, q, a.ClaimID, provision.Cancelled, provision.Detail{ErrorCode: provision.CodeCancelled})
	if got := w.Status(t, id); got != "CANCELLED/cancelled" {
		t.Errorf("status = %s, want CANCELLED/cancelled", got)
	}
}

func lostClaimIsTold(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 s'")
	w.Exec(t, "SELECT tendril.reap()")
	p, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID, uuid.New()}})
	if err != nil || len(p.Lost) != 2 {
		t.Errorf("Heartbeat() = %+v, %v, want both claims lost", p, err)
	}
	err = q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: provision.StagePlan}})
	_ = wantKind(t, "Report(lost)", err, queue.ClaimLost)
	if _, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("late\n")}); err != nil {
		t.Errorf("AppendLog(lost, newest) = %v, want the late line taken", err)
	}
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{}) // nothing has used the workspace since
	if got := w.Status(t, id); got != "SUCCESS" {
		t.Errorf("status after late settlement = %s, want SUCCESS", got)
	}
}

func otherClustersClaimIsLost(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	_, token := w.NewCluster(t, "other")
	thief := open(t, w, token, NewAgent("two"))
	mustRegister(t, thief)
	_, err := thief.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("x")})
	_ = wantKind(t, "AppendLog(another cluster's claim)", err, queue.ClaimLost)
	err = thief.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success})
	_ = wantKind(t, "Report(another cluster's claim)", err, queue.ClaimLost)
	if got, err := thief.Claim(t.Context(), uuid.New()); got != nil || err != nil {
		t.Errorf("Claim() = %v, %v, want nothing of another cluster's", got, err)
	}
}

func orphansEndAtTheNextStart(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Processing, applying)
	agent.Boot = uuid.New()
	next := open(t, w, w.Token, agent)
	mustRegister(t, next)
	orphans, err := next.FailOrphans(t.Context(), nil)
	if err != nil || len(orphans) != 1 || orphans[0] != id {
		t.Fatalf("FailOrphans() = %v, %v, want [%s]", orphans, err, id)
	}
	if got := w.Status(t, id); got != "FAILED/agent_restarted" {
		t.Errorf("status = %s, want FAILED/agent_restarted", got)
	}
	if got := w.Log(t, id); !strings.Contains(got, "Apply had begun") {
		t.Errorf("log = %q, want it to say that apply had begun", got)
	}
}

func runHasItsTrace(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for workspace, want := range []string{"", traceparent} {
		w.Exec(t, "SELECT set_config('request.headers', jsonb_build_object('traceparent', $1::text)::text, false)", want)
		w.Deploy(t, fmt.Sprint("w", workspace))
		a := mustClaim(t, q)
		if got, err := q.ClaimTrace(t.Context(), a.ClaimID); got != want || err != nil {
			t.Errorf("ClaimTrace() = %q, %v, want %q", got, err, want)
		}
	}
	if got, err := q.ClaimTrace(t.Context(), uuid.New()); got != "" || err != nil {
		t.Errorf("ClaimTrace() of no claim = %q, %v, want nothing", got, err)
	}
}

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

// standingDisturbsNobody: whoever asks under the identity of an agent at work,
// as its operator does, must not supersede it, and leaves no trace.
func standingDisturbsNobody(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	const trace = "SELECT md5(string_agg(a::text, ',')) || (SELECT xmin || md5(c::text) FROM public.clusters c) FROM public.agents a"
	before := w.Text(t, trace)
	ask := func(about queue.Agent) queue.Standing {
		t.Helper()
		s, err := open(t, w, w.Token, about).Standing(t.Context())
		if err != nil {
			t.Fatalf("Standing() = %v, want nil", err)
		}
		return s
	}
	again := agent
	again.Boot = uuid.New()
	got := ask(again)
	if got.ClusterName != "prod" || got.ClusterID != w.Cluster || got.Contract != queue.Contract || got.Paused || got.NameTakenOn != "" {
		t.Errorf("Standing() = %+v, want cluster prod, contract %d, not paused, and the name free for the instance that has it", got, queue.Contract)
	}
	if off := time.Since(got.Now).Abs(); off > time.Minute {
		t.Errorf("Standing().Now is %s off", off)
	}
	if got := ask(NewAgent("one")); got.NameTakenOn != "one.example" {
		t.Errorf("Standing(another instance).NameTakenOn = %q, want one.example", got.NameTakenOn)
	}
	if len(got.BroadPublications) > 0 {
		t.Errorf("Standing().BroadPublications = %q, want none", got.BroadPublications)
	}
	w.Exec(t, "CREATE PUBLICATION everything FOR ALL TABLES")
	if got := ask(again).BroadPublications; len(got) != 1 || got[0] != "everything" {
		t.Errorf("Standing().BroadPublications = %q, want everything", got)
	}
	w.Exec(t, "DROP PUBLICATION everything")
	if after := w.Text(t, trace); after != before {
		t.Error("Standing() changed the agents' or clusters' rows, want nothing written")
	}
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Errorf("Heartbeat() after Standing() = %v, want nil", err)
	}
	w.Exec(t, "UPDATE public.clusters SET paused_at = now()")
	if !ask(again).Paused {
		t.Error("Standing().Paused = false of a paused cluster")
	}
	_, err := open(t, w, "tnd_wrong", agent).Standing(t.Context())
	_ = wantKind(t, "Standing(wrong token)", err, queue.Unauthorized)
}

// planAwaitsApproval is the way of a plan that a person must see first, from the
// agent that made it to the one that applies it.
func planAwaitsApproval(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	w.Exec(t, "SELECT public.set_cluster_policy($1, '{\"approval\": \"destructive\"}')", w.Cluster)
	id := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "a", "approval": "always", "max_attempts": 3}`)
	a := mustClaim(t, one)
	if a.Approval != provision.ApprovalAlways || a.ApprovedPlan != "" || a.Attempt != 1 {
		t.Fatalf("Claim() = approval %q, approved plan %q, attempt %d, want always, none, 1", a.Approval, a.ApprovedPlan, a.Attempt)
	}
	planned := applying
	planned.Stage, planned.Plan = provision.StagePlan, &provision.PlanSummary{Add: 1}
	mustReport(t, one, a.ClaimID, provision.Processing, planned)
	err := one.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply of what is not approved)", err, queue.Refused)

	digest := strings.Repeat("d", 64)
	awaits := provision.Report{Status: provision.AwaitingApproval, Detail: provision.Detail{PlanDigest: digest}}
	_ = wantKind(t, "Report(AWAITING_APPROVAL of what is not stored)", one.Report(t.Context(), a.ClaimID, awaits), queue.Refused)
	bundle := noise(queue.BlobPart + 1)
	if err := one.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, bundle); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	for range 2 { // the second time after a lost reply
		mustReport(t, one, a.ClaimID, awaits.Status, awaits.Detail)
	}
	if a, err := two.Claim(t.Context(), uuid.New()); a != nil || err != nil {
		t.Fatalf("Claim() while a plan awaits approval = %v, %v, want nothing", a, err)
	}

	w.Exec(t, "SELECT public.approve_provision($1, $2)", id, digest)
	a = mustClaim(t, two)
	if a.ProvisionID != id || a.ApprovedPlan != digest {
		t.Fatalf("Claim() = provision %s, approved plan %q, want %s, %q", a.ProvisionID, a.ApprovedPlan, id, digest)
	}
	if _, got, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobPlan, 0); err != nil || !bytes.Equal(got, bundle) {
		t.Errorf("GetBlob() = %d bytes, %v, want those that the other agent put", len(got), err)
	}
	err = two.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply of another plan than the approved one)", err, queue.Refused)
	approved := applying
	approved.PlanDigest = digest
	mustReport(t, two, a.ClaimID, provision.Processing, approved)
	mustReport(t, two, a.ClaimID, provision.Success, provision.Detail{})
}

// personIsAsked is the way of work that a person does, from the agent that asks to the one
// that records the answer.
func personIsAsked(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	id := w.Deploy(t, "a")
	a := mustClaim(t, one)
	if a.Input != nil {
		t.Fatalf("Claim() = input %+v of a run that has asked nothing", a.Input)
	}
	mustReport(t, one, a.ClaimID, provision.Processing, provision.Detail{Stage: provision.StagePlan, Plan: &provision.PlanSummary{Add: 1}})
	digest := strings.Repeat("d", 64)
	asks := provision.Detail{PlanDigest: digest, Input: &provision.InputRequest{
		Instructions: "Mount it.", Outputs: []provision.InputOutput{{Name: "rack", Type: "string"}}, Machines: []provision.InputMachine{{Name: "m", Action: "create"}}, ExpiresSeconds: 3600,
	}}
	if err := one.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, noise(10)); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	for range 2 { // the second time after a lost reply
		mustReport(t, one, a.ClaimID, provision.AwaitingInput, asks)
	}
	if a, err := two.Claim(t.Context(), uuid.New()); a != nil || err != nil {
		t.Fatalf("Claim() while a person is at work = %v, %v, want nothing", a, err)
	}
	w.Exec(t, `SELECT public.give_input($1, '{"done": true, "outputs": {"rack": "B12"}, "machines": {"m": {"address": "192.0.2.7", "ssh_port": 2222}}}')`, id)
	a = mustClaim(t, two)
	if a.ProvisionID != id || a.ApprovedPlan != digest || a.Input == nil || !a.Input.Done || string(a.Input.Outputs["rack"]) != `"B12"` || a.Input.Machines["m"].SSHPort != 2222 {
		t.Fatalf("Claim() = plan %q, input %+v, want the answer", a.ApprovedPlan, a.Input)
	}
	applying := provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40), PlanDigest: digest}
	mustReport(t, two, a.ClaimID, provision.Processing, applying)
	mustReport(t, two, a.ClaimID, provision.Success, provision.Detail{})
}

// runIsSetDown is the way of a run whose work continues by itself, from the agent that sets it
// down to the one that takes it up.
func runIsSetDown(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	id := w.Deploy(t, "a")
	a := mustClaim(t, one)
	digest, bundle := strings.Repeat("d", 64), noise(10)
	applying := provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40), PlanDigest: digest, Detachable: true}
	err := one.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply of a plan that is not stored)", err, queue.Refused)
	if err := one.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, bundle); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	err = one.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.SetDown})
	_ = wantKind(t, "Report(set down before the apply)", err, queue.Refused)
	mustReport(t, one, a.ClaimID, provision.Processing, applying)
	mustReport(t, one, a.ClaimID, provision.SetDown, provision.Detail{})
	before := a.ClaimID
	a = mustClaim(t, two)
	if a.ProvisionID != id || a.ApprovedPlan != digest || a.Attempt != 1 {
		t.Fatalf("Claim() = %s, plan %q, attempt %d, want the first run's", a.ProvisionID, a.ApprovedPlan, a.Attempt)
	}
	mustReport(t, one, before, provision.SetDown, provision.Detail{}) // after a lost reply
	if _, got, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobPlan, 0); err != nil || !bytes.Equal(got, bundle) {
		t.Errorf("GetBlob() = %d bytes, %v, want those that the other agent put", len(got), err)
	}
	mustReport(t, two, a.ClaimID, provision.Processing, applying)
	mustReport(t, two, a.ClaimID, provision.Success, provision.Detail{})
}

// checksAreDone is the way of a health check, from the run that asks for it to what it finds.
func checksAreDone(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	if due, err := q.LeaseChecks(t.Context(), queue.CheckRoom{Checks: queue.MaxChecks}); err != nil || len(due) > 0 {
		t.Errorf("LeaseChecks() = %v, %v, want nothing", due, err)
	}
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	check := provision.HealthCheck{Kind: "http", Target: "192.0.2.7", Port: 8080, Path: "/healthz", Interval: 30, Timeout: 5, HealthyAfter: 1, UnhealthyAfter: 3, MAC: []byte("sealed")}
	mustReport(t, q, a.ClaimID, provision.Processing, provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40)})
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{Machines: []provision.Machine{{Name: "m", Status: provision.MachineRunning, Check: &check}}})
	pulse, err := q.Heartbeat(t.Context(), queue.Beat{})
	if err != nil || !pulse.ChecksDue {
		t.Errorf("Heartbeat() = checks due %t, %v, want some", pulse.ChecksDue, err)
	}
	due, err := q.LeaseChecks(t.Context(), queue.CheckRoom{Checks: queue.MaxChecks})
	if err != nil || len(due) != 1 || due[0].Name != "m" || due[0].Workspace != a.WorkspaceID || !reflect.DeepEqual(due[0].Check, check) {
		t.Fatalf("LeaseChecks() = %+v, %v, want that check", due, err)
	}
	if err := q.ReportChecks(t.Context(), []queue.CheckResult{{Machine: due[0].Machine, Result: provision.HealthUnknown, Why: "no route"}}); err != nil {
		t.Errorf("ReportChecks() = %v, want nil", err)
	}
	if got := w.Text(t, "SELECT health || ' ' || health_why FROM public.machines"); got != "unknown no route" {
		t.Errorf("the machine is %s", got)
	}
	// One by a command is for agents that have room for such, and not for all workspaces.
	w.Exec(t, `UPDATE tendril.machine_checks SET due_at = now(), spec = jsonb_set(spec, '{kind}', '"command"')`)
	for _, room := range []queue.CheckRoom{
		{Checks: queue.MaxChecks}, {Checks: queue.MaxChecks, Without: []uuid.UUID{uuid.New()}}, {Checks: queue.MaxChecks, Commands: 1, Without: []uuid.UUID{uuid.New(), a.WorkspaceID}},
	} {
		if due, err := q.LeaseChecks(t.Context(), room); err != nil || len(due) > 0 {
			t.Errorf("LeaseChecks(%+v) = %+v, %v, want nothing", room, due, err)
		}
	}
	if due, err := q.LeaseChecks(t.Context(), queue.CheckRoom{Commands: 1}); err != nil || len(due) != 1 || due[0].Name != "m" {
		t.Errorf("LeaseChecks() = %+v, %v, want the check by a command", due, err)
	}
}

// machinesArePlaced is the way of a machine's place, from the pool that is reported to the place
// that is freed.
func machinesArePlaced(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	node := queue.PoolNode{Name: "pve1", Online: true, Cores: 4, Memory: 8192, CoresUsed: 0.5, Images: []string{"debian"}, Labels: map[string]string{"rack": "a"}, Storages: []queue.PoolStorage{{Name: "local", Free: 10, Size: 20}}, Server: &queue.PoolServer{ID: "s-1", ProvisionState: "available", Reason: "Ready", Available: true, Health: "ok"}}
	report := queue.Pool{
		Name: "lab", Kind: "proxmox", Nodes: []queue.PoolNode{node}, Taken: queue.PoolTaken{IDs: []int{100}, Addresses: []string{"10.0.0.1"}},
		Limits: queue.PoolLimits{OvercommitCores: 1, OvercommitMemory: 1, IDs: []int{100, 101}, Addresses: []queue.PoolAddress{{From: "10.0.0.1", To: "10.0.0.2"}}},
	}
	if err := q.ReportPools(t.Context(), []queue.Pool{report}); err != nil {
		t.Fatal(err)
	}
	if got := w.Text(t, "SELECT server ->> 'provision_state' FROM public.pool_nodes"); got != "available" {
		t.Errorf("what is kept of a server is %q", got)
	}
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	want := provision.PlaceWanted{Name: "m", Pool: "lab", Cores: 2, Memory: 1024, Image: "debian", Labels: map[string]string{"rack": "a"}}
	for range 2 { // again it is the same place
		places, err := q.ReserveMachines(t.Context(), a.ClaimID, []provision.PlaceWanted{want})
		if err != nil || len(places) != 1 || places[0].Node != "pve1" || places[0].VMID != 101 || places[0].Address != "10.0.0.2" || places[0].Why == "" {
			t.Fatalf("ReserveMachines() = %+v, %v, want pve1, 101 and 10.0.0.2", places, err)
		}
	}
	other := want
	other.Name = "n"
	_, err := q.ReserveMachines(t.Context(), a.ClaimID, []provision.PlaceWanted{other})
	if refused := wantKind(t, "ReserveMachines(one too many)", err, queue.Refused); refused.Reason != "no_room" {
		t.Errorf("ReserveMachines(one too many) = %s, want no_room", refused.Reason)
	}
	if err := q.ReleaseMachines(t.Context(), a.ClaimID, []string{"m"}); err != nil {
		t.Errorf("ReleaseMachines() = %v, want nil", err)
	}
	if _, err := q.ReserveMachines(t.Context(), a.ClaimID, []provision.PlaceWanted{other}); err != nil {
		t.Errorf("ReserveMachines() = %v once there is room", err)
	}
	report.Problem = "it does not answer"
	if err := q.ReportPools(t.Context(), []queue.Pool{report}); err != nil || w.Text(t, "SELECT problem || (SELECT count(*) FROM public.pool_nodes) FROM public.pools") != "it does not answer1" {
		t.Errorf("ReportPools(a problem) = %v, want the nodes to stay", err)
	}
}

// failureIsTriedAgain is a failure that may pass, where the snapshot wants
// another attempt.
func failureIsTriedAgain(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "a", "max_attempts": 2}`)
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Failed, provision.Detail{ErrorCode: provision.CodeCheckoutFailed, ErrorMessage: "no answer"})
	if a, err := q.Claim(t.Context(), uuid.New()); a != nil || err != nil {
		t.Fatalf("Claim() before the attempt is due = %v, %v, want nothing", a, err)
	}
	w.Exec(t, "UPDATE public.workspaces SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL")
	w.Exec(t, "SELECT tendril.reap()")
	again := mustClaim(t, q)
	if again.ProvisionID == id || again.Attempt != 2 || again.WorkspaceID != a.WorkspaceID || !sameJSON(again.Snapshot, a.Snapshot) {
		t.Errorf("Claim() = %+v, want the second attempt at %s", again, id)
	}
}
