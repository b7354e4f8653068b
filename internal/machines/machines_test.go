package machines_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// recorded is a state with a machine of each kind.
func recorded() *machines.State {
	s := &machines.State{Version: machines.Version, Serial: 7, Lineage: "l"}
	for _, m := range []struct {
		name   string
		status provisioner.MachineStatus
		intent provisioner.Action
	}{
		{"broken", provisioner.StatusFailed, ""},
		{"ending", provisioner.StatusRunning, provisioner.ActionDestroy},
		{"fine", provisioner.StatusRunning, ""},
		{"starting", provisioner.StatusCreating, provisioner.ActionCreate},
	} {
		machine := machines.Machine{
			Machine: provisioner.Machine{ID: "id-" + m.name, Name: m.name, Status: m.status, ExternalID: "vm-" + m.name},
			Wanted:  wanted(m.name, 2048),
		}
		machine.Wanted.ID = machine.ID
		if m.intent != "" {
			machine.Intent = &provisioner.Intent{ID: "1", Machine: machine.ID, Action: m.intent}
		}
		if m.intent == provisioner.ActionCreate {
			machine.ExternalID = "" // nobody has said
		}
		s.Machines = append(s.Machines, machine)
	}
	return s
}

func wanted(name string, memory int) provisioner.Wanted {
	return provisioner.Wanted{Name: name, Memory: memory, Settings: map[string]json.RawMessage{"static": json.RawMessage(`{"password":"x"}`)}}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asked machines.Asked
		want  string // changes, in order
		fails string
	}{
		"nothing to do":       {machines.Asked{Wanted: []provisioner.Wanted{wanted("fine", 2048)}, Targets: []string{"fine"}}, "", ""},
		"a new one":           {machines.Asked{Wanted: []provisioner.Wanted{wanted("new", 1)}, Targets: []string{"new"}}, "create new", ""},
		"another size":        {machines.Asked{Wanted: []provisioner.Wanted{wanted("fine", 4096)}, Targets: []string{"fine"}}, "replace fine", ""},
		"asked for":           {machines.Asked{Wanted: []provisioner.Wanted{wanted("fine", 2048)}, Targets: []string{"fine"}, Replace: []string{"fine"}}, "replace fine", ""},
		"half made":           {machines.Asked{Wanted: []provisioner.Wanted{wanted("broken", 2048)}, Targets: []string{"broken"}}, "replace broken", ""},
		"half destroyed":      {machines.Asked{Wanted: []provisioner.Wanted{wanted("ending", 2048)}, Targets: []string{"ending"}, Resumes: true}, "replace ending", ""},
		"perhaps destroyed":   {machines.Asked{Wanted: []provisioner.Wanted{wanted("ending", 2048)}, Targets: []string{"ending"}}, "", "trellis state rm WORKSPACE machine.ending"},
		"perhaps made":        {machines.Asked{Wanted: []provisioner.Wanted{wanted("starting", 2048)}, Targets: []string{"starting"}}, "", "trellis state import WORKSPACE machine.starting"},
		"made again":          {machines.Asked{Wanted: []provisioner.Wanted{wanted("starting", 2048)}, Targets: []string{"starting"}, Resumes: true}, "create starting", ""},
		"nobody knows":        {machines.Asked{}, "", "the machine starting, and nobody knows"},
		"nobody wants any":    {machines.Asked{Resumes: true}, "destroy broken, destroy ending, destroy fine, destroy starting", ""},
		"one is not targeted": {machines.Asked{Targets: []string{"fine"}}, "destroy fine", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := machines.NewPlan(recorded(), tt.asked)
			if tt.fails != "" {
				if failure, is := errors.AsType[*provision.Failure](err); !is || !strings.Contains(failure.Message, tt.fails) {
					t.Errorf("NewPlan() = %v, want a Failure with %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range plan.Changes {
				got = append(got, fmt.Sprint(c.Action, " ", c.Name))
				if m := plan.Of(c); m.ID == "" || m.Name != c.Name {
					t.Errorf("the change of %s is about %+v, want that machine with an id", c.Name, m)
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("changes = %v, want %s", got, tt.want)
			}
		})
	}
}

// A machine keeps its id, whatever the template wants of it.
func TestIDsStay(t *testing.T) {
	t.Parallel()
	plan, err := machines.NewPlan(recorded(), machines.Asked{Wanted: []provisioner.Wanted{wanted("fine", 1)}, Targets: []string{"fine"}})
	if err != nil || plan.Wanted[0].ID != "id-fine" || plan.Wanted[0].ExternalID != "vm-fine" {
		t.Errorf("NewPlan() = %+v, %v, want the machine's own ids", plan, err)
	}
}

func TestSummaryHidesWhatIsSensitive(t *testing.T) {
	t.Parallel()
	changed := wanted("fine", 2048)
	changed.Settings = map[string]json.RawMessage{"static": json.RawMessage(`{"password":"hunter2"}`)}
	plan, err := machines.NewPlan(recorded(), machines.Asked{Wanted: []provisioner.Wanted{changed}, Targets: []string{"fine"}, Sensitive: map[string]bool{"static.password": true}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plan.Summary())
	if want := `{"path":"static.password","sensitive":true,"replaces":true}`; err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "hunter2") {
		t.Errorf("Summary() = %s, %v, want %s and no value", text, err, want)
	}
}

// A machine that may exist is asked for as it was; what the template wants now comes next.
func TestMachineInDoubtIsAskedForAsItWas(t *testing.T) {
	t.Parallel()
	s := recorded()
	asked := machines.Asked{Wanted: []provisioner.Wanted{wanted("starting", 4096)}, Targets: []string{"starting"}, Resumes: true}
	plan, err := machines.NewPlan(s, asked)
	if err != nil || plan.Changes[0].Action != provisioner.ActionCreate || plan.Of(plan.Changes[0]).Memory != 2048 {
		t.Fatalf("NewPlan() = %+v, %v, want the machine of 2048 MiB asked for again", plan, err)
	}
	s.Intend(plan.Of(plan.Changes[0]), provisioner.Intent{})
	s.Settle(provisioner.Machine{ID: "id-starting", Status: provisioner.StatusRunning, ExternalID: "vm"})
	plan, err = machines.NewPlan(s, asked)
	if err != nil || len(plan.Changes) != 1 || plan.Changes[0].Action != provisioner.ActionReplace {
		t.Errorf("the plan after it = %+v, %v, want the machine replaced", plan, err)
	}
}

// What a machine was made with stays hidden when the template hides it no longer.
func TestSummaryHidesWhatWasSensitive(t *testing.T) {
	t.Parallel()
	s := recorded()
	s.Named("fine").Hidden = []string{"static.password"}
	s.Named("fine").Wanted.Settings = map[string]json.RawMessage{"static": json.RawMessage(`{"password":"hunter2"}`)}
	plan, err := machines.NewPlan(s, machines.Asked{Wanted: []provisioner.Wanted{{Name: "fine", Memory: 2048}}, Targets: []string{"fine"}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plan.Summary())
	if err != nil || strings.Contains(string(text), "hunter2") || !slices.Contains(s.Secrets(), "hunter2") {
		t.Errorf("Summary() = %s, %v, Secrets() = %q, want the value hidden", text, err, s.Secrets())
	}
}

// A machine of which nobody knows is still the same one.
func TestUnknownMachine(t *testing.T) {
	t.Parallel()
	s := recorded()
	s.Settle(provisioner.Machine{ID: "id-fine", Status: provisioner.StatusUnknown})
	if m := s.Named("fine"); m.ExternalID != "vm-fine" || !m.InDoubt() {
		t.Errorf("the machine is %+v, want its id kept, and in doubt", m)
	}
	was := *s.Named("broken")
	s.Settle(provisioner.Machine{ID: was.ID, Status: provisioner.StatusGone})
	s.Restore(was.ID, &was)
	if m := s.Machines[0]; m.ID != was.ID || len(s.Machines) != 4 {
		t.Errorf("restored is %+v of %d machines, want what was there", m, len(s.Machines))
	}
}

// A plan is carried out on the state that it was made from, and on no other.
func TestPlanOfAnotherState(t *testing.T) {
	t.Parallel()
	plan, err := machines.NewPlan(recorded(), machines.Asked{Resumes: true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*machines.State){
		"":              func(*machines.State) {},
		"later":         func(s *machines.State) { s.Serial++ },
		"another chain": func(s *machines.State) { s.Lineage = "m" },
		"another run's": func(s *machines.State) { s.Serial, s.Run = s.Serial+1, &machines.Run{ID: "other"} },
	} {
		s := recorded()
		change(s)
		if _, err := machines.ReadPlan(text, s, "r"); errors.Is(err, machines.ErrStale) != (name != "") {
			t.Errorf("ReadPlan() of a state that is %q = %v", name, err)
		}
	}
	begun := recorded()
	begun.Serial, begun.Run = begun.Serial+5, &machines.Run{ID: "r"}
	if _, err := machines.ReadPlan(text, begun, "r"); err != nil {
		t.Errorf("ReadPlan() of a run that has begun to apply it = %v", err)
	}
	begun.Lineage = "m"
	if _, err := machines.ReadPlan(text, begun, "r"); !errors.Is(err, machines.ErrStale) {
		t.Errorf("ReadPlan() of a run that has begun on another chain = %v", err)
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	s, err := machines.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := wanted("a", 1)
	m.ID = "1"
	s.Intend(m, provisioner.Intent{ID: "1", Machine: "1", Action: provisioner.ActionCreate})
	s.Settle(provisioner.Machine{ID: "1", Status: provisioner.StatusCreating})
	if s.Find("1").Intent == nil {
		t.Error("a machine that is being made has no intent any more")
	}
	s.Settle(provisioner.Machine{ID: "1", Status: provisioner.StatusRunning, ExternalID: "vm", Credentials: map[string]string{"root_password": "p", "user": "root"}})
	s.Settle(provisioner.Machine{ID: "1", Status: provisioner.StatusStopped, ExternalID: "vm"})
	text, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	again, err := machines.Read(text)
	if err != nil || again.Serial != 1 || again.Named("a").Credentials["root_password"] != "p" || !slices.Equal(again.Secrets(), []string{"p"}) {
		t.Errorf("Read() = %+v, %v, want the machine with its credentials", again, err)
	}
	again.Settle(provisioner.Machine{ID: "1", Status: provisioner.StatusGone})
	if len(again.Machines) > 0 {
		t.Error("a machine that is gone is still recorded")
	}
	for name, text := range map[string]string{"Terraform's": `{"version": 4, "serial": 1, "lineage": "x"}`, "no JSON": `x`, "another id": `{"version": 1001, "machines": [{"id": "1", "wanted": {"id": "2", "name": "a"}}]}`} {
		if _, err := machines.Read([]byte(text)); err == nil {
			t.Errorf("Read() of a state that is %s = nil, want an error", name)
		}
	}
}

// Keys live as long as the intent that they were made for, and are secrets meanwhile.
func TestSSHKeysEndWithTheIntent(t *testing.T) {
	t.Parallel()
	s := recorded()
	starting := s.Named("starting")
	starting.SSH = &machines.SSHKeys{Login: "a-private-key", Host: "another-private-key"}
	if secrets := s.Secrets(); !slices.Contains(secrets, "a-private-key") || !slices.Contains(secrets, "another-private-key") {
		t.Errorf("Secrets() = %q, want the keys", secrets)
	}
	for status, kept := range map[provisioner.MachineStatus]bool{provisioner.StatusUnknown: true, provisioner.StatusCreating: true, provisioner.StatusFailed: false} {
		text, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		now, err := machines.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		now.Settle(provisioner.Machine{ID: "id-starting", Status: status})
		if got := now.Named("starting").SSH != nil; got != kept {
			t.Errorf("with the status %s the keys are kept: %t, want %t", status, got, kept)
		}
	}
}

// What is hidden within a setting is hidden alone: people see what else changes, and it can be changed
// in place. No secret is left out of those that are masked.
func TestHiddenWithinASetting(t *testing.T) {
	t.Parallel()
	block := func(text string) provisioner.Wanted {
		return provisioner.Wanted{Name: "fine", Settings: map[string]json.RawMessage{"ironic": json.RawMessage(text)}}
	}
	known := machines.Machine{Wanted: block(`{"enroll":{"address":"bmc1","password":"hunter2hunter2"}}`), Hidden: []string{"ironic.enroll.password"}}
	known.ID, known.Wanted.ID, known.Status = "id", "id", provisioner.StatusStopped
	s := &machines.State{Version: machines.Version, Machines: []machines.Machine{known}}
	hidden := map[string]bool{"ironic.enroll.password": true}
	for want, tt := range map[string]struct {
		is     string
		hidden map[string]bool
	}{
		`update ironic.enroll.address:"bmc1">"bmc2" ironic.enroll.password:hidden`: {`{"enroll":{"address":"bmc2","password":"another-one","user":null}}`, hidden},
		`update ironic.enroll.address:hidden`:                                      {`{"enroll":{"address":"bmc2","password":"hunter2hunter2"}}`, map[string]bool{"ironic.enroll": true}},
	} {
		plan, err := machines.NewPlan(s, machines.Asked{Wanted: []provisioner.Wanted{block(tt.is)}, Sensitive: tt.hidden, InPlace: []string{"ironic.enroll."}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, r := range plan.Summary().Resources {
			got += r.Action
			for _, a := range r.Attributes {
				if got += " " + a.Path + ":"; a.Sensitive && a.Before == nil && a.After == nil {
					got += "hidden"
				} else {
					got += string(a.Before) + ">" + string(a.After)
				}
			}
		}
		if got != want {
			t.Errorf("the plan is %s, want %s", got, want)
		}
	}
	if secrets := s.Secrets(); !slices.Equal(secrets, []string{"hunter2hunter2"}) {
		t.Errorf("Secrets() = %q, want the password alone", secrets)
	}
}

// The password of a rescue system is kept while the machine is in rescue, whatever else is reported of
// its credentials, and forgotten when it has left that or is made again.
func TestRescuePassword(t *testing.T) {
	t.Parallel()
	wanted := provisioner.Wanted{ID: "1", Name: "ada"}
	var s machines.State
	made := func(credentials map[string]string) {
		s.Settle(provisioner.Machine{ID: "1", Name: "ada", Status: provisioner.StatusRunning, Credentials: credentials})
	}
	password := func() string { return s.Find("1").Credentials[provisioner.RescuePassword] }
	rescues := func() bool { return slices.Contains(s.Listed()[0].Actions, provision.MachineUnrescues) }
	s.Intend(wanted, provisioner.Intent{Machine: "1", Action: provisioner.ActionCreate})
	made(map[string]string{"user": "ada", "password": "secret"})
	s.Find("1").Rescued = true
	made(map[string]string{"user": "ada", "password": "secret", provisioner.RescuePassword: "FIRST"})
	made(map[string]string{"user": "ada", "password": "secret"})
	made(nil)
	if password() != "FIRST" || !rescues() || !slices.Contains(s.Secrets(), "FIRST") {
		t.Errorf("in rescue the password is %q, and to leave it is offered: %t", password(), rescues())
	}
	s.Find("1").LeaveRescue()
	made(nil)
	if password() != "" || rescues() || s.Find("1").Credentials["password"] != "secret" {
		t.Errorf("out of rescue there is %v", s.Find("1").Credentials)
	}
	s.Find("1").Rescued = true
	made(map[string]string{provisioner.RescuePassword: "SECOND"})
	s.Intend(wanted, provisioner.Intent{Machine: "1", Action: provisioner.ActionReplace})
	if password() != "" || rescues() {
		t.Errorf("made again, it has %v", s.Find("1").Credentials)
	}
}
