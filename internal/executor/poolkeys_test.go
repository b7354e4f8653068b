package executor

import (
	"maps"
	"slices"
	"testing"

	"github.com/tendril-run/tendril/internal/machines"
	messages "github.com/tendril-run/tendril/provisioner"
)

// A machine gets keys of its own when it is made; one whose making was interrupted keeps them, as
// its first start may have read them already.
func TestKeysOfMachines(t *testing.T) {
	t.Parallel()
	before := &machines.SSHKeys{Login: "login", Host: "host"}
	state, plan := &machines.State{}, &machines.Plan{}
	for id, action := range map[string]messages.Action{
		"new": messages.ActionCreate, "interrupted": messages.ActionCreate, "replaced": messages.ActionReplace, "changed": messages.ActionChange, "elsewhere": messages.ActionCreate,
	} {
		w := messages.Wanted{ID: id, Name: id, Pool: "lab"}
		if id == "elsewhere" {
			w.Pool = "desks"
		}
		plan.Wanted = append(plan.Wanted, w)
		plan.Changes = append(plan.Changes, machines.Change{Name: id, Change: messages.Change{Machine: id, Action: action}})
		if id != "new" {
			state.Machines = append(state.Machines, machines.Machine{Machine: messages.Machine{ID: id}, Wanted: w, SSH: before})
		}
	}
	keys, err := keysOf(state, plan, func(pool string) bool { return pool == "lab" })
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, []string{"interrupted", "new", "replaced"}) {
		t.Fatalf("keys of %q, want those that are made in lab", got)
	}
	if keys["interrupted"] != before || keys["replaced"].Login == "login" || keys["new"].Login == keys["replaced"].Login || keys["new"].Login == keys["new"].Host {
		t.Errorf("keys = %+v, want the interrupted one's as before and four others", keys)
	}
}
