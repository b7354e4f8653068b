package sql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// stages are a provision's, "attempt stage" each, in their order; one that has
// not ended has a … behind it. It fails the test where one begins before the one
// before it has ended.
func (w *world) stages(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	const overlapping = `SELECT count(*) FROM public.provision_stages a JOIN public.provision_stages b USING (provision_id)
		WHERE provision_id = $1 AND a.started_at < b.started_at AND (a.ended_at IS NULL OR a.ended_at > b.started_at + interval '1 millisecond' OR a.ended_at < a.started_at)`
	if n := one[int](t, w.conn, overlapping, provision); n > 0 {
		t.Errorf("%d stages go on while another begins", n)
	}
	return one[string](t, w.conn, `SELECT coalesce(string_agg(attempt || ' ' || stage || CASE WHEN ended_at IS NULL THEN '…' ELSE '' END, ', ' ORDER BY attempt, started_at, stage = 'done'), '')
		FROM public.provision_stages WHERE provision_id = $1 AND org_id = $2`, provision, w.org)
}

func (w *world) wantStages(t *testing.T, provision uuid.UUID, when, want string) {
	t.Helper()
	if got := w.stages(t, provision); got != want {
		t.Errorf("stages %s = %s, want %s", when, got, want)
	}
}

// stage has an agent tell of the next one.
func (a *agent) stage(t *testing.T, claim uuid.UUID, stage string) {
	t.Helper()
	a.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"stage": %q, "commit": %q}`, stage, strings.Repeat("a", 40)))
}

// awaitApproval has a run end with a plan that somebody must approve.
func (a *agent) awaitApproval(t *testing.T, claim uuid.UUID) (digest string) {
	t.Helper()
	a.mustPut(t, claim, "plan", 0, "a plan")
	digest = digestOf([]byte("a plan"))
	a.mustReport(t, claim, "AWAITING_APPROVAL", fmt.Sprintf(`{"plan_digest": %q}`, digest))
	return digest
}

func TestStagesOfOneRun(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	w.wantStages(t, id, "of what is queued", "1 queued…")
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"percent": 1}`)
	w.wantStages(t, id, "before the run has told one", "1 queued…")
	agent.stage(t, claim, "checkout")
	w.wantStages(t, id, "of what has begun", "1 queued, 1 checkout…")
	if n := one[int](t, w.conn, `SELECT count(*) FROM tendril.claims c JOIN public.provision_stages s ON s.provision_id = c.provision_id
		WHERE s.stage = 'queued' AND s.ended_at = c.created_at OR s.stage = 'checkout' AND s.started_at = c.created_at`); n != 2 {
		t.Error("checkout does not begin, or queued not end, when the provision was claimed")
	}
	for _, stage := range []string{"checkout", "validate", "engine", "init", "plan", "apply"} {
		agent.stage(t, claim, stage)
	}
	w.wantStages(t, id, "during apply", "1 queued, 1 checkout, 1 validate, 1 engine, 1 init, 1 plan, 1 apply…")
	agent.stage(t, claim, "outputs")
	agent.mustReport(t, claim, "SUCCESS", "{}")
	w.wantStages(t, id, "after success", "1 queued, 1 checkout, 1 validate, 1 engine, 1 init, 1 plan, 1 apply, 1 outputs, 1 done")
	if n := one[int](t, w.conn, `SELECT count(*) FROM public.provisions p JOIN public.provision_stages q ON q.provision_id = p.id AND q.stage = 'queued'
		JOIN public.provision_stages d ON d.provision_id = p.id AND d.stage = 'done'
		WHERE q.started_at = p.created_at AND d.ended_at BETWEEN p.finished_at AND p.finished_at + interval '1 minute'`); n != 1 {
		t.Error("the stages do not begin and end with the provision")
	}
}

// A run may go back (init again for a provider that is missing), as often as it
// likes: there are no more rows than stages.
func TestStageThatIsComeBackTo(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	for range 3 {
		agent.stage(t, claim, "init")
		agent.stage(t, claim, "plan")
	}
	agent.stage(t, claim, "init")
	if got := one[string](t, w.conn, `SELECT string_agg(stage || CASE WHEN ended_at IS NULL THEN '…' ELSE '' END, ', ' ORDER BY started_at)
		FROM public.provision_stages WHERE provision_id = $1`, id); got != "queued, checkout, init…, plan" {
		t.Errorf("stages = %s, want init going on, and each once", got)
	}
	agent.mustReport(t, claim, "FAILED", `{"error_code": "init_failed"}`)
	if n := one[int](t, w.conn, "SELECT count(*) FROM public.provision_stages WHERE ended_at IS NULL"); n != 0 {
		t.Errorf("%d stages go on after the end", n)
	}
}

