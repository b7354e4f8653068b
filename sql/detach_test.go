package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// applyingDetachable asks for the apply of a run whose work continues by itself.
var applyingDetachable = strings.TrimSuffix(applying, "}") + `, "detachable": true, "plan_digest": "` + aPlan + `"}`

// What such a run tells of a machine: that it is about to make it, and that it can be found.
const (
	intendsMachine = `{"events": [{"kind": "machine_intent", "address": "machine.m", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`
	foundMachine   = `{"events": [{"kind": "machine_found", "address": "machine.m", "at": "2026-01-01T00:00:00Z"}]}`
)

// beginsDetachable has an agent claim what is next and begin to apply it.
func (a *agent) beginsDetachable(t *testing.T) (claim, provision uuid.UUID) {
	t.Helper()
	claim, provision = a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", planned(false))
	a.storePlan(t, claim)
	a.mustReport(t, claim, "PROCESSING", applyingDetachable)
	return claim, provision
}

// beginsOrTakesUp has an agent claim a run whose work continues by itself, and apply it.
func (a *agent) beginsOrTakesUp(t *testing.T) (claim, provision uuid.UUID) {
	t.Helper()
	claim, provision = a.mustClaim(t)
	if one[bool](t, a.w.conn, "SELECT plan_digest IS NULL FROM public.provisions WHERE id = $1", provision) {
		a.mustReport(t, claim, "PROCESSING", planned(false))
		a.storePlan(t, claim)
	}
	a.mustReport(t, claim, "PROCESSING", applyingDetachable)
	return claim, provision
}

// restarts has a new process of the agent end what the one before left.
func (a *agent) restarts(t *testing.T) {
	t.Helper()
	a.boot = uuid.New()
	if err := a.register(t); err != nil {
		t.Fatal(err)
	}
	var swept []uuid.UUID
	if err := a.call(t, &swept, "SELECT coalesce(array_agg(s), '{}') FROM public.fail_orphaned_provisions($1, $2, $3) s", a.w.tokenHash, a.instance, a.boot); err != nil {
		t.Fatal(err)
	}
}

func (w *world) whyWaits(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	return mustAs[string](t, w, w.viewer, "SELECT coalesce(string_agg(reason || ' ' || message, '; '), '') FROM public.why_waiting($1)", provision)
}

