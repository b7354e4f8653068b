package console

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// machineCard is one machine of a workspace's grid.
type machineCard struct {
	M     store.Machine
	Place *store.Reservation // nil: it has none in a pool
	// Step is what is being done to it now; nil: nothing. Steps are all that the run does to
	// it, where the run tells of them.
	Step   *provision.Running
	Steps  []stepView
	Offers []wire.Act
}

// Listed reports whether anything was reported of the machine, or it was planned.
func (m machineCard) Listed() bool { return m.M.ID != uuid.Nil }

// Unfinished reports whether the run has not done all of its steps to the machine.
func (m machineCard) Unfinished() bool {
	return slices.ContainsFunc(m.Steps, func(s stepView) bool { return s.State != "done" })
}

// Address is where the machine is reached, or will be; "": not known yet.
func (m machineCard) Address() string {
	switch {
	case len(m.M.IPAddresses) > 0:
		return m.M.IPAddresses[0]
	case m.Place != nil:
		return text(m.Place.Address)
	}
	return ""
}

// machineCards are the machines of a workspace that are not gone, and those that only have a
// place yet, by name.
func (r *request) machineCards(w store.Situation) (cards []machineCard, err error) {
	machines, err := r.store.WorkspaceMachines(r.Context(), w.ID)
	if err != nil {
		return nil, err
	}
	places, err := r.store.WorkspaceReservations(r.Context(), w.ID)
	if err != nil {
		return nil, err
	}
	doing, steps := map[string]provision.Running{}, map[string][]stepView{}
	if w.Now != nil {
		run, err := r.store.Provision(r.Context(), text(w.Now))
		if err != nil {
			return nil, err
		}
		for _, one := range run.Running {
			doing[one.Address] = one
		}
		for _, group := range (&runPage{Provision: run}).StepGroups() {
			steps[group.Machine] = group.Steps
		}
	}
	placed := map[string]*store.Reservation{}
	for i := range places {
		placed[places[i].Name] = &places[i]
	}
	for _, m := range machines {
		place := placed[m.Name]
		delete(placed, m.Name)
		if m.Status == "gone" && place == nil {
			continue
		}
		card := machineCard{M: m, Place: place}
		if m.Address != nil {
			if step, busy := doing[*m.Address]; busy {
				card.Step = &step
			}
			card.Steps = steps[*m.Address]
		}
		if atLeast(r.org.Role, "operator") {
			card.Offers = slices.DeleteFunc(wire.Machine(m).Offers(), func(do wire.Act) bool { return do == wire.ActReveal || do == wire.ActRefresh })
		}
		cards = append(cards, card)
	}
	for i := range places {
		if placed[places[i].Name] != nil {
			cards = append(cards, machineCard{M: store.Machine{Name: places[i].Name, Status: "reserved"}, Place: &places[i]})
		}
	}
	return cards, nil
}

// Counts says how many machines there are, and what they are doing.
func (d workspaceData) Counts() string {
	counts := map[string]int{}
	for _, card := range d.Machines {
		counts[card.M.Status]++
	}
	var words []string
	for _, s := range statuses {
		if n := counts[s.name]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, s.name))
		}
	}
	return plural(len(d.Machines), "machine") + ": " + strings.Join(words, ", ") + "."
}

// powers are the machines that a person may have started, or stopped, all at once.
func powers(cards []machineCard, do wire.Act) (targets []string) {
	for _, card := range cards {
		if slices.Contains(card.Offers, do) {
			targets = append(targets, *card.M.Address)
		}
	}
	return targets
}

// MayStart and MayStop are how many machines can be started, and stopped, at once.
func (d workspaceData) MayStart() int { return len(powers(d.Machines, wire.ActStart)) }
func (d workspaceData) MayStop() int  { return len(powers(d.Machines, wire.ActStop)) }

// powerWorkspace queues the start or the stop of all machines of a workspace that can be, and
// shows that run.
func (c *console) powerWorkspace(w http.ResponseWriter, r *request) error {
	const most = 100 // targets of a run
	found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
	if err != nil {
		return err
	}
	cards, err := r.machineCards(found)
	if err != nil {
		return err
	}
	do := wire.Act(r.PostFormValue("power"))
	var queued store.Deployed
	switch targets := powers(cards, do); {
	case do != wire.ActStart && do != wire.ActStop || len(targets) == 0:
		err = refuse("none_to_power", found.Name)
	case len(targets) > most:
		err = refuse("many_to_power", text(len(targets)))
	default:
		queued, err = deployAgain(r, found, provision.OperationPower, func(asked *provision.Snapshot) {
			asked.Targets, asked.Power = targets, provision.Power(do)
		})
	}
	if no := refusal(err); no != nil {
		return c.refuseWorkspace(w, r, "machines", "power", no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, runPath(queued.Number), done("machines-power", found.Name, string(do)))
	return nil
}
