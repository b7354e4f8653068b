package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// fills has another workspace take all cores of the lab, and returns its claim.
func (a *agent) fills(t *testing.T) uuid.UUID {
	t.Helper()
	a.w.deploy(t, a.w.operator, snapshot("big"))
	claim, _ := a.mustClaim(t)
	for _, name := range []string{"b1", "b2", "b3"} {
		if _, err := a.reserve(t, claim, `{"name": "`+name+`", "pool": "lab", "cores": 64, "memory_mib": 1024}`); err != nil {
			t.Fatal(err)
		}
	}
	return claim
}

// A run that finds no room is queued again, and says why it waits. It is tried again once a place
// is free, and fails when it has waited as long as it may.
func TestRunWaitsForRoom(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	if err := a.reportPools(t, lab(3)); err != nil {
		t.Fatal(err)
	}
	big := a.fills(t)
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := a.mustClaim(t)
	_, err := a.reserve(t, claim, wanted("ada"))
	message := wantRefusal(t, err, "PT409", "no_room")
	failed := `{"error_code": "no_room", "error_message": "` + strings.ReplaceAll(message, `"`, `'`) + `"}`
	for range 2 { // the second is a repeat after a lost reply
		a.mustReport(t, claim, "FAILED", failed)
	}
	state := func() string {
		t.Helper()
		return one[string](t, w.conn, "SELECT status || coalesce(' ' || error_code, '') FROM public.provisions WHERE id = $1", id)
	}
	if got := state(); got != "QUEUED" {
		t.Fatalf("the run is %s, want QUEUED", got)
	}
	why := mustAs[string](t, w, w.viewer, "SELECT string_agg(reason || ' ' || message, '; ') FROM public.why_waiting($1)", id)
	if !strings.HasPrefix(why, "no_room ada fits on no node of pool lab") || !strings.Contains(why, "tried again at") {
		t.Errorf("why_waiting() = %s", why)
	}
	if got := one[int64](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1 AND log_chunk LIKE '%It waits for room%'", id); got != 1 {
		t.Errorf("%d lines of the log say that it waits, want 1", got)
	}
	wait := func() float64 {
		return one[float64](t, w.conn, "SELECT extract(epoch FROM not_before - now())::float8 FROM public.provisions WHERE id = $1", id)
	}
	if got := wait(); got < 20 || got > 30 {
		t.Errorf("it is tried again in %.0f s, want the 30 of the settings", got)
	}
	if claim, err := a.claim(t, uuid.New()); err != nil || claim != uuid.Nil {
		t.Errorf("claim() = %s, %v, want nothing before it is due", claim, err)
	}

	// It is due, and there is no room yet: the next wait is longer.
	due := func() {
		t.Helper()
		mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = now() WHERE reserved_by = $1", id)
		mustExec(t, w.conn, "SELECT tendril.settle_due()")
	}
	due()
	claim, again := a.mustClaim(t)
	if again != id {
		t.Fatalf("claimed %s, want the run that waited", again)
	}
	a.mustReport(t, claim, "FAILED", failed)
	if got := wait(); got < 40 || got > 60 {
		t.Errorf("it is tried again in %.0f s, want twice as many", got)
	}

	// The other workspace ends without making anything, so its places are free.
	mustExec(t, w.conn, "SELECT tendril.settle_due()")
	if got := state(); got != "QUEUED" {
		t.Errorf("the run is %s before a place is free", got)
	}
	a.mustReport(t, big, "FAILED", `{"error_code": "plan_failed"}`)
	if got := one[int64](t, w.conn, "SELECT count(*) FROM public.reservations"); got != 0 {
		t.Errorf("%d places are reserved, want none", got)
	}
	mustExec(t, w.conn, "SELECT tendril.reap()")
	claim, again = a.mustClaim(t)
	if again != id {
		t.Fatalf("claimed %s, want the run that waited for the place", again)
	}

	// It can't wait for ever.
	mustExec(t, w.conn, "UPDATE public.provisions SET waits_since = now() - interval '1 day' WHERE id = $1", id)
	a.mustReport(t, claim, "FAILED", failed)
	if got := state(); got != "FAILED no_room" {
		t.Errorf("after a day the run is %s", got)
	}
}

