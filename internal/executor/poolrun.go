package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/drivers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	messages "github.com/tendril-run/tendril/provisioner"
)

// poolTime is how long one request may take in pools: there is a limit for each of its steps.
const poolTime = 24 * time.Hour

// poolRun carries out a template whose machines are made in pools. The drivers are a part of
// this process, and speak the protocol of programs all the same, so that intents, adoption
// after a crash and steps are one mechanism. The plan is made here: the database places
// machines, and the pools say what there is.
type poolRun struct {
	*linesRun
	maker     *pool.Maker
	placement *templatefile.Placement
	// named are the nodes that the template names, by the machines' names, as the pools call them.
	named map[string]string
}

func newPoolRun(g given, file *templatefile.File) *poolRun {
	p := &poolRun{maker: &pool.Maker{Pools: map[string]pool.Opened{}, Places: map[string]provision.Place{}}}
	if file.InMachine != nil {
		p.maker.After, p.maker.By = file.InMachine.Run, file.InMachine.By
	}
	// A server that is enrolled is no machine that could be made again, or rescued.
	lacks := func(w messages.Wanted, action provision.MachineAction) bool {
		return action == provision.MachineRebuilds && p.maker.Enrolls(w) || action == provision.MachineRescues && !p.maker.Rescues(w)
	}
	p.maker.Mask = func(secret string) { g.log.Mask(secret) }
	p.linesRun = &linesRun{
		machineRun: &machineRun{given: g, file: file, compares: true, pooled: true, lacks: lacks, inPlace: []string{"cores", "memory", "disk"}, firstStart: pool.InitBlock},
		by: maker{
			name: "this agent's pools", timeout: poolTime, idempotent: true, trusted: true,
			start: func(io.Writer) (*program, error) { return serve(p.maker.Handler()), nil },
		},
	}
	return p
}

// Validate implements provisioner.
func (p *poolRun) Validate(plain, sealed map[string]json.RawMessage) (err error) {
	if err := p.machineRun.Validate(plain, sealed); err != nil {
		return err
	}
	// Whatever the template says of them, nobody reads these.
	for _, name := range []string{"password", "user_data"} {
		p.hidden[pool.InitBlock+"."+name] = true
	}
	if p.placement, err = p.file.Placement(p.typed); err != nil {
		return err
	}
	var needed []string
	for _, w := range p.wanted {
		needed = append(needed, w.Pool)
	}
	for _, m := range p.state.Machines {
		needed = append(needed, m.Wanted.Pool)
	}
	for _, config := range p.job.Pools {
		if !slices.Contains(needed, config.Name) {
			continue
		}
		driver, err := drivers.Open(config)
		if err != nil {
			return provision.Fail(provision.CodeCredentials, fmt.Sprintf("The pool %s of this agent's configuration can't be used: %s", config.Name, sentence(err.Error())), err)
		}
		p.maker.Pools[config.Name] = pool.Opened{Config: config, Driver: driver}
	}
	for kind := range p.enrollers() { // the same of these
		p.hidden[kind+"."+pool.EnrollSetting+"."+pool.EnrollSecret] = true
		p.inPlace = append(p.inPlace, kind+"."+pool.EnrollSetting+".")
	}
	for _, m := range p.state.Machines { // what is reserved, also where nothing is placed
		if p.maker.Enrolls(m.Wanted) {
			continue
		}
		p.maker.Places[m.Wanted.Name] = provision.Place{Name: m.Wanted.Name, Pool: m.Wanted.Pool, Node: m.Node, Address: p.maker.Reserved(m.Wanted.Pool, m.Address)}
	}
	for i, w := range p.wanted {
		if known := p.state.Named(w.Name); known != nil && known.Wanted.Pool != w.Pool {
			return provision.Fail(provision.CodePlacementRefused, fmt.Sprintf(
				"The machine %s is in the pool %s, and a machine can't move to another (%s). Destroy it first, or give the new one another name. Nothing was changed.", w.Name, known.Wanted.Pool, w.Pool), nil)
		}
		if err := p.enrolls(&p.wanted[i]); err != nil {
			return err
		}
		p.maker.MaskInit(w)
		if err := p.maker.Check(w); err != nil {
			return provision.Fail(provision.CodeVariablesInvalid, sentence(err.Error()), err)
		}
		for kind := range w.Settings { // those of another kind of pool make this machine no other
			if kind != pool.InitBlock && kind != p.maker.Pools[w.Pool].Config.Kind {
				delete(p.wanted[i].Settings, kind)
			}
		}
	}
	return nil
}

