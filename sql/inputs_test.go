package sql_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// theWork is what a run of these tests asks a person to do.
const theWork = `{"instructions": "Mount it.", "outputs": [{"name": "rack", "type": "string"}, {"name": "units", "type": "number"}, {"name": "password", "type": "string", "sensitive": true}],
	"machines": [{"name": "m-1", "action": "create"}, {"name": "old", "action": "destroy"}], "expires_seconds": 3600}`

const sealedText = "-----BEGIN AGE ENCRYPTED FILE-----\\nx\\n-----END AGE ENCRYPTED FILE-----\\n"

// theAnswer is one that has all of it.
const theAnswer = `{"done": true, "outputs": {"rack": "B12", "units": 2}, "machines": {"m-1": {"address": "192.0.2.7", "ssh_port": 22}},
	"sealed": {"output.password": "` + sealedText + `", "machine.m-1": "` + sealedText + `"}}`

func awaitsInput(work string) string {
	return fmt.Sprintf(`{"plan_digest": %q, "input": %s}`, aPlan, work)
}

// asksPerson has an agent plan what is next, and ask a person to do it.
func (a *agent) asksPerson(t *testing.T) (provision uuid.UUID) {
	t.Helper()
	claim, provision := a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", planned(false))
	a.storePlan(t, claim)
	a.mustReport(t, claim, "AWAITING_INPUT", awaitsInput(theWork))
	a.mustReport(t, claim, "AWAITING_INPUT", awaitsInput(theWork)) // a lost reply
	return provision
}

func (w *world) answer(t *testing.T, user, provision uuid.UUID, answer string) error {
	t.Helper()
	_, err := person[string](t, w, user, "SELECT public.give_input($1, $2)", provision, answer)
	return err
}

