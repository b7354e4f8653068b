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
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// Ask is what a deploy of planned machines asks for. With problems it must not be queued as it
// is; a person can fill in what is missing.
type Ask struct {
	Cluster  uuid.UUID
	Snapshot provision.Snapshot
	Problems []string
}

// For composes what a deploy of machines asks for, all of one workspace. source is the
// template's version, if it is not the plan's. It must have been inspected, so that its
// variables are known: that they are not is a problem.
func For(ctx context.Context, s *store.Store, org uuid.UUID, source provision.TemplateSource, machines []store.Machine) (ask Ask, err error) {
	w, err := s.Situation(ctx, org, machines[0].WorkspaceID.String())
	if err != nil {
		return ask, err
	}
	var last *provision.Snapshot
	if _, snapshot, err := s.LastApplied(ctx, store.Workspace{ID: w.ID, Name: w.Name}); err == nil {
		was, err := provision.ParseSnapshot(snapshot)
		if err != nil {
			return ask, err
		}
		last = &was
	} else if refused, is := errors.AsType[*store.RefusedError](err); !is || refused.Reason != "never_deployed" {
		return ask, err
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
		ask.Snapshot, ask.Problems = plan, []string{"The variables of the template's version are not known yet: have it scanned first."}
		return ask, nil
	}
	ask.Snapshot, ask.Problems = Compose(last, known.Variables, list)
	return ask, nil
}

// Provision queues the deploy of machines that are planned in a workspace, by name or id;
// without any, of all of them. approval may be stricter than what the cluster wants. What can't be filled in is a *store.RefusedError with reason
// plan_incomplete.
func Provision(ctx context.Context, s *store.Store, w store.Workspace, refs []string, approval provision.Approval) (d store.Deployed, err error) {
	machines, err := s.PlannedMachines(ctx, w.ID, Most)
	if err != nil {
		return d, err
	}
	var chosen []store.Machine
	for _, ref := range refs {
		i := slices.IndexFunc(machines, func(m store.Machine) bool { return m.Name == ref || m.ID.String() == ref })
		if i < 0 {
			return d, &store.RefusedError{Code: "PT404", Reason: "machine_not_found", Message: fmt.Sprintf("there is no planned machine %q in workspace %s", ref, w.Name), Hint: "trellis machines list --status planned"}
		}
		chosen = append(chosen, machines[i])
	}
	if len(refs) == 0 {
		chosen = machines
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
	return s.Deploy(ctx, ask.Cluster, provision.OperationApply, text)
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
	there    bool // machines have been applied
	count    int
	problems []string
}

func (c *composer) problem(format string, values ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, values...))
}

// begin starts from what was applied last, or from nothing.
func (c *composer) begin(last *provision.Snapshot, plan provision.Snapshot) {
	c.s = provision.Snapshot{TemplateSource: plan.TemplateSource, Workspace: plan.Workspace}
	if last != nil && canonical.Address(last.TemplateSource.Repo) == canonical.Address(plan.TemplateSource.Repo) && canonical.Path(last.TemplateSource.Path) == canonical.Path(plan.TemplateSource.Path) {
		c.s.TerraformVars, c.s.SealedVars, c.s.Terraform, c.there = maps.Clone(last.TerraformVars), last.SealedVars, last.Terraform, true
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

// same compares two values as JSON.
func same(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
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
		if err := json.Unmarshal(c.s.TerraformVars[asMap], &there); err != nil {
			there = map[string]json.RawMessage{}
		}
		maps.DeleteFunc(said, func(name string, _ any) bool { return !free && !slices.Contains(attributes, name) })
		there[m.Name] = encoded(said)
		c.s.TerraformVars[asMap] = encoded(there)
		return
	}
	switch {
	case ofTexts(c.declared[asList]):
		var there []string
		if err := json.Unmarshal(c.s.TerraformVars[asList], &there); err != nil {
			there = nil
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