// A run that waits can be cancelled, and one whose apply has begun does not wait.
func TestWaitingForRoomEnds(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	a.mustReport(t, claim, "FAILED", `{"error_code": "no_room"}`)
	mustAs[any](t, w, w.operator, "SELECT public.cancel_provision($1)::text", id)
	if got := one[string](t, w.conn, "SELECT p.status || ' ' || coalesce(w.reserved_by::text, 'free') FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = $1", id); got != "CANCELLED free" {
		t.Errorf("the cancelled run is %s", got)
	}
	id = w.deploy(t, w.operator, snapshot("a"))
	claim, _ = a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "FAILED", `{"error_code": "no_room"}`)
	if got := one[string](t, w.conn, "SELECT status FROM public.provisions WHERE id = $1", id); got != "FAILED" {
		t.Errorf("after its apply had begun the run is %s, want FAILED", got)
	}
}

// Places are kept for machines that are there or may be, and freed otherwise.
func TestPlacesAreFreed(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	reserved := func() string {
		t.Helper()
		return one[string](t, w.conn, "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM public.reservations")
	}
	if _, err := a.reserve(t, claim, wanted("ada"), wanted("bob"), wanted("carl")); err != nil {
		t.Fatal(err)
	}
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "PROCESSING", `{"machines": [{"name": "ada", "status": "running"}]}`)
	a.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	if got := reserved(); got != "ada bob carl" {
		t.Errorf("after an apply that failed %q are reserved, want all", got)
	}
	run := func(machines, status string) {
		t.Helper()
		w.deploy(t, w.operator, snapshot("a"))
		claim, _ = a.mustClaim(t)
		if _, err := a.reserve(t, claim, wanted("ada"), wanted("dora")); err != nil {
			t.Fatal(err)
		}
		if status == "SUCCESS" {
			a.mustReport(t, claim, "PROCESSING", applying)
			a.mustReport(t, claim, "PROCESSING", `{"machines": [`+machines+`]}`)
		}
		a.mustReport(t, claim, status, `{}`)
	}
	run("", "FAILED")
	if got := reserved(); got != "ada bob carl" {
		t.Errorf("after a plan that failed %q are reserved, want all but dora", got)
	}
	run(`{"name": "ada", "status": "running"}, {"name": "dora", "status": "running"}`, "SUCCESS")
	if got := reserved(); got != "ada dora" {
		t.Errorf("after a success %q are reserved, want ada and dora", got)
	}
	run("", "SUCCESS")
	if got := reserved(); got != "" {
		t.Errorf("with no machine %q are reserved", got)
	}
}

// A place says whether its machine is made, so that lists show the machine as reserved or as what
// it is, and never both.
func TestPlacesSayWhetherTheirMachinesAreMade(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	want := func(after, want string) {
		t.Helper()
		if got := one[string](t, w.conn, "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM public.reservations WHERE NOT made"); got != want {
			t.Errorf("after %s the machines of %q are not made, want %q", after, got, want)
		}
	}
	reserve := func(wants ...string) {
		t.Helper()
		if _, err := a.reserve(t, claim, wants...); err != nil {
			t.Fatal(err)
		}
	}
	next := func() {
		t.Helper()
		w.deploy(t, w.operator, snapshot("a"))
		claim, _ = a.mustClaim(t)
	}
	if _, err := w.plan(t, w.operator, snapshot("a"), `[{"name": "bob"}]`); err != nil {
		t.Fatal(err)
	}
	reserve(wanted("ada"), wanted("bob"), wanted("kim", `"keep": true`))
	want("a placement", "ada bob kim")
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "PROCESSING", `{"events": [{"kind": "machine_intent", "address": "machine.bob", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`)
	want("an intent", "ada kim")
	a.mustReport(t, claim, "PROCESSING", `{"machines": [{"name": "ada", "status": "running"}, {"name": "bob", "status": "running"}]}`)
	want("a report", "kim")
	a.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	want("an apply, of which nobody knows what Terraform made", "")
	next()
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "PROCESSING", `{"machines": [{"name": "bob", "status": "running"}]}`)
	want("the end of a machine", "ada")
	a.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	want("a run, which frees the place", "")
	// A machine that is there gets its place later: it was not reserved for it.
	mustExec(t, w.conn, "DELETE FROM public.reservations WHERE name = 'bob'")
	next()
	reserve(wanted("bob"), wanted("eve"))
	want("a placement of one that is there", "eve")
	a.mustReport(t, claim, "FAILED", `{"error_code": "plan_failed"}`)
	want("a plan that failed", "")
}