// enrollers are the kinds of the run's pools in which a machine can be a server that is enrolled.
func (p *poolRun) enrollers() map[string]bool {
	kinds := map[string]bool{}
	for _, each := range p.maker.Pools {
		if _, can := each.Driver.(pool.Enroller); can {
			kinds[each.Config.Kind] = true
		}
	}
	return kinds
}

// enrolls completes a machine that is a server to be enrolled from what is recorded of it: its
// secret is given once.
func (p *poolRun) enrolls(w *messages.Wanted) error {
	var recorded map[string]json.RawMessage
	if known := p.state.Named(w.Name); known != nil {
		recorded = known.Wanted.Settings
		if p.maker.Enrolls(known.Wanted) != p.maker.Enrolls(*w) {
			return provision.Fail(provision.CodePlacementRefused, fmt.Sprintf(
				"The machine %s can't become a server that is enrolled, nor such a server another machine. Destroy it first, or give the new one another name. Nothing was changed.", w.Name), nil)
		}
	}
	if err := p.maker.Remember(w, recorded); err != nil {
		return provision.Fail(provision.CodeVariablesInvalid, sentence(err.Error()), err)
	}
	return nil
}

// compare is as for all machines, but that a server whose enrolling was not completed is enrolled on:
// to remove it first would lose what Ironic knows of it.
func (p *poolRun) compare() error {
	if err := p.linesRun.compare(); err != nil {
		return err
	}
	for i, w := range p.plan.Wanted {
		if wanted := p.wantedOf(w.Name); p.maker.Enrolls(w) && wanted.Name != "" {
			p.plan.Wanted[i].Settings = wanted.Settings // also of one that is in doubt
		}
	}
	for i, c := range p.plan.Changes {
		if c.Action == messages.ActionReplace && p.maker.Enrolls(p.plan.Of(c)) && !slices.Contains(names(p.snapshot.Replace), c.Name) {
			p.plan.Changes[i].Action = messages.ActionCreate
		}
	}
	return nil
}

// Locate implements provisioner.
func (p *poolRun) Locate(context.Context) (provision.Detail, error) {
	p.programs = programs{task: p.task, dir: p.dir, confine: p.id.Confine, env: os.Environ()}
	return provision.Detail{Engine: p.engine, EngineVersion: "lines"}, nil
}

// Plan implements provisioner.
func (p *poolRun) Plan(ctx context.Context) (planned, error) {
	if err := p.describe(ctx); err != nil {
		return planned{}, err
	}
	if p.operation() == provision.OperationRefresh {
		return p.refresh(ctx)
	}
	if err := p.knowAgain(ctx); err != nil {
		return planned{}, failedAs(provision.CodePlanFailed, err)
	}
	if err := p.compare(); err != nil {
		return planned{}, err
	}
	p.locateStatic()
	if p.operation() != provision.OperationDestroy {
		if err := p.see(ctx); err != nil {
			return planned{}, failedAs(provision.CodePlanFailed, err)
		}
		if err := p.admit(ctx); err != nil {
			return planned{}, failedAs(provision.CodePlanFailed, err)
		}
		if err := p.reserve(ctx); err != nil {
			return planned{}, err
		}
		p.tellPlaces()
	}
	return p.planned()
}

// knowAgain asks for the machines of which nobody knew how they are, and at which no run was at
// work: one that is as it should be is compared as any other.
func (p *poolRun) knowAgain(ctx context.Context) error {
	for i := range p.state.Machines {
		m := &p.state.Machines[i]
		if m.Intent != nil || m.Status != messages.StatusUnknown {
			continue
		}
		w := m.Wanted
		w.ExternalID, w.Node = m.ExternalID, m.Node
		seen, err := p.maker.See(ctx, []messages.Wanted{w})
		if err != nil {
			return fmt.Errorf("ask how the machine %s is: %w", w.Name, err)
		}
		if found := seen[w.ID].Found; found != nil && found.Ready {
			m.Status, m.Node, m.ExternalID = found.Status, found.Node, found.ExternalID
		}
	}
	return nil
}

// Power implements powerSwitch.
func (p *poolRun) Power(ctx context.Context, to reporter) error {
	for _, name := range names(p.snapshot.Targets) {
		if m := p.state.Named(name); m != nil && p.maker.Pools[m.Wanted.Pool].Config.Kind == "static" {
			return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf("The machine %s belongs to the static pool %s, whose machines are started and stopped elsewhere. Nothing was done.", name, m.Wanted.Pool), nil)
		}
	}
	return p.linesRun.Power(ctx, to)
}

