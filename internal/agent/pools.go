package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// poolsEvery is the time between two reports of the pools.
	poolsEvery = 15 * time.Second
	// listingTime bounds the listing of one pool: a slow one keeps no other from being told.
	listingTime = time.Minute
	// What of a pool is told at most, so that a report stays far below what one call carries.
	maxPoolImages, maxPoolStorages, maxPoolTaken = 200, 50, 20_000
)

// Pool is one that this agent can reach.
type Pool struct {
	Name, Kind string
	Limits     queue.PoolLimits
	// Driver lists it; the agent closes it when it ends.
	Driver pool.Driver
}

// poolReporter tells the database what there is in the agent's pools, so that nobody who
// places machines waits for a hypervisor.
type poolReporter struct {
	queue queue.Queue
	pools []Pool
	every time.Duration
	log   *slog.Logger

	problems map[string]string // as logged last, by the pool's name
}

// run reports until ctx ends.
func (r *poolReporter) run(ctx context.Context) {
	defer func() {
		for _, p := range r.pools {
			_ = p.Driver.Close() // nothing was to be written
		}
	}()
	if len(r.pools) == 0 {
		return
	}
	r.problems = map[string]string{}
	for ctx.Err() == nil {
		next := time.NewTimer(r.every)
		found := r.list(ctx)
		if err := r.queue.ReportPools(ctx, found); err != nil && ctx.Err() == nil {
			r.log.Warn("what was found of the agent's pools could not be reported; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			next.Stop()
		case <-next.C:
		}
	}
}

// list lists all pools at once.
func (r *poolReporter) list(ctx context.Context) []queue.Pool {
	found := make([]queue.Pool, len(r.pools))
	var listing sync.WaitGroup
	for i, p := range r.pools {
		listing.Go(func() {
			limited, cancel := context.WithTimeout(ctx, listingTime)
			defer cancel()
			found[i] = queue.Pool{Name: p.Name, Kind: p.Kind, Limits: p.Limits, Nodes: []queue.PoolNode{}}
			inventory, err := p.Driver.List(limited)
			if err != nil {
				found[i].Problem = err.Error()
				return
			}
			found[i].Nodes, found[i].Taken = poolNodes(inventory), poolTaken(inventory)
		})
	}
	listing.Wait()
	for _, p := range found {
		if before := r.problems[p.Name]; before != p.Problem && ctx.Err() == nil {
			if r.problems[p.Name] = p.Problem; p.Problem != "" {
				r.log.Warn("a pool can't be listed: no new machine is placed there", "pool", p.Name, "error", p.Problem)
			} else {
				r.log.Info("the pool can be listed again", "pool", p.Name)
			}
		}
	}
	return found
}

// poolNodes are the nodes of a pool as the database has them. A node without cores or memory
// can hold no machine.
func poolNodes(inventory pool.Inventory) []queue.PoolNode {
	nodes := []queue.PoolNode{}
	for _, n := range inventory.Nodes {
		if n.Cores < 1 || n.Memory < 1 || len(nodes) == queue.MaxPoolNodes {
			continue
		}
		node := queue.PoolNode{
			Name: n.Name, Online: n.Online, Cores: n.Cores, Memory: n.Memory,
			CoresUsed: min(max(n.CoresUsed, 0), 1), MemoryUsed: min(max(n.MemoryUsed, 0), 1), Labels: n.Labels,
		}
		for _, image := range n.Images[:min(len(n.Images), maxPoolImages)] {
			node.Images = append(node.Images, image.Name)
		}
		for _, s := range n.Storages[:min(len(n.Storages), maxPoolStorages)] {
			node.Storages = append(node.Storages, queue.PoolStorage{Name: s.Name, Free: s.Free, Size: s.Size})
		}
		if n.Server != nil {
			node.Server = (*queue.PoolServer)(n.Server)
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func poolTaken(inventory pool.Inventory) (taken queue.PoolTaken) {
	taken.IDs = inventory.VMIDs[:min(len(inventory.VMIDs), maxPoolTaken)]
	for _, address := range inventory.Addresses[:min(len(inventory.Addresses), maxPoolTaken)] {
		taken.Addresses = append(taken.Addresses, address.String())
	}
	return taken
}

// placeQueue asks the database for places of machines, for one run.
type placeQueue struct {
	queue queue.Queue
	spool *claimFiles
	// allowed are the names of the pools that the run may use.
	allowed func() ([]pool.Config, error)
	// places are the answer to the request that was carried out last.
	places []provision.Place
}

func (d *deliveries) newPlaceQueue(s *claimFiles) *placeQueue {
	return &placeQueue{queue: d.queue, spool: s, allowed: func() ([]pool.Config, error) {
		if d.pools == nil {
			return nil, nil
		}
		return d.pools(s.about.Name, s.about.Workspace)
	}}
}

// answer is what the request came to that was just acknowledged; nil for any other update.
func (q *placeQueue) answer() []provision.Place { return q.places }

// report is Report of delivery.Queue for a report that asks for places; false: it is for the
// database as it is.
func (q *placeQueue) report(ctx context.Context, report provision.Report) (asked bool, err error) {
	q.places = nil
	request := report.Detail.Places
	if request == nil {
		return false, nil
	}
	if len(request.Wants) > 0 {
		if err := q.check(request.Wants); err != nil {
			return true, err
		}
		if q.places, err = q.queue.ReserveMachines(ctx, q.spool.claim, request.Wants); err != nil {
			return true, patiently(err)
		}
	}
	if len(request.Release) > 0 {
		return true, patiently(q.queue.ReleaseMachines(ctx, q.spool.claim, request.Release))
	}
	return true, nil
}

// check refuses pools that the agent's configuration does not give to the workspace.
func (q *placeQueue) check(wants []provision.PlaceWanted) error {
	pools, err := q.allowed()
	if err != nil {
		return &queue.Error{Kind: queue.Refused, Reason: string(provision.CodeCredentials), Message: err.Error(), Err: err}
	}
	for _, want := range wants {
		if !slices.ContainsFunc(pools, func(p pool.Config) bool { return p.Name == want.Pool }) {
			return &queue.Error{Kind: queue.Refused, Reason: string(provision.CodePlacementRefused), Message: "the pool " + want.Pool + " is not in this agent's configuration, or not for this workspace ([[pools]], workspaces)"}
		}
	}
	return nil
}