// Places of machines that Terraform makes are kept as long as a run wants them, for the workspace
// need not list any machine.
func TestPlacesAreKept(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	run := func(operation string, reserve ...string) {
		t.Helper()
		if claim == uuid.Nil {
			mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3)", w.cluster, operation, snapshot("a"))
			claim, _ = a.mustClaim(t)
		}
		var wants []string
		for _, name := range reserve {
			wants = append(wants, wanted(name, `"keep": true`))
		}
		if _, err := a.reserve(t, claim, wants...); err != nil {
			t.Fatal(err)
		}
		if operation != "plan" {
			a.mustReport(t, claim, "PROCESSING", applying)
		}
		a.mustReport(t, claim, "SUCCESS", `{}`)
		claim = uuid.Nil
	}
	for _, c := range []struct {
		operation string
		reserve   []string
		want      string
	}{
		{"apply", []string{"ada", "bob"}, "ada bob"},
		{"plan", []string{"ada"}, "ada bob"},
		{"apply", []string{"bob", "cid"}, "bob cid"},
		{"destroy", []string{"bob"}, ""},
	} {
		run(c.operation, c.reserve...)
		if got := one[string](t, w.conn, "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM public.reservations"); got != c.want {
			t.Errorf("after %s of %q %q are reserved, want %q", c.operation, c.reserve, got, c.want)
		}
	}
}

// The size that a plan wants of a machine that is there counts once it has been applied: until
// then both may be needed. What is gone is free, also if another machine could not be destroyed.
func TestPlacesOfMachinesThatAreThere(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	sized := func(name string, memory int) string {
		return fmt.Sprintf(`{"name": %q, "pool": "lab", "cores": 2, "memory_mib": %d}`, name, memory)
	}
	run := func(operation, machines, status string, wants ...string) string {
		t.Helper()
		if claim == uuid.Nil {
			mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3)", w.cluster, operation, snapshot("a"))
			claim, _ = a.mustClaim(t)
		}
		if len(wants) > 0 {
			if _, err := a.reserve(t, claim, wants...); err != nil {
				t.Fatal(err)
			}
		}
		if operation != "plan" {
			a.mustReport(t, claim, "PROCESSING", applying)
			a.mustReport(t, claim, "PROCESSING", `{"machines": [`+machines+`]}`)
		}
		a.mustReport(t, claim, status, `{}`)
		claim = uuid.Nil
		return one[string](t, w.conn, "SELECT coalesce(string_agg(name || ' ' || memory_mib, ' ' ORDER BY name), '') FROM public.reservations")
	}
	there := func(name string, memory int) string {
		return fmt.Sprintf(`{"name": %q, "status": "running", "cores": 2, "memory_mib": %d}`, name, memory)
	}
	both := there("ada", 4096) + "," + there("bob", 4096)
	for _, c := range []struct {
		does, operation, machines, status string
		wants                             []string
		want                              string
	}{
		{"makes two", "apply", both, "SUCCESS", []string{sized("ada", 4096), sized("bob", 4096)}, "ada 4096 bob 4096"},
		{"plans a smaller one", "plan", "", "SUCCESS", []string{sized("ada", 1024)}, "ada 4096 bob 4096"},
		{"plans a larger one", "plan", "", "SUCCESS", []string{sized("ada", 8192)}, "ada 4096 bob 4096"},
		{"fails to make it larger", "apply", both, "FAILED", []string{sized("ada", 8192)}, "ada 8192 bob 4096"},
		{"makes it smaller", "apply", there("ada", 1024) + "," + there("bob", 4096), "SUCCESS", []string{sized("ada", 1024)}, "ada 1024 bob 4096"},
		{"can't destroy one of them", "destroy", there("bob", 4096), "FAILED", nil, "bob 4096"},
	} {
		if got := run(c.operation, c.machines, c.status, c.wants...); got != c.want {
			t.Errorf("after a run that %s %q are reserved, want %q", c.does, got, c.want)
		}
	}
	// A machine can't move to another pool, and its place stays.
	if err := a.reportPools(t, strings.ReplaceAll(lab(1), `"name": "lab"`, `"name": "other"`)); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ = a.mustClaim(t)
	_, err := a.reserve(t, claim, `{"name": "bob", "pool": "other", "cores": 1, "memory_mib": 512}`)
	if text := wantRefusal(t, err, "PT422", "bad_wants"); !strings.Contains(text, "can't move to pool other") {
		t.Errorf("bob in another pool: %s", text)
	}
}