// Apply implements provisioner. A place in which no machine could be made is given back, so that
// the next run may get another.
func (p *poolRun) Apply(ctx context.Context, to reporter) error {
	if err := p.makeKeys(); err != nil {
		return err
	}
	err := p.linesRun.Apply(ctx, to)
	var unused []string
	for _, c := range p.plan.Changes {
		if c.Action == messages.ActionCreate && p.state.Named(c.Name) == nil && !p.maker.Enrolls(p.plan.Of(c)) {
			unused = append(unused, c.Name)
		}
	}
	if err == nil || len(unused) == 0 {
		return err
	}
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), resultPatience)
	defer cancel()
	return errors.Join(err, p.session.release(releasing, unused))
}

// makeKeys makes the keys of the machines that commands run in over SSH.
func (p *poolRun) makeKeys() (err error) {
	p.ssh, err = keysOf(p.state, p.plan, p.maker.NeedsKeys)
	p.maker.Keys = map[string]pool.Keys{}
	for id, keys := range p.ssh {
		p.log.Mask(keys.Login, keys.Host)
		p.maker.Keys[id] = pool.Keys(*keys)
	}
	return err
}

// keysOf are the keys of the machines that a plan makes in pools that need them, by id. One whose
// making was interrupted keeps those that it was told of then.
func keysOf(state *machines.State, plan *machines.Plan, needs func(pool string) bool) (map[string]*machines.SSHKeys, error) {
	all := map[string]*machines.SSHKeys{}
	for _, c := range plan.Changes {
		if c.Action != messages.ActionCreate && c.Action != messages.ActionReplace || !needs(plan.Of(c).Pool) {
			continue
		}
		if known := state.Find(c.Machine); known != nil && known.SSH != nil && c.Action == messages.ActionCreate {
			all[c.Machine] = known.SSH
			continue
		}
		made, err := pool.NewKeys()
		if err != nil {
			return nil, err
		}
		keys := machines.SSHKeys(made)
		all[c.Machine] = &keys
	}
	return all, nil
}

// targeted are the wanted machines that this run is about.
func (p *poolRun) targeted() (all []messages.Wanted) {
	targets := names(p.snapshot.Targets)
	for _, w := range p.plan.Wanted {
		if len(targets) == 0 || slices.Contains(targets, w.Name) {
			all = append(all, w)
		}
	}
	return all
}

// see compares the plan with what is in the pools: what is gone is made again, and what was
// changed by others is changed back.
func (p *poolRun) see(ctx context.Context) error {
	var recorded []messages.Wanted
	for _, w := range p.targeted() {
		if p.state.Find(w.ID) != nil {
			recorded = append(recorded, p.asRecorded(w))
		}
	}
	seen, err := p.maker.See(ctx, recorded)
	if err != nil {
		return fmt.Errorf("compare the plan with what is in the pools: %w", err)
	}
	var moved []string
	for _, w := range recorded {
		at := slices.IndexFunc(p.plan.Changes, func(c machines.Change) bool { return c.Machine == w.ID })
		one := seen[w.ID]
		if one.Taken {
			moved = append(moved, w.Name)
		}
		switch {
		case one.Found == nil && at < 0:
			p.plan.Changes = append(p.plan.Changes, machines.Change{Name: w.Name, Change: messages.Change{Machine: w.ID, Action: messages.ActionCreate, Why: "it is gone"}})
		case one.Found == nil && p.plan.Changes[at].Action != messages.ActionCreate:
			p.plan.Changes[at].Action, p.plan.Changes[at].Why = messages.ActionCreate, "it is gone"
		case one.Found != nil && at >= 0 && p.mayHaveBegun(w.ID, *one.Found):
			p.plan.Changes[at].Action = messages.ActionReplace
			p.plan.Changes[at].Why = "a run was interrupted while commands ran in this machine, or before they began; they are not run in it again"
		case one.Found != nil && at < 0:
			if differs := pool.Differences(w, *one.Found); len(differs) > 0 {
				p.plan.Changes = append(p.plan.Changes, machines.Change{Name: w.Name, Change: messages.Change{
					Machine: w.ID, Action: messages.ActionChange, Why: "it was changed outside of Tendril", Attributes: differs,
				}})
			}
		}
	}
	p.shrinks()
	if len(moved) == 0 {
		return nil
	}
	p.log.System("Another machine is where %v was: it gets another place.", moved)
	return p.session.release(ctx, moved)
}

