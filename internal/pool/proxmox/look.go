package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/provisioner"
)

// Look finds a machine by its mark.
func (d *Driver) Look(ctx context.Context, ref pool.Ref) (pool.Found, error) {
	g, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, d.advised(fmt.Errorf("looking for machine %s: %w", ref.Name, err))
	}
	return d.found(ctx, g, netip.Prefix{}), nil
}

// find reads the machine that bears the mark: where it was last, then everywhere.
func (d *Driver) find(ctx context.Context, ref pool.Ref) (*guest, error) {
	if !ids.MatchString(ref.ID) {
		return nil, fmt.Errorf("%q is no machine's id", clean(ref.ID))
	}
	if id, err := strconv.Atoi(ref.ExternalID); err == nil && id >= 100 && nodeNames.MatchString(ref.Node) {
		g, err := d.read(ctx, ref.Node, id)
		if err == nil && g.marked(ref.ID) {
			return g, nil
		}
		var lost *lostError
		if errors.As(err, &lost) && ctx.Err() != nil {
			return nil, err
		}
	}
	// Machines move while they are read, between nodes and away: a list of which one part could
	// not be read is made again.
	for tries := 0; ; tries++ {
		g, moved, err := d.search(ctx, ref)
		if err != nil || g != nil {
			return g, err
		}
		if !moved {
			return nil, pool.ErrGone
		}
		if tries == mostTries || !retry.Sleep(ctx, d.client.scaled(time.Second)) {
			return nil, fmt.Errorf("the cluster's machines change while they are read; nothing is known of this one: %w", pool.ErrUnreachable)
		}
	}
}

func (g *guest) marked(id string) bool {
	mark, _ := marks(g.config["description"])
	return mark == id && id != ""
}

// atOnce is how many configurations are read side by side.
const atOnce = 8

// search reads all machines, those first that are likely. moved says that some were not where
// the list had them.
func (d *Driver) search(ctx context.Context, ref pool.Ref) (found *guest, moved bool, err error) {
	rows, err := d.everywhere(ctx)
	if err != nil {
		return nil, false, err
	}
	nodes, err := d.nodes(ctx)
	if err != nil {
		return nil, false, err
	}
	offline := map[string]bool{}
	for _, n := range nodes {
		offline[n.Node] = n.Status != "online"
	}
	var likely, rest []machineRow
	var unread []string
	for _, r := range rows {
		switch {
		case r.Type != "" && r.Type != "qemu":
		case offline[r.Node]:
			unread = append(unread, fmt.Sprintf("VM %d of node %s, which is offline", int(r.VMID), r.Node))
		case strconv.Itoa(int(r.VMID)) == ref.ExternalID, ref.Name != "" && r.Name == ref.Name, r.Name == "", slices.Contains(strings.FieldsFunc(r.Tags, func(c rune) bool { return c == ';' || c == ',' || c == ' ' }), tagged):
			likely = append(likely, r)
		default:
			rest = append(rest, r)
		}
	}
	for _, part := range [][]machineRow{likely, rest} {
		found, gone, refused, err := d.among(ctx, part, ref)
		if err != nil || found != nil {
			return found, false, err
		}
		moved = moved || gone
		unread = append(unread, refused...)
	}
	if moved {
		return nil, true, nil
	}
	if len(unread) > 0 {
		more := ""
		if len(unread) > 3 {
			more = fmt.Sprintf(" and %d more", len(unread)-3)
			unread = unread[:3]
		}
		return nil, false, fmt.Errorf("it is none of the machines that could be read, and may be one of those that could not: %s%s: %w", strings.Join(unread, ", "), more, pool.ErrUnreachable)
	}
	return nil, false, d.sawAll(ctx, ref)
}

