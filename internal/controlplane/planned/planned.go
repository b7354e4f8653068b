// Package planned is about machines that people draw up before they are provisioned: it reads
// them from a list or a CSV, and says what a deploy asks for that provisions them.
//
//	a list or CSV ─► Read ─► the database keeps them ─► Compose ─► a snapshot, for the
//	                                                                form or the queue
//
// Which of a template's variables says what of a machine goes by the variables' names, so
// that any template can take planned machines: see Compose. The package must not know how
// people ask: form, REST and CLI do what it says.
package planned

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// missing are machines that are there and that a deploy would not name, so that it would
// destroy them.
func missing(s provision.Snapshot, there []store.Machine) (names []string) {
	named := map[string]bool{}
	var list []string
	var objects map[string]json.RawMessage
	var one string
	if json.Unmarshal(s.TerraformVars[asMap], &objects) == nil {
		for name := range objects {
			named[name] = true
		}
	}
	if json.Unmarshal(s.TerraformVars[asList], &list) == nil {
		for _, name := range list {
			named[name] = true
		}
	}
	if json.Unmarshal(s.TerraformVars[asOne], &one) == nil {
		named[one] = true
	}
	for _, m := range there {
		if m.Status != "gone" && m.Status != wire.Planned && !named[m.Name] {
			names = append(names, m.Name)
		}
	}
	return names
}

// Ask is what a deploy of planned machines asks for. With problems it must not be queued as it
// is; a person can fill in what is missing.
type Ask struct {
	Cluster  uuid.UUID
	Snapshot provision.Snapshot
	Problems []string
	after    int64 // the number of the newest run that counted
}

// For composes what a deploy of machines asks for, all of one workspace. source is the
// template's version, if it is not the plan's. It must have been inspected, so that its
// variables are known: that they are not is a problem.
func For(ctx context.Context, s *store.Store, org uuid.UUID, source provision.TemplateSource, machines []store.Machine) (ask Ask, err error) {
	w, err := s.Situation(ctx, org, machines[0].WorkspaceID.String())
	if err != nil {
		return ask, err
	}
	newest, err := s.NewestChange(ctx, w.ID)
	if err != nil {
		return ask, err
	}
	ask.after = newest.Number
	var last *provision.Snapshot
	switch {
	case newest.Number == 0 || newest.Operation == provision.OperationDestroy && newest.Status == provision.Success:
	case newest.Status != provision.Success && newest.Status != provision.Failed && newest.Status != provision.Cancelled:
		ask.Problems = append(ask.Problems, fmt.Sprintf("Run %d of this workspace has not ended: wait for it.", newest.Number))
	case newest.Operation == provision.OperationDestroy:
		ask.Problems = append(ask.Problems, fmt.Sprintf("Run %d, which was to destroy everything here, did not succeed: see to that first.", newest.Number))
	default:
		was, err := provision.ParseSnapshot(newest.Snapshot)
		if err != nil {
			return ask, err
		}
		last = &was
	}
	list := make([]wire.Machine, len(machines))
	for i, m := range machines {
		list[i] = wire.Machine(m)
	}
	var plan provision.Snapshot
	if err := json.Unmarshal(machines[0].Plan, &plan); err != nil {
		return ask, fmt.Errorf("read the plan of machine %s: %w", machines[0].Name, err)
	}
	if source == (provision.TemplateSource{}) {
		source = plan.TemplateSource
	}
	known, err := s.TemplateVariables(ctx, org, source.Repo, source.Version, source.Path)
	if err != nil {
		return ask, err
	}
	ask.Cluster = w.ClusterID
	if !known.Inspected {
		ask.Snapshot, ask.Problems = plan, append(ask.Problems, "The variables of the template's version are not known yet: have it scanned first.")
		return ask, nil
	}
	composed, problems := Compose(last, known.Variables, list)
	ask.Snapshot, ask.Problems = composed, append(ask.Problems, problems...)
	there, err := s.WorkspaceMachines(ctx, w.ID)
	if err != nil {
		return ask, err
	}
	if left := missing(composed, there); len(left) > 0 && len(problems) == 0 {
		ask.Problems = append(ask.Problems, fmt.Sprintf("The variables would not name machines that are there, and so destroy them: %s. Fill the variables in by hand.", strings.Join(left[:min(len(left), 10)], ", ")))
	}
	return ask, nil
}

