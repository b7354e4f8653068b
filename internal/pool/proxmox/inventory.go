package proxmox

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tendril-run/tendril/internal/pool"
)

// storageRow is one of GET /nodes/N/storage.
type storageRow struct {
	Storage string `json:"storage"`
	Type    string `json:"type"`
	Content string `json:"content"`
	Shared  number `json:"shared"`
	Active  number `json:"active"`
	Total   number `json:"total"`
	Avail   number `json:"avail"`
}

func (d *Driver) storagesOf(ctx context.Context, node string) ([]storageRow, error) {
	var all []storageRow
	if err := d.client.get(ctx, "/nodes/"+node+"/storage", url.Values{"content": {"images"}, "enabled": {"1"}}, &all); err != nil {
		return nil, fmt.Errorf("listing the storages of node %s: %w", node, err)
	}
	all = slices.DeleteFunc(all, func(s storageRow) bool { return !storages.MatchString(s.Storage) })
	slices.SortFunc(all, func(a, b storageRow) int { return strings.Compare(a.Storage, b.Storage) })
	return all[:min(len(all), 200)], nil
}

// linked reports whether a storage of that type can make linked clones. LVM and iSCSI can't;
// of the directories, those whose disks are qcow2.
func linked(kind string) bool {
	switch kind {
	case "lvm", "iscsi", "iscsidirect", "esxi", "pbs":
		return false
	}
	return true
}

// List says what the cluster has. A node that is offline is shown without what is on it.
func (d *Driver) List(ctx context.Context) (pool.Inventory, error) {
	inv, err := d.list(ctx)
	if err != nil {
		return inv, d.advised(fmt.Errorf("pool %s: %w", d.config.Name, err))
	}
	return inv, nil
}

func (d *Driver) list(ctx context.Context) (pool.Inventory, error) {
	var inv pool.Inventory
	rows, err := d.nodes(ctx)
	if err != nil {
		return inv, err
	}
	rows = slices.DeleteFunc(rows, func(n nodeRow) bool { return !d.usable(n.Node) })
	inv.Nodes = make([]pool.Node, len(rows))
	all, err := d.everywhere(ctx)
	if err != nil {
		return inv, err
	}
	used := map[int]bool{}
	for _, m := range all {
		used[int(m.VMID)] = true
	}
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	addresses := map[netip.Addr]bool{}
	for i, n := range rows {
		inv.Nodes[i] = pool.Node{Name: n.Node, Online: n.Status == "online", Cores: int(n.MaxCPU), Memory: int(int64(n.MaxMem) >> 20), CoresUsed: share(float64(n.CPU))}
		if n.MaxMem > 0 {
			inv.Nodes[i].MemoryUsed = share(float64(n.Mem) / float64(n.MaxMem))
		}
		if !inv.Nodes[i].Online {
			continue
		}
		group.Go(func() error {
			node := &inv.Nodes[i]
			found, err := d.storagesOf(inner, n.Node)
			if err != nil {
				return err
			}
			for _, s := range found {
				if len(d.config.Storages) == 0 || slices.Contains(d.config.Storages, s.Storage) {
					node.Storages = append(node.Storages, pool.Storage{Name: s.Storage, Free: int(int64(s.Avail) >> 30), Size: int(int64(s.Total) >> 30), Linked: linked(s.Type), Shared: s.Shared == 1})
				}
			}
			machines, err := d.machinesOf(inner, n.Node)
			if err != nil {
				return err
			}
			for _, m := range machines {
				mu.Lock()
				used[int(m.VMID)] = true
				mu.Unlock()
				g, err := d.read(inner, n.Node, int(m.VMID))
				switch {
				case missing(err):
					continue
				case err != nil:
					return fmt.Errorf("reading VM %d: %w", int(m.VMID), err)
				}
				if m.Template == 1 {
					node.Images = append(node.Images, pool.Image{Name: m.Name, ID: fmt.Sprint(int(m.VMID)), CloudInit: g.cloudInit(), Agent: g.agent()})
				}
				mu.Lock()
				for _, a := range g.static() {
					addresses[a] = true
				}
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return inv, err
	}
	for id := range used {
		inv.VMIDs = append(inv.VMIDs, id)
	}
	for a := range addresses {
		inv.Addresses = append(inv.Addresses, a)
	}
	slices.Sort(inv.VMIDs)
	slices.SortFunc(inv.Addresses, netip.Addr.Compare)
	return inv, d.spread(ctx, &inv)
}

// spread adds to each node the images of others that lie on storage that all see.
func (d *Driver) spread(ctx context.Context, inv *pool.Inventory) error {
	type shared struct {
		from  string
		image pool.Image
	}
	var all []shared
	for _, n := range inv.Nodes {
		if len(inv.Nodes) == 1 || !slices.ContainsFunc(n.Storages, func(s pool.Storage) bool { return s.Shared }) {
			continue
		}
		for _, img := range n.Images {
			var id int
			_, _ = fmt.Sscan(img.ID, &id)
			g, err := d.read(ctx, n.Name, id)
			if missing(err) {
				continue
			}
			if err != nil {
				return err
			}
			if ok, err := d.shared(ctx, g); err != nil {
				return err
			} else if ok {
				all = append(all, shared{n.Name, img})
			}
		}
	}
	for i := range inv.Nodes {
		n := &inv.Nodes[i]
		for _, s := range all {
			if n.Online && n.Name != s.from && !slices.ContainsFunc(n.Images, func(img pool.Image) bool { return img.Name == s.image.Name }) {
				n.Images = append(n.Images, s.image)
			}
		}
	}
	return nil
}

func share(f float64) float64 {
	if !(f > 0) {
		return 0
	}
	return min(f, 1)
}
