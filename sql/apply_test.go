package sql_test

import "testing"

// asking is the question whether the apply may begin, with its number: asked
// again after a lost reply it is the same.
const asking = `{"n": 5, "stage": "apply", "commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`

// The answer to the first question was lost, so nothing has begun. The second
// is answered by what holds now.
func TestApplyAskedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meanwhile     string
		state, reason string // "": granted
	}{
		"nothing":   {},
		"cancelled": {"SELECT public.cancel_provision(id) FROM public.provisions", "PT409", "cancel_requested"},
		"expired":   {"UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'", "PT503", "lease_expired"},
		"lost": {"UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'; SELECT tendril.reap()",
			"PT409", "claim_lost"},
		"lost and cancelled": {"UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'; SELECT tendril.reap(); SELECT public.cancel_provision(id) FROM public.provisions",
			"PT409", "claim_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			w.deploy(t, w.operator, snapshot("a"))
			claim, _ := agent.mustClaim(t)
			agent.mustReport(t, claim, "PROCESSING", asking)
			if c.meanwhile == "" {
				agent.mustReport(t, claim, "PROCESSING", asking)
				return
			}
			mustExec(t, w.conn, c.meanwhile)
			wantRefusal(t, agent.report(t, claim, "PROCESSING", asking), c.state, c.reason)
			// What is told of the run is taken all the same, and its end.
			agent.mustReport(t, claim, "PROCESSING", `{"n": 6, "events": [{"kind": "diagnostic", "at": "2026-01-01T00:00:00Z"}]}`)
			agent.mustReport(t, claim, "CANCELLED", `{"n": 7, "error_code": "cancelled"}`)
		})
	}
}
