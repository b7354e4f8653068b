package sql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// shown is what viewers see of a provision's progress.
func (w *world) shown(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT concat_ws(' ', stage, percent) FROM public.provision_progress WHERE provision_id = $1", provision)
}

// applies has an agent claim a deploy and begin its apply, at 10 percent.
func (w *world) applies(t *testing.T) (a *agent, claim, provision uuid.UUID) {
	t.Helper()
	a = w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, provision = a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", `{"stage": "apply", "percent": 10, "commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`)
	return a, claim, provision
}

// Each write goes to every viewer of the provision.
func TestPercentIsWrittenOnceASecond(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, `CREATE TABLE written (stage text, percent int, at timestamptz);
		CREATE FUNCTION written() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.written VALUES (NEW.stage, NEW.percent, NEW.updated_at); RETURN NULL; END $$;
		CREATE TRIGGER written AFTER UPDATE ON public.provision_progress FOR EACH ROW EXECUTE FUNCTION written()`)
	agent, claim, provision := w.applies(t)
	for percent := 11; percent < 60; percent++ {
		agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"percent": %d}`, percent))
	}
	agent.mustReport(t, claim, "PROCESSING", `{"percent": 100}`)
	agent.mustReport(t, claim, "PROCESSING", `{"percent": 100}`)
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "outputs"}`)
	rows, err := w.conn.Query(t.Context(), "SELECT concat_ws(' ', stage, percent), at FROM public.written ORDER BY at")
	if err != nil {
		t.Fatal(err)
	}
	var said string
	var at, last time.Time
	var all []string
	_, err = pgx.ForEachRow(rows, []any{&said, &at}, func() error {
		always := said == "apply 10" || said == "apply 100" || said == "outputs 100"
		if all = append(all, said); !always && at.Sub(last) < time.Second {
			t.Errorf("%s was written %s after the write before", said, at.Sub(last))
		}
		last = at
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all); n < 3 || all[n-2] != "apply 100" || all[n-1] != "outputs 100" {
		t.Errorf("written = %v, want what is at once in it, and each once", all)
	}
	if got := w.shown(t, provision); got != "outputs 100" {
		t.Errorf("progress = %s, want outputs 100", got)
	}
}

// What was told last is shown, whatever comes after it, or nothing.
func TestLastPercentIsNotLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(t *testing.T, a *agent, claim uuid.UUID)
		want string
	}{
		"a pause": {func(t *testing.T, a *agent, claim uuid.UUID) {
			if _, err := a.heartbeat(t, claim); err != nil {
				t.Error(err)
			}
		}, "apply 40"},
		"the next stage": {func(t *testing.T, a *agent, claim uuid.UUID) {
			a.mustReport(t, claim, "PROCESSING", `{"stage": "outputs"}`)
		}, "outputs 40"},
		"the end of the apply": {func(t *testing.T, a *agent, claim uuid.UUID) {
			a.mustReport(t, claim, "PROCESSING", `{"percent": 100}`)
		}, "apply 100"},
		"a clock that was set back": {func(t *testing.T, a *agent, claim uuid.UUID) {
			mustExec(t, a.w.conn, "UPDATE public.provision_progress SET updated_at = clock_timestamp() + interval '1 hour'")
			a.mustReport(t, claim, "PROCESSING", `{"percent": 41}`)
		}, "apply 41"},
		"a second": {func(t *testing.T, a *agent, claim uuid.UUID) {
			mustExec(t, a.w.conn, "UPDATE public.provision_progress SET updated_at = updated_at - interval '1 second'")
			a.mustReport(t, claim, "PROCESSING", `{"stage": "apply"}`)
		}, "apply 40"},
		"success": {func(t *testing.T, a *agent, claim uuid.UUID) {
			a.mustReport(t, claim, "SUCCESS", `{}`)
		}, "done 100"},
		"failure": {func(t *testing.T, a *agent, claim uuid.UUID) {
			a.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
		}, "apply 40"},
		"the agent's loss": {func(t *testing.T, a *agent, claim uuid.UUID) {
			a.w.expire(t, claim)
			mustExec(t, a.w.conn, "SELECT tendril.reap()")
		}, "apply 40"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent, claim, provision := w.applies(t)
			agent.mustReport(t, claim, "PROCESSING", `{"percent": 40}`)
			c.then(t, agent, claim)
			if got := w.shown(t, provision); got != c.want {
				t.Errorf("progress after 40 percent and %s = %s, want %s", name, got, c.want)
			}
		})
	}
}

// What could not be shown later is refused at once, not by a later heartbeat.
func TestPercentOutOfRange(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent, claim, _ := w.applies(t)
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"percent": 101}`), "PT422", "bad_detail")
	if p, err := agent.heartbeat(t, claim); err != nil || len(p.Lost) > 0 {
		t.Errorf("heartbeat = %+v, %v, want the claim kept", p, err)
	}
}
