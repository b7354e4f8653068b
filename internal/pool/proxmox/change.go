package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
)

// Change gives a machine other sizes, settings, or another node. What applies only after a
// restart has a running machine restarted, unless proxmox { reboot = false }.
func (d *Driver) Change(ctx context.Context, ref pool.Ref, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	if spec.Init.Password != "" {
		progress.Secret(spec.Init.Password)
	}
	m := &making{Driver: d, spec: spec, progress: progress, ref: ref}
	if err := m.check(); err != nil {
		return pool.Found{}, err
	}
	if ref.ID != spec.ID {
		return pool.Found{}, fmt.Errorf("machine %s: its id is %s, and can't become %s", ref.Name, ref.ID, spec.ID)
	}
	progress.Step("find", "Looking for the machine", 0)
	g, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, d.advised(fmt.Errorf("changing machine %s: %w", ref.Name, err))
	}
	if next, changeErr := m.alter(ctx, g); next != nil {
		g, err = next, changeErr
	} else {
		err = changeErr
	}
	f := d.found(context.WithoutCancel(ctx), g, spec.Address)
	if err != nil {
		return f, d.advised(fmt.Errorf("changing machine %s: %w", ref.Name, err))
	}
	return f, nil
}

func (m *making) alter(ctx context.Context, g *guest) (*guest, error) {
	disk, ok := g.disk()
	if want := int64(m.spec.Disk) << 30; ok && want > 0 && want < disk.bytes {
		return g, fmt.Errorf("its disk has %s, and a disk can't be made smaller", fields(g.config[disk.key])["size"])
	}
	if m.spec.Node != "" && m.spec.Node != g.node {
		next, err := m.migrate(ctx, g)
		if err != nil {
			return g, err
		}
		g = next
	}
	if m.settings.Snapshot {
		return m.alterOrRollBack(ctx, g)
	}
	return m.reconfigure(ctx, g)
}

// beforeChange is the name of the snapshot that a change is rolled back to.
const beforeChange = "tendril-before-change"

// alterOrRollBack has a snapshot made before the machine is reconfigured. A change that fails
// is rolled back to it; one that was interrupted goes on with the next run.
func (m *making) alterOrRollBack(ctx context.Context, g *guest) (*guest, error) {
	// A snapshot is kept only if the machine has not run since: to roll back to an older one would
	// undo what it has done. An interrupted change may have left the machine stopped.
	now, err := m.current(ctx, g)
	if err != nil {
		return g, err
	}
	_, state := marks(g.config["description"])
	ran := now.Status == "running" || state == restarting
	if now.Status == "running" || state != restarting {
		for _, want := range []bool{false, true} {
			if err := m.haveSnapshot(ctx, g, want); err != nil {
				return g, err
			}
		}
	}
	next, err := m.reconfigure(ctx, g)
	switch {
	case err == nil:
		if err := m.haveSnapshot(ctx, next, false); err != nil {
			return next, fmt.Errorf("the change is made, but snapshot %s must be removed by hand: %w", beforeChange, err)
		}
		return next, nil
	case ctx.Err() != nil:
		return next, fmt.Errorf("%w; the next deploy goes on with the change", err)
	}
	m.progress.Log("the change failed, so the machine goes back to how it was: %v", err)
	back, failed := m.rollBack(ctx, next, ran)
	if failed != nil {
		return next, fmt.Errorf("%w; and the machine could not be rolled back to snapshot %s: %w", err, beforeChange, failed)
	}
	return back, fmt.Errorf("%w; the machine is rolled back to how it was", err)
}

