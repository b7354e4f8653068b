package sql_test

import (
	"strings"
	"testing"
)

// prints has one run of a new workspace print about so many bytes in lines of 1000, ends it,
// and returns its log.
func (a *agent) prints(t *testing.T, workspace, stream string, size int) string {
	t.Helper()
	mustExec(t, a.w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", a.w.cluster, snapshot(workspace))
	claim, id := a.mustClaim(t)
	texts := make([]string, 100)
	for i := range texts {
		texts[i] = strings.Repeat("x", 999) + "\n"
	}
	next := int64(1)
	for sent := 0; sent < size; sent += 1000 * len(texts) {
		texts = texts[:min(len(texts), (size-sent)/1000)]
		want := next + int64(len(texts))
		if next = a.send(t, claim, next, stream, texts...); next != want {
			t.Fatalf("expected next = %d, want %d: a run must not be held up by its log", next, want)
		}
	}
	a.mustReport(t, claim, "SUCCESS", `{}`)
	if got := a.w.status(t, id); got != "SUCCESS" {
		t.Errorf("the run ends as %s, want SUCCESS", got)
	}
	a.w.countAnew(t)
	mustExec(t, a.w.conn, "SELECT tendril.measure_usage()")
	return a.w.logText(t, id)
}

// wantWhole fails the test unless a log has so many lines of 1000 bytes, and nothing else.
func wantWhole(t *testing.T, whose, log string, lines int) {
	t.Helper()
	// logText has the first 300 bytes of each line.
	if got := strings.Count(log, "x") / 300; got != lines || strings.Contains(log, "left out") {
		t.Errorf("the log of %s has %d lines and begins %.100q, want %d and no more", whose, got, log, lines)
	}
}

// wantCut fails the test unless a log says once that it is cut, by which setting, and has
// nothing of what was printed.
func wantCut(t *testing.T, whose, log, setting string) {
	t.Helper()
	if strings.Count(log, "Further output is left out.") != 1 || !strings.Contains(log, "tendril.settings."+setting) || strings.Contains(log, "xxx") {
		t.Errorf("the log of %s = %.300q, want one line that says that it is cut, and %s", whose, log, setting)
	}
}

// With a leaked token, or by many runs, logs grow up to the cluster's bound. Runs end with
// their status, others go on, and the next log is whole when there is room.
func TestLogsOfAClusterAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_log_limit = 200000 WHERE only_row")
	a := w.newAgent(t, "one")
	for _, workspace := range []string{"a", "b"} {
		wantWhole(t, "a run below the bound", a.prints(t, workspace, "STDOUT", 100_000), 100)
	}
	for _, workspace := range []string{"c", "d"} {
		wantCut(t, "a run beyond the bound", a.prints(t, workspace, "STDERR", 100_000), "cluster_log_limit")
	}
	beside := w.beside(t)
	wantWhole(t, "another cluster's run", beside.prints(t, "e", "STDOUT", 100_000), 100)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_log_limit = 400000 WHERE only_row")
	wantWhole(t, "a run with room again", a.prints(t, "c", "STDOUT", 100_000), 100)
}

// Nobody gets past the bound as SYSTEM, but for the MiB in which a run says how it ends.
func TestLogBoundHoldsForSystemLines(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_log_limit = 100000 WHERE only_row")
	a := w.newAgent(t, "one")
	a.prints(t, "a", "STDOUT", 100_000)
	a.prints(t, "b", "SYSTEM", 3_000_000)
	if got := one[int](t, w.conn, "SELECT sum(length(log_chunk)) FROM public.provision_logs WHERE log_chunk LIKE 'xxx%'") - 100_000; got > 1<<20 || got < 1<<19 {
		t.Errorf("SYSTEM lines of %d bytes are stored beyond the bound, want a MiB", got)
	}
}

// What the logs of an organisation's clusters take together is bounded, and what one of
// them stores takes nothing from the share of another. Logs that began before there was a
// bound count for the organisation.
func TestLogsOfAnOrganisationAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET org_log_limit = 300000 WHERE only_row")
	a, beside := w.newAgent(t, "one"), w.beside(t)
	a.prints(t, "a", "STDOUT", 100_000)
	mustExec(t, w.conn, "UPDATE tendril.log_heads SET cluster_id = NULL")
	wantWhole(t, "a run below the bound", a.prints(t, "b", "STDOUT", 200_000), 200)
	wantCut(t, "a run beyond the bound", a.prints(t, "c", "STDOUT", 100_000), "org_log_limit")
	wantWhole(t, "the other cluster's run", beside.prints(t, "d", "STDOUT", 150_000), 150)
	wantCut(t, "the other cluster's run, beyond its share", beside.prints(t, "e", "STDOUT", 100_000), "org_log_limit")
	wantWhole(t, "another organisation's run", w.foreignAgent(t).prints(t, "f", "STDOUT", 100_000), 100)
	if got := one[string](t, w.conn, "SELECT string_agg((org_log_bytes / 10000)::text, ' ' ORDER BY org_log_bytes) FROM tendril.cluster_usage"); got != "10 45 45" {
		t.Errorf("logs counted = %s times 10000 bytes, want 10 45 45", got)
	}
	mustExec(t, w.conn, "DELETE FROM tendril.log_heads")
	w.countAnew(t)
	mustExec(t, w.conn, "SELECT tendril.measure_usage()")
	wantWhole(t, "a run with room again", a.prints(t, "c", "STDOUT", 100_000), 100)
}
