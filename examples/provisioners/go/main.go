// Command go is a provisioner for Tendril, written in Go. Its cloud is a directory: each file
// in it is a machine, and has the id that Tendril gave to that machine. So it runs anywhere,
// and shows what a provisioner for a real cloud has to do.
//
//	FAKE_CLOUD=DIRECTORY    where the machines are; without it, ./cloud
//
// Replace the type cloud by your cloud's client.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/provisioner"
)

func main() {
	dir := os.Getenv("FAKE_CLOUD")
	if dir == "" {
		dir = "cloud"
	}
	c := cloud(dir)
	err := provisioner.Serve(context.Background(), provisioner.Handler{
		Name: "fake-cloud-go", Version: "1.0.0", Idempotent: true, Detachable: true,
		Plan: c.plan, Apply: c.apply, Destroy: c.destroy, Refresh: c.refresh,
		Power: c.power, Rebuild: c.rebuild, Health: c.health,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// plan says what would be done to each machine.
func (c cloud) plan(_ context.Context, r *provisioner.Plan, s *provisioner.Session) (any, error) {
	for _, m := range r.Machines {
		if !r.Targeted(m.Name) {
			continue
		}
		there, err := c.find(m.ID)
		if err != nil {
			return nil, err
		}
		if err := s.Change(changeOf(r.Mode, m, there)); err != nil {
			return nil, err
		}
	}
	for _, m := range r.Obsolete {
		there, err := c.find(m.ID)
		if err != nil {
			return nil, err
		}
		if there != nil && r.Targeted(m.Name) {
			if err := s.Change(provisioner.Change{Machine: m.ID, Action: provisioner.ActionDestroy, Why: "the template no longer declares it"}); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil // the changes are all that apply needs
}

// changeOf compares a machine with what is there.
func changeOf(mode provisioner.Mode, m provisioner.Wanted, there *vm) provisioner.Change {
	change := provisioner.Change{Machine: m.ID, Action: provisioner.ActionNone}
	compare := func(name string, before, after any) {
		if before != after {
			change.Attributes = append(change.Attributes, provisioner.Attribute{Name: name, Before: value(before), After: value(after)})
		}
	}
	switch {
	case mode == provisioner.ModeDestroy && there != nil:
		change.Action = provisioner.ActionDestroy
	case mode == provisioner.ModeDestroy:
	case there == nil:
		change.Action = provisioner.ActionCreate
		compare("image", nil, m.Image)
		compare("cores", nil, m.Cores)
		compare("memory", nil, m.Memory)
	default:
		compare("cores", there.Cores, m.Cores)
		compare("memory", there.Memory, m.Memory)
		if len(change.Attributes) > 0 {
			change.Action = provisioner.ActionChange
		}
		if there.Image != m.Image {
			compare("image", there.Image, m.Image)
			change.Action, change.Why = provisioner.ActionReplace, "a new image needs a new disk"
		}
	}
	return change
}

func value(v any) json.RawMessage {
	raw, _ := json.Marshal(v) // texts and numbers
	return raw
}

func (c cloud) apply(ctx context.Context, r *provisioner.Apply, s *provisioner.Session) error {
	return c.carryOut(ctx, &r.Work, r.Changes, r.Resume, s)
}

func (c cloud) destroy(ctx context.Context, r *provisioner.Destroy, s *provisioner.Session) error {
	return c.carryOut(ctx, &r.Work, r.Changes, r.Resume, s)
}

// carryOut does what was approved, and reports each machine at once: what isn't reported is
// forgotten if this program is killed.
func (c cloud) carryOut(ctx context.Context, w *provisioner.Work, changes []provisioner.Change, resume bool, s *provisioner.Session) error {
	for _, change := range changes {
		// Here nothing is half done.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Detach():
			return provisioner.ErrDetached
		default:
		}
		m := w.Find(change.Machine)
		if m == nil {
			continue
		}
		var err error
		switch change.Action {
		case provisioner.ActionCreate, provisioner.ActionReplace:
			err = c.make(ctx, *m, change.Action, resume && begun(w, m.ID), s)
		case provisioner.ActionDestroy:
			err = c.remove(ctx, *m, s)
		case provisioner.ActionChange:
			err = c.resize(*m, s)
		case provisioner.ActionNone:
			err = c.tell(*m, s)
		}
		if err != nil {
			return err
		}
	}
	return s.State(map[string]string{"cloud": string(c)})
}

// begun reports whether an earlier program has begun to make a machine, for the same request.
func begun(w *provisioner.Work, id string) bool {
	return slices.ContainsFunc(w.Intents, func(i provisioner.Intent) bool { return i.Machine == id })
}

// make creates a machine, or replaces it. It looks for the machine first: an earlier attempt
// may have been killed after it created it.
func (c cloud) make(ctx context.Context, m provisioner.Wanted, action provisioner.Action, begun bool, s *provisioner.Session) error {
	if !begun {
		if err := s.Intent(ctx, provisioner.Intent{Machine: m.ID, Action: action, Name: m.Name}); err != nil {
			return err
		}
	}
	if err := s.Step(provisioner.Step{ID: "create", Label: "Creating the machine", Machine: m.ID}); err != nil {
		return err
	}
	machine, err := c.find(m.ID)
	if err != nil {
		return errors.Join(err, unknown(m, s))
	}
	if machine == nil {
		machine = &vm{ID: m.ID, External: "vm-" + strings.ToLower(rand.Text()[:12])}
	} else if action == provisioner.ActionCreate {
		_ = s.Logf("machine %s is there already, as %s", m.Name, machine.External)
	}
	machine.Name, machine.Image, machine.Cores, machine.Memory, machine.Status = m.Name, m.Image, m.Cores, m.Memory, provisioner.StatusRunning
	if err := c.save(machine); err != nil {
		return errors.Join(err, unknown(m, s))
	}
	if err := s.Step(provisioner.Step{ID: "create", Machine: m.ID, Percent: 100}); err != nil {
		return err
	}
	report := machine.report()
	report.Credentials = map[string]string{"root_password": rand.Text()}
	return s.Machine(report)
}

// unknown reports a machine of which an acknowledged intent was not carried out to its end.
func unknown(m provisioner.Wanted, s *provisioner.Session) error {
	return s.Machine(provisioner.Machine{ID: m.ID, Name: m.Name, Status: provisioner.StatusUnknown})
}

// remove destroys a machine.
func (c cloud) remove(ctx context.Context, m provisioner.Wanted, s *provisioner.Session) error {
	machine, err := c.find(m.ID)
	if err != nil {
		return err
	}
	if machine != nil {
		if err := s.Intent(ctx, provisioner.Intent{Machine: m.ID, Action: provisioner.ActionDestroy, ExternalID: machine.External}); err != nil {
			return err
		}
		if err := os.Remove(c.path(machine.External)); err != nil && !os.IsNotExist(err) {
			return errors.Join(fmt.Errorf("destroy machine %s: %w", m.Name, err), unknown(m, s))
		}
	}
	return s.Machine(provisioner.Machine{ID: m.ID, Name: m.Name, Status: provisioner.StatusGone})
}

// tell reports a machine that stays as it is. Tendril may not know it, if an earlier attempt
// was killed.
func (c cloud) tell(m provisioner.Wanted, s *provisioner.Session) error {
	machine, err := c.find(m.ID)
	if err != nil || machine == nil {
		return err
	}
	return s.Machine(machine.report())
}

// resize changes what can be changed while the machine is kept.
func (c cloud) resize(m provisioner.Wanted, s *provisioner.Session) error {
	machine, err := c.need(&m)
	if err != nil {
		return err
	}
	machine.Cores, machine.Memory = m.Cores, m.Memory
	if err := c.save(machine); err != nil {
		return err
	}
	return s.Machine(machine.report())
}

func (c cloud) refresh(_ context.Context, r *provisioner.Refresh, s *provisioner.Session) error {
	for _, m := range append(r.Machines, r.Obsolete...) {
		machine, err := c.find(m.ID)
		if err != nil {
			return err // "could not ask" is never reported as gone
		}
		report := provisioner.Machine{ID: m.ID, Name: m.Name, Status: provisioner.StatusGone}
		if machine != nil {
			report = machine.report()
		}
		if err := s.Machine(report); err != nil {
			return err
		}
	}
	return nil
}

func (c cloud) power(_ context.Context, r *provisioner.Power, s *provisioner.Session) error {
	machine, err := c.need(r.Find(r.Machine))
	if err != nil {
		return err
	}
	machine.Status = provisioner.StatusRunning
	if r.Action == provisioner.PowerStop {
		machine.Status = provisioner.StatusStopped
	}
	if err := c.save(machine); err != nil {
		return err
	}
	return s.Machine(machine.report())
}

func (c cloud) rebuild(ctx context.Context, r *provisioner.Rebuild, s *provisioner.Session) error {
	m := r.Find(r.Machine)
	if _, err := c.need(m); err != nil {
		return err
	}
	return c.make(ctx, *m, provisioner.ActionReplace, r.Resume && begun(&r.Work, m.ID), s)
}

func (c cloud) health(_ context.Context, r *provisioner.Health, _ *provisioner.Session) (provisioner.HealthStatus, error) {
	machine, err := c.find(r.Machine)
	switch {
	case err != nil:
		return "", err
	case machine == nil || machine.Status != provisioner.StatusRunning:
		return provisioner.Unhealthy, nil
	}
	return provisioner.Healthy, nil
}

// cloud is a directory of machines.
type cloud string

// vm is one of them.
type vm struct {
	External string                    `json:"-"` // the file's name
	ID       string                    `json:"id"`
	Name     string                    `json:"name"`
	Image    string                    `json:"image"`
	Cores    int                       `json:"cores"`
	Memory   int                       `json:"memory"`
	Status   provisioner.MachineStatus `json:"status"`
}

func (m *vm) report() provisioner.Machine {
	address := fmt.Sprintf("192.0.2.%d", 1+int(m.External[len(m.External)-1]))
	return provisioner.Machine{ID: m.ID, Name: m.Name, ExternalID: m.External, Node: "fake-1", Address: address, Addresses: []string{address}, SSHPort: 22, Status: m.Status}
}

func (c cloud) path(external string) string { return filepath.Join(string(c), external) }

// find returns the machine that bears an id, and nil if there is none.
func (c cloud) find(id string) (*vm, error) {
	files, err := filepath.Glob(c.path("vm-*"))
	if err != nil {
		return nil, fmt.Errorf("list the machines in %s: %w", c, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, &provisioner.ResultError{Code: provisioner.CodeUnreachable, Message: fmt.Sprintf("read machine %s: %v", file, err), Retry: true}
		}
		m := vm{External: filepath.Base(file)}
		if err := json.Unmarshal(content, &m); err != nil {
			return nil, fmt.Errorf("read machine %s: %w", file, err)
		}
		if m.ID == id {
			return &m, nil
		}
	}
	return nil, nil
}

// need is find for a machine that must be there.
func (c cloud) need(m *provisioner.Wanted) (*vm, error) {
	if m == nil {
		return nil, &provisioner.ResultError{Code: provisioner.CodeInvalid, Message: "the machine isn't one of the request's"}
	}
	machine, err := c.find(m.ID)
	if err == nil && machine == nil {
		err = fmt.Errorf("machine %s doesn't exist: apply creates it", m.Name)
	}
	return machine, err
}

// save writes a machine under a name that find ignores and renames it, so that it is there
// as a whole or not at all.
func (c cloud) save(m *vm) error {
	content, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(string(c), 0o755) //nolint:gosec // others may look at a fake cloud
	}
	if err == nil {
		err = os.WriteFile(c.path(".new-"+m.External), content, 0o600)
	}
	if err == nil {
		err = os.Rename(c.path(".new-"+m.External), c.path(m.External))
	}
	if err != nil {
		return fmt.Errorf("write machine %s: %w", m.Name, err)
	}
	return nil
}