// Provision queues the deploy of machines that are planned in a workspace, by name or id;
// without any, of all of them. approval may be stricter than what the cluster wants. It must be called within a transaction. What can't be filled in
// is a *store.RefusedError with reason plan_incomplete, and so is a run in between.
func Provision(ctx context.Context, s *store.Store, w store.Workspace, refs []string, approval provision.Approval) (d store.Deployed, err error) {
	chosen, err := s.PlannedMachines(ctx, w.ID, refs, Most+1)
	if err != nil {
		return d, err
	}
	for _, ref := range refs {
		if !slices.ContainsFunc(chosen, func(m store.Machine) bool { return m.Name == ref || m.ID.String() == ref }) {
			return d, &store.RefusedError{Code: "PT404", Reason: "machine_not_found", Message: fmt.Sprintf("there is no planned machine %q in workspace %s", ref, w.Name), Hint: "trellis machines list --status planned"}
		}
	}
	if len(chosen) > Most {
		return d, &store.RefusedError{Code: "PT413", Reason: "too_many_machines", Message: fmt.Sprintf("more than %d machines are planned in workspace %s", Most, w.Name), Hint: "name those to provision"}
	}
	if len(chosen) == 0 {
		return d, &store.RefusedError{Code: "PT404", Reason: "machine_not_found", Message: fmt.Sprintf("no machine is planned in workspace %s", w.Name), Hint: "plan one: trellis machines plan"}
	}
	ask, err := For(ctx, s, w.OrgID, provision.TemplateSource{}, chosen)
	if err != nil {
		return d, err
	}
	if len(ask.Problems) > 0 {
		return d, &store.RefusedError{Code: "PT409", Reason: "plan_incomplete", Message: strings.Join(ask.Problems, "\n"), Hint: "change the plans, or deploy with the variables as they should be"}
	}
	ask.Snapshot.Approval = approval
	ask.Snapshot.Meta = map[string]json.RawMessage{"triggered_by": encoded("planned machines")}
	text, err := json.Marshal(ask.Snapshot)
	if err != nil {
		return d, fmt.Errorf("encode the deploy: %w", err)
	}
	if d, err = s.Deploy(ctx, ask.Cluster, provision.OperationApply, text); err != nil {
		return d, err
	}
	// The workspace is locked now. Another run that was queued or has changed something since
	// it was read would be undone.
	newest, err := s.NewestChange(ctx, w.ID, d.ID)
	if err == nil && newest.Number != ask.after {
		err = &store.RefusedError{Code: "PT409", Reason: "plan_incomplete", Message: fmt.Sprintf("run %d came in between", newest.Number), Hint: "try again when it has ended"}
	}
	return d, err
}

// The variables that say which machines there are. The first of them that a template
// declares counts.
const (
	asMap  = "machines" // a map of objects, by name
	asList = "names"    // a set or a list
	asOne  = "name"     // a template of one machine
)

// Compose is what a deploy of planned machines asks for: what was last applied to their
// workspace (nil: nothing), so that the machines that are there stay, with these added. last
// counts only if it was the same template. The template's variables are filled in by name:
//
//   - machines, a map of objects by name: each object gets those of image, cores, memory
//     (MiB), disk (GiB), pool and labels that it has and the plan says;
//   - else names, a set or list of text;
//   - else name, for a template of one machine;
//   - beside names and name, the variables image, cores, memory, disk, pool and labels.
//
// What the plan has as variables itself goes before. What can't be filled in is among the
// problems, a sentence each; the rest is filled in all the same.
func Compose(last *provision.Snapshot, declared []provision.Variable, machines []wire.Machine) (s provision.Snapshot, problems []string) {
	c := composer{declared: map[string]provision.Variable{}}
	for _, v := range declared {
		c.declared[v.Name] = v
	}
	for i, m := range machines {
		var plan provision.Snapshot
		if err := json.Unmarshal(m.Plan, &plan); err != nil {
			c.problem("%s is not planned.", m.Name)
			continue
		}
		if i == 0 {
			c.begin(last, plan)
		}
		if plan.TemplateSource != c.s.TemplateSource || plan.Workspace != c.s.Workspace {
			c.problem("%s and %s are planned with another template, version or workspace: provision them one by one.", machines[0].Name, m.Name)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(plan.TerraformVars)) {
			c.set(m.Name, name, plan.TerraformVars[name])
		}
		c.add(m)
	}
	return c.s, c.problems
}

type composer struct {
	s        provision.Snapshot
	declared map[string]provision.Variable
	// by is the machine that wants a variable as it is; "": it was applied.
	by       map[string]string
	count    int
	applied  bool // of the same template, so that its defaults made machines as well
	problems []string
}

func (c *composer) problem(format string, values ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, values...))
}