func TestStagesAfterApproval(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.stage(t, claim, "plan")
	digest := agent.awaitApproval(t, claim)
	w.wantStages(t, id, "of what awaits approval", "1 queued, 1 checkout, 1 plan, 1 approval…")
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.approve_provision($1, $2)", id, digest)
		return err
	})
	w.wantStages(t, id, "of what is approved", "1 queued, 1 checkout, 1 plan, 1 approval, 2 queued…")
	claim, _ = agent.mustClaim(t)
	agent.stage(t, claim, "checkout")
	agent.mustReport(t, claim, "CANCELLED", `{"error_code": "cancelled"}`)
	w.wantStages(t, id, "at the end", "1 queued, 1 checkout, 1 plan, 1 approval, 2 queued, 2 checkout")
}

func TestStagesAfterAKill(t *testing.T) {
	t.Parallel()
	const begun = "1 queued, 1 checkout, 1 apply"
	lost := func(t *testing.T) (*world, *agent, uuid.UUID, uuid.UUID) {
		t.Helper()
		w := newContract(t)
		agent, claim, id := w.applies(t)
		agent.mustReport(t, claim, "PROCESSING", `{"running": [{"address": "a.b", "since": "2026-01-02T03:04:05Z"}]}`)
		w.expire(t, claim)
		w.reap(t)
		w.wantStages(t, id, "of a lost run", begun)
		if got := one[string](t, w.conn, "SELECT running::text FROM public.provision_progress"); got != "[]" {
			t.Errorf("what is worked on by a run that was given up = %s, want nothing", got)
		}
		return w, agent, claim, id
	}
	t.Run("before it told anything", func(t *testing.T) {
		t.Parallel()
		w := newContract(t)
		agent := w.newAgent(t, "one")
		id := w.deploy(t, w.operator, snapshot("a"))
		claim, _ := agent.mustClaim(t)
		w.expire(t, claim)
		w.reap(t)
		w.wantStages(t, id, "of a run lost at once", "1 queued, 1 checkout")
	})
	t.Run("restarted", func(t *testing.T) {
		t.Parallel()
		w := newContract(t)
		agent, _, id := w.applies(t)
		agent.boot = uuid.New()
		if err := agent.register(t); err != nil {
			t.Fatal(err)
		}
		agent.sweep(t)
		w.wantStages(t, id, "of a run whose agent was restarted", begun)
	})
	t.Run("settled late", func(t *testing.T) {
		t.Parallel()
		w, agent, claim, id := lost(t)
		mustExec(t, w.conn, "UPDATE public.provision_stages SET ended_at = started_at WHERE stage = 'apply'")
		agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
		w.wantStages(t, id, "after a late failure", begun)
		if n := one[int](t, w.conn, "SELECT count(*) FROM public.provision_stages WHERE stage = 'apply' AND ended_at > started_at"); n != 1 {
			t.Error("the apply ends when its agent was given up, want: when it was over")
		}
	})
	t.Run("goes on and settles late", func(t *testing.T) {
		t.Parallel()
		w, agent, claim, id := lost(t)
		mustExec(t, w.conn, "UPDATE public.provision_stages SET ended_at = started_at WHERE stage = 'apply'")
		agent.mustReport(t, claim, "PROCESSING", `{"stage": "outputs"}`)
		w.wantStages(t, id, "of a lost run that goes on", begun+", 1 outputs")
		if n := one[int](t, w.conn, "SELECT count(*) FROM public.provision_stages WHERE stage = 'apply' AND ended_at > started_at"); n != 1 {
			t.Error("the apply ends when its agent was given up, want: when the outputs began")
		}
		agent.mustReport(t, claim, "SUCCESS", "{}")
		w.wantStages(t, id, "after a late success", begun+", 1 outputs, 1 done")
	})
}

// running is what viewers are shown, addresses only.
func (w *world) running(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce((SELECT string_agg(r ->> 'address', ' ') FROM jsonb_array_elements(running) r), '') FROM public.provision_progress")
}

