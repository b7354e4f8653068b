package ironic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/pool"
)

// Rescue implements pool.Rescuer. A server that is in rescue already is rescued once more, for nobody
// knows by which password it was.
func (d *Driver) Rescue(ctx context.Context, ref pool.Ref, password string, progress pool.Progress) (pool.Found, error) {
	progress.Secret(password)
	return d.leadTo(ctx, ref, verb{
		name: "rescue", state: "rescue", from: []string{"active", "rescue", "rescue failed", "unrescue failed"},
		request: map[string]any{"target": "rescue", "rescue_password": password},
	}, progress)
}

// Unrescue implements pool.Rescuer.
func (d *Driver) Unrescue(ctx context.Context, ref pool.Ref, progress pool.Progress) (pool.Found, error) {
	return d.leadTo(ctx, ref, verb{
		name: "unrescue", state: "active", there: true, from: []string{"rescue", "rescue failed", "unrescue failed"},
		request: map[string]any{"target": "unrescue"},
	}, progress)
}

// verb is one of Ironic's provision verbs for a machine that is deployed.
type verb struct {
	name string
	// state is where it leads; there says that a server which is there already needs nothing.
	state string
	there bool
	// from are the states that it can be asked for in.
	from    []string
	request map[string]any
}

// rescueSteps are how far a rescue, or its end, is in a state, in percent.
var rescueSteps = map[string]int{"rescuing": 20, "rescue wait": 60, "unrescuing": 40}

// leadTo has a machine's server carry out a verb, and waits until it has.
func (d *Driver) leadTo(ctx context.Context, ref pool.Ref, v verb, progress pool.Progress) (pool.Found, error) {
	found, err := d.leads(ctx, ref, v, progress)
	if err != nil {
		return found, coded(fmt.Errorf("%s machine %s: %w", v.name, ref.Name, err))
	}
	return found, nil
}

func (d *Driver) leads(ctx context.Context, ref pool.Ref, v verb, progress pool.Progress) (pool.Found, error) {
	if ref.Server {
		return pool.Found{}, errors.New("it is a server, and only a machine that is made on one boots a rescue system")
	}
	n, err := d.marked(ctx, ref.ID)
	if err == nil && n == nil {
		err = pool.ErrGone
	}
	if err != nil {
		return pool.Found{}, err
	}
	t, asked, tries := &told{progress: progress}, false, 0
	tell := func(n *node) { t.at(v.name, stageOf(n.ProvisionState).Label, rescueSteps[n.ProvisionState]) }
	for {
		n, err = d.follow(ctx, n.UUID, &settings{}, tell, progress, func(n *node) (bool, error) {
			if !n.ours(ref.ID) {
				return true, foreign(n)
			}
			return stageOf(n.ProvisionState).ends, nil
		})
		switch state := n.ProvisionState; {
		case errors.Is(err, pool.ErrForeign):
			return pool.Found{}, err
		case err != nil:
			return n.found(), err
		case state == v.state && (asked || v.there):
			t.at(v.name, stageOf(state).Label, 100)
			return n.found(), nil
		case asked && !faultIn(n.LastError).again:
			f := faultIn(n.LastError)
			return n.found(), fmt.Errorf("the server %s is in the state %s: %s%s. %s", n, state, stageOf(state).Label, because(n.LastError), capital(f.does))
		case !slices.Contains(v.from, state):
			return n.found(), fmt.Errorf("the server %s is in the state %s (%s), so there is no machine to %s", n, state, stageOf(state).Label, v.name)
		case n.Maintenance:
			return n.found(), notAvailable(n, "it is in maintenance"+because(n.MaintenanceReason)+". Unset that: `baremetal node maintenance unset "+n.String()+"`")
		}
		if tries++; tries > mostDeploys {
			return n.found(), fmt.Errorf("the server %s stays in the state %s (%s)%s", n, n.ProvisionState, stageOf(n.ProvisionState).Label, because(n.LastError))
		}
		switch err := d.provision(ctx, n, v.request); {
		case errors.Is(err, errMoved): // it may be by another's request, with another password
			asked = false
			if err := d.pause(ctx, 0); err != nil {
				return n.found(), err
			}
		case is(err, classRefused):
			p, _ := asProblem(err)
			return n.found(), fmt.Errorf("Ironic does not %s the server %s: %s. See that the server has a rescue_interface, and a rescue kernel and ramdisk in driver_info (`baremetal node validate %s`)", v.name, n, strings.TrimSuffix(p.text, "."), n) //nolint:staticcheck // Ironic is a name
		case err != nil:
			return n.found(), err
		default:
			asked = true
		}
	}
}
