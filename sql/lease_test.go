package sql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func (w *world) reap(t *testing.T) int {
	t.Helper()
	return one[int](t, w.conn, "SELECT tendril.reap()")
}

func TestLeaseLostBeforeApplyFreesTheWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	first := w.deploy(t, w.operator, snapshot("a"))
	second := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	if n := w.reap(t); n != 1 {
		t.Fatalf("reap() = %d, want 1", n)
	}
	if got := w.statusAndCode(t, first); got != "FAILED/agent_lost" {
		t.Errorf("status = %s, want FAILED/agent_lost", got)
	}
	if got := w.log(t, first); !strings.Contains(got, "SYSTEM The agent on one.example is lost") {
		t.Errorf("log = %q, want a SYSTEM line about the lost agent", got)
	}
	if _, got := other.mustClaim(t); got != second {
		t.Errorf("next claim = %s, want %s: the workspace is free", got, second)
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT409", "claim_lost")
	// Too late: another claim has used the workspace since.
	wantRefusal(t, agent.report(t, claim, "SUCCESS", `{}`), "PT409", "claim_lost")
}

func TestLeaseLostDuringApplyHoldsTheWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	first := w.deploy(t, w.operator, snapshot("a"))
	second := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	w.expire(t, claim)
	if n := w.reap(t); n != 1 {
		t.Fatalf("reap() = %d, want 1", n)
	}
	if got, err := other.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Fatalf("claim on a held workspace = %s, %v, want nothing", got, err)
	}
	// A cancel reaches an agent that is lost but still there.
	if got := one[string](t, w.conn, "SELECT public.cancel_provision($1)", first); got != "FAILED" {
		t.Errorf("cancel_provision(lost run) = %s, want FAILED with the request passed on", got)
	}
	p, err := agent.heartbeat(t, claim)
	if err != nil || !slices.Contains(p.Lost, claim) || !slices.Contains(p.Cancel, claim) {
		t.Errorf("heartbeat = %+v, %v, want the claim lost and to be cancelled", p, err)
	}
	if next, err := agent.lines(t, claim, 1, "still applying\n"); err != nil || next != 2 {
		t.Errorf("late line = %d, %v, want it stored", next, err)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := w.statusAndCode(t, first); got != "SUCCESS" {
		t.Errorf("status after late settlement = %s, want SUCCESS", got)
	}
	if _, got := other.mustClaim(t); got != second {
		t.Errorf("next claim = %s, want %s: the hold has ended", got, second)
	}
	w.log(t, first) // numbered without a gap over agent's and SYSTEM lines
}

// A reaping that fails takes no heartbeat with it.
func TestHeartbeatSurvivesFailedReaping(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	for _, name := range []string{"a", "b"} {
		w.deploy(t, w.operator, snapshot(name))
	}
	mine, _ := agent.mustClaim(t)
	theirs, _ := other.mustClaim(t)
	w.expire(t, mine)
	w.expire(t, theirs)
	mustExec(t, w.conn, "ALTER TABLE public.provision_logs ADD CHECK (stream_type <> 'SYSTEM')") // reaping writes such a line
	if _, err := agent.heartbeat(t, mine); err != nil {
		t.Fatalf("heartbeat = %v, want it to succeed", err)
	}
	if got := one[bool](t, w.conn, "SELECT lease_until > clock_timestamp() FROM tendril.claims WHERE id = $1", mine); !got {
		t.Error("the lease was not renewed")
	}
}

func TestHeartbeatRenewsEvenAfterExpiry(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	p, err := agent.heartbeat(t, claim)
	if err != nil || len(p.Lost) != 0 {
		t.Errorf("heartbeat = %+v, %v, want the claim kept", p, err)
	}
	if n := w.reap(t); n != 0 || w.status(t, id) != "PROCESSING" {
		t.Errorf("reap() = %d, status %s, want the run to go on", n, w.status(t, id))
	}
}

func TestApplyNeedsALiveLease(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT503", "lease_expired")
	if _, err := agent.heartbeat(t, claim); err != nil {
		t.Fatal(err)
	}
	agent.mustReport(t, claim, "PROCESSING", applying)
}

// The database itself was away: nobody's lease is reaped for one lease's time.
func TestPulsePutsReapingOff(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '91 seconds'") // over 3/4 of 2 minutes
	for range 2 {
		if n := w.reap(t); n != 0 {
			t.Fatalf("reap() after the database was away = %d, want 0", n)
		}
	}
	mustExec(t, w.conn, "UPDATE tendril.pulse SET reap_not_before = clock_timestamp() - interval '1 second'")
	if n := w.reap(t); n != 1 {
		t.Errorf("reap() one lease later = %d, want 1", n)
	}
}