// reconfigure gives a machine its settings and sizes, and restarts it if it must.
func (m *making) reconfigure(ctx context.Context, g *guest) (*guest, error) {
	m.progress.Step("configure", "Configuring the machine", 62)
	g, err := m.change(ctx, g, m.limits.change, func(g *guest) url.Values {
		// The first start has read user, keys and address; they change with a new machine.
		out := m.wanted(g)
		for _, key := range []string{"ciuser", "cipassword", "sshkeys", "ipconfig0", "cicustom"} {
			out.Del(key)
		}
		return out
	})
	if err != nil {
		return g, err
	}
	if g, err = m.grow(ctx, g); err != nil {
		return g, err
	}
	open, err := m.pending(ctx, g)
	if err != nil {
		return g, err
	}
	if _, state := marks(g.config["description"]); state == restarting {
		m.progress.Log("going on with a restart that was interrupted")
	} else {
		if len(open) == 0 {
			return g, nil
		}
		if !yes(m.settings.Reboot, true) {
			m.progress.Log("%s apply when the machine is started next", strings.Join(open, ", "))
			return g, nil
		}
		m.progress.Log("restarting the machine: %s apply only then", strings.Join(open, ", "))
		// After a crash the next run reads here that the machine ran, and starts it again.
		if g, err = m.restate(ctx, g, restarting); err != nil {
			return g, err
		}
	}
	if len(open) > 0 {
		if err := m.shutdown(ctx, g, m.spec.ID, m.progress); err != nil {
			return g, err
		}
	}
	if err := m.start(ctx, g, step{id: "start", label: "Starting the machine", from: 80, to: 95, limit: m.limits.start}, m.progress); err != nil {
		return g, err
	}
	return m.restate(ctx, g, ready)
}

// restate writes the state into a machine's description.
func (m *making) restate(ctx context.Context, g *guest, state string) (*guest, error) {
	return m.change(ctx, g, m.limits.change, func(g *guest) url.Values {
		if _, now := marks(g.config["description"]); now == state {
			return nil
		}
		return url.Values{"description": {restate(g.config["description"], state)}}
	})
}

var keys = lazyregexp.New(`^[a-z0-9_-]{1,40}$`)

// pending are the keys that apply only after a restart.
func (d *Driver) pending(ctx context.Context, g *guest) ([]string, error) {
	var all []struct {
		Key     string `json:"key"`
		Pending any    `json:"pending"`
		Delete  number `json:"delete"`
	}
	if err := d.client.get(ctx, g.path()+"/pending", nil, &all); err != nil {
		return nil, err
	}
	var out []string
	for _, p := range all {
		if (p.Pending != nil || p.Delete != 0) && keys.MatchString(p.Key) {
			out = append(out, p.Key)
		}
	}
	return out, nil
}

// migrate moves a machine to the node that it should be on.
func (m *making) migrate(ctx context.Context, g *guest) (*guest, error) {
	s := step{id: "migrate", label: "Moving the machine to " + m.spec.Node, from: 5, to: 60, limit: m.limits.migrate}
	s.begin(m.progress)
	id := g.id
	err := m.converge(ctx, s, m.progress, func(ctx context.Context) (bool, error) {
		moved, err := m.read(ctx, m.spec.Node, id)
		switch {
		case err == nil && moved.marked(m.spec.ID):
			g = moved
			return true, nil
		case err == nil:
			return false, fmt.Errorf("VM %d on node %s: %w", id, m.spec.Node, pool.ErrForeign)
		case missing(err):
			return false, nil
		}
		return false, err
	}, func(ctx context.Context) (string, error) {
		if _, err := m.guard(ctx, g, m.spec.ID); err != nil {
			return "", err
		}
		params := url.Values{"target": {m.spec.Node}}
		if now, err := m.current(ctx, g); err == nil && now.Status == "running" {
			params.Set("online", "1")
			params.Set("with-local-disks", "1")
		}
		var upid string
		_, err := m.client.once(ctx, http.MethodPost, g.path()+"/migrate", params, &upid)
		return upid, err
	})
	return g, err
}

// haveSnapshot makes the snapshot, or removes it. It asks for nothing that is so already.
func (m *making) haveSnapshot(ctx context.Context, g *guest, want bool) error {
	s := step{id: "snapshot", label: "Making a snapshot", from: 60, to: 62, limit: m.limits.resize}
	if !want {
		s.label = "Removing an older snapshot"
	}
	return m.converge(ctx, s, m.progress, func(ctx context.Context) (bool, error) {
		var all []struct {
			Name string `json:"name"`
		}
		if err := m.client.get(ctx, g.path()+"/snapshot", nil, &all); err != nil {
			return false, err
		}
		has := false
		for _, sn := range all {
			has = has || sn.Name == beforeChange
		}
		return has == want, nil
	}, func(ctx context.Context) (upid string, err error) {
		if _, err := m.guard(ctx, g, m.spec.ID); err != nil {
			return "", err
		}
		s.begin(m.progress)
		if want {
			_, err = m.client.once(ctx, http.MethodPost, g.path()+"/snapshot", url.Values{"snapname": {beforeChange}, "description": {"made by Tendril"}}, &upid)
		} else {
			_, err = m.client.once(ctx, http.MethodDelete, g.path()+"/snapshot/"+beforeChange, nil, &upid)
		}
		return upid, err
	})
}

