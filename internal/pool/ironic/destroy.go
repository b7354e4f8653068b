package ironic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/pool"
)

// Destroy implements pool.Driver: the server is undeployed, cleaned as the template asked, and
// free for others. It ends when it is free. A machine that is a server is removed from Ironic.
func (d *Driver) Destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	do := d.destroy
	if ref.Server {
		do = d.removeServer
	}
	if err := do(ctx, ref, progress); err != nil {
		return coded(fmt.Errorf("destroying machine %s: %w", ref.Name, err))
	}
	return nil
}

func (d *Driver) destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	t := &told{progress: progress}
	t.at("undeploy", "Undeploying the server", 0)
	n, err := d.marked(ctx, ref.ID)
	if err != nil {
		return err
	}
	if n == nil {
		if err := d.unallocate(ctx, ref.ID); err != nil { // one that has no server yet
			return err
		}
		// It may have got one meanwhile.
		if n, err = d.marked(ctx, ref.ID); err != nil {
			return err
		}
	}
	if n == nil {
		if n, err = d.leftBehind(ctx, ref); err != nil || n == nil {
			return err
		}
	}
	if err := d.undeploy(ctx, ref.ID, n, t); !errors.Is(err, pool.ErrForeign) {
		return err
	}
	return nil // somebody has it by now: it is free of this machine
}

// leftBehind finds the server that the machine was on, if nobody has it since: its cleaning was
// interrupted. nil: there is none, and so nothing to do. It may be one that the pool uses no more.
func (d *Driver) leftBehind(ctx context.Context, ref pool.Ref) (*node, error) {
	all, err := d.every(ctx, "look for the server that machine "+clean(ref.ID)+" was on")
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.left(ref.ID) {
			return &n, nil
		}
	}
	return nil, nil
}

// undeploy brings a server to where it is free, from whatever state it is in.
//
//	active ──► (automated_clean off, maintenance on) ──► deleting ──► available
//	  where a cleaning was asked for: ──► manageable ──► cleaning ──► manageable ──► available
//	──► (automated_clean as it was, maintenance off)
//
// Maintenance keeps others' allocations away until it is cleaned and as it was. A server that is another's by now
// is pool.ErrForeign.
func (d *Driver) undeploy(ctx context.Context, id string, n *node, t *told) error {
	how, asked, cleaned := n.extra(extraClean), 0, false
	s := &settings{CleanTimeout: n.extra(extraCleanTime)}
	label := func(n *node) {
		stage := stageOf(n.ProvisionState)
		reach := map[string]int{"deleting": 20, "cleaning": 50, "clean wait": 60, "manageable": 80}[n.ProvisionState]
		t.at(n.ProvisionState, stage.Label, reach)
	}
	for {
		var err error
		n, err = d.follow(ctx, n.UUID, s, label, t.progress, func(n *node) (bool, error) {
			if !n.ours(id) && !n.left(id) {
				return true, pool.ErrForeign
			}
			stage := stageOf(n.ProvisionState)
			return stage.ends || n.ours(id) && n.ProvisionState == "wait call-back", nil
		})
		if err != nil {
			return err
		}
		if !n.ours(id) && !n.left(id) {
			return pool.ErrForeign
		}
		state := n.ProvisionState
		switch {
		case n.ours(id) && (state == "available" || state == "manageable" || state == "enroll" || state == "inspect failed" || state == "adopt failed"):
			// Allocated, and never deployed.
			if err := d.unallocate(ctx, id); err != nil {
				return err
			}
			if n.AllocationUUID == "" {
				if err := d.patch(ctx, n, "take the machine's mark off the server", func(n *node) []map[string]any {
					if !n.ours(id) {
						return nil
					}
					return []map[string]any{remove("/instance_uuid")}
				}); err != nil {
					return err
				}
			}
			how = "" // nothing was written to its disks
		case n.ours(id):
			if asked++; asked > mostDeploys {
				return fmt.Errorf("the server %s stays in the state %s (%s)%s. %s", n, state, stageOf(state).Label, because(n.LastError), stageOf(state).Do)
			}
			if n.Protected {
				return fmt.Errorf("the server %s is protected in Ironic; unset that: `baremetal node unset %s --protected`", n, n)
			}
			if asked > 1 && stageOf(state).failed {
				f := faultIn(n.LastError)
				return fmt.Errorf("the server %s is in the state %s: %s%s. %s; %s", n, state, stageOf(state).Label, because(n.LastError), f.name, f.does)
			}
			if err := d.hold(ctx, id, n, how); err != nil {
				return err
			}
			if err := d.provision(ctx, n, map[string]any{"target": "deleted"}); err != nil && !errors.Is(err, errMoved) {
				return err
			}
			t.at("undeploy", "Undeploying the server", 10)
		case state == "available" && slices.Contains([]string{"metadata", "full"}, how) && !cleaned:
			if err := d.provision(ctx, n, map[string]any{"target": "manage"}); err != nil && !errors.Is(err, errMoved) {
				return err
			}
		case state == "available":
			if err := d.release(ctx, n); err != nil {
				return err
			}
			t.at("available", "Free", 100)
			return nil
		case state == "manageable" && slices.Contains([]string{"metadata", "full"}, how) && !cleaned:
			cleaned = true
			if err := d.unhold(ctx, n); err != nil { // a server that cleans itself is not heard in it
				return err
			}
			name := map[string]string{"metadata": "erase_devices_metadata", "full": "erase_devices"}[how]
			steps := []map[string]any{{"interface": "deploy", "step": name}}
			if err := d.provision(ctx, n, map[string]any{"target": "clean", "clean_steps": steps}); err != nil && !errors.Is(err, errMoved) {
				return err
			}
		case state == "manageable":
			if _, noted := n.Extra[extraCleaned]; noted && !n.Maintenance {
				if err := d.maintenance(ctx, n, held(id)); err != nil {
					return err
				}
			}
			if err := d.provision(ctx, n, map[string]any{"target": "provide"}); err != nil && !errors.Is(err, errMoved) {
				return err
			}
		default:
			f := faultIn(n.LastError)
			return fmt.Errorf("the machine is gone, and its server %s is in the state %s: %s%s. %s. %s", n, state, stageOf(state).Label, because(n.LastError), capital(f.does), strings.ReplaceAll(stageOf(state).Do, "SERVER", n.String()))
		}
	}
}

