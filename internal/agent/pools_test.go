package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// listed is a pool that lists itself as it is told.
type listed struct {
	pool.Driver
	mu     sync.Mutex
	err    error
	closed bool
}

func (l *listed) List(context.Context) (pool.Inventory, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return pool.Inventory{
		Nodes: []pool.Node{
			{Name: "a", Online: true, Cores: 4, Memory: 1024, CoresUsed: 1.5, MemoryUsed: -1, Images: []pool.Image{{Name: "debian"}}, Storages: []pool.Storage{{Name: "local", Free: 1, Size: 2}}},
			{Name: "nothing"},
		},
		VMIDs: []int{100}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}, l.err
}

func (l *listed) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *listed) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

// poolsQueue hands on what is reported, and answers requests for places.
type poolsQueue struct {
	queue.Queue
	reports  chan []queue.Pool
	reserved [][]provision.PlaceWanted
	released [][]string
	err      error
}

func (q *poolsQueue) ReportPools(ctx context.Context, pools []queue.Pool) error {
	select {
	case q.reports <- pools:
	case <-ctx.Done():
	}
	return nil
}

func (q *poolsQueue) ReserveMachines(_ context.Context, _ uuid.UUID, wants []provision.PlaceWanted) ([]provision.Place, error) {
	q.reserved = append(q.reserved, wants)
	return []provision.Place{{Name: wants[0].Name, Node: "a"}}, q.err
}

func (q *poolsQueue) ReleaseMachines(_ context.Context, _ uuid.UUID, names []string) error {
	q.released = append(q.released, names)
	return q.err
}

// The pools are told again and again, a pool that can't be listed with why, and its trouble
// is logged once.
func TestPoolsAreReported(t *testing.T) {
	t.Parallel()
	lab, q := &listed{}, &poolsQueue{reports: make(chan []queue.Pool)}
	var log bytes.Buffer
	r := &poolReporter{queue: q, every: time.Millisecond, log: slog.New(slog.NewTextHandler(&log, nil)), pools: []Pool{
		{Name: "lab", Kind: "proxmox", Limits: queue.PoolLimits{IDs: []int{100, 200}}, Driver: lab}, {Name: "other", Kind: "static", Driver: &listed{err: errors.New("it is away")}},
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	next := func() []queue.Pool {
		select {
		case found := <-q.reports:
			return found
		case <-time.After(time.Minute):
			t.Fatal("nothing was reported")
		}
		return nil
	}
	found := next()
	if len(found) != 2 || found[1].Problem != "it is away" || found[1].Nodes == nil || found[0].Problem != "" || found[0].Limits.IDs[1] != 200 {
		t.Fatalf("reported %+v", found)
	}
	if nodes := found[0].Nodes; len(nodes) != 1 || nodes[0].CoresUsed != 1 || nodes[0].MemoryUsed != 0 || nodes[0].Images[0] != "debian" || nodes[0].Storages[0].Size != 2 {
		t.Errorf("nodes = %+v, want one whose shares are 0 to 1", nodes)
	}
	if taken := found[0].Taken; len(taken.IDs) != 1 || len(taken.Addresses) != 1 || taken.Addresses[0] != "10.0.0.1" {
		t.Errorf("taken = %+v", taken)
	}
	lab.fails(errors.New("the certificate has expired"))
	for found[0].Problem == "" {
		found = next()
	}
	lab.fails(nil)
	for found[0].Problem != "" {
		found = next()
	}
	cancel()
	running.Wait()
	if text := log.String(); strings.Count(text, "the certificate has expired") != 1 || strings.Count(text, "it is away") != 1 || !strings.Contains(text, "can be listed again") {
		t.Errorf("the log is\n%s", text)
	}
	if !lab.closed {
		t.Error("the driver is not closed")
	}
}

// A run asks for places only in pools that the agent's configuration gives to its workspace.
func TestPlacesAreAskedFor(t *testing.T) {
	t.Parallel()
	q := &poolsQueue{}
	allowed, failed := []pool.Config{{Name: "lab"}}, error(nil)
	places := &placeQueue{queue: q, spool: &claimFiles{claim: uuid.New()}, allowed: func() ([]pool.Config, error) { return allowed, failed }}
	report := func(request *provision.PlaceRequest) (bool, error) {
		return places.report(t.Context(), provision.Report{Detail: provision.Detail{Places: request}})
	}
	if asked, err := report(nil); asked || err != nil {
		t.Errorf("report(progress) = %t, %v, want it to be the database's", asked, err)
	}
	ada := provision.PlaceWanted{Name: "ada", Pool: "lab"}
	if asked, err := report(&provision.PlaceRequest{Wants: []provision.PlaceWanted{ada}, Release: []string{"bob"}}); !asked || err != nil || len(places.answer()) != 1 || len(q.released) != 1 {
		t.Errorf("report(ada) = %t, %v, %+v, want a place, and bob's freed", asked, err, places.answer())
	}
	if _, err := report(&provision.PlaceRequest{Release: []string{"ada"}}); err != nil || places.answer() != nil {
		t.Errorf("report(release) = %v, %+v, want no place of the request before", err, places.answer())
	}
	ada.Pool = "office"
	_, err := report(&provision.PlaceRequest{Wants: []provision.PlaceWanted{ada}})
	if e, is := errors.AsType[*queue.Error](err); !is || e.Kind != queue.Refused || e.Reason != string(provision.CodePlacementRefused) || len(q.reserved) != 1 {
		t.Errorf("report(another pool) = %v, asked %d times", err, len(q.reserved))
	}
	failed = errors.New("the token can't be read")
	if _, err := report(&provision.PlaceRequest{Wants: []provision.PlaceWanted{ada}}); queue.KindOf(err) != queue.Refused {
		t.Errorf("report(without a token) = %v, want a refusal", err)
	}
	failed, q.err, ada.Pool = nil, &queue.Error{Kind: queue.Unauthorized}, "lab"
	if _, err := report(&provision.PlaceRequest{Wants: []provision.PlaceWanted{ada}}); queue.KindOf(err) != queue.Unavailable {
		t.Errorf("report(token refused) = %v, want it to be tried again", err)
	}
}