// rollBack brings a machine back to the snapshot, starts it if it ran, and removes the
// snapshot. Nothing tells a rollback that was done from one that was not, so a lost answer
// ends it with an error.
func (m *making) rollBack(ctx context.Context, g *guest, ran bool) (*guest, error) {
	if _, err := m.guard(ctx, g, m.spec.ID); err != nil {
		return nil, err
	}
	if ran { // after a crash the next run reads here that the machine ran, and starts it again
		next, err := m.restate(ctx, g, restarting)
		if err != nil {
			return nil, err
		}
		g = next
	}
	var upid string
	s := step{id: "rollback", label: "Rolling the machine back", from: 62, to: 80, limit: m.limits.resize}
	s.begin(m.progress)
	if _, err := m.client.once(ctx, http.MethodPost, g.path()+"/snapshot/"+beforeChange+"/rollback", nil, &upid); err != nil {
		return nil, err
	}
	if err := m.follow(ctx, upid, s, m.progress); err != nil {
		return nil, err
	}
	if ran {
		if err := m.start(ctx, g, step{id: "start", label: "Starting the machine", from: 80, to: 95, limit: m.limits.start}, m.progress); err != nil {
			return nil, err
		}
	}
	back, err := m.restate(ctx, g, ready)
	if err != nil {
		return nil, err
	}
	return back, m.haveSnapshot(ctx, back, false)
}

// Import marks a machine that exists, so that it is Tendril's from now on. It is for an
// administrator's explicit word: whatever bears a mark already is refused.
func (d *Driver) Import(ctx context.Context, node string, vmid int, spec pool.Spec) (pool.Found, error) {
	if !nodeNames.MatchString(node) || vmid < 100 || vmid > 999999999 || !ids.MatchString(spec.ID) {
		return pool.Found{}, fmt.Errorf("importing VM %d of node %q as %q: one of them is malformed", vmid, clean(node), clean(spec.ID))
	}
	if !d.usable(node) {
		return pool.Found{}, fmt.Errorf("importing VM %d of node %s: pool %s does not let machines be on that node", vmid, node, d.config.Name)
	}
	g, err := d.read(ctx, node, vmid)
	if err != nil {
		return pool.Found{}, d.advised(fmt.Errorf("importing VM %d: %w", vmid, err))
	}
	text := g.config["description"]
	switch mark, _ := marks(text); {
	case mark == spec.ID:
		return d.found(ctx, g, netip.Prefix{}), nil
	case strings.Contains(text, markLine):
		return pool.Found{}, fmt.Errorf("importing %s: it bears another machine's mark: %w", g, pool.ErrForeign)
	case g.config["template"] == "1":
		return pool.Found{}, fmt.Errorf("importing %s: it is a template", g)
	case g.config["lock"] != "":
		return pool.Found{}, d.advised(fmt.Errorf("importing %s: VM is locked (%s)", g, clean(g.config["lock"])))
	}
	m := &making{Driver: d, spec: spec}
	params := url.Values{"description": {strings.TrimRight(describe(spec, ready)+"\n\n"+text, "\n")}, "tags": {m.tags(g)}, "digest": {g.config["digest"]}}
	if _, err := d.client.once(ctx, http.MethodPut, g.path()+"/config", params, nil); err != nil {
		return pool.Found{}, d.advised(fmt.Errorf("importing %s: %w", g, err))
	}
	if g, err = d.read(ctx, node, vmid); err != nil {
		return pool.Found{ExternalID: strconv.Itoa(vmid), Node: node, Mark: spec.ID}, err
	}
	return d.found(ctx, g, netip.Prefix{}), nil
}