// A run asks, its workspace waits, a person answers, and the next run records that.
func TestPersonDoesTheWork(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	behind := w.deploy(t, w.operator, snapshot("a"))
	id := agent.asksPerson(t)
	if got := w.status(t, id); got != "AWAITING_INPUT" {
		t.Fatalf("status = %s", got)
	}
	if claimed, err := agent.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
		t.Errorf("in a workspace that a person is at work on: %v, %v, want nothing to claim", claimed, err)
	}
	for _, user := range []uuid.UUID{w.operator, w.viewer} {
		if why := mustAs[string](t, w, user, "SELECT string_agg(reason, ',') FROM public.why_waiting($1)", behind); !strings.Contains(why, "workspace_reserved") {
			t.Errorf("the run behind it waits because of %s", why)
		}
	}
	if why := mustAs[string](t, w, w.viewer, "SELECT reason || ' ' || message FROM public.why_waiting($1)", id); !strings.HasPrefix(why, "awaits_input a person is to do") {
		t.Errorf("it waits because of %q", why)
	}
	if got := mustAs[string](t, w, w.viewer, "SELECT request ->> 'instructions' FROM public.provision_inputs WHERE provision_id = $1", id); got != "Mount it." {
		t.Errorf("a viewer reads %q", got)
	}
	wantRefusal(t, w.answer(t, w.viewer, id, theAnswer), "PT404", "provision_not_found")
	wantRefusal(t, w.answer(t, w.stranger, id, theAnswer), "PT404", "provision_not_found")
	for range 2 { // a lost reply
		if err := w.answer(t, w.operator, id, theAnswer); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, w.answer(t, w.operator, id, `{"done": false, "reason": "no"}`), "PT409", "already_answered")

	old := w.newAgent(t, "old")
	old.contract = 5
	if err := old.register(t); err != nil {
		t.Fatal(err)
	}
	if claimed, err := old.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
		t.Errorf("an agent of contract 5: %v, %v, want nothing to claim", claimed, err)
	}
	claim := uuid.New()
	var got string
	if err := agent.call(t, &got, "SELECT approved_plan || ' ' || (input -> 'outputs' ->> 'rack') FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, claim); err != nil || got != aPlan+" B12" {
		t.Errorf("the next run gets %s, %v", got, err)
	}
	wantRefusal(t, agent.report(t, claim, "AWAITING_INPUT", awaitsInput(theWork)), "PT409", "already_answered")
	wantRefusal(t, agent.report(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`), "PT409", "already_approved")
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT409", "plan_invalid")
	agent.mustReport(t, claim, "PROCESSING", strings.TrimSuffix(applying, "}")+`, "plan_digest": "`+aPlan+`"}`)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := w.status(t, id); got != "SUCCESS" {
		t.Errorf("status = %s", got)
	}
	if _, next := agent.mustClaim(t); next != behind {
		t.Error("what waited behind it is not next")
	}
}

// Each answer that lacks something, or has what nobody asked, is refused by its place.
func TestAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	id := agent.asksPerson(t)
	with := func(change func(map[string]any)) string {
		var answer map[string]any
		if err := json.Unmarshal([]byte(theAnswer), &answer); err != nil {
			t.Fatal(err)
		}
		change(answer)
		text, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	at := func(answer map[string]any, key string) map[string]any { return answer[key].(map[string]any) } //nolint:forcetypeassert // theAnswer has it
	for want, change := range map[string]func(map[string]any){
		"done: must be true or false":                    func(a map[string]any) { a["done"] = "yes" },
		"more: unknown":                                  func(a map[string]any) { a["more"] = 1 },
		"outputs: must be an object":                     func(a map[string]any) { a["outputs"] = []int{} },
		"outputs.rack: missing":                          func(a map[string]any) { delete(at(a, "outputs"), "rack") },
		"outputs.other: the template has no such output": func(a map[string]any) { at(a, "outputs")["other"] = 1 },
		"outputs.units: must be a number":                func(a map[string]any) { at(a, "outputs")["units"] = "2" },
		"outputs.password: is sensitive":                 func(a map[string]any) { at(a, "outputs")["password"] = "x" },
		"outputs.password: missing":                      func(a map[string]any) { delete(at(a, "sealed"), "output.password") },
		"sealed.output.rack: is not sensitive":           func(a map[string]any) { at(a, "sealed")["output.rack"] = sealedText },
		"sealed.output.password: must be a value sealed": func(a map[string]any) { at(a, "sealed")["output.password"] = "hunter2" },
		"sealed.machine.m-2: there is no such output":    func(a map[string]any) { at(a, "sealed")["machine.m-2"] = sealedText },
		"machines.m-1: missing":                          func(a map[string]any) { delete(at(a, "machines"), "m-1") },
		"machines.old: this run makes no such machine":   func(a map[string]any) { at(a, "machines")["old"] = map[string]any{"address": "192.0.2.1"} },
		"machines.m-1: needs an address":                 func(a map[string]any) { at(a, "machines")["m-1"] = map[string]any{} },
		"machines.m-1.address: must be an IP address":    func(a map[string]any) { at(a, "machines")["m-1"] = map[string]any{"address": "metadata.internal"} },
		"machines.m-1.addresses: must be a list":         func(a map[string]any) { at(at(a, "machines"), "m-1")["addresses"] = []string{"x y"} },
		"machines.m-1.ssh_port: must be a whole":         func(a map[string]any) { at(at(a, "machines"), "m-1")["ssh_port"] = 70000 },
		"machines.m-1.external_id: must be one line":     func(a map[string]any) { at(at(a, "machines"), "m-1")["external_id"] = "a\nb" },
		"machines.m-1.root_password: unknown":            func(a map[string]any) { at(at(a, "machines"), "m-1")["root_password"] = "x" },
		"outputs.rack: at most 65536 bytes are allowed":  func(a map[string]any) { at(a, "outputs")["rack"] = strings.Repeat("x", 70_000) },
		"bytes; at most 262144 are allowed":              func(a map[string]any) { at(a, "outputs")["rack"] = strings.Repeat("x", 1<<20) },
		"p_reason: missing":                              func(a map[string]any) { a["done"] = false },
		"a number in it is larger than 1e400":            func(a map[string]any) { at(a, "outputs")["units"] = json.RawMessage("1e500") },
	} {
		err := w.answer(t, w.operator, id, with(change))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "PT422") {
			t.Errorf("error = %v, want PT422 … %s", err, want)
		}
	}
	if got := w.status(t, id); got != "AWAITING_INPUT" {
		t.Errorf("status = %s after answers that were refused", got)
	}
	if err := w.answer(t, w.operator, id, `{"done": false, "reason": "no  rack\n"}`); err != nil {
		t.Fatal(err)
	}
	if log := w.log(t, id); !strings.Contains(log, "says that the work could not be done (no rack).") {
		t.Errorf("log = %s", log)
	}
}

// What a run asks is checked before anybody sees it.
func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", planned(false))
	wantRefusal(t, agent.report(t, claim, "AWAITING_INPUT", awaitsInput(theWork)), "PT409", "plan_missing")
	agent.storePlan(t, claim)
	for _, work := range []string{
		`null`, `[]`, `{}`, `{"instructions": "x", "outputs": [], "machines": []}`, `{"instructions": 1, "outputs": [], "machines": [], "expires_seconds": 60}`,
		`{"instructions": "x", "outputs": [1], "machines": [], "expires_seconds": 60}`, `{"instructions": "x", "outputs": [], "machines": [{"name": "a"}], "expires_seconds": 60}`,
		`{"instructions": "x", "outputs": [{"name": "a", "type": 5}], "machines": [], "expires_seconds": 60}`, `{"instructions": "x", "outputs": [{"name": "a", "type": "string", "sensitive": "x"}], "machines": [], "expires_seconds": 60}`,
		`{"instructions": "x", "outputs": [], "machines": [{"name": "a", "action": "create", "cores": "8"}], "expires_seconds": 60}`, `{"instructions": "x", "outputs": [], "machines": [{"name": "a", "action": "melt"}], "expires_seconds": 60}`,
		`{"instructions": "x", "outputs": [], "machines": [], "expires_seconds": 59}`, `{"instructions": "x", "outputs": [], "machines": [], "expires_seconds": 7776001}`,
		`{"instructions": "` + strings.Repeat("x", 65_537) + `", "outputs": [], "machines": [], "expires_seconds": 60}`,
	} {
		wantRefusal(t, agent.report(t, claim, "AWAITING_INPUT", awaitsInput(work)), "PT422", "bad_detail")
	}
	if got := w.status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s", got)
	}
	// Rules that have become stricter meanwhile: a person approves first.
	w.policy(t, `{"approval": "always"}`)
	agent.mustReport(t, claim, "AWAITING_INPUT", awaitsInput(theWork))
	if got := w.status(t, id); got != "AWAITING_APPROVAL" {
		t.Fatalf("status = %s where the plan needs approval, want that first", got)
	}
	if err := w.approve(t, w.adminID, id); err != nil {
		t.Fatal(err)
	}
	claim, _ = agent.mustClaim(t)
	agent.mustReport(t, claim, "AWAITING_INPUT", `{"input": `+theWork+`}`)
	if got := w.status(t, id); got != "AWAITING_INPUT" {
		t.Errorf("status = %s once the plan is approved", got)
	}
}

// Who is to do it, a comment, a reminder after half of the time, and the end of it.
func TestWorkThatNobodyDoes(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustAs[any](t, w, w.adminID, `SELECT public.create_webhook($1, $2, '{"name": "chat", "kind": "slack", "host": "https://hooks.example", "url": "c2VhbGVk", "events": ["awaiting_input", "cancelled"]}')`, w.org, uuid.New())
	w.deploy(t, w.operator, snapshot("a"))
	id := agent.asksPerson(t)
	told := func() (n int) {
		return one[int](t, w.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE event = 'awaiting_input'")
	}
	if told() != 1 {
		t.Errorf("%d messages, want one", told())
	}
	for _, c := range []struct {
		statement string
		argument  any
		user      uuid.UUID
		code      string
	}{
		{"SELECT public.assign_input($1, $2)", w.operator, w.operator, ""},
		{"SELECT public.assign_input($1, $2)", w.viewer, w.operator, "member_not_found"},
		{"SELECT public.assign_input($1, $2)", w.stranger, w.operator, "member_not_found"},
		{"SELECT public.assign_input($1, $2)", w.operator, w.viewer, "provision_not_found"},
		{"SELECT public.comment_provision($1, $2)", "the lift is  broken", w.operator, ""},
		{"SELECT public.comment_provision($1, $2)", " ", w.operator, "bad_reason"},
		{"SELECT public.comment_provision($1, $2)", "hello", w.viewer, "provision_not_found"},
	} {
		err := w.does(t, c.user, c.statement, id, c.argument)
		if c.code == "" && err != nil {
			t.Error(err)
		} else if c.code != "" {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Detail != c.code {
				t.Errorf("%s: %v, want %s", c.statement, err, c.code)
			}
		}
	}
	if log := w.log(t, id); !strings.Contains(log, ": the lift is broken\n") || !strings.Contains(log, " is to do the work.\n") {
		t.Errorf("log = %s", log)
	}
	pass := func(of time.Duration) {
		t.Helper()
		mustExec(t, w.conn, "UPDATE public.provision_inputs SET expires_at = expires_at - $1::interval", of)
		mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = due_at - $1::interval", of)
		one[int](t, w.conn, "SELECT tendril.settle_due()")
	}
	pass(29 * time.Minute)
	if told() != 1 {
		t.Error("a reminder before half of the time")
	}
	pass(2 * time.Minute)
	if told() != 2 || w.status(t, id) != "AWAITING_INPUT" || !strings.Contains(w.log(t, id), "Reminder: nobody has done the work yet.") {
		t.Errorf("%d messages after half of the time, status %s", told(), w.status(t, id))
	}
	pass(30 * time.Minute)
	if got := one[string](t, w.conn, "SELECT status || ' ' || error_code FROM public.provisions WHERE id = $1", id); got != "CANCELLED input_expired" || told() != 2 {
		t.Errorf("at its end it is %s, with %d messages", got, told())
	}
	wantRefusal(t, w.answer(t, w.operator, id, theAnswer), "PT409", "not_awaiting_input")
	w.deploy(t, w.operator, snapshot("a"))
	if _, next := agent.mustClaim(t); next == id {
		t.Error("the workspace is not free")
	}
}

// An answer whose run fails before it is recorded counts for the next run that asks the same,
// and for no other.
func TestAnswerThatWasNotRecorded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	id := agent.asksPerson(t)
	if err := w.answer(t, w.operator, id, theAnswer); err != nil {
		t.Fatal(err)
	}
	fails := func(code string) {
		t.Helper()
		claim, _ := agent.mustClaim(t)
		agent.mustReport(t, claim, "FAILED", fmt.Sprintf(`{"error_code": %q}`, code))
		w.deploy(t, w.operator, snapshot("a"))
	}
	fails("checkout_failed")
	id = agent.asksPerson(t)
	if got := w.status(t, id); got != "QUEUED" || !strings.Contains(w.log(t, id), "A person has answered the same in run 1") {
		t.Errorf("status = %s, want that the answer counts; log = %s", got, w.log(t, id))
	}
	if got := one[string](t, w.conn, "SELECT answer -> 'outputs' ->> 'rack' FROM public.provision_inputs WHERE provision_id = $1", id); got != "B12" {
		t.Errorf("the rack is %s", got)
	}
	fails("sealed_invalid")
	if id = agent.asksPerson(t); w.status(t, id) != "AWAITING_INPUT" {
		t.Errorf("an answer that could not be opened counts again: %s", w.status(t, id))
	}
	if err := w.answer(t, w.operator, id, theAnswer); err != nil {
		t.Fatal(err)
	}
	fails("agent_drained")
	claim, id := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", planned(false))
	agent.storePlan(t, claim)
	agent.mustReport(t, claim, "AWAITING_INPUT", awaitsInput(strings.Replace(theWork, "Mount it.", "Mount it twice.", 1)))
	if got := w.status(t, id); got != "AWAITING_INPUT" {
		t.Errorf("the answer to something else counts: %s", got)
	}
}
