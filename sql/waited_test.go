package sql_test

import (
	"testing"

	"github.com/google/uuid"
)

// How long a provision has waited is told with its claim, by the clock of the
// database, and the same again when the claim is repeated.
func TestClaimTellsHowLongItWaited(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for _, tc := range []struct {
		about, statement string
		least, most      float64
	}{
		{"queued just now", "SELECT $1::uuid", 0, 60},
		{"queued long ago", "UPDATE public.provision_stages SET started_at = now() - interval '2 hours' WHERE provision_id = $1", 7200, 7260},
		{"queued once more, after an approval", `WITH first AS (UPDATE public.provision_stages SET started_at = now() - interval '3 hours' WHERE provision_id = $1)
			INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
			SELECT $1, org_id, 2, 'queued', now() - interval '1 hour' FROM public.provisions WHERE id = $1`, 3600, 3660},
		{"an attempt that had to wait", `WITH first AS (UPDATE public.provision_stages SET started_at = now() - interval '2 hours' WHERE provision_id = $1)
			UPDATE public.provisions SET not_before = now() - interval '30 minutes' WHERE id = $1`, 1800, 1860},
		{"one whose clock was ahead", "UPDATE public.provision_stages SET started_at = now() + interval '1 hour' WHERE provision_id = $1", 0, 0},
	} {
		id := w.deploy(t, w.operator, snapshot(uuid.NewString()))
		mustExec(t, w.conn, tc.statement, id)
		claim := uuid.New()
		var waited, again *float64
		for _, into := range []**float64{&waited, &again} {
			if err := agent.call(t, into, "SELECT queued_seconds FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, claim); err != nil {
				t.Fatalf("%s: %v", tc.about, err)
			}
		}
		if waited == nil || *waited < tc.least || *waited > tc.most {
			t.Errorf("%s: queued_seconds = %v, want %v to %v", tc.about, value(waited), tc.least, tc.most)
		}
		if value(again) != value(waited) {
			t.Errorf("%s: queued_seconds of the repeated claim = %v, want %v as before", tc.about, value(again), value(waited))
		}
	}
}

// value is what a pointer points to; -1 for none.
func value(number *float64) float64 {
	if number == nil {
		return -1
	}
	return *number
}