// begin starts from what was applied last, or from nothing.
func (c *composer) begin(last *provision.Snapshot, plan provision.Snapshot) {
	c.s = provision.Snapshot{TemplateSource: plan.TemplateSource, Workspace: plan.Workspace}
	if last != nil && canonical.Address(last.TemplateSource.Repo) == canonical.Address(plan.TemplateSource.Repo) && canonical.Path(last.TemplateSource.Path) == canonical.Path(plan.TemplateSource.Path) {
		c.s.TerraformVars, c.s.SealedVars, c.s.Terraform = maps.Clone(last.TerraformVars), last.SealedVars, last.Terraform
		c.applied = true
	}
	if c.s.TerraformVars == nil {
		c.s.TerraformVars = map[string]json.RawMessage{}
	}
	c.by = map[string]string{}
}

// set gives a variable its value, unless another machine wants another one.
func (c *composer) set(machine, name string, value json.RawMessage) {
	is, has := c.s.TerraformVars[name]
	if has && !same(is, value) {
		of := c.by[name]
		if of == "" {
			of = "what is there"
		}
		c.problem("%s wants %s as %s and %s has it as %s: the template has one variable for all of them. Use a workspace for each, or change the plan.", machine, name, value, of, is)
		return
	}
	c.s.TerraformVars[name] = value
	if !has {
		c.by[name] = machine
	}
}

// same compares two values as JSON, whatever the order of their members.
func same(a, b json.RawMessage) bool {
	x, errX := decoded(a)
	y, errY := decoded(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

func decoded(text json.RawMessage) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// facts are what a plan says of a machine, under the names that a template has for it.
func facts(m wire.Machine) map[string]any {
	all := map[string]any{}
	for name, value := range map[string]*string{"image": m.Image, "pool": m.Pool} {
		if value != nil {
			all[name] = *value
		}
	}
	for name, value := range map[string]*int{"cores": m.Cores, "memory": m.MemoryMiB, "disk": m.DiskGiB} {
		if value != nil {
			all[name] = *value
		}
	}
	if len(m.Labels) > 0 {
		all["labels"] = m.Labels
	}
	return all
}

// add adds a machine to those that the template makes.
func (c *composer) add(m wire.Machine) {
	c.count++
	said := facts(m)
	if attributes, free, is := objects(c.declared[asMap]); is {
		there := map[string]json.RawMessage{}
		if !c.read(asMap, &there) {
			return
		}
		maps.DeleteFunc(said, func(name string, _ any) bool { return !free && !slices.Contains(attributes, name) })
		there[m.Name] = encoded(said)
		c.s.TerraformVars[asMap] = encoded(there)
		return
	}
	switch {
	case ofTexts(c.declared[asList]):
		var there []string
		if !c.read(asList, &there) {
			return
		}
		if !slices.Contains(there, m.Name) {
			there = append(there, m.Name)
		}
		c.s.TerraformVars[asList] = encoded(there)
	case isType(c.declared[asOne], `"string"`, `"dynamic"`):
		c.set(m.Name, asOne, encoded(m.Name))
	default:
		if c.count == 1 {
			c.problem("The template has no variable machines, names or name for the machines' names: fill them in by hand.")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if _, declares := c.declared[name]; declares {
			c.set(m.Name, name, encoded(said[name]))
		}
	}
}

// read reads which machines a variable has so far: by its default, where the template made
// machines of that. What can't be read or is sealed is a problem, once.
func (c *composer) read(name string, into any) bool {
	value, has := c.s.TerraformVars[name]
	_, sealed := c.s.SealedVars[name]
	if !has && c.applied {
		value = c.declared[name].Default
	}
	if len(value) == 0 && !sealed {
		return true
	}
	if sealed || json.Unmarshal(value, into) != nil {
		if c.count == 1 {
			c.problem("What the variable %s has can't be read here, so the machines can't be added to it: fill it in by hand.", name)
		}
		return false
	}
	return true
}

func isType(v provision.Variable, types ...string) bool {
	return slices.Contains(types, strings.ReplaceAll(string(v.TypeJSON), " ", ""))
}

func ofTexts(v provision.Variable) bool {
	return isType(v, `["set","string"]`, `["list","string"]`, `["set","dynamic"]`, `["list","dynamic"]`, `"dynamic"`)
}

// objects are the attributes of a variable that is a map of objects; free: it takes all.
func objects(v provision.Variable) (attributes []string, free, is bool) {
	if isType(v, `"dynamic"`, `["map","dynamic"]`) {
		return nil, true, true
	}
	var outer, object []json.RawMessage
	var members map[string]json.RawMessage
	if json.Unmarshal(v.TypeJSON, &outer) != nil || len(outer) != 2 || string(outer[0]) != `"map"` ||
		json.Unmarshal(outer[1], &object) != nil || len(object) < 2 || string(object[0]) != `"object"` || json.Unmarshal(object[1], &members) != nil {
		return nil, false, false
	}
	return slices.Collect(maps.Keys(members)), false, true
}

// encoded is a value of texts, numbers and the like as JSON.
func encoded(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // nothing here fails to encode
	}
	return text
}
