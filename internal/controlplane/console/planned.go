package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/planned"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func (c *console) plannedPages() {
	c.page("GET /machines/plan", c.planPage)
	c.page("POST /machines/plan", c.planMachines)
	c.page("GET /machines/{id}/plan", c.planPage)
	c.page("POST /machines/{id}/plan", c.planMachines)
	c.page("POST /machines/{id}/delete", c.deletePlanned)
}

// planData is the page that draws machines up, or changes one that is planned.
type planData struct {
	// M is the machine that is changed; nil: new ones are drawn up.
	M         *store.Machine
	Source    provision.TemplateSource // of M
	Places    []store.Place
	Templates []store.Template
	// Said is what the fields have, by their names.
	Said    map[string]string
	Refused *store.RefusedError
}

// planFields are the fields of the form.
var planFields = []string{"template", "cluster", "workspace", "machines", "name", "pool", "image", "cores", "memory_mib", "disk_gib", "labels", "variables", "version"}

func (c *console) planPage(w http.ResponseWriter, r *request) error {
	said := map[string]string{}
	for _, name := range planFields {
		said[name] = r.URL.Query().Get(name)
	}
	return c.showPlan(w, r, http.StatusOK, said, nil)
}

// showPlan shows the form with what was said; of a machine that is planned, with its plan.
func (c *console) showPlan(w http.ResponseWriter, r *request, status int, said map[string]string, refused *store.RefusedError) (err error) {
	d := planData{Said: said, Refused: refused}
	if d.Places, err = r.store.Places(r.Context(), r.org.ID); err != nil {
		return err
	}
	if d.Templates, err = r.store.Catalogue(r.Context(), r.org.ID); err != nil {
		return err
	}
	if r.PathValue("id") != "" {
		m, plan, err := plannedMachine(r, r.PathValue("id"))
		if err != nil {
			return err
		}
		d.M, d.Source = &m, plan.TemplateSource
		if refused == nil {
			d.Said = fieldsOf(m, plan)
		}
	}
	c.render(w, r, status, "machineplan", view{Nav: "machines", Data: d})
	return nil
}

// plannedMachine is the machine of that id, and its plan.
func plannedMachine(r *request, id string) (m store.Machine, plan provision.Snapshot, err error) {
	if m, err = r.store.MachineByRef(r.Context(), r.org.ID, uuid.Nil, id); err != nil {
		return m, plan, err
	}
	// As it was planned, also where a run has reserved a place for it.
	found, err := r.store.PlannedMachines(r.Context(), m.WorkspaceID, []string{m.ID.String()}, 1)
	if err != nil {
		return m, plan, err
	}
	if len(found) == 0 {
		return m, plan, refuse("not_planned", m.Name)
	}
	m = found[0]
	return m, plan, json.Unmarshal(m.Plan, &plan)
}

// fieldsOf are the fields of a machine that is planned.
func fieldsOf(m store.Machine, plan provision.Snapshot) map[string]string {
	said := map[string]string{"name": m.Name, "pool": deref(m.Pool), "image": deref(m.Image), "version": plan.TemplateSource.Version}
	for name, value := range map[string]*int{"cores": m.Cores, "memory_mib": m.MemoryMiB, "disk_gib": m.DiskGiB} {
		if value != nil {
			said[name] = strconv.Itoa(*value)
		}
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, name+"="+m.Labels[name])
	}
	said["labels"] = strings.Join(labels, " ")
	if len(plan.TerraformVars) > 0 {
		said["variables"] = pretty(plan.TerraformVars)
	}
	return said
}

// planMachines draws up what the form says. What is refused is shown again.
func (c *console) planMachines(w http.ResponseWriter, r *request) error {
	said := map[string]string{}
	for _, name := range planFields {
		said[name] = strings.TrimSpace(r.PostFormValue(name))
	}
	ids, err := drawUp(r, said)
	if no := refusal(err); no != nil {
		return c.showPlan(w, r, no.Status(), said, no)
	} else if err != nil {
		return err
	}
	if len(ids) == 1 {
		c.redirect(w, r, "/machines/"+ids[0].String(), done("machines-planned", "1"))
		return nil
	}
	m, err := r.store.MachineByRef(r.Context(), r.org.ID, uuid.Nil, ids[0].String())
	if err != nil {
		return err
	}
	c.redirect(w, r, "/machines?status=planned&workspace="+m.WorkspaceID.String(), done("machines-planned", strconv.Itoa(len(ids))))
	return nil
}

// drawUp reads the form and draws the machines up.
func drawUp(r *request, said map[string]string) ([]uuid.UUID, error) {
	common, err := commonOf(said)
	if err != nil {
		return nil, refuse("bad_plan", err)
	}
	asked := provision.Snapshot{Workspace: said["workspace"]}
	if said["variables"] != "" {
		if err := json.Unmarshal([]byte(said["variables"]), &asked.TerraformVars); err != nil {
			return nil, refuse("bad_plan", "the variables are not an object of JSON")
		}
	}
	var machines []wire.PlannedMachine
	var cluster uuid.UUID
	if id := r.PathValue("id"); id != "" {
		m, plan, err := plannedMachine(r, id)
		if err != nil {
			return nil, err
		}
		w, err := r.store.Situation(r.Context(), r.org.ID, m.WorkspaceID.String())
		if err != nil {
			return nil, err
		}
		common.ID, common.Name = &m.ID, said["name"]
		cluster, machines, asked.Workspace, asked.TemplateSource = w.ClusterID, []wire.PlannedMachine{common}, m.Workspace, plan.TemplateSource
		asked.TemplateSource.Version = said["version"]
	} else {
		if machines, err = planned.Read(said["machines"], common); err != nil {
			return nil, refuse("bad_plan", err)
		}
		if cluster, asked.TemplateSource, err = chosen(r, said["cluster"], said["template"]); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return r.store.PlanMachines(r.Context(), cluster, text, machines)
}

// chosen are the cluster and the template of those names.
func chosen(r *request, cluster, template string) (id uuid.UUID, source provision.TemplateSource, err error) {
	places, err := r.store.Places(r.Context(), r.org.ID)
	if err != nil {
		return id, source, err
	}
	catalogue, err := r.store.Catalogue(r.Context(), r.org.ID)
	if err != nil {
		return id, source, err
	}
	p := slices.IndexFunc(places, func(p store.Place) bool { return p.Name == cluster })
	t := slices.IndexFunc(catalogue, func(e store.Template) bool { return e.Name == template })
	if p < 0 || t < 0 {
		return id, source, refuse("not_chosen")
	}
	return places[p].ID, provision.TemplateSource{Repo: catalogue[t].Repo, Path: catalogue[t].Path, Version: catalogue[t].Version}, nil
}

// commonOf is what the form says of each machine.
func commonOf(said map[string]string) (wire.PlannedMachine, error) {
	row := map[string]string{}
	for _, name := range []string{"pool", "image", "cores", "memory_mib", "disk_gib", "labels"} {
		row[name] = said[name]
	}
	return planned.Row(row)
}

// deletePlanned deletes a machine that is planned.
func (c *console) deletePlanned(w http.ResponseWriter, r *request) error {
	m, err := r.store.MachineByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id"))
	if err == nil {
		err = r.store.DeletePlannedMachine(r.Context(), m.ID)
	}
	if no := refusal(err); no != nil && m.ID != uuid.Nil {
		return c.showMachine(w, r, no.Status(), no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/machines", done("machine-unplanned", m.Name))
	return nil
}