func TestOrphansByBootAndHost(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	ids := make([]uuid.UUID, 3)
	claims := make([]uuid.UUID, 3)
	for i, name := range []string{"planning", "applying", "cancelled"} {
		w.deploy(t, w.operator, snapshot(name))
		claims[i], ids[i] = agent.mustClaim(t)
	}
	agent.mustReport(t, claims[0], "PROCESSING", `{"stage": "plan"}`)
	agent.mustReport(t, claims[1], "PROCESSING", applying)
	mustExec(t, w.conn, "SELECT public.cancel_provision($1)", ids[2])

	bystander := w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("bystander"))
	_, undisturbed := bystander.mustClaim(t)

	if swept := agent.sweep(t); len(swept) != 0 {
		t.Errorf("sweep of the current boot = %v, want nothing", swept)
	}
	agent.boot = uuid.New()
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	if swept := agent.sweep(t); len(swept) != 3 {
		t.Errorf("sweep = %v, want all three", swept)
	}
	for i, want := range []string{"FAILED/agent_restarted", "FAILED/agent_restarted", "CANCELLED/cancelled"} {
		if got := w.statusAndCode(t, ids[i]); got != want {
			t.Errorf("run %d = %s, want %s", i, got, want)
		}
	}
	if got := w.log(t, ids[0]); !strings.Contains(got, "stage plan") || !strings.Contains(got, "Apply had not begun") {
		t.Errorf("log = %q, want stage plan and that apply had not begun", got)
	}
	if got := w.log(t, ids[1]); !strings.Contains(got, "stage apply") || !strings.Contains(got, "Apply had begun") {
		t.Errorf("log = %q, want stage apply and that apply had begun", got)
	}
	if got := w.status(t, undisturbed); got != "PROCESSING" {
		t.Errorf("the other agent's run = %s, want PROCESSING", got)
	}
}

// Already given up as lost: the sweep ends the hold and leaves the verdict.
func TestOrphanSweepEndsTheHold(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	w.expire(t, claim)
	w.reap(t)
	next := w.deploy(t, w.operator, snapshot("a"))
	agent.boot = uuid.New()
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	if swept := agent.sweep(t); len(swept) != 0 {
		t.Errorf("sweep = %v, want no new verdict", swept)
	}
	if got := w.statusAndCode(t, id); got != "FAILED/agent_lost" {
		t.Errorf("status = %s, want FAILED/agent_lost", got)
	}
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s: the hold has ended", got, next)
	}
}

// What a boot on another machine left is not this one's to end.
func TestOrphansOfAnotherHostAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	_, id := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '1 minute'")
	agent.boot, agent.host = uuid.New(), "elsewhere.example"
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	if swept := agent.sweep(t); len(swept) != 0 || w.status(t, id) != "PROCESSING" {
		t.Errorf("sweep = %v, status %s, want the other host's run left to its lease", swept, w.status(t, id))
	}
}

// A superseded boot cannot come back by registering again.
func TestSupersededBootCannotReturn(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	old := agent.boot
	agent.boot = uuid.New()
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	agent.boot = old
	wantRefusal(t, agent.register(t), "PT409", "agent_superseded")
}

// A status set by hand, for a run whose agent is gone, wedges neither reaping
// nor the workspace.
func TestReapingSurvivesMeddling(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	ids, claims := make([]uuid.UUID, 3), make([]uuid.UUID, 3)
	for i, name := range []string{"a", "b", "c"} {
		w.deploy(t, w.operator, snapshot(name))
		claims[i], ids[i] = agent.mustClaim(t)
	}
	mustExec(t, w.conn, "UPDATE public.provisions SET status = 'CANCELLED' WHERE id = ANY ($1)", ids[:2])
	w.expire(t, claims[0])
	w.expire(t, claims[2])
	if n := w.reap(t); n != 2 {
		t.Errorf("reap() = %d, want 2", n)
	}
	for i, want := range []string{"CANCELLED", "CANCELLED", "FAILED/agent_lost"} {
		if got := w.statusAndCode(t, ids[i]); got != want {
			t.Errorf("run %d = %s, want %s", i, got, want)
		}
	}
	agent.mustReport(t, claims[1], "SUCCESS", `{}`) // the run that somebody has cancelled by hand
	if got := w.status(t, ids[1]); got != "CANCELLED" {
		t.Errorf("status set by hand = %s, want it to stay", got)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE running_claim IS NOT NULL"); got != 0 {
		t.Errorf("workspaces still taken = %d, want 0", got)
	}
}

// The state is on another agent: refused, and said where.
func TestLocalStateElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = gen_random_uuid()")
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"local_state": true}`), "PT409", "workspace_elsewhere")
}

// Before apply, a lost run frees what it had reserved.
func TestReapingEndsTheReservation(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE public.workspaces SET reserved_by = $1", id)
	next := w.deploy(t, w.operator, snapshot("a"))
	w.expire(t, claim)
	w.reap(t)
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s: the reservation has ended", got, next)
	}
}
