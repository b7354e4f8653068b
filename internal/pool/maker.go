package pool

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// atOnce is how many machines of a run are worked on at a time.
const atOnce = 20

// Maker makes a workspace's machines in pools. It answers the requests of
// tendril-provisioner/1 as a program would; a plan is made by See, not by the protocol.
type Maker struct {
	// Pools are those that the run may use, by name.
	Pools map[string]Opened
	// Places are where the database has placed machines, by name. They are set before a
	// request that makes any.
	Places map[string]provision.Place
	// Named says that the template names the node of its machines: no other one will do.
	Named bool
	// After are shell commands that run in a machine once it is made, By "ssh" or "agent" (its
	// guest agent); "" is the pool's own way. Keys are those of the machines that are to be made
	// over SSH, by id.
	After []string
	By    string
	Keys  map[string]Keys
	// Mask hides a secret in the log. It is called before anything can print the secret.
	Mask func(secret string)
}

// Opened is a pool with what reaches it.
type Opened struct {
	Config Config
	Driver Driver
}

// Close closes all drivers.
func (m *Maker) Close() {
	for _, p := range m.Pools {
		_ = p.Driver.Close() // nothing was to be written
	}
}

// InitBlock is the block of a machine that every kind of pool has: what it is told at its
// first start.
const InitBlock = "cloud_init"