// hold switches Ironic's own cleaning off where the template asked for another one, and keeps the
// server from being given away before that is done.
func (d *Driver) hold(ctx context.Context, id string, n *node, how string) error {
	if how == "" {
		if n.extra(extraMachine) == id {
			return nil
		}
		// The next attempt finds the server by this once the mark is gone.
		return d.patch(ctx, n, "write the machine's id on the server", func(*node) []map[string]any { return []map[string]any{add("/extra/"+extraMachine, id)} })
	}
	err := d.patch(ctx, n, "set how the server is cleaned", func(n *node) (changes []map[string]any) {
		if _, noted := n.Extra[extraCleaned]; !noted {
			was := ""
			if n.AutomatedClean != nil {
				was = fmt.Sprint(*n.AutomatedClean)
			}
			changes = append(changes, add("/extra/"+extraCleaned, was), add("/automated_clean", false))
		}
		if n.extra(extraMachine) != id {
			changes = append(changes, add("/extra/"+extraMachine, id))
		}
		return changes
	})
	if err != nil || n.Maintenance {
		return err
	}
	return d.maintenance(ctx, n, held(id))
}

// heldReason is by what a maintenance of Tendril's is known, and held has the machine for which it is.
const heldReason = "Tendril cleans this server before others may use it"

func held(id string) string { return heldReason + " (machine " + id + ")" }

// unhold ends the maintenance of hold.
func (d *Driver) unhold(ctx context.Context, n *node) error {
	if !n.Maintenance || !strings.HasPrefix(n.MaintenanceReason, heldReason) {
		return nil
	}
	return d.maintenance(ctx, n, "")
}

// restored sets automated_clean back to what it was before hold.
func restored(n *node) map[string]any {
	if was := n.extra(extraCleaned); was != "" {
		return add("/automated_clean", was == "true")
	}
	return add("/automated_clean", nil) // to remove it, Ironic 21.4 answers 500
}

// release takes off a server what Tendril has written on it, and sets back what it has changed. The
// maintenance ends last: from then on others get the server.
func (d *Driver) release(ctx context.Context, n *node) error {
	err := d.patch(ctx, n, "take what Tendril has written off the server", func(n *node) (changes []map[string]any) {
		for _, name := range slices.Sorted(maps.Keys(n.Extra)) {
			if strings.HasPrefix(name, extraPrefix) {
				changes = append(changes, remove("/extra/"+name))
			}
		}
		if _, noted := n.Extra[extraCleaned]; noted {
			changes = append(changes, restored(n))
		}
		return changes
	})
	if err != nil {
		return err
	}
	return d.unhold(ctx, n)
}