// among reads machines side by side and returns the one that bears the mark.
func (d *Driver) among(ctx context.Context, rows []machineRow, ref pool.Ref) (found *guest, moved bool, unread []string, err error) {
	var mu sync.Mutex
	var all []*guest
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, r := range rows {
		group.Go(func() error {
			g, err := d.read(inner, r.Node, int(r.VMID))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && g.marked(ref.ID):
				all = append(all, g)
			case err == nil:
			case missing(err):
				moved = true
			case inner.Err() != nil:
				return err
			default:
				unread = append(unread, fmt.Sprintf("VM %d of node %s (%s)", int(r.VMID), r.Node, clean(err.Error())))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, false, nil, err
	}
	slices.Sort(unread)
	switch {
	case len(all) == 0:
		return nil, moved, unread, nil
	case len(all) > 1:
		for _, g := range all {
			if strconv.Itoa(g.id) == ref.ExternalID {
				return g, false, nil, nil
			}
		}
		slices.SortFunc(all, func(a, b *guest) int { return a.id - b.id })
		return nil, false, nil, fmt.Errorf("%s and %s both bear its mark, so one is a copy that someone made by hand; take the line %q out of the copy's notes", all[0], all[1], markLine+ref.ID)
	}
	return all[0], false, nil, nil
}

// sawAll returns nil if the token sees all machines, for what it does not see is not listed.
func (d *Driver) sawAll(ctx context.Context, ref pool.Ref) error {
	have, err := d.privileges(ctx, "/vms", true)
	if err != nil {
		return err
	}
	if have["VM.Audit"] {
		return nil
	}
	// Everybody may ask whether a VMID is in use.
	if id, err := strconv.Atoi(ref.ExternalID); err == nil && id >= 100 {
		var free string
		err := d.client.get(ctx, "/cluster/nextid", url.Values{"vmid": {ref.ExternalID}}, &free)
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("it is none of the machines that the token %s sees, which are not all; %s: %w", d.client.identity(), d.grant("/vms", "VM.Audit"), pool.ErrUnreachable)
}

// privileges are what the token may at a path, or at the path and all below it: Proxmox says of
// each privilege whether it propagates.
func (d *Driver) privileges(ctx context.Context, path string, below bool) (map[string]bool, error) {
	var all map[string]map[string]number
	if err := d.client.get(ctx, "/access/permissions", url.Values{"path": {path}}, &all); err != nil {
		return nil, fmt.Errorf("reading the token's privileges: %w", err)
	}
	out := map[string]bool{}
	for name, propagates := range all[path] {
		out[name] = propagates == 1 || !below
	}
	return out, nil
}

// current is a machine's power.
type current struct {
	Status string `json:"status"`
	QMP    string `json:"qmpstatus"`
	Lock   string `json:"lock"`
	Uptime number `json:"uptime"`
}

func (d *Driver) current(ctx context.Context, g *guest) (current, error) {
	var c current
	return c, d.client.get(ctx, g.path()+"/status/current", nil, &c)
}

// found is what is known of a machine: what can't be asked is left out.
func (d *Driver) found(ctx context.Context, g *guest, static netip.Prefix) pool.Found {
	mark, state := marks(g.config["description"])
	f := pool.Found{
		Mark: mark, ExternalID: strconv.Itoa(g.id), Name: g.config["name"], Node: g.node, Status: provisioner.StatusUnknown,
		Cores: g.cores(), Memory: g.memory(), Ready: state != creating && g.config["lock"] == "",
	}
	if disk, ok := g.disk(); ok {
		f.Disk = int((disk.bytes + 1<<30 - 1) >> 30)
	}
	switch now, err := d.current(ctx, g); {
	case err != nil:
	case now.Lock == "clone" || now.Lock == "create":
		f.Status = provisioner.StatusCreating
	case now.Status == "running":
		f.Status = provisioner.StatusRunning
	case now.Status == "stopped":
		f.Status = provisioner.StatusStopped
	}
	f.Addresses = g.static()
	if static.IsValid() && len(f.Addresses) == 0 {
		f.Addresses = []netip.Addr{static.Addr()}
	}
	if len(f.Addresses) == 0 && f.Status == provisioner.StatusRunning && g.agent() {
		f.Addresses, _ = d.reported(ctx, g)
	}
	return f
}