// A plan that nobody applies keeps no place for Terraform's machines.
func TestPlacesOfAPlanAreFreed(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	if err := a.reportPools(t, lab(3)); err != nil {
		t.Fatal(err)
	}
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, 'plan', $2)", w.cluster, snapshot("a"))
	claim, _ := a.mustClaim(t)
	if _, err := a.reserve(t, claim, wanted("ada", `"keep": true`)); err != nil {
		t.Fatal(err)
	}
	a.mustReport(t, claim, "SUCCESS", `{}`)
	if got := one[int64](t, w.conn, "SELECT count(*) FROM public.reservations"); got != 0 {
		t.Errorf("%d places are reserved after a plan, want none", got)
	}
}

// A drift check is answered with the places that there are, and reserves none: it never waits for
// room, and takes none from others.
func TestDriftCheckReservesNoPlaces(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	had, err := a.reserve(t, claim, byTerraform("ada"))
	if err != nil {
		t.Fatal(err)
	}
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "SUCCESS", "{}")
	workspace := one[string](t, a.w.conn, "SELECT w.name FROM public.workspaces w JOIN public.reservations r ON r.workspace_id = w.id WHERE r.name = 'ada'")
	mustAs[uuid.UUID](t, a.w, a.w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, 'refresh') RETURNING id", a.w.cluster, snapshot(workspace))
	check, _ := a.mustClaim(t)
	got, err := a.reserve(t, check, byTerraform("ada"), `{"name": "huge", "pool": "lab", "cores": 100000, "memory_mib": 1024, "keep": true}`, byTerraform("bob"))
	if err != nil || len(got) != 1 || got[0] != had[0] {
		t.Errorf("the places of a drift check = %+v, %v, want the one that there is, %+v", got, err, had)
	}
	if n := one[int64](t, a.w.conn, "SELECT count(*) FROM public.reservations"); n != 1 {
		t.Errorf("%d places are reserved, want the one of before", n)
	}
	if got, err := a.reserve(t, check); err != nil || len(got) != 0 {
		t.Errorf("no places = %+v, %v, want none", got, err)
	}
	a.mustReport(t, check, "SUCCESS", "{}")
	if n := one[int64](t, a.w.conn, "SELECT count(*) FROM public.reservations"); n != 1 {
		t.Errorf("%d places are left after the drift check, want the one of before", n)
	}
}

// byTerraform is a machine that Terraform makes.
func byTerraform(name string) string {
	return `{"name": "` + name + `", "pool": "lab", "cores": 1, "memory_mib": 1024, "keep": true}`
}
