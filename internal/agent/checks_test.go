package agent

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/machinehealth"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// checksQueue gives checks out once, and remembers what they found.
type checksQueue struct {
	queue.Queue
	mu    sync.Mutex
	due   []queue.MachineCheck
	found map[uuid.UUID]queue.CheckResult
	all   chan struct{}
	want  int
}

func (q *checksQueue) LeaseChecks(_ context.Context, room queue.CheckRoom) ([]queue.MachineCheck, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := q.due[:min(room.Checks, len(q.due))]
	q.due = q.due[len(due):]
	return due, nil
}

func (q *checksQueue) ReportChecks(_ context.Context, results []queue.CheckResult) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range results {
		q.found[r.Machine] = r
	}
	if len(q.found) == q.want {
		close(q.all)
	}
	return nil
}

// Only what a run of this cluster has asked for is asked, of that machine and at that
// address, whatever rows say.
func TestChecksThatAreNotGenuine(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	asked := make(chan net.Addr, 100)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked <- conn.RemoteAddr()
			_ = conn.Close()
		}
	})
	t.Cleanup(accepting.Wait)
	t.Cleanup(func() { _ = l.Close() })
	own := seal.Identities{newIdentity(t)}
	k := &keys{own: own, cluster: own.Public()}
	workspace := uuid.New()
	check := &provision.HealthCheck{Kind: "tcp", Target: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Interval: 3600, Timeout: 5} //nolint:forcetypeassert // it is one
	listed := []provision.Machine{{Name: "web", Check: check}, {Name: "none"}}
	signed := k.signChecks(workspace, listed)
	if listed[0].Check.MAC != nil || len(signed[0].Check.MAC) == 0 || signed[1].Check != nil {
		t.Fatalf("signChecks() = %+v, want the check signed, and what was given left alone", signed)
	}
	of := func(change func(*queue.MachineCheck)) queue.MachineCheck {
		c := queue.MachineCheck{Machine: uuid.New(), Workspace: workspace, Name: "web", Check: *signed[0].Check}
		c.Check.MAC = slices.Clone(c.Check.MAC)
		change(&c)
		return c
	}
	forged := map[string]queue.MachineCheck{
		"another address":   of(func(c *queue.MachineCheck) { c.Check.Target = "127.0.0.2" }),
		"another port":      of(func(c *queue.MachineCheck) { c.Check.Port++ }),
		"another path":      of(func(c *queue.MachineCheck) { c.Check.Path = "/latest/meta-data" }),
		"another machine":   of(func(c *queue.MachineCheck) { c.Name = "db" }),
		"another workspace": of(func(c *queue.MachineCheck) { c.Workspace = uuid.New() }),
		"another interval":  of(func(c *queue.MachineCheck) { c.Check.Interval = 1 }),
		"no MAC":            of(func(c *queue.MachineCheck) { c.Check.MAC = nil }),
		"another MAC":       of(func(c *queue.MachineCheck) { c.Check.MAC[0] ^= 1 }),
	}
	genuine := of(func(*queue.MachineCheck) {})
	again := genuine // a row that is given out before its time
	again.Machine = uuid.New()
	q := &checksQueue{found: map[uuid.UUID]queue.CheckResult{}, all: make(chan struct{}), want: len(forged) + 1, due: []queue.MachineCheck{genuine, again}}
	for _, c := range forged {
		q.due = append(q.due, c)
	}
	var log bytes.Buffer
	c := newChecker(q, k, machinehealth.Ranges{netip.MustParsePrefix("127.0.0.0/8")}, &commandChecks{}, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	c.wake()
	<-q.all
	stop()
	running.Wait()
	if got := cmp.Or(q.found[genuine.Machine].Result, q.found[again.Machine].Result); got != provision.Healthy {
		t.Errorf("the genuine check found %s", got)
	}
	for name, check := range forged {
		if got := q.found[check.Machine]; got.Result != provision.HealthUnknown || !strings.Contains(got.Why, "deploy again") {
			t.Errorf("a check of %s found %+v, want that nobody could ask", name, got)
		}
	}
	if n := len(asked); n != 1 {
		t.Errorf("the machine was asked %d times, want once", n)
	}
	if n := strings.Count(log.String(), "is refused"); n != len(forged) {
		t.Errorf("the log tells of %d refusals, want %d: %s", n, len(forged), &log)
	}
}
