package queuetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Open opens the transport under test. It closes it when the test is over.
type Open func(t *testing.T, w *World, token string, agent queue.Agent) queue.Queue

// Run runs every case against a transport.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *World, Open){
		"RegisterTellsTheCluster":   registerTellsTheCluster,
		"ClusterKeyIsTold":          clusterKeyIsTold,
		"WrongTokenIsUnauthorized":  wrongTokenIsUnauthorized,
		"RevokedTokenEndsCalls":     revokedTokenEndsCalls,
		"NameInUseIsRefused":        nameInUseIsRefused,
		"NewContractIsRefused":      newContractIsRefused,
		"ClaimOnceAndAgain":         claimOnceAndAgain,
		"ClaimNothing":              claimNothing,
		"SupersededBootIsRefused":   supersededBootIsRefused,
		"ChunksAreStoredOnce":       chunksAreStoredOnce,
		"GapIsAnswered":             gapIsAnswered,
		"LogTextSurvives":           logTextSurvives,
		"ReportRunsToSuccess":       reportRunsToSuccess,
		"ReportTwiceIsHarmless":     reportTwiceIsHarmless,
		"MovedTagIsRefused":         movedTagIsRefused,
		"CancelComesByHeartbeat":    cancelComesByHeartbeat,
		"LostClaimIsTold":           lostClaimIsTold,
		"OtherClustersClaimIsLost":  otherClustersClaimIsLost,
		"OrphansEndAtTheNextStart":  orphansEndAtTheNextStart,
		"SensitiveOutputHasNoValue": sensitiveOutputHasNoValue,
		"UnsavedStateIsKept":        unsavedStateIsKept,
		"OlderContractIsServed":     olderContractIsServed,
		"UpgradeKeepsTheAgent":      upgradeKeepsTheAgent,
		"StandingDisturbsNobody":    standingDisturbsNobody,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, NewWorld(t), open)
		})
	}
}

// An agent tells its public key, and hears which one is the cluster's.
func clusterKeyIsTold(t *testing.T, w *World, open Open) {
	for i, key := range []string{"q", "p"} {
		about := NewAgent(key)
		about.AgePublicKey = "age1" + strings.Repeat(key, 58)
		if got := mustRegister(t, open(t, w, w.Token, about)); got.ClusterKey != "age1"+strings.Repeat("q", 58) {
			t.Errorf("Register() of agent %d = cluster's key %q, want the first one's", i+1, got.ClusterKey)
		}
	}
}

// registered opens the transport for a new agent and registers it.
func registered(t *testing.T, w *World, open Open, name string) queue.Queue {
	t.Helper()
	q := open(t, w, w.Token, NewAgent(name))
	mustRegister(t, q)
	return q
}

func mustRegister(t *testing.T, q queue.Queue) queue.Registration {
	t.Helper()
	r, err := q.Register(t.Context())
	if err != nil {
		t.Fatalf("Register() = %v, want nil", err)
	}
	return r
}

func mustClaim(t *testing.T, q queue.Queue) *provision.Assignment {
	t.Helper()
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	return a
}

func mustReport(t *testing.T, q queue.Queue, claim uuid.UUID, status provision.Status, detail provision.Detail) {
	t.Helper()
	if err := q.Report(t.Context(), claim, provision.Report{Status: status, Detail: detail}); err != nil {
		t.Fatalf("Report(%s) = %v, want nil", status, err)
	}
}

func wantKind(t *testing.T, call string, err error, want queue.Kind) *queue.Error {
	t.Helper()
	e, ok := errors.AsType[*queue.Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("%s = %v (%+v), want an error of kind %d", call, err, e, want)
	}
	if e.Message == "" {
		t.Errorf("%s gave an error without a message: %+v", call, e)
	}
	return e
}

// applying asks for the acknowledgement of the apply.
var applying = provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40)}

func line(text string) provision.LogChunk {
	return provision.LogChunk{Stream: provision.Stdout, Text: text, EmittedAt: time.Now()}
}