// Check says what is wrong with a machine as a template wants it, before anything is done.
func (m *Maker) Check(w provisioner.Wanted) error {
	p, there := m.Pools[w.Pool]
	switch {
	case !there:
		var names []string
		for name := range m.Pools {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Errorf("the machine %s: the pool %q is not in this agent's configuration, or not for this workspace%s; it may use %q", w.Name, w.Pool, provision.DidYouMean(w.Pool, names), names)
	case m.Enrolls(w):
		if !p.Config.Enroll {
			return fmt.Errorf("the machine %s: the pool %s lets this workspace enroll no servers: add the workspace to enroll in [[pools]] of the agent's configuration", w.Name, w.Pool)
		}
		if err := p.Driver.Settings(w.Settings[p.Config.Kind]); err != nil {
			return fmt.Errorf("the machine %s: %w", w.Name, err)
		}
		if w.Image != "" || w.Cores+w.Memory+w.Disk > 0 || w.Address != "" || len(w.Settings[InitBlock]) > 0 || len(m.After) > 0 {
			return fmt.Errorf("the machine %s is a server to be enrolled: image, cores, memory, disk, address, cloud_init and after are of machines that are made on servers", w.Name)
		}
		return nil
	case w.Cores == 0 || w.Memory == 0:
		return fmt.Errorf("the machine %s needs cores and memory: its place is chosen by them", w.Name)
	case w.Image == "" && p.Config.Kind != "static":
		return fmt.Errorf("the machine %s needs an image", w.Name)
	}
	init, err := initOf(w)
	if err != nil {
		return fmt.Errorf("the machine %s: %w", w.Name, err)
	}
	if err := m.checkAfter(p.Config, init); err != nil {
		return fmt.Errorf("the machine %s: commands in it (after) can't run: %w", w.Name, err)
	}
	if err := p.Driver.Settings(w.Settings[p.Config.Kind]); err != nil {
		return fmt.Errorf("the machine %s: %s: %s", w.Name, p.Config.Kind, strings.TrimPrefix(err.Error(), p.Config.Kind+": "))
	}
	return nil
}

// Enrolls reports whether a machine is a server that is made known to its pool.
func (m *Maker) Enrolls(w provisioner.Wanted) bool {
	p := m.Pools[w.Pool]
	e, can := p.Driver.(Enroller)
	return can && e.Enrolls(w.Settings[p.Config.Kind])
}

// Remember fills in what the settings of a server that is enrolled leave out and only the record has,
// and masks what nobody may read of them.
func (m *Maker) Remember(w *provisioner.Wanted, recorded map[string]json.RawMessage) error {
	p := m.Pools[w.Pool]
	e, can := p.Driver.(Enroller)
	kind := p.Config.Kind
	if !can || !e.Enrolls(w.Settings[kind]) {
		return nil
	}
	settings, err := e.Remembered(w.Settings[kind], recorded[kind])
	if err != nil {
		return fmt.Errorf("the machine %s: %w", w.Name, err)
	}
	w.Settings[kind] = settings
	for _, secret := range e.Secrets(settings) {
		m.Mask(secret)
	}
	return nil
}

// NeedsKeys reports whether commands run over SSH in the machines of a pool, with keys that are made
// for each. Machines that exist already have theirs.
func (m *Maker) NeedsKeys(pool string) bool {
	c := m.Pools[pool].Config
	return len(m.After) > 0 && m.overSSH(c) && c.Kind != "static"
}

// overSSH reports whether commands run over SSH. Servers have no guest agent.
func (m *Maker) overSSH(c Config) bool {
	return m.By == "ssh" || m.By == "" && provision.HasServers(c.Kind)
}

// checkAfter says why no command can run in a pool's machines.
func (m *Maker) checkAfter(c Config, init Init) error {
	switch {
	case len(m.After) == 0:
	case provision.HasServers(c.Kind) && !m.overSSH(c):
		return fmt.Errorf("the machines of the %s pool %s have no guest agent that Tendril could ask; write by = \"ssh\"", c.Kind, c.Name)
	case c.Kind == "static" && c.SSHKey == "":
		return fmt.Errorf("the static pool %s has no ssh_key_file in the agent's configuration, by which they would sign in", c.Name)
	case c.Kind != "static" && m.overSSH(c) && init.User == "":
		return errors.New("over SSH they run as the user of cloud_init { user = … }, which is missing")
	}
	return nil
}

// MaskInit masks what nobody may read of what a machine is told at its first start.
func (m *Maker) MaskInit(w provisioner.Wanted) {
	if init, err := initOf(w); err == nil && init.Password != "" {
		m.Mask(init.Password)
	}
}

// initOf reads the block InitBlock.
func initOf(w provisioner.Wanted) (init Init, err error) {
	raw := w.Settings[InitBlock]
	if len(raw) == 0 {
		return init, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&init); err != nil {
		return init, fmt.Errorf("%s: %s", InitBlock, strings.TrimPrefix(err.Error(), "json: "))
	}
	if !slices.Contains([]string{"", "address", "agent", "none"}, init.Wait) {
		return init, fmt.Errorf("%s: wait is \"address\", \"agent\" or \"none\"", InitBlock)
	}
	return init, nil
}

// Reserved is an address if it is one of the pool's ranges, else "": the machine got it itself.
func (m *Maker) Reserved(pool, address string) string {
	ip, err := netip.ParseAddr(address)
	for _, r := range m.Pools[pool].Config.Ranges {
		if err == nil && r.Contains(ip) {
			return address
		}
	}
	return ""
}

// Admit asks the drivers that know it what would keep machines from being made, before they are
// placed. It returns the nodes that will do, by the machines' names, where node names one: as the
// pool calls it.
func (m *Maker) Admit(ctx context.Context, wanted []provisioner.Wanted, node string) (map[string]string, error) {
	var mu sync.Mutex
	nodes := map[string]string{}
	err := each(ctx, wanted, func(w provisioner.Wanted) error {
		p, err := m.pool(w)
		if err != nil {
			return err
		}
		admits, can := p.Driver.(Admitter)
		if !can {
			return nil
		}
		init, err := initOf(w)
		if err != nil {
			return fmt.Errorf("the machine %s: %w", w.Name, err)
		}
		of, err := admits.Admit(ctx, Spec{ID: w.ID, Name: w.Name, Node: node, Image: w.Image, Init: init, Settings: w.Settings[p.Config.Kind]})
		if err != nil {
			return fmt.Errorf("the machine %s: %w", w.Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		nodes[w.Name] = of
		return nil
	})
	return nodes, err
}

// Seen is what See found of a machine.
type Seen struct {
	// Found is the machine; nil: it does not exist.
	Found *Found
	// Taken says that another machine is at its id, which is not Tendril's.
	Taken bool
}

// See looks for machines by their marks. An error says that something could not be asked, so
// that nothing is known.
func (m *Maker) See(ctx context.Context, wanted []provisioner.Wanted) (map[string]Seen, error) {
	var mu sync.Mutex
	seen := map[string]Seen{}
	err := each(ctx, wanted, func(w provisioner.Wanted) error {
		p, err := m.pool(w)
		if err != nil {
			return err
		}
		found, err := p.Driver.Look(ctx, m.ref(w))
		one := Seen{Found: &found}
		switch {
		case errors.Is(err, ErrForeign):
			one = Seen{Taken: true}
		case errors.Is(err, ErrGone):
			one = Seen{}
		case err != nil:
			return fmt.Errorf("the machine %s: %w", w.Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		seen[w.ID] = one
		return nil
	})
	return seen, err
}

func (m *Maker) ref(w provisioner.Wanted) Ref {
	return Ref{ID: w.ID, Name: w.Name, ExternalID: w.ExternalID, Node: w.Node, Server: m.Enrolls(w)}
}

func (m *Maker) pool(w provisioner.Wanted) (Opened, error) {
	p, there := m.Pools[w.Pool]
	if !there {
		return p, fmt.Errorf("the machine %s is in the pool %s, which is no longer in this agent's configuration, or not for this workspace", w.Name, w.Pool)
	}
	return p, nil
}

// each does something for all machines, some at a time, and returns all errors.
func each[T any](ctx context.Context, all []T, do func(T) error) error {
	var doing sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	slots := make(chan struct{}, atOnce)
	for _, one := range all {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			mu.Lock()
			failed = append(failed, context.Cause(ctx))
			mu.Unlock()
			break
		}
		doing.Go(func() {
			defer func() { <-slots }()
			if err := do(one); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	doing.Wait()
	return errors.Join(failed...)
}

// Handler answers requests.
func (m *Maker) Handler() provisioner.Handler {
	h := provisioner.Handler{
		Name: "pools", Idempotent: true, Detachable: m.detaches(),
		Plan: func(context.Context, *provisioner.Plan, *provisioner.Session) (any, error) { return nil, nil },
		Apply: func(ctx context.Context, r *provisioner.Apply, s *provisioner.Session) error {
			return m.applyOrDetach(ctx, &r.Work, r.Changes, r.Resume, s)
		},
		Destroy: func(ctx context.Context, r *provisioner.Destroy, s *provisioner.Session) error {
			return m.applyOrDetach(ctx, &r.Work, r.Changes, r.Resume, s)
		},
		Refresh: m.refresh,
	}
	for _, p := range m.Pools {
		if p.Config.Kind != "static" { // whose machines are switched elsewhere
			h.Power = m.power
		}
		_, rescues := p.Driver.(Rescuer)
		h.Rescues = h.Rescues || rescues
	}
	return h
}

// detaches reports whether machines are made by themselves once their making has begun, in all
// pools of the run. Commands in machines are carried out from here, each once.
func (m *Maker) detaches() bool {
	for _, p := range m.Pools {
		if d, can := p.Driver.(Detacher); !can || !d.Detaches() {
			return false
		}
	}
	return len(m.Pools) > 0 && len(m.After) == 0
}

// applyOrDetach is apply until the agent asks for the work to be left going on. resumes says that
// an earlier agent has begun it.
func (m *Maker) applyOrDetach(ctx context.Context, work *provisioner.Work, changes []provisioner.Change, resumes bool, s *provisioner.Session) error {
	if !m.detaches() {
		return m.apply(ctx, work, changes, false, s)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-s.Detach():
			stop(provisioner.ErrDetached)
		case <-ended:
		}
	})
	err := m.apply(ctx, work, changes, resumes, s)
	close(ended)
	watching.Wait()
	if err != nil && errors.Is(context.Cause(ctx), provisioner.ErrDetached) {
		return provisioner.ErrDetached
	}
	return err
}

// apply carries changes out. A machine that failed does not keep the others from being made.
func (m *Maker) apply(ctx context.Context, work *provisioner.Work, changes []provisioner.Change, resumes bool, s *provisioner.Session) error {
	var mu sync.Mutex
	var failed []failure
	do := func(c provisioner.Change) error {
		w := find(work, c.Machine)
		if w == nil {
			return fmt.Errorf("the plan changes a machine %s, which is not among those of the request", c.Machine)
		}
		err := m.carryOut(ctx, work, *w, c.Action, resumes, s)
		if refused := (*provisioner.RefusedError)(nil); errors.As(err, &refused) {
			return err // nothing is done that is not recorded
		}
		if err != nil && errors.Is(context.Cause(ctx), provisioner.ErrDetached) {
			return err // it goes on
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, failure{w.Name, err})
			return s.Log(provisioner.Log{Level: provisioner.LevelError, Message: fmt.Sprintf("%s: %v", w.Name, err)})
		}
		return nil
	}
	destroys := func(c provisioner.Change) bool { return c.Action == provisioner.ActionDestroy }
	// What goes away makes room for what comes.
	err := each(ctx, slices.DeleteFunc(slices.Clone(changes), func(c provisioner.Change) bool { return !destroys(c) }), do)
	if err == nil {
		err = each(ctx, slices.DeleteFunc(slices.Clone(changes), destroys), do)
	}
	if err != nil {
		return err
	}
	return failureOf(failed, len(changes))
}

// failure is a machine that failed.
type failure struct {
	name string
	err  error
}

// failureOf is what some of all machines failed with: by a code, if all of them have that one.
func failureOf(failed []failure, all int) error {
	if len(failed) == 0 {
		return nil
	}
	slices.SortFunc(failed, func(a, b failure) int { return cmp.Compare(a.name, b.name) })
	text := fmt.Sprintf("the machine %s: %v", failed[0].name, failed[0].err)
	if len(failed) > 1 {
		text = fmt.Sprintf("%d of %d machines failed; the first is %s: %v", len(failed), all, failed[0].name, failed[0].err)
	}
	codes := map[provision.Code]bool{}
	for _, f := range failed {
		var code provision.Code
		if e, has := errors.AsType[*CodeError](f.err); has {
			code = e.Code
		}
		codes[code] = true
	}
	for code := range codes {
		if len(codes) == 1 && code != "" {
			return &provisioner.ResultError{Code: string(code), Message: text}
		}
	}
	return errors.New(text)
}

// find is the machine of an id, wanted or obsolete.
func find(work *provisioner.Work, id string) *provisioner.Wanted {
	for _, all := range [][]provisioner.Wanted{work.Machines, work.Obsolete} {
		for i := range all {
			if all[i].ID == id {
				return &all[i]
			}
		}
	}
	return nil
}

// carryOut does one change. What there is of the machine afterwards has been told when it
// returns, whatever became of it.
func (m *Maker) carryOut(ctx context.Context, work *provisioner.Work, w provisioner.Wanted, action provisioner.Action, resumes bool, s *provisioner.Session) error {
	p, err := m.pool(w)
	if err != nil {
		return err
	}
	var spec Spec
	if action != provisioner.ActionDestroy {
		if spec, err = m.spec(p, work, w); err != nil {
			return err // nothing was done
		}
	}
	if action == provisioner.ActionChange {
		spec.Node = cmp.Or(w.Node, spec.Node) // where it is, wherever others have moved it
		found, err := p.Driver.Change(ctx, m.ref(w), spec, m.progress(s, w))
		return m.tell(s, p, w, found, err, false)
	}
	intent := provisioner.Intent{Machine: w.ID, Action: action, ExternalID: w.ExternalID, Name: w.Name}
	if place := m.Places[w.Name]; place.VMID > 0 && action == provisioner.ActionCreate {
		intent.ExternalID = fmt.Sprint(place.VMID)
	} else if p.Config.Kind == "static" && action != provisioner.ActionDestroy {
		intent.ExternalID = place.Node // by which a machine is found that nobody has told of
	}
	// An earlier agent has said what it was about to do: of a machine that is replaced, first that,
	// and then that the new one is made.
	said := func(action provisioner.Action) bool {
		return resumes && slices.ContainsFunc(work.Intents, func(i provisioner.Intent) bool { return i.Machine == w.ID && i.Action == action })
	}
	makes := action == provisioner.ActionReplace && said(provisioner.ActionCreate)
	if !said(action) && !makes {
		if err := s.Intent(ctx, intent); err != nil {
			return err
		}
	}
	if action != provisioner.ActionCreate && !makes {
		stays, err := m.again(ctx, p, w, spec, action, s)
		if err == nil && !stays {
			err = p.Driver.Destroy(ctx, m.ref(w), m.progress(s, w))
		}
		if err != nil {
			if errors.Is(context.Cause(ctx), provisioner.ErrDetached) {
				return err // the next agent goes on with it
			}
			return m.tell(s, p, w, Found{}, err, false)
		}
		if action == provisioner.ActionDestroy {
			return s.Machine(provisioner.Machine{ID: w.ID, Name: w.Name, Status: provisioner.StatusGone})
		}
		if !stays {
			w.ExternalID, w.Node, intent.ExternalID = "", "", ""
		}
		if m.detaches() {
			intent.Action = provisioner.ActionCreate
			if err := s.Intent(ctx, intent); err != nil {
				return err
			}
		}
	}
	progress := m.progress(s, w)
	found, err := p.Driver.Create(ctx, spec, progress)
	if err == nil && len(m.After) > 0 {
		if err = m.commands(ctx, p, w, spec, found, progress); err != nil {
			found.Ready, err = false, fmt.Errorf("it is made, but %w. The next deploy replaces it", err)
		}
	}
	if err != nil && errors.Is(context.Cause(ctx), provisioner.ErrDetached) {
		return m.left(s, p, w, found, err)
	}
	return m.tell(s, p, w, found, err, true)
}

// again begins to make a machine again where it is, if its driver can and it is to be replaced.
func (m *Maker) again(ctx context.Context, p Opened, w provisioner.Wanted, spec Spec, action provisioner.Action, s *provisioner.Session) (bool, error) {
	r, can := p.Driver.(Rebuilder)
	if !can || action != provisioner.ActionReplace {
		return false, nil
	}
	return r.Rebuild(ctx, m.ref(w), spec, m.progress(s, w))
}

// left says of a machine that is being made that its making goes on, once it bears its mark.
func (m *Maker) left(s *provisioner.Session, p Opened, w provisioner.Wanted, found Found, failed error) error {
	if found.ExternalID == "" {
		return failed // the intent is what there is
	}
	now := machineOf(p, w, found, m.Places[w.Name])
	now.Status = provisioner.StatusCreating
	return errors.Join(failed, s.Machine(now))
}

// commands runs the template's in a machine that is made. Each runs once: what was interrupted
// is not asked for again.
func (m *Maker) commands(ctx context.Context, p Opened, w provisioner.Wanted, spec Spec, found Found, progress Progress) error {
	progress.Step("after", "Running commands in the machine", 0)
	ref := Ref{ID: w.ID, Name: w.Name, ExternalID: found.ExternalID, Node: found.Node}
	run := func(command string) error { return p.Driver.Exec(ctx, ref, command, progress) }
	if m.overSSH(p.Config) {
		client, err := m.dial(ctx, p, ref, spec, found)
		if err != nil {
			return fmt.Errorf("it can't be reached over SSH for the commands in it: %w", err)
		}
		defer client.Close()
		progress.Log("signed in over SSH at %s", client.At())
		if spec.Init.Keys != nil {
			defer forget(ctx, client, spec.Init.Keys, progress)
		}
		run = func(command string) error {
			lines := Lines{Progress: progress}
			defer lines.End()
			status, err := client.Run(ctx, command, &lines)
			if err == nil && status != 0 {
				err = &ExitError{Status: status}
			}
			return err
		}
	}
	for i, command := range m.After {
		if err := run(command); err != nil {
			return fmt.Errorf("the command %q in it failed: %w", command, err)
		}
		progress.Step("after", "Running commands in the machine", (i+1)*100/len(m.After))
	}
	return nil
}

// spec is a machine as its driver makes it.
func (m *Maker) spec(p Opened, work *provisioner.Work, w provisioner.Wanted) (spec Spec, err error) {
	place := m.Places[w.Name]
	spec = Spec{
		ID: w.ID, Name: w.Name, Workspace: work.Workspace.Name, Node: cmp.Or(place.Node, w.Node), VMID: place.VMID, Named: m.Named,
		Image: cmp.Or(place.Image, w.Image), Cores: w.Cores, Memory: w.Memory, Disk: w.Disk, Labels: w.Labels, Settings: w.Settings[p.Config.Kind],
		Gateway: p.Config.Gateway, Nameservers: p.Config.Nameservers,
	}
	if m.Enrolls(w) {
		spec.Node = "" // it has no place
		return spec, nil
	}
	if spec.Node == "" {
		return spec, fmt.Errorf("no place is reserved for it")
	}
	if spec.Init, err = initOf(w); err != nil {
		return spec, err
	}
	if keys, has := m.Keys[w.ID]; has {
		spec.Init.Keys = &keys
	}
	if place.Address == "" {
		return spec, nil
	}
	address, err := netip.ParseAddr(place.Address)
	if err != nil {
		return spec, fmt.Errorf("the address %q that was reserved for it is none", place.Address)
	}
	for _, r := range p.Config.Ranges {
		if r.Contains(address) {
			spec.Address = netip.PrefixFrom(address, r.Bits)
			return spec, nil
		}
	}
	return spec, fmt.Errorf("the address %s that was reserved for it is in no range of the pool %s in this agent's configuration", address, p.Config.Name)
}

// tell says what a machine is after something was done to it, its making where making is true:
// one whose making failed is replaced by the next deploy, and any other is as it is. Where
// nothing is known of it, the hypervisor is asked: one that may exist is not forgotten.
func (m *Maker) tell(s *provisioner.Session, p Opened, w provisioner.Wanted, found Found, failed error, making bool) error {
	if failed != nil && found.ExternalID == "" {
		// Also where the run is being ended: it is the last thing that is done.
		ctx, cancel := context.WithTimeout(context.Background(), p.Config.Timeout)
		defer cancel()
		var err error
		switch found, err = p.Driver.Look(ctx, m.ref(w)); {
		case errors.Is(err, ErrGone), errors.Is(err, ErrForeign):
			return errors.Join(failed, s.Machine(provisioner.Machine{ID: w.ID, Name: w.Name, Status: provisioner.StatusGone}))
		case err != nil:
			return errors.Join(failed, s.Machine(provisioner.Machine{ID: w.ID, Name: w.Name, Status: provisioner.StatusUnknown}))
		}
	}
	now := machineOf(p, w, found, m.Places[w.Name])
	if failed != nil && making {
		now.Status = provisioner.StatusFailed
	}
	return errors.Join(failed, s.Machine(now))
}

// machineOf is the message about a machine.
func machineOf(p Opened, w provisioner.Wanted, found Found, place provision.Place) provisioner.Machine {
	now := provisioner.Machine{ID: w.ID, Name: w.Name, ExternalID: found.ExternalID, Node: found.Node, Status: found.Status, Address: place.Address}
	if !found.Ready { // its making was not completed
		now.Status = provisioner.StatusFailed
	}
	for _, address := range found.Addresses {
		now.Addresses = append(now.Addresses, address.String())
	}
	if now.Address == "" && len(now.Addresses) > 0 {
		now.Address = now.Addresses[0]
	}
	for _, known := range p.Config.Machines {
		if known.Name == found.Node {
			now.SSHPort = known.SSHPort
		}
	}
	if init, err := initOf(w); err == nil && init.Password != "" {
		now.Credentials = map[string]string{"user": init.User, "password": init.Password}
	}
	return now
}

// refresh tells how all machines are. Nothing is changed.
func (m *Maker) refresh(ctx context.Context, r *provisioner.Refresh, s *provisioner.Session) error {
	var targeted []provisioner.Wanted
	for _, w := range slices.Concat(r.Machines, r.Obsolete) {
		if r.Targeted(w.Name) {
			targeted = append(targeted, w)
		}
	}
	return each(ctx, targeted, func(w provisioner.Wanted) error {
		seen, err := m.See(ctx, []provisioner.Wanted{w})
		if err != nil {
			return errors.Join(err, s.Machine(provisioner.Machine{ID: w.ID, Name: w.Name, Status: provisioner.StatusUnknown}))
		}
		found := seen[w.ID].Found
		if found == nil {
			return s.Machine(provisioner.Machine{ID: w.ID, Name: w.Name, Status: provisioner.StatusGone})
		}
		if differs := Differences(w, *found); len(differs) > 0 {
			if err := s.Change(provisioner.Change{Machine: w.ID, Action: provisioner.ActionChange, Attributes: differs, Why: "it was changed outside of Tendril"}); err != nil {
				return err
			}
		}
		p, err := m.pool(w)
		if err != nil {
			return err
		}
		return s.Machine(machineOf(p, w, *found, m.Places[w.Name]))
	})
}

// Differences are the sizes in which a machine differs from how it is wanted.
func Differences(w provisioner.Wanted, found Found) (differ []provisioner.Attribute) {
	for _, size := range []struct {
		name       string
		is, wanted int
	}{{"cores", found.Cores, w.Cores}, {"memory", found.Memory, w.Memory}} {
		if size.is > 0 && size.wanted > 0 && size.is != size.wanted {
			differ = append(differ, provisioner.Attribute{Name: size.name, Before: json.RawMessage(fmt.Sprint(size.is)), After: json.RawMessage(fmt.Sprint(size.wanted))})
		}
	}
	return differ
}

// power starts, stops or restarts one machine, or boots a rescue system on it.
func (m *Maker) power(ctx context.Context, r *provisioner.Power, s *provisioner.Session) error {
	w := find(&r.Work, r.Machine)
	if w == nil {
		return fmt.Errorf("there is no machine %s", r.Machine)
	}
	p, err := m.pool(*w)
	if err != nil {
		return err
	}
	if r.Action == provisioner.PowerRescue || r.Action == provisioner.PowerUnrescue {
		return m.rescue(ctx, p, *w, r.Action, s)
	}
	found, err := p.Driver.Power(ctx, m.ref(*w), r.Action, m.progress(s, *w))
	if err != nil {
		return err
	}
	return s.Machine(machineOf(p, *w, found, m.Places[w.Name]))
}

// Rescues reports whether a machine can be booted from a rescue system.
func (m *Maker) Rescues(w provisioner.Wanted) bool {
	_, can := m.Pools[w.Pool].Driver.(Rescuer)
	return can && !m.Enrolls(w)
}

// rescue boots a machine from a rescue system, whose password is made here, or from its own again.
func (m *Maker) rescue(ctx context.Context, p Opened, w provisioner.Wanted, action provisioner.PowerAction, s *provisioner.Session) error {
	r, can := p.Driver.(Rescuer)
	if !can {
		return fmt.Errorf("the machines of the %s pool %s have no rescue system", p.Config.Kind, p.Config.Name)
	}
	if action == provisioner.PowerUnrescue {
		found, err := r.Unrescue(ctx, m.ref(w), m.progress(s, w))
		if err != nil {
			return err
		}
		return s.Machine(machineOf(p, w, found, m.Places[w.Name]))
	}
	password := rand.Text()
	found, err := r.Rescue(ctx, m.ref(w), password, m.progress(s, w))
	if err != nil {
		return err
	}
	now := machineOf(p, w, found, m.Places[w.Name])
	if now.Credentials == nil {
		now.Credentials = map[string]string{}
	}
	now.Credentials[provisioner.RescuePassword] = password
	return s.Machine(now)
}

func (m *Maker) progress(s *provisioner.Session, w provisioner.Wanted) Progress {
	p := &progress{session: s, machine: w, mask: m.Mask, reached: map[string]int{}}
	if m.detaches() {
		return &beginner{progress: p, maker: m}
	}
	return p
}

// beginner tells that a machine bears its mark: from then on another agent would find it.
type beginner struct {
	*progress
	maker *Maker
}

// Begun implements Beginner.
func (b *beginner) Begun(found Found) {
	w := b.machine
	_ = b.maker.left(b.session, b.maker.Pools[w.Pool], w, found, nil) // see progress
}

// progress tells of one machine. What can't be written to the agent is found out by the next
// message that matters.
type progress struct {
	session *provisioner.Session
	machine provisioner.Wanted
	mask    func(string)

	mu      sync.Mutex
	reached map[string]int // percents never go back
}

// Step implements Progress.
func (p *progress) Step(id, label string, percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reached[id] = max(p.reached[id], min(max(percent, 0), 100))
	_ = p.session.Step(provisioner.Step{ID: id, Label: label, Percent: float64(p.reached[id]), Machine: p.machine.ID}) // see progress
}

// Log implements Progress.
func (p *progress) Log(format string, args ...any) {
	_ = p.session.Logf("%s: %s", p.machine.Name, fmt.Sprintf(format, args...)) // see progress
}

// Secret implements Progress.
func (p *progress) Secret(text string) {
	if text != "" {
		p.mask(text)
	}
}