// One agent sets a run down, another takes it up, and nobody is asked a second time.
func TestRunIsSetDownAndTakenUp(t *testing.T) {
	t.Parallel()
	for name, approval := range map[string]string{"without an approval": "never", "with an approval": "always"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			first, second, old := w.newAgent(t, "one"), w.newAgent(t, "two"), w.newAgent(t, "old")
			old.contract = 6
			if err := old.register(t); err != nil {
				t.Fatal(err)
			}
			w.deploy(t, w.operator, snapshotWith("a", `"approval": "`+approval+`", "max_attempts": 3`))
			behind := w.deploy(t, w.operator, snapshot("a"))
			var claim, id uuid.UUID
			if approval == "always" {
				id = first.awaits(t)
				if err := w.approve(t, w.adminID, id); err != nil {
					t.Fatal(err)
				}
				claim, _ = first.mustClaim(t)
				first.mustReport(t, claim, "PROCESSING", applyingDetachable)
			} else {
				claim, id = first.beginsDetachable(t)
			}
			approver := one[string](t, w.conn, "SELECT format('%s %s %s', approved_plan, approved_by, approved_at) FROM public.provisions WHERE id = $1", id)

			first.mustReport(t, claim, "SET_DOWN", `{}`)
			if got := w.status(t, id); got != "QUEUED" {
				t.Fatalf("status = %s, want QUEUED", got)
			}
			if why := w.whyWaits(t, id); !strings.HasPrefix(why, "set_down agent one on ") || strings.Contains(why, "queued_behind") {
				t.Errorf("it waits because of %q", why)
			}
			if why := w.whyWaits(t, behind); !strings.Contains(why, "workspace_reserved") || !strings.Contains(why, "which agent one has set down, is taken up first") {
				t.Errorf("the run behind it waits because of %q", why)
			}
			if claimed, err := old.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
				t.Errorf("an agent of contract 6: %v, %v, want nothing to claim", claimed, err)
			}
			next := uuid.New()
			var got string
			if err := second.call(t, &got, "SELECT provision_id || ' ' || approved_plan || ' ' || attempt FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, second.instance, second.boot, next); err != nil || got != id.String()+" "+aPlan+" 1" {
				t.Fatalf("the next agent gets %s, %v", got, err)
			}
			first.mustReport(t, claim, "SET_DOWN", `{}`) // a lost reply
			if got := w.status(t, id); got != "PROCESSING" {
				t.Errorf("status = %s after a repeat of the first agent's report", got)
			}
			wantRefusal(t, second.report(t, next, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`), "PT409", "already_approved")
			wantRefusal(t, second.report(t, next, "PROCESSING", applying), "PT409", "plan_invalid")
			second.mustReport(t, next, "PROCESSING", applyingDetachable)
			second.mustReport(t, next, "SET_DOWN", `{}`)
			claim, _ = first.mustClaim(t)
			first.mustReport(t, claim, "PROCESSING", applyingDetachable)
			first.mustReport(t, claim, "SUCCESS", `{}`)
			if got := w.status(t, id); got != "SUCCESS" {
				t.Errorf("status = %s", got)
			}
			if got := one[string](t, w.conn, "SELECT format('%s %s %s', approved_plan, approved_by, approved_at) FROM public.provisions WHERE id = $1", id); got != approver {
				t.Errorf("approval = %s, want %s", got, approver)
			}
			log := w.log(t, id)
			for _, line := range []string{"Set down by agent one on ", "Taken up by agent two on ", "Set down by agent two on ", "Taken up by agent one on "} {
				if strings.Count(log, line) != 1 {
					t.Errorf("the log says %q %d times, want once:\n%s", line, strings.Count(log, line), log)
				}
			}
			if _, got := second.mustClaim(t); got != behind {
				t.Error("what waited behind it is not next")
			}
		})
	}
}

// What may not be set down.
func TestSetDownIsRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, foreign := w.newAgent(t, "one"), w.foreignAgent(t)
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	wantRefusal(t, agent.report(t, claim, "SET_DOWN", `{}`), "PT409", "not_detachable") // apply has not begun
	agent.mustReport(t, claim, "PROCESSING", planned(false))
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applyingDetachable), "PT409", "plan_missing")
	agent.mustReport(t, claim, "PROCESSING", applying)
	wantRefusal(t, agent.report(t, claim, "SET_DOWN", `{}`), "PT409", "not_detachable") // Terraform's
	agent.mustReport(t, claim, "FAILED", `{}`)
	wantRefusal(t, agent.report(t, claim, "SET_DOWN", `{}`), "PT409", "claim_lost")
	if got := w.statusAndCode(t, id); !strings.HasPrefix(got, "FAILED") {
		t.Errorf("status = %s", got)
	}

	w.deploy(t, w.operator, snapshot("a"))
	claim, id = agent.beginsDetachable(t)
	wantRefusal(t, foreign.report(t, claim, "SET_DOWN", `{}`), "PT409", "claim_lost")
	mustExec(t, w.conn, "DELETE FROM tendril.blobs WHERE provision_id = $1", id)
	wantRefusal(t, agent.report(t, claim, "SET_DOWN", `{}`), "PT409", "plan_missing")
	// By hand, and by a function with a mistake.
	_, err := w.conn.Exec(t.Context(), "UPDATE public.provisions SET status = 'QUEUED' WHERE id = $1", id)
	wantRefusal(t, err, "PT409", "illegal_transition")
	if _, err := w.conn.Exec(t.Context(), "UPDATE tendril.claims SET plan_digest = NULL, set_down_at = now() WHERE id = $1", claim); err == nil || !strings.Contains(err.Error(), "claims_set_down") {
		t.Errorf("a run without a plan is set down: %v", err)
	}
	if got := w.status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s after everything was refused", got)
	}
}

// A cancel is never lost: not while the run is being set down, and not while it waits.
func TestCancelOfARunThatIsSetDown(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			w.deploy(t, w.operator, snapshot("a"))
			behind := w.deploy(t, w.operator, snapshot("a"))
			claim, id := agent.beginsDetachable(t)
			agent.mustReport(t, claim, "PROCESSING", `{"events": [{"kind": "machine_intent", "address": "machine.m", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`)
			cancel := func() { mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id) }
			if before {
				cancel()
			}
			agent.mustReport(t, claim, "SET_DOWN", `{}`)
			if !before {
				cancel()
			}
			if got := w.statusAndCode(t, id); got != "CANCELLED/cancelled" {
				t.Errorf("status = %s", got)
			}
			if got := one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", id); !strings.Contains(got, "What it began continues: deploy again") {
				t.Errorf("it says %q", got)
			}
			if got := one[string](t, w.conn, "SELECT status FROM public.machines WHERE name = 'm'"); got != "unknown" {
				t.Errorf("its machine is %s, want unknown", got)
			}
			if _, next := agent.mustClaim(t); next != behind {
				t.Error("what waited behind it is not next")
			}
		})
	}
}

// An agent that crashes sets its runs down by starting again, but not for ever.
func TestCrashSetsDown(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.beginsDetachable(t)
	for range one[int](t, w.conn, "SELECT tendril.max_set_downs()") {
		agent.restarts(t)
		if got := w.status(t, id); got != "QUEUED" {
			t.Fatalf("status = %s, want QUEUED", got)
		}
		wantRefusal(t, agent.report(t, claim, "SUCCESS", `{}`), "PT409", "claim_lost")
		claim, _ = agent.mustClaim(t)
		agent.mustReport(t, claim, "PROCESSING", applyingDetachable)
	}
	agent.restarts(t)
	if got := w.statusAndCode(t, id); got != "FAILED/agent_restarted" {
		t.Errorf("status = %s after so many crashes", got)
	}
}

// A run whose work continues by itself is taken up by another agent when its own is lost, and what
// that one says afterwards counts for nothing.
func TestLeaseOfADetachableRunEnds(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first, second := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("a"))
	behind := w.deploy(t, w.operator, snapshot("a"))
	claim, id := first.beginsDetachable(t)
	first.mustReport(t, claim, "PROCESSING", intendsMachine)
	first.mustReport(t, claim, "PROCESSING", foundMachine)
	w.expire(t, claim)
	w.reap(t)
	if got := w.status(t, id); got != "QUEUED" {
		t.Fatalf("status = %s, want QUEUED", got)
	}
	if why := w.whyWaits(t, behind); !strings.Contains(why, "workspace_reserved") {
		t.Errorf("the run behind it waits because of %q", why)
	}
	late := func() {
		t.Helper()
		wantRefusal(t, first.report(t, claim, "PROCESSING", intendsMachine), "PT409", "claim_lost")
		wantRefusal(t, first.report(t, claim, "PROCESSING", applyingDetachable), "PT409", "claim_lost")
		wantRefusal(t, first.report(t, claim, "SUCCESS", `{}`), "PT409", "claim_lost")
		first.mustReport(t, claim, "SET_DOWN", `{}`)
	}
	late()
	next, got := second.mustClaim(t)
	if got != id {
		t.Fatalf("the next agent gets %s, want %s", got, id)
	}
	second.mustReport(t, next, "PROCESSING", applyingDetachable)
	late()
	if got := w.status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s after what the lost agent said", got)
	}
	second.mustReport(t, next, "SUCCESS", `{}`)
	if got := w.status(t, id); got != "SUCCESS" {
		t.Errorf("status = %s", got)
	}
	log := w.log(t, id)
	for _, line := range []string{"is lost: its lease ran out. What this run began continues", "Taken up by agent two on "} {
		if strings.Count(log, line) != 1 {
			t.Errorf("the log says %q %d times, want once:\n%s", line, strings.Count(log, line), log)
		}
	}
}

// A lost agent is not followed for ever.
func TestLostAgentsSetDownBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	for range one[int](t, w.conn, "SELECT tendril.max_set_downs()") {
		claim, _ := agent.beginsOrTakesUp(t)
		w.expire(t, claim)
		w.reap(t)
	}
	claim, id := agent.beginsOrTakesUp(t)
	w.expire(t, claim)
	w.reap(t)
	if got := w.statusAndCode(t, id); got != "FAILED/agent_lost" {
		t.Errorf("status = %s after so many lost agents", got)
	}
}

// An intent that was acknowledged may still be carried out by the lost agent's program, and the
// machine is not to be found by its mark yet: nobody takes the run up, and its workspace stays
// held until the agent reports. Nor does anybody take up what was cancelled.
func TestLeaseOfADetachableRunEndsMeanwhile(t *testing.T) {
	t.Parallel()
	many := make([]string, 150)
	for i := range many {
		many[i] = fmt.Sprintf(`{"kind": "machine_intent", "address": "machine.m%d", "action": "destroy", "at": "2026-01-01T00:00:00Z"}`, i)
	}
	for name, reports := range map[string][]string{
		"one that is made":            {intendsMachine},
		"one made again":              {intendsMachine, foundMachine, intendsMachine},
		"one that is destroyed":       {strings.Replace(intendsMachine, "create", "destroy", 1)},
		"another is found":            {intendsMachine, strings.Replace(foundMachine, "machine.m", "machine.n", 1)},
		"more than there is room for": {`{"events": [` + strings.Join(many, ",") + `]}`, strings.ReplaceAll(`{"events": [`+strings.Join(many, ",")+`]}`, "machine_intent", "machine_found")},
		"one of the agent before":     {intendsMachine, "SET_DOWN"},
		"a cancel":                    nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			w.deploy(t, w.operator, snapshot("a"))
			behind := w.deploy(t, w.operator, snapshot("a"))
			claim, id := agent.beginsDetachable(t)
			for _, report := range reports {
				if report == "SET_DOWN" {
					agent.mustReport(t, claim, "SET_DOWN", `{}`)
					claim, _ = agent.beginsOrTakesUp(t)
					continue
				}
				agent.mustReport(t, claim, "PROCESSING", report)
			}
			if reports == nil {
				mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
			}
			w.expire(t, claim)
			w.reap(t)
			if got := w.statusAndCode(t, id); got != "FAILED/agent_lost" {
				t.Fatalf("status = %s", got)
			}
			if claimed, err := agent.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
				t.Errorf("while its workspace is held: %v, %v, want nothing to claim", claimed, err)
			}
			agent.mustReport(t, claim, "SET_DOWN", `{}`)
			agent.mustReport(t, claim, "SET_DOWN", `{}`)
			if got := w.statusAndCode(t, id); got != "FAILED/agent_drained" {
				t.Errorf("status = %s", got)
			}
			if _, next := agent.mustClaim(t); next != behind {
				t.Error("what waited behind it is not next")
			}
		})
	}
}

// takeUpFails has an agent take up what was set down, and fail before its apply.
func (a *agent) takeUpFails(t *testing.T, code string) {
	t.Helper()
	claim, _ := a.mustClaim(t)
	result := `{"error_code": "` + code + `", "error_message": "The git server did not answer."}`
	a.mustReport(t, claim, "FAILED", result)
	a.mustReport(t, claim, "FAILED", result) // after a lost reply
}

// comesDue lets the time of the next try come.
func (w *world) comesDue(t *testing.T) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = clock_timestamp() - interval '1 second' WHERE due_at IS NOT NULL")
	w.reap(t)
}

// An agent that fails before its apply says nothing about the work of another: the run is
// taken up once more after a while, a few times, and at last says where the work may be found.
func TestTakeUpFails(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first, second := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshotWith("a", `"max_attempts": 3`))
	behind := w.deploy(t, w.operator, snapshot("a"))
	claim, id := first.beginsDetachable(t)
	first.mustReport(t, claim, "PROCESSING", `{"events": [{"kind": "machine_intent", "address": "machine.m", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`)
	first.mustReport(t, claim, "SET_DOWN", `{}`)
	most := one[int](t, w.conn, "SELECT tendril.max_take_ups()")
	for n := 1; n < most; n++ {
		second.takeUpFails(t, "checkout_failed")
		if got := w.status(t, id); got != "QUEUED" {
			t.Fatalf("status = %s after %d failures, want QUEUED", got, n)
		}
		if why := w.whyWaits(t, id); !strings.HasPrefix(why, "set_down agent one on ") || !strings.Contains(why, fmt.Sprintf("Agent two could not (checkout_failed: The git server did not answer), so try %d of %d is at ", n+1, most)) {
			t.Errorf("it waits because of %q", why)
		}
		if claimed, err := second.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
			t.Errorf("before its time: %v, %v, want nothing to claim", claimed, err)
		}
		if got := one[string](t, w.conn, "SELECT status FROM public.machines WHERE name = 'm'"); got != "creating" {
			t.Errorf("its machine is %s, want creating", got)
		}
		w.comesDue(t)
	}
	second.takeUpFails(t, "checkout_failed")
	if got := w.statusAndCode(t, id); got != "FAILED/checkout_failed" {
		t.Errorf("status = %s", got)
	}
	message := one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	if !strings.HasPrefix(message, "The git server did not answer. Agent one had set this run down, and what it began may continue") || !strings.Contains(message, `workspace "a" (trellis machines)`) {
		t.Errorf("it says %q", message)
	}
	if got := one[string](t, w.conn, "SELECT status FROM public.machines WHERE name = 'm'"); got != "unknown" {
		t.Errorf("its machine is %s, want unknown", got)
	}
	if log := w.log(t, id); strings.Count(log, "Agent two on ") != most-1 || !strings.Contains(log, "could not take it up (checkout_failed: The git server did not answer.). What agent one began continues; try 2 of 5 is at ") {
		t.Errorf("the log:\n%s", log)
	}
	if _, next := second.mustClaim(t); next != behind {
		t.Error("what waited behind it is not next")
	}
}

// An agent that crashes, or is lost, before its apply has not taken the run up; what can't be
// carried on is not tried again, and a run that was taken up has all its tries again.
func TestTakeUpFailsOtherwise(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first, second := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := first.beginsDetachable(t)
	first.mustReport(t, claim, "SET_DOWN", `{}`)
	queued := func(after, reason string) {
		t.Helper()
		if got := w.status(t, id); got != "QUEUED" {
			t.Fatalf("status = %s after %s, want QUEUED", got, after)
		}
		if why := w.whyWaits(t, id); !strings.Contains(why, reason) {
			t.Errorf("after %s it waits because of %q", after, why)
		}
		w.comesDue(t)
	}

	second.mustClaim(t)
	second.restarts(t)
	queued("a crash", "Agent two could not (agent_restarted: The agent was restarted), so try 2 of 5")
	lost, _ := second.mustClaim(t)
	w.expire(t, lost)
	w.reap(t)
	queued("a lost lease", "Agent two could not (agent_lost: The agent is lost: its lease ran out), so try 3 of 5")
	second.mustReport(t, lost, "SUCCESS", `{}`) // it learns late that it is over, and that counts for nothing
	if err := second.report(t, lost, "PROCESSING", applyingDetachable); err == nil {
		t.Error("an agent that was lost may apply")
	}
	claim, _ = second.mustClaim(t)
	second.mustReport(t, claim, "PROCESSING", applyingDetachable)
	second.mustReport(t, claim, "SET_DOWN", `{}`)
	first.takeUpFails(t, "template_invalid")
	queued("it was taken up", "Agent one could not (template_invalid: The git server did not answer), so try 2 of 5")

	claim, _ = first.mustClaim(t)
	mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	first.mustReport(t, claim, "CANCELLED", `{"error_code": "cancelled", "error_message": "Cancelled before apply had begun."}`)
	if got := one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", id); !strings.Contains(got, "begun. Agent two had set this run down") {
		t.Errorf("a cancel says %q", got)
	}

	w.deploy(t, w.operator, snapshot("b"))
	claim, id = first.beginsDetachable(t)
	first.mustReport(t, claim, "SET_DOWN", `{}`)
	first.takeUpFails(t, "plan_stale")
	if got := w.statusAndCode(t, id); got != "FAILED/plan_stale" {
		t.Errorf("status = %s", got)
	}
	// By a function with a mistake.
	if _, err := w.conn.Exec(t.Context(), "UPDATE tendril.claims SET take_up_failure = 'x' WHERE id = $1", claim); err == nil || !strings.Contains(err.Error(), "claims_take_up_failure") {
		t.Errorf("a run that was set down has not been taken up: %v", err)
	}
}
