package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
)

// Driver is a pool of kind proxmox.
type Driver struct {
	config pool.Config
	client *client
	limits limits
}

// limits are how long one step may take. A step that is over its time ends with an error; the
// next Create or Destroy finds the work that Proxmox goes on with.
type limits struct {
	clone, change, resize, start, agent, stop, destroy, migrate, exec time.Duration
}

var usual = limits{
	clone: time.Hour, change: 2 * time.Minute, resize: 10 * time.Minute, start: 5 * time.Minute, agent: 10 * time.Minute,
	stop: 5 * time.Minute, destroy: 10 * time.Minute, migrate: 2 * time.Hour, exec: time.Hour,
}

// shutdownWithin is how long a guest may take to shut down before it is switched off.
const shutdownWithin = 90 * time.Second

// Open checks a pool's configuration and reads its token. It does not connect yet.
func Open(c pool.Config) (pool.Driver, error) { return open(c, 1, usual) }

// open makes a driver whose waits are pace times as short.
func open(c pool.Config, pace float64, l limits) (*Driver, error) {
	cl, err := newClient(c, pace)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", c.Name, err)
	}
	return &Driver{config: c, client: cl, limits: l}, nil
}

// Close ends idle connections.
func (d *Driver) Close() error {
	d.client.http.CloseIdleConnections()
	return nil
}

// Settings checks a template's block proxmox { … }.
func (d *Driver) Settings(raw json.RawMessage) error {
	s, err := parse(raw)
	if err != nil {
		return err
	}
	return d.allowed(s)
}

var nodeNames = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// mostNodes and mostMachines bound what is read of a cluster.
const (
	mostNodes    = 128
	mostMachines = 50000
)

// nodeRow is one of GET /nodes.
type nodeRow struct {
	Node   string `json:"node"`
	Status string `json:"status"`
	CPU    number `json:"cpu"`
	MaxCPU number `json:"maxcpu"`
	Mem    number `json:"mem"`
	MaxMem number `json:"maxmem"`
}

func (d *Driver) nodes(ctx context.Context) ([]nodeRow, error) {
	var all []nodeRow
	if err := d.client.get(ctx, "/nodes", nil, &all); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	if len(all) > mostNodes {
		return nil, fmt.Errorf("listing nodes: Proxmox shows %d, and no cluster has more than %d", len(all), mostNodes)
	}
	for _, n := range all {
		if !nodeNames.MatchString(n.Node) {
			return nil, fmt.Errorf("listing nodes: %q is no name of a node", clean(n.Node))
		}
	}
	slices.SortFunc(all, func(a, b nodeRow) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// usable reports whether the pool's operator lets machines be on a node.
func (d *Driver) usable(node string) bool {
	return len(d.config.Nodes) == 0 || slices.Contains(d.config.Nodes, node)
}

// machineRow is one of GET /nodes/N/qemu, or of /cluster/resources.
type machineRow struct {
	VMID     number `json:"vmid"`
	Name     string `json:"name"`
	Node     string `json:"node"`
	Type     string `json:"type"`
	Template number `json:"template"`
	Status   string `json:"status"`
	Tags     string `json:"tags"`
	Lock     string `json:"lock"`
}

func (d *Driver) machinesOf(ctx context.Context, node string) ([]machineRow, error) {
	var all []machineRow
	if err := d.client.get(ctx, "/nodes/"+node+"/qemu", nil, &all); err != nil {
		return nil, fmt.Errorf("listing the machines of node %s: %w", node, err)
	}
	if len(all) > mostMachines {
		return nil, fmt.Errorf("listing the machines of node %s: %d are more than the %d that are read", node, len(all), mostMachines)
	}
	for i := range all {
		if id := all[i].VMID; id < 1 || id > 999999999 || id != number(int(id)) {
			return nil, fmt.Errorf("listing the machines of node %s: %v is no VMID", node, float64(id))
		}
		all[i].Node = node
	}
	slices.SortFunc(all, func(a, b machineRow) int { return int(a.VMID) - int(b.VMID) })
	return all, nil
}

// everywhere lists the machines and containers of all nodes, the offline ones' too.
func (d *Driver) everywhere(ctx context.Context) ([]machineRow, error) {
	var all []machineRow
	if err := d.client.get(ctx, "/cluster/resources", url.Values{"type": {"vm"}}, &all); err != nil {
		return nil, fmt.Errorf("listing the cluster's machines: %w", err)
	}
	if len(all) > mostMachines {
		return nil, fmt.Errorf("listing the cluster's machines: %d are more than the %d that are read", len(all), mostMachines)
	}
	for _, m := range all {
		if m.VMID < 1 || m.VMID > 999999999 || m.VMID != number(int(m.VMID)) || !nodeNames.MatchString(m.Node) {
			return nil, fmt.Errorf("listing the cluster's machines: %v on %q is no machine", float64(m.VMID), clean(m.Node))
		}
	}
	slices.SortFunc(all, func(a, b machineRow) int { return int(a.VMID) - int(b.VMID) })
	return all, nil
}

// guest is a machine's configuration, as it was read.
type guest struct {
	id     int
	node   string
	config map[string]string
}

func path(node string, id int) string { return "/nodes/" + node + "/qemu/" + strconv.Itoa(id) }

func (g *guest) path() string { return path(g.node, g.id) }

// read reads a machine's configuration.
func (d *Driver) read(ctx context.Context, node string, id int) (*guest, error) {
	var raw map[string]json.RawMessage
	if err := d.client.get(ctx, path(node, id)+"/config", nil, &raw); err != nil {
		return nil, err
	}
	g := &guest{id: id, node: node, config: map[string]string{}}
	for k, v := range raw {
		var text string
		if json.Unmarshal(v, &text) != nil {
			text = string(v) // numbers
		}
		g.config[k] = text
	}
	return g, nil
}

// name is what people call it.
func (g *guest) String() string { return fmt.Sprintf("VM %d on node %s", g.id, g.node) }

// The lines of a description that are Tendril's.
const (
	markLine  = "tendril-machine: "
	stateLine = "tendril-state: "
	creating  = "creating"
	ready     = "ready"
	// restarting says that it ran, and is restarted for a change.
	restarting = "restarting"
)

// tagged is what Tendril's machines have, so that people see them in a list.
const tagged = "tendril"

// marks is what a description says: the one mark, or "" where there is none or several, and
// the state.
func marks(description string) (mark, state string) {
	found := 0
	for line := range strings.SplitSeq(description, "\n") {
		line = strings.TrimRight(line, "\r ")
		if m, ok := strings.CutPrefix(line, markLine); ok {
			mark, found = m, found+1
		}
		if s, ok := strings.CutPrefix(line, stateLine); ok {
			state = s
		}
	}
	if found != 1 {
		return "", ""
	}
	return mark, state
}

// describe writes a description.
func describe(spec pool.Spec, state string) string {
	line := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 {
				return ' '
			}
			return r
		}, s)
	}
	// An empty line between, because Proxmox shows it as Markdown.
	return fmt.Sprintf("Machine %s of workspace %s. Tendril made it, and changes and removes it.\n\n%s%s\n\n%s%s", line(spec.Name), line(spec.Workspace), markLine, spec.ID, stateLine, state)
}

// restate is a description with another state; what people added to it stays.
func restate(description, state string) string {
	lines := strings.Split(description, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, stateLine) {
			lines[i] = stateLine + state
			return strings.Join(lines, "\n")
		}
	}
	return description + "\n\n" + stateLine + state
}

var ids = lazyregexp.New(`^[0-9A-Za-z][0-9A-Za-z-]{7,63}$`)