// mayHaveBegun reports whether an interrupted run was at the commands in a machine: it is made, and
// nothing says that they have ended.
func (p *poolRun) mayHaveBegun(id string, found pool.Found) bool {
	known := p.state.Find(id)
	return len(p.maker.After) > 0 && known.Unfinished && known.Intent != nil && known.Intent.Action == messages.ActionCreate && found.Ready
}

// locateStatic says of machines of static pools whose handing out was interrupted which they are:
// the intent alone knows, and they bear no mark to be found by.
func (p *poolRun) locateStatic() {
	for _, all := range [][]messages.Wanted{p.plan.Wanted, p.plan.Obsolete} {
		for i, w := range all {
			known := p.state.Find(w.ID)
			if known != nil && known.Node == "" && known.Intent != nil && p.maker.Pools[known.Wanted.Pool].Config.Kind == "static" {
				all[i].Node = known.Intent.ExternalID
			}
		}
	}
}

// asRecorded is a machine with the pool that it was made in.
func (p *poolRun) asRecorded(w messages.Wanted) messages.Wanted {
	if known := p.state.Find(w.ID); known.Wanted.Pool != "" {
		w.Pool, w.Node = known.Wanted.Pool, cmp.Or(known.Node, w.Node)
	}
	return w
}

// shrinks has a machine replaced whose disk is to be smaller: that can't be changed.
func (p *poolRun) shrinks() {
	for i, c := range p.plan.Changes {
		for _, a := range c.Attributes {
			var before, after int
			if a.Name == "disk" && c.Action == messages.ActionChange && json.Unmarshal(a.Before, &before) == nil && (json.Unmarshal(a.After, &after) != nil || after < before) {
				p.plan.Changes[i].Action, p.plan.Changes[i].Why = messages.ActionReplace, "its disk is to be smaller"
			}
		}
	}
}

// admit asks the pools that know it what would keep machines from being made that the plan makes.
func (p *poolRun) admit(ctx context.Context) error {
	var made []messages.Wanted
	for _, w := range p.targeted() {
		makes := func(c machines.Change) bool {
			return c.Machine == w.ID && (c.Action == messages.ActionCreate || c.Action == messages.ActionReplace)
		}
		if slices.ContainsFunc(p.plan.Changes, makes) {
			made = append(made, w)
		}
	}
	node := ""
	if p.placement != nil {
		node = p.placement.Node
	}
	nodes, err := p.maker.Admit(ctx, made, node)
	if failed, has := errors.AsType[*pool.CodeError](err); has {
		return provision.Fail(failed.Code, sentence(err.Error()), err)
	}
	p.named, p.maker.Named = nodes, node != ""
	return err
}

// reserve has the database place the machines, those that are there as well: they keep their
// places.
func (p *poolRun) reserve(ctx context.Context) error {
	var wants []provision.PlaceWanted
	for _, w := range p.targeted() {
		if p.maker.Enrolls(w) {
			continue // it has no place, for others have theirs on it
		}
		machine := templatefile.Machine{Name: w.Name, Pool: w.Pool, Cores: w.Cores, Memory: w.Memory, Image: w.Image, Address: w.Address, Labels: w.Labels}
		want := p.placement.Want(machine, provision.HasServers(p.maker.Pools[w.Pool].Config.Kind))
		if node := p.named[w.Name]; node != "" {
			want.Node = node // as the pool calls it
		}
		wants = append(wants, want)
	}
	if len(wants) == 0 {
		return nil
	}
	places, err := p.session.places(ctx, wants)
	if err != nil {
		return err
	}
	for _, place := range places {
		p.maker.Places[place.Name] = place
	}
	for _, want := range wants {
		if p.maker.Places[want.Name].Node == "" && p.operation() != provision.OperationRefresh { // which gets no new ones
			return fmt.Errorf("the database answered without a place for the machine %s", want.Name)
		}
	}
	p.plan.Program, err = json.Marshal(p.maker.Places)
	return err
}

