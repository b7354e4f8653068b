package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func (c *console) machinePages() {
	c.page("GET /machines", c.machines)
	c.page("GET /machines/{id}", c.machine)
	c.page("POST /machines/{id}/{act}", c.actOnMachine)
}

// machineStatuses are what a list of machines can be narrowed to.
var machineStatuses = []string{"planned", "reserved", "creating", "running", "stopped", "failed", "unknown", "gone"}

// machineHealths are likewise.
var machineHealths = []string{"healthy", "unhealthy", "unknown"}

// machineGroups are what a list can be grouped by.
var machineGroups = []string{"workspace", "pool", "status", "health"}

// machinesData is the list of machines, and what it was narrowed to.
type machinesData struct {
	Found     []store.Machine
	Workspace string // the name, where the list is that of one
	Pools     []string
	Statuses  []string
	Healths   []string
	Words     string
	Status    string
	Health    string
	Pool      string
	Group     string
	Groups    []string
	Kept      map[string]string // for the form that narrows the list
	Narrowed  bool
	// Provision is the page that provisions those that are planned, where the list is that of
	// one workspace; "": none is.
	Provision string
	Pager     pager
	Here      string // this very page, to fetch its list again
	Org       store.Org
}

// Begins reports whether a new group begins with the machine at i.
func (d machinesData) Begins(i int) bool {
	return d.Group != "" && (i == 0 || d.Found[i].InGroup(d.Group) != d.Found[i-1].InGroup(d.Group))
}

func (c *console) machines(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	d := machinesData{Words: strings.TrimSpace(q.Get("q")), Status: q.Get("status"), Pool: q.Get("pool"), Health: q.Get("health"), Statuses: machineStatuses, Healths: machineHealths, Org: r.org, Here: r.URL.RequestURI()}
	if !slices.Contains(machineStatuses, d.Status) {
		d.Status = ""
	}
	if !slices.Contains(machineHealths, d.Health) {
		d.Health = ""
	}
	if d.Groups = machineGroups; slices.Contains(machineGroups, q.Get("group")) {
		d.Group = q.Get("group")
	}
	d.Kept = map[string]string{"workspace": q.Get("workspace")}
	f := store.MachineFilter{Words: d.Words, Status: d.Status, Pool: d.Pool, Health: d.Health, Group: d.Group}
	if id := q.Get("workspace"); id != "" {
		workspace, err := r.store.Situation(r.Context(), r.org.ID, id)
		if err != nil {
			return err
		}
		f.Workspace, d.Workspace = workspace.ID, workspace.Name
		if plans, err := r.store.PlannedMachines(r.Context(), workspace.ID, nil, 1); err != nil {
			return err
		} else if len(plans) > 0 {
			d.Provision = "/deploy?planned=" + workspace.ID.String()
		}
	}
	var err error
	if d.Pools, err = r.store.MachinePools(r.Context(), r.org.ID); err != nil {
		return err
	}
	after := store.MachineKey{Group: q.Get("after-group"), Name: q.Get("after-name")}
	after.ID, _ = uuid.Parse(q.Get("after-id")) // anything else is the beginning
	found, next, err := r.store.ListMachines(r.Context(), r.org.ID, f, after, rowsOfPage)
	if err != nil {
		return err
	}
	d.Found, d.Narrowed = found, d.Words != "" || d.Status != "" || d.Health != "" || d.Pool != "" || d.Workspace != ""
	narrowed := url.Values{}
	for name, value := range map[string]string{"q": d.Words, "status": d.Status, "health": d.Health, "pool": d.Pool, "group": d.Group, "workspace": q.Get("workspace")} {
		if value != "" {
			narrowed.Set(name, value)
		}
	}
	if after.Name != "" {
		d.Pager.First = "/machines?" + narrowed.Encode()
	}
	if next != nil {
		narrowed.Set("after-group", next.Group)
		narrowed.Set("after-name", next.Name)
		narrowed.Set("after-id", next.ID.String())
		d.Pager.Next = "/machines?" + narrowed.Encode()
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "machines", "found", d)
		return nil
	}
	c.render(w, r, http.StatusOK, "machines", view{Nav: "machines", Data: d})
	return nil
}

// machineData is the page of one machine.
type machineData struct {
	M       store.Machine
	Plan    *provision.Snapshot // of one that is planned and not made yet
	History []store.MachineEvent
	Place   *store.Reservation // nil: it has none in a pool
	Org     store.Org
	Refused *store.RefusedError
}

func (c *console) machine(w http.ResponseWriter, r *request) error {
	return c.showMachine(w, r, http.StatusOK, nil)
}

func (c *console) showMachine(w http.ResponseWriter, r *request, status int, refused *store.RefusedError) (err error) {
	d := machineData{Org: r.org, Refused: refused}
	if d.M, err = r.store.MachineByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id")); err != nil {
		return err
	}
	if d.M.Plan != nil && (d.M.Status == wire.Planned || d.M.Status == wire.Reserved) {
		if err := json.Unmarshal(d.M.Plan, &d.Plan); err != nil {
			return fmt.Errorf("read the plan of machine %s: %w", d.M.Name, err)
		}
	}
	if d.History, err = r.store.MachineHistory(r.Context(), d.M.ID); err != nil {
		return err
	}
	if d.Place, err = r.store.MachineReservation(r.Context(), d.M.WorkspaceID, d.M.Name); err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "machine", "machine", d)
		return nil
	}
	c.render(w, r, status, "machine", view{Nav: "machines", Data: d})
	return nil
}

// SSH is the command that signs in to the machine; "" where there is none.
func (d machineData) SSH() string {
	to, err := wire.Machine(d.M).SSH()
	if err != nil {
		return ""
	}
	return to.Command()
}

// Offers are the acts on this machine that this person may ask for.
func (d machineData) Offers() []wire.Act {
	if !atLeast(d.Org.Role, "operator") {
		return nil
	}
	return slices.DeleteFunc(wire.Machine(d.M).Offers(), func(do wire.Act) bool { return do == wire.ActReveal && !atLeast(d.Org.Role, "admin") })
}

// MayDestroy reports whether destroying the machine is among the offers.
func (d machineData) MayDestroy() bool { return slices.Contains(d.Offers(), wire.ActDestroy) }

// machineSize is how large a machine is, in words.
func machineSize(m store.Machine) string { return wire.Machine(m).Size() }

// actOnMachine queues what is to be done to one machine and shows that run. To destroy one,
// its name must have been typed.
func (c *console) actOnMachine(w http.ResponseWriter, r *request) error {
	m, err := r.store.MachineByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id"))
	if err != nil {
		return err
	}
	do := wire.Act(r.PathValue("act"))
	var queued store.Deployed
	operation, change, wrong := wire.Machine(m).Ask(do, true)
	switch {
	case wrong != nil:
		err = refuse("machine_refused", wrong.Error())
	case do == wire.ActDestroy && strings.TrimSpace(r.PostFormValue("confirm")) != m.Name:
		err = refuse("not_confirmed", m.Name)
	default:
		queued, err = deployAgain(r, store.Situation{ID: m.WorkspaceID, Name: m.Workspace}, operation, change)
	}
	if no := refusal(err); no != nil {
		return c.showMachine(w, r, no.Status(), no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, runPath(queued.Number), done("machine", m.Name, string(do)))
	return nil
}
