package agent

import (
	"strings"
	"testing"
)

// An agent whose cluster may store no more logs and no more blobs goes on: runs end with
// their status, their logs say that they are cut, a plan waits for room, and nothing else
// waits for that. With room again the plan is stored, and the next log is whole.
func TestFullDatabaseHoldsNothingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	w.becomes(t, w.deploy(t, "before", "print 10", "succeed"), "SUCCESS")
	const count = "UPDATE tendril.expiry SET began_at = '-infinity' WHERE name = 'log_usage'"
	w.Exec(t, "UPDATE tendril.settings SET cluster_log_limit = 1, cluster_blob_limit = 1")
	w.Exec(t, count)
	w.Exec(t, "SELECT tendril.measure_usage()")

	planned := w.deploy(t, "planned", "print 10", "plan")
	a.says(t, "tendril.settings.cluster_blob_limit")
	for _, workspace := range []string{"b", "c"} {
		id := w.deploy(t, workspace, "print 5000", "apply", "print 5000", "succeed")
		w.becomes(t, id, "SUCCESS")
		if log := w.Log(t, id); strings.Count(log, "tendril.settings.cluster_log_limit). Further output is left out.") != 1 || strings.Contains(log, "line ") {
			t.Errorf("the log of a run beyond the bound = %.500q, want one line that says so", log)
		}
	}
	failed := w.deploy(t, "d", "print 10", "die")
	w.becomes(t, failed, "FAILED/exec_died")
	if log := w.Log(t, failed); !strings.Contains(log, "before it had a result") {
		t.Errorf("the log of a run that died = %.500q, want it to say how", log)
	}
	if got := w.Status(t, planned); got != "PROCESSING" {
		t.Errorf("the run whose plan finds no room = %s, want PROCESSING", got)
	}

	w.Exec(t, "UPDATE tendril.settings SET cluster_log_limit = 1 << 30, cluster_blob_limit = 1 << 30")
	w.becomes(t, planned, "AWAITING_APPROVAL")
	id := w.deploy(t, "b", "print 5000", "succeed")
	w.becomes(t, id, "SUCCESS")
	if got := w.Log(t, id); got != lines(5000) {
		t.Errorf("the log of a run with room again has %d lines and begins %.200q, want all 5000", strings.Count(got, "\n"), got)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}