// tellPlaces says in the plan where each machine goes that is made, and why.
func (p *poolRun) tellPlaces() {
	for i := range p.plan.Changes {
		c := &p.plan.Changes[i]
		place, placed := p.maker.Places[c.Name]
		if !placed || c.Action != messages.ActionCreate && c.Action != messages.ActionReplace {
			continue
		}
		c.Attributes = slices.DeleteFunc(c.Attributes, func(a messages.Attribute) bool { return a.Name == "node" })
		node, err := json.Marshal(place.Node)
		if err == nil {
			c.Attributes = append(c.Attributes, messages.Attribute{Name: "node", After: node})
		}
		if place.Why != "" {
			p.log.System("%s goes to %s: %s", machines.Address(c.Name), place.Node, oneLine(place.Why))
		}
	}
}

// Recall implements provisioner. The places that were approved must still be reserved.
func (p *poolRun) Recall(ctx context.Context) (planned, error) {
	plan, err := p.linesRun.Recall(ctx)
	if err != nil || p.operation() == provision.OperationDestroy || len(p.plan.Program) == 0 {
		return plan, err
	}
	approved := map[string]provision.Place{}
	if err := json.Unmarshal(p.plan.Program, &approved); err != nil {
		return planned{}, planbundle.Invalid("the places of machines in it can't be read", err)
	}
	p.maker.Named = p.placement != nil && p.placement.Node != ""
	if err := p.reserve(ctx); err != nil {
		return planned{}, err
	}
	for name, place := range approved {
		if known := p.state.Named(name); known != nil && known.Intent != nil && known.Node != "" && known.Node == p.maker.Places[name].Node {
			continue // this run has begun to make it there
		}
		if now := p.maker.Places[name]; now.Node != place.Node || now.VMID != place.VMID || now.Address != place.Address {
			return planned{}, provision.Fail(provision.CodePlanStale, fmt.Sprintf(
				"The machine %s was to be made on %s, and that place is no longer reserved for it. Nothing was changed: plan again.", name, place.Node), nil)
		}
	}
	return plan, nil
}

// EditState implements stateEditor. To import is to take over a machine that exists in a pool: it is
// marked, and recorded as the one that the template wants.
func (p *poolRun) EditState(ctx context.Context, c provision.StateCommand, given []byte) error {
	if c.Command != "import" {
		return p.machineRun.EditState(ctx, c, given)
	}
	name := machines.Name(c.Args[0])
	if err := p.importMachine(ctx, name, c.Args[1]); err != nil {
		return failedAs(provision.CodeStateFailed, fmt.Errorf("import %s as the machine %s: %w", oneLine(c.Args[1]), name, err))
	}
	p.log.System("%s is taken over: it bears this machine's mark now.", machines.Address(name))
	return nil
}

func (p *poolRun) importMachine(ctx context.Context, name, where string) error {
	wanted, known := p.wantedOf(name), p.state.Named(name)
	switch {
	case wanted.Name == "":
		return errors.New("the template wants no such machine. Nothing was changed")
	case known != nil && known.InDoubt() && !known.Importing:
		return errors.New("a run was interrupted while it was at work on the machine of that name: deploy or destroy that one first. Nothing was changed")
	case known != nil && !known.Importing:
		return fmt.Errorf("the state has a machine of that name already: %s. Nothing was changed", known.ExternalID)
	case known != nil:
		wanted.ID = known.ID
	default:
		wanted.ID = uuid.NewString()
	}
	node, id, err := pool.ParseImport(where)
	if err == nil {
		err = p.maker.MayImport(wanted, id)
	}
	if err != nil {
		return fmt.Errorf("%w. Nothing was changed", err)
	}
	if _, err := p.session.places(ctx, []provision.PlaceWanted{{Name: name, Pool: wanted.Pool, Cores: wanted.Cores, Memory: wanted.Memory, Node: node, VMID: id}}); err != nil {
		return err
	}
	// The intent is stored first: the next run looks for a machine that has this mark. The
	// template's commands don't run in it.
	p.takesOver = true
	if err := p.intend(ctx, wanted, messages.ActionCreate); err != nil {
		return err
	}
	now, err := p.maker.Import(ctx, p.job.Assignment.Workspace, wanted, node, id)
	if !errors.Is(err, pool.ErrGone) {
		if err == nil {
			err = p.settle(now)
		}
		return err // with another error nobody knows: the intent stays
	}
	p.state.Restore(wanted.ID, nil)
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), resultPatience)
	defer cancel()
	return errors.Join(err, p.store(), p.session.release(releasing, []string{name}))
}

// Close implements provisioner.
func (p *poolRun) Close() {
	p.maker.Close()
	p.linesRun.Close()
}
