package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// All machines of a workspace are stopped by one run, and the step that each is in is on its card.
func TestMachineCards(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	shop := "/workspaces/" + e.workspaces["shop/prod"].String()
	e.Exec(t, "UPDATE public.machines SET address = 'machine.odd', actions = '{power}', status = 'stopped' WHERE name LIKE 'odd %'")
	e.Exec(t, "INSERT INTO public.machines (org_id, workspace_id, name, status, address, actions) SELECT org_id, workspace_id, 'web-2', 'running', 'machine.web-2', '{power}' FROM public.machines WHERE name = 'web-1'")
	wantIn(t, "the grid", e.get(t, e.operator, shop+"?tab=machines"), "Stop all (2)", "Start all (1)")
	for _, wrong := range []string{"", "restart"} {
		if answer, page := e.ask(t, e.operator, shop+"/power", url.Values{"power": {wrong}}); answer.StatusCode != http.StatusConflict || !strings.Contains(page, "can be started or stopped") {
			t.Errorf("power %q = %d %s, want a refusal", wrong, answer.StatusCode, page)
		}
	}
	if answer, _ := e.ask(t, e.viewer, shop+"/power", url.Values{"power": {"stop"}}); answer.StatusCode != http.StatusConflict {
		t.Errorf("a viewer stops machines: %d", answer.StatusCode)
	}
	answer, page := e.ask(t, e.operator, shop+"/power", url.Values{"power": {"stop"}})
	to := answer.Header.Get("Location")
	if answer.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, "/provisions/") {
		t.Fatalf("stop all = %d to %q %s, want the run's page", answer.StatusCode, to, page)
	}
	var asked provision.Snapshot
	if err := json.Unmarshal([]byte(e.Text(t, "SELECT config_snapshot::text FROM public.provisions WHERE number = $1::text::bigint AND operation = 'power'", strings.TrimPrefix(to, "/provisions/"))), &asked); err != nil {
		t.Fatal(err)
	}
	if asked.Power != "stop" || strings.Join(asked.Targets, " ") != "machine.web-1 machine.web-2" {
		t.Errorf("the run is to %s %q, want to stop web-1 and web-2", asked.Power, asked.Targets)
	}
	// A run that is making a machine: its step, and how far it is.
	lab := "/workspaces/" + e.workspaces["lab/prod"].String() + "?tab=machines"
	e.Exec(t, "INSERT INTO public.machines (org_id, workspace_id, name, status, address) SELECT org_id, id, 'lab-1', 'creating', 'machine.lab-1' FROM public.workspaces WHERE name = 'lab/prod' ON CONFLICT DO NOTHING")
	wantIn(t, lab, e.get(t, e.viewer, lab), "Waiting for network", `<progress max="100" value="42"`)
}

// shows reports something that is shown at once, although something was shown a moment ago.
func (r *run) shows(t *testing.T, detail provision.Detail) {
	t.Helper()
	r.scene.Exec(t, "UPDATE public.provision_progress SET updated_at = updated_at - interval '1 minute' WHERE provision_id = $1", r.id)
	r.reports(t, provision.Processing, detail)
}

