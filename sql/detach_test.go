package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// applyingDetachable asks for the apply of a run whose work continues by itself.
var applyingDetachable = strings.TrimSuffix(applying, "}") + `, "detachable": true, "plan_digest": "` + aPlan + `"}`

// beginsDetachable has an agent claim what is next and begin to apply it.
func (a *agent) beginsDetachable(t *testing.T) (claim, provision uuid.UUID) {
	t.Helper()
	claim, provision = a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", planned(false))
	a.storePlan(t, claim)
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

// Nobody knows whether an agent that is not heard of any more still works: its run is not taken
// up, and its workspace stays held until the agent reports.
func TestLeaseOfADetachableRunEnds(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	behind := w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.beginsDetachable(t)
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
}