func registerTellsTheCluster(t *testing.T, w *World, open Open) {
	r := mustRegister(t, open(t, w, w.Token, NewAgent("one")))
	if r.ClusterID != w.Cluster || r.ClusterName != "prod" || r.Heartbeat != 10*time.Second || r.Lease != 2*time.Minute || r.Contract != queue.Contract {
		t.Errorf("Register() = %+v, want cluster prod, heartbeat 10 s, lease 2 min, contract %d", r, queue.Contract)
	}
}

func wrongTokenIsUnauthorized(t *testing.T, w *World, open Open) {
	_, err := open(t, w, "tnd_wrong", NewAgent("one")).Register(t.Context())
	e := wantKind(t, "Register(wrong token)", err, queue.Unauthorized)
	if strings.Contains(e.Error(), "tnd_wrong") || !strings.Contains(e.Error(), "TENDRIL_API_TOKEN") {
		t.Errorf("error = %q, want the setting named and the token not", e)
	}
}

func revokedTokenEndsCalls(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Exec(t, "SELECT public.revoke_cluster_token($1)", w.Cluster)
	_, err := q.Heartbeat(t.Context(), nil)
	_ = wantKind(t, "Heartbeat(revoked)", err, queue.Unauthorized)
	_, err = q.Claim(t.Context(), uuid.New())
	_ = wantKind(t, "Claim(revoked)", err, queue.Unauthorized)
}

func nameInUseIsRefused(t *testing.T, w *World, open Open) {
	registered(t, w, open, "one")
	_, err := open(t, w, w.Token, NewAgent("one")).Register(t.Context())
	if e := wantKind(t, "Register(name in use)", err, queue.Refused); !strings.Contains(e.Message, "one.example") {
		t.Errorf("error = %q, want it to name the other's host", e)
	}
}

func newContractIsRefused(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract + 1
	_, err := open(t, w, w.Token, agent).Register(t.Context())
	if e := wantKind(t, "Register(newer contract)", err, queue.Refused); !strings.Contains(e.Error(), "trellis migrate") {
		t.Errorf("error = %q, want it to say what to do", e)
	}
}

func claimOnceAndAgain(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	claim := uuid.New()
	first, err := q.Claim(t.Context(), claim)
	if err != nil || first == nil || first.ProvisionID != id || first.ClaimID != claim || first.Workspace != "a" || first.Operation != provision.OperationApply {
		t.Fatalf("Claim() = %+v, %v, want provision %s on workspace a", first, err, id)
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

func supersededBootIsRefused(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	old := open(t, w, w.Token, agent)
	mustRegister(t, old)
	agent.Boot = uuid.New()
	mustRegister(t, open(t, w, w.Token, agent))
	_, err := old.Heartbeat(t.Context(), nil)
	_ = wantKind(t, "Heartbeat(old boot)", err, queue.Superseded)
	_, err = old.Claim(t.Context(), uuid.New())
	_ = wantKind(t, "Claim(old boot)", err, queue.Superseded)
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
	_ = wantKind(t, "AppendLog(chunk too large)", err, queue.Refused)
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

func cancelComesByHeartbeat(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	p, err := q.Heartbeat(t.Context(), []uuid.UUID{a.ClaimID})
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
	p, err := q.Heartbeat(t.Context(), []uuid.UUID{a.ClaimID, uuid.New()})
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

func olderContractIsServed(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract - 1
	q := open(t, w, w.Token, agent)
	if r := mustRegister(t, q); r.Contract != queue.Contract {
		t.Errorf("Register() tells contract %d, want the database's own, %d", r.Contract, queue.Contract)
	}
	w.Deploy(t, "a")
	mustReport(t, q, mustClaim(t, q).ClaimID, provision.Success, provision.Detail{})
}

// The next program says its data directory with its host, and is the same agent.
func upgradeKeepsTheAgent(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract - 1
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	id := w.Deploy(t, "a")
	mustClaim(t, q)
	agent.Contract, agent.Boot, agent.Host = queue.Contract, uuid.New(), agent.Host+":/var/lib/tendril"
	next := open(t, w, w.Token, agent)
	mustRegister(t, next)
	if orphans, err := next.FailOrphans(t.Context(), nil); err != nil || len(orphans) != 1 || orphans[0] != id {
		t.Errorf("FailOrphans() = %v, %v, want [%s]", orphans, err, id)
	}
}