// twenty is a class of which a run is making twenty machines, each in another state, and the
// path of its page.
func twenty(t *testing.T) (s *scene, r *run, path string) {
	t.Helper()
	s = newScene(t)
	lab := queuetest.NewLab(t, s.World, "class/net")
	names := strings.Fields("net-teacher ann bob cid dee eve fay gus hal ida jon kim leo mia ned ola pam quin")
	lab.Reserve(t, names...)
	r = &run{scene: s, id: lab.Provision, claim: lab.Claim, chunk: 1, number: s.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", lab.Provision)}
	r.reaches(t, provision.StageCheckout, provision.StagePlan, provision.StageApply)
	event := func(kind, name, id, label string) provision.Event {
		return provision.Event{Kind: kind, Address: "machine." + name, Action: id, Message: label, At: time.Now()}
	}
	steps := []string{"Making the disk", "Starting", "Waiting for network"}
	var events []provision.Event
	for _, label := range steps {
		events = append(events, provision.Event{Kind: "step_declared", Action: label, Message: label, At: time.Now()})
	}
	machines, running, percent := []provision.Machine{}, []provision.Running{}, 41
	for i, name := range names[:16] {
		m := provision.Machine{Name: name, Status: provision.MachineCreating, Address: "machine." + name, Pool: "lab", Cores: 2, MemoryMiB: 4096}
		reached := i % 3 // the step that it is in
		events = append(events, provision.Event{Kind: "machine_intent", Address: m.Address, Action: "create", Message: uuid.NewString(), At: time.Now()})
		last := "step_started"
		switch {
		case i < 6:
			m.Status, m.IPAddresses, m.Node, m.Actions = provision.MachineRunning, []string{fmt.Sprint("10.0.0.", 10+i)}, "pve2", provision.MachineActions
			reached, last = 2, "step_finished"
		case i < 8:
			m.Status, last = provision.MachineFailed, "step_failed"
			m.Actions = provision.MachineActions
		case i == 8:
			m.Status = provision.MachineUnknown
		}
		for at, label := range steps[:reached+1] {
			events = append(events, event("step_started", name, label, label))
			if at < reached {
				events = append(events, event("step_finished", name, label, label))
			} else if last != "step_started" {
				events = append(events, event(last, name, label, label))
			}
		}
		if m.Status == provision.MachineCreating {
			busy := provision.Running{Address: m.Address, Action: "create", Step: steps[reached], Since: time.Now()}
			if reached == 0 {
				busy.Percent = &percent
			}
			running = append(running, busy)
		}
		machines = append(machines, m)
	}
	r.shows(t, provision.Detail{Stage: provision.StageApply, Engine: "machine", EngineVersion: "lines", Percent: &percent, Events: events, Running: running, Machines: machines})
	s.Exec(t, "UPDATE public.machines SET health = 'healthy', health_at = now() WHERE name IN ('net-teacher', 'ann')")
	s.Exec(t, "UPDATE public.machines SET health = 'unhealthy', health_why = 'no answer on port 22', health_at = now() WHERE name = 'bob'")
	return s, r, "/workspaces/" + s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", r.id) + "?tab=machines"
}

// A workspace's page shows the twenty machines of a class as they go up: where each is, what is
// being done to it and how far that is. One is destroyed from its card once its name is typed.
func TestTwentyMachinesInABrowser(t *testing.T) {
	t.Parallel()
	s, r, path := twenty(t)
	tab := s.enter(t, "admin")
	tab.Visit(s.wire.URL() + path)
	tab.WaitText("20 machines: 4 reserved, 7 creating, 6 running, 2 failed, 1 unknown.")
	card := func(name string) string {
		return browsertest.Eval[string](tab, `document.querySelector("article[aria-label='Machine `+name+`']").innerText.replace(/\s+/g, " ")`)
	}
	for name, want := range map[string][]string{
		"net-teacher": {"Running", "Healthy", "10.0.0.10", "pve2", "Restart"},
		"bob":         {"Running", "Unhealthy", "no answer on port 22"},
		"ida":         {"Creating", "Making the disk 41 %", "pve", "Starting", "10.0.0."},
		"fay":         {"Failed", "Making the disk", "Rebuild"},
		"hal":         {"Unknown"},
		"quin":        {"Reserved", "10.0.0.", "pve"},
	} {
		got := card(name)
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("the card of %s is %q, want %q on it", name, got, part)
			}
		}
	}
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("class-of-twenty")
	}
	tab.Look(browsertest.Looks()[0])
	// The page follows the run.
	percent := 87
	r.shows(t, provision.Detail{Stage: provision.StageApply, Running: []provision.Running{{Address: "machine.ida", Action: "create", Step: "Making the disk", Percent: &percent, Since: time.Now()}}})
	tab.Wait(`document.querySelector("article[aria-label='Machine ida']").innerText.includes("87 %")`)

	// A form that somebody is asked about stays the one that it was, whatever the machine
	// offers meanwhile.
	browsertest.Eval[bool](tab, `(window.form = document.querySelector("[aria-label='Rebuild cid']").form, true)`)
	s.Exec(t, "UPDATE public.machines SET status = 'stopped' WHERE name = 'cid'")
	tab.Wait(`document.querySelector("[aria-label='Start cid']")`)
	if got := browsertest.Eval[string](tab, `form.isConnected + " " + form.action.split("/").at(-1)`); got != "true rebuild" {
		t.Errorf("the form to rebuild cid became %s", got)
	}

	tab.Click("Destroy ann")
	tab.WaitText("Destroy ann?")
	if browsertest.Eval[bool](tab, `!document.querySelector("#confirm [value=yes]").disabled`) {
		t.Error("ann can be destroyed before the name is typed")
	}
	tab.Screenshot("class-destroy-one")
	tab.Press("ann")
	tab.Wait(`!document.querySelector("#confirm [value=yes]").disabled && (document.querySelector("#confirm [value=yes]").click(), true)`)
	tab.Wait(`location.pathname.startsWith("/provisions/")`)
	if got, want := s.Text(t, "SELECT operation || ' ' || (config_snapshot ->> 'targets') || ' ' || (config_snapshot ->> 'approval') FROM public.provisions ORDER BY number DESC LIMIT 1"), `destroy ["machine.ann"] always`; got != want {
		t.Errorf("queued is %s, want %s", got, want)
	}
}