// What is worked on is shown as seldom as the percentage, in the same write.
func TestRunningIsWrittenOnceASecond(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, claim, _ := w.applies(t)
	mustExec(t, w.conn, `CREATE TABLE written (n int); CREATE FUNCTION written() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.written VALUES (1); RETURN NULL; END $$;
		CREATE TRIGGER written AFTER UPDATE ON public.provision_progress FOR EACH ROW EXECUTE FUNCTION written()`)
	tell := func(names ...string) {
		t.Helper()
		items := make([]string, len(names))
		for i, name := range names {
			items[i] = fmt.Sprintf(`{"address": %q, "action": "create", "since": "2026-01-02T03:04:05Z"}`, name)
		}
		agent.mustReport(t, claim, "PROCESSING", `{"percent": 20, "running": [`+strings.Join(items, ", ")+`]}`)
	}
	began := time.Now()
	for i := range 20 {
		tell(fmt.Sprintf("a.b[%d]", i), "c.d")
	}
	if n, seconds := one[int](t, w.conn, "SELECT count(*) FROM written"), int(time.Since(began).Seconds()); n > 2+seconds {
		t.Errorf("%d writes within %d s, want 1 a second", n, seconds)
	}
	beat := func() {
		t.Helper()
		if _, err := agent.heartbeat(t, claim); err != nil {
			t.Fatal(err)
		}
		if got := w.running(t); got != "a.b[19] c.d" {
			t.Errorf("shown after a heartbeat = %q, want what was told last", got)
		}
	}
	beat()
	if got := one[string](t, w.conn, "SELECT running ->> 0 FROM public.provision_progress"); got != `{"since": "2026-01-02T03:04:05+00:00", "action": "create", "address": "a.b[19]"}` {
		t.Errorf("shown of one = %s", got)
	}
	// A line shows it as well, a second later.
	line := int64(1)
	for ; ; line++ {
		shown := one[time.Time](t, w.conn, "SELECT updated_at FROM public.provision_progress")
		tell("with a line")
		if _, err := agent.lines(t, claim, line, "soon\n"); err != nil {
			t.Fatal(err)
		}
		got := w.running(t)
		if one[bool](t, w.conn, "SELECT clock_timestamp() > $1::timestamptz + interval '1 second'", shown) {
			tell("a.b[19]", "c.d") // the machine has stalled for that second: once more
			beat()
			continue
		}
		if got != "a.b[19] c.d" {
			t.Errorf("shown with a line, at once = %q, want it held back", got)
		}
		break
	}
	mustExec(t, w.conn, "UPDATE public.provision_progress SET updated_at = updated_at - interval '1 second'")
	if _, err := agent.lines(t, claim, line+1, "later\n"); err != nil {
		t.Fatal(err)
	}
	if got := w.running(t); got != "with a line" {
		t.Errorf("shown with a line, a second later = %q, want what was told last", got)
	}
	tell(make([]string, 60)...)
	mustExec(t, w.conn, "UPDATE public.provision_progress SET updated_at = updated_at - interval '1 second'")
	agent.mustReport(t, claim, "PROCESSING", `{"percent": 21}`) // says nothing of it
	if n := one[int](t, w.conn, "SELECT jsonb_array_length(running) FROM public.provision_progress"); n != 50 {
		t.Errorf("of 60 that are worked on %d are shown, want 50", n)
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"running": {}}`), "PT422", "bad_detail")
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "outputs"}`)
	if got := w.running(t); got != "" {
		t.Errorf("shown in the next stage = %q, want nothing", got)
	}
	tell("late")
	agent.mustReport(t, claim, "SUCCESS", "{}")
	if got := w.running(t); got != "" {
		t.Errorf("shown after the end = %q, want nothing", got)
	}
}

// A time that a page, or trellis, cannot read would keep it from showing any list.
func TestRunningSinceATimeThatNobodyReads(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for since, want := range map[string]string{`"2026-01-02T03:04:05Z"`: `"2026-01-02T03:04:05+00:00"`, `"infinity"`: "null", `"-infinity"`: "null", `"0044-03-15 00:00 BC"`: "null", `"200000-01-01"`: "null", "null": "null"} {
		if got := one[string](t, w.conn, `SELECT (tendril.plain_running(jsonb_build_array(jsonb_build_object('since', $1::jsonb))) -> 0 -> 'since')::text`, since); got != want {
			t.Errorf("since %s is shown as %s, want %s", since, got, want)
		}
	}
}
