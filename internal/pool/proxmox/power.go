package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/provisioner"
)

// guard reads a machine again and refuses one that bears another mark.
func (d *Driver) guard(ctx context.Context, g *guest, id string) (*guest, error) {
	again, err := d.read(ctx, g.node, g.id)
	if err != nil {
		return nil, err
	}
	if !again.marked(id) {
		return nil, fmt.Errorf("%s: %w", g, pool.ErrForeign)
	}
	return again, nil
}

// start starts a machine that bears its mark.
func (d *Driver) start(ctx context.Context, g *guest, s step, progress pool.Progress) error {
	mark, _ := marks(g.config["description"])
	shown := false
	return d.converge(ctx, s, progress, d.is(g, "running"), func(ctx context.Context) (string, error) {
		if !shown {
			shown = true
			s.begin(progress)
		}
		return d.order(ctx, g, mark, "start", nil)
	})
}

// is asks whether a machine runs or has stopped.
func (d *Driver) is(g *guest, status string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		now, err := d.current(ctx, g)
		return err == nil && now.Status == status, err
	}
}

// order asks for a task of a machine, after its mark was read again.
func (d *Driver) order(ctx context.Context, g *guest, mark, action string, params url.Values) (string, error) {
	if _, err := d.guard(ctx, g, mark); err != nil {
		return "", err
	}
	var upid string
	_, err := d.client.once(ctx, http.MethodPost, g.path()+"/status/"+action, params, &upid)
	return upid, err
}

// shutdown has the guest end, and switches it off if it does not.
func (d *Driver) shutdown(ctx context.Context, g *guest, mark string, progress pool.Progress) error {
	s := step{id: "stop", label: "Stopping the machine", from: 10, to: 45, limit: d.limits.stop}
	s.begin(progress)
	params := url.Values{"timeout": {strconv.Itoa(int(shutdownWithin / time.Second))}, "forceStop": {"1"}}
	return d.converge(ctx, s, progress, d.is(g, "stopped"), func(ctx context.Context) (string, error) {
		return d.order(ctx, g, mark, "shutdown", params)
	})
}

// Power starts, stops or restarts a machine.
func (d *Driver) Power(ctx context.Context, ref pool.Ref, action provisioner.PowerAction, progress pool.Progress) (pool.Found, error) {
	g, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, d.advised(fmt.Errorf("machine %s: %w", ref.Name, err))
	}
	if action == provisioner.PowerStop || action == provisioner.PowerRestart {
		err = d.shutdown(ctx, g, ref.ID, progress)
	}
	if err == nil && (action == provisioner.PowerStart || action == provisioner.PowerRestart) {
		err = d.start(ctx, g, step{id: "start", label: "Starting the machine", from: 50, to: 95, limit: d.limits.start}, progress)
	}
	f := d.found(ctx, g, netip.Prefix{})
	if err != nil {
		return f, d.advised(fmt.Errorf("machine %s: %w", ref.Name, err))
	}
	return f, nil
}

// Destroy removes a machine with its disks, also those that its configuration has forgotten.
func (d *Driver) Destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	err := d.destroy(ctx, ref, progress)
	if errors.Is(err, pool.ErrGone) {
		return nil
	}
	if err != nil {
		return d.advised(fmt.Errorf("removing machine %s: %w", ref.Name, err))
	}
	return nil
}

func (d *Driver) destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	progress.Step("find", "Looking for the machine", 0)
	g, err := d.find(ctx, ref)
	if err != nil {
		return err
	}
	if g, err = d.free(ctx, g, ref, progress); err != nil {
		return err
	}
	if g.config["protection"] == "1" {
		return fmt.Errorf("%s: protection mode enabled", g)
	}
	if err := d.switchOff(ctx, g, ref, progress); err != nil && !missing(err) {
		return err
	}
	s := step{id: "delete", label: "Deleting the machine", from: 50, to: 95, limit: d.limits.destroy}
	s.begin(progress)
	return d.converge(ctx, s, progress, func(ctx context.Context) (bool, error) {
		again, err := d.read(ctx, g.node, g.id)
		if missing(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		return !again.marked(ref.ID), nil // someone else's already: ours is gone
	}, func(ctx context.Context) (string, error) {
		if now, err := d.current(ctx, g); err == nil && now.Status == "running" {
			if err := d.switchOff(ctx, g, ref, progress); err != nil {
				return "", err
			}
		}
		if _, err := d.guard(ctx, g, ref.ID); err != nil {
			return "", err
		}
		var upid string
		_, err := d.client.once(ctx, http.MethodDelete, g.path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"1"}}, &upid)
		return upid, err
	})
}

// free waits until a machine's lock is gone: of a clone that still runs, a backup.
func (d *Driver) free(ctx context.Context, g *guest, ref pool.Ref, progress pool.Progress) (*guest, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.limits.destroy, errStepTime)
	defer cancel()
	told := false
	for {
		lock := g.config["lock"]
		if lock == "" {
			return g, nil
		}
		if !told {
			told = true
			progress.Log("%s is locked (%s); waiting until that ends", g, clean(lock))
		}
		if !retry.Sleep(ctx, d.client.scaled(2*time.Second)) {
			return nil, fmt.Errorf("%s: VM is locked (%s) (%w)", g, clean(lock), context.Cause(ctx))
		}
		again, err := d.read(ctx, g.node, g.id)
		if missing(err) || err == nil && !again.marked(ref.ID) {
			return nil, pool.ErrGone
		}
		if err != nil {
			return nil, err
		}
		g = again
	}
}

// switchOff stops a machine that is to be deleted, at once.
func (d *Driver) switchOff(ctx context.Context, g *guest, ref pool.Ref, progress pool.Progress) error {
	s := step{id: "stop", label: "Stopping the machine", from: 10, to: 45, limit: d.limits.stop}
	overrule := url.Values{"overrule-shutdown": {"1"}}
	return d.converge(ctx, s, progress, d.is(g, "stopped"), func(ctx context.Context) (string, error) {
		s.begin(progress)
		upid, err := d.order(ctx, g, ref.ID, "stop", overrule)
		if status(err, http.StatusBadRequest) && overrule != nil { // before 8.2
			overrule = nil
			upid, err = d.order(ctx, g, ref.ID, "stop", nil)
		}
		return upid, err
	})
}
