package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/machinehealth"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
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
	c := newChecker(q, k, &checkNotes{}, machinehealth.Ranges{netip.MustParsePrefix("127.0.0.0/8")}, &commandChecks{}, slog.New(slog.NewTextHandler(&log, nil)))
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

// A workspace whose machines don't answer takes a part of the room only: the machines of
// another one are asked meanwhile, although they are due after a hundred of the first.
func TestSlowChecksLeaveRoom(t *testing.T) {
	t.Parallel()
	const slow, others = 100, 20
	w := queuetest.NewWorld(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	registered, err := q.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := seal.Identities{newIdentity(t)}
	k := &keys{own: own, cluster: own.Public()}
	k.contract.Store(int64(registered.Contract))
	// It takes connections, and never greets.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	add := func(workspace, kind string, n int, since string) {
		t.Helper()
		id := uuid.New()
		w.Exec(t, "INSERT INTO public.workspaces (id, org_id, cluster_id, name) VALUES ($1, $2, $3, $4)", id, w.Org, w.Cluster, workspace)
		for i := range n {
			name := fmt.Sprint(workspace, i)
			check := provision.HealthCheck{
				Kind: kind, Target: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Interval: 600, Timeout: 300, HealthyAfter: 1, UnhealthyAfter: 1, //nolint:forcetypeassert // it is one
			}
			check.MAC = own.Sign(checkPurpose, check.Message(id, name))
			spec, err := json.Marshal(check)
			if err != nil {
				t.Fatal(err)
			}
			w.Exec(t, `WITH m AS (INSERT INTO public.machines (org_id, workspace_id, name, status) VALUES ($1, $2, $3, 'running') RETURNING id)
				INSERT INTO tendril.machine_checks (machine_id, workspace_id, cluster_id, spec, due_at) SELECT id, $2, $4, $5::jsonb, now() - $6::interval FROM m`,
				w.Org, id, name, w.Cluster, string(spec), since)
		}
	}
	add("slow", "ssh", slow, "1 hour")
	add("other", "tcp", others, "1 minute")
	c := newChecker(q, k, &checkNotes{}, machinehealth.Ranges{netip.MustParsePrefix("127.0.0.0/8")}, &commandChecks{}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	c.wake()
	patience.Await(t, "the other workspace's machines to be healthy", func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.machines WHERE health = 'healthy'") == fmt.Sprint(others)
	})
	if n := w.Text(t, "SELECT count(*)::text FROM public.machines WHERE name LIKE 'slow%' AND health IS NOT NULL"); n != "0" {
		t.Errorf("%s of the slow machines have a result: they held the others up", n)
	}
	// What is taken of the room, and that there is more of it than that.
	taken := w.Text(t, "SELECT count(*)::text FROM tendril.machine_checks c JOIN public.machines m ON m.id = c.machine_id WHERE m.name LIKE 'slow%' AND c.leased_by IS NOT NULL")
	if n, err := strconv.Atoi(taken); err != nil || n < workspaceShare || n >= checksAtOnce/2 {
		t.Errorf("%s slow machines are asked at once, want some and less than half of %d", taken, checksAtOnce)
	}
}

// Two workspaces whose commands are slow, and of whose machines many have been due for longest,
// take turns with the others: each other one waits for one command of each.
func TestCommandsTakeTurns(t *testing.T) {
	t.Parallel()
	const slow, machines, others = 2, 20, 10
	w := queuetest.NewWorld(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	registered, err := q.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := &keys{}
	k.contract.Store(int64(registered.Contract))
	add := func(workspace string, n int, since string) {
		t.Helper()
		id := uuid.New()
		w.Exec(t, "INSERT INTO public.workspaces (id, org_id, cluster_id, name) VALUES ($1, $2, $3, $4)", id, w.Org, w.Cluster, workspace)
		w.Exec(t, `WITH m AS (INSERT INTO public.machines (org_id, workspace_id, name, status) SELECT $1, $2, 'm' || n, 'running' FROM generate_series(1, $3::int) n RETURNING id)
			INSERT INTO tendril.machine_checks (machine_id, workspace_id, cluster_id, spec, due_at) SELECT id, $2, $4,
			'{"kind": "command", "command": {"workspace": "w"}, "interval": 600, "timeout": 30, "healthy_after": 1, "unhealthy_after": 1, "mac": "bG9uZyBlbm91Z2gsIGxvbmcgZW5vdWdoLCBsb25n"}', now() - $5::interval FROM m`,
			w.Org, id, n, w.Cluster, since)
	}
	for i := range slow {
		add(fmt.Sprint("slow", i), machines, "1 hour")
	}
	for i := range others {
		add(fmt.Sprint("other", i), 1, "1 minute")
	}
	c := newChecker(q, k, &checkNotes{}, nil, &commandChecks{most: commandsAtOnce}, slog.New(slog.DiscardHandler))
	var running []queue.MachineCheck
	asked := map[uuid.UUID]int{}
	for done := 0; done < slow*machines+others; {
		checks, err := q.LeaseChecks(t.Context(), c.room())
		if err != nil {
			t.Fatal(err)
		}
		if len(checks) == 0 && !c.nextTurn() {
			t.Fatalf("after %d checks nothing is due any more", done)
		}
		for _, check := range checks {
			if !c.begin(check) {
				t.Fatal("a check was leased for which there is no room")
			}
			asked[check.Workspace]++
			running = append(running, check)
			if done++; done == slow+others && len(asked) != slow+others {
				t.Errorf("the first %d checks are of %d workspaces, want each to have its turn", done, len(asked))
			}
		}
		if len(running) == commandsAtOnce || len(checks) == 0 && len(running) > 0 {
			c.end(running[0])
			running = running[1:]
		}
	}
}

// What a database gives out beyond what was asked for is not done.
func TestMoreChecksThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	c := newChecker(nil, &keys{}, &checkNotes{}, nil, &commandChecks{most: commandsAtOnce}, nil)
	command, other := queue.MachineCheck{Check: provision.HealthCheck{Kind: provision.CheckCommand}}, queue.MachineCheck{Check: provision.HealthCheck{Kind: "tcp"}}
	begun := map[string]int{}
	for range 1000 {
		command.Workspace, other.Workspace = uuid.New(), uuid.New()
		for _, due := range []queue.MachineCheck{command, other} {
			if c.begin(due) {
				begun[due.Check.Kind]++
			}
		}
	}
	if begun[provision.CheckCommand] != commandsAtOnce || begun["tcp"] != checksAtOnce {
		t.Errorf("at a time there are %v, want %d by a command and %d others", begun, commandsAtOnce, checksAtOnce)
	}
}

// A database of the contract before is asked as it knows it, and is given no check by a
// command: agents of the release before may do its checks.
func TestChecksAndTheContractBefore(t *testing.T) {
	t.Parallel()
	own := seal.Identities{newIdentity(t)}
	k := &keys{own: own, cluster: own.Public()}
	c := newChecker(nil, k, &checkNotes{}, nil, &commandChecks{most: commandsAtOnce}, nil)
	c.busy.add(queue.MachineCheck{Workspace: uuid.New(), Check: provision.HealthCheck{Kind: provision.CheckCommand}}, 1)
	listed := []provision.Machine{
		{Name: "asked", Check: &provision.HealthCheck{Kind: "tcp"}},
		{Name: "run", Check: &provision.HealthCheck{Kind: provision.CheckCommand, Command: &provision.CommandCheck{}}},
	}
	for _, tt := range []struct {
		contract, without int
		room              queue.CheckRoom
	}{
		{queue.ContractOfCommands - 1, 0, queue.CheckRoom{Checks: checksAtOnce}},
		{queue.ContractOfCommands, 1, queue.CheckRoom{Checks: workspaceShare, Commands: 1}},
	} {
		k.contract.Store(int64(tt.contract))
		room := c.room()
		if room.Checks != tt.room.Checks || room.Commands != tt.room.Commands || len(room.Without) != tt.without {
			t.Errorf("contract %d: room = %+v, want %+v and %d workspaces without", tt.contract, room, tt.room, tt.without)
		}
		signed := k.signChecks(uuid.New(), listed)
		if signed[0].Check == nil || (signed[1].Check != nil) != (tt.room.Commands > 0) || listed[1].Check == nil {
			t.Errorf("contract %d: signChecks() = %+v", tt.contract, signed)
		}
	}
}

// A check that is genuine but older than one that this agent knows is not done: its command may
// be one that a later run has replaced. An agent that knows none does what is genuine.
func TestOlderCheckIsRefused(t *testing.T) {
	t.Parallel()
	own := seal.Identities{newIdentity(t)}
	k := &keys{own: own, cluster: own.Public()}
	k.contract.Store(queue.ContractOfCommands)
	workspace, now := uuid.New(), time.Now().UnixMilli()
	made := func(at int64) queue.MachineCheck {
		signed := k.signChecks(workspace, []provision.Machine{{Name: "web", Check: &provision.HealthCheck{
			Kind: provision.CheckCommand, Interval: 3600, Timeout: 5, Command: &provision.CommandCheck{Commit: "c", Made: at},
		}}})
		return queue.MachineCheck{Machine: uuid.New(), Workspace: workspace, Name: "web", Check: *signed[0].Check}
	}
	agent := func(dir string) *checker {
		return newChecker(nil, k, &checkNotes{dir: openTestDir(t, dir)}, nil, &commandChecks{}, slog.New(slog.DiscardHandler))
	}
	isCurrent := func(c *checker, due queue.MachineCheck, want bool) {
		t.Helper()
		if got := c.current(due, &queue.CheckResult{}); got != want {
			t.Errorf("current(made at %d) = %t, want %t", due.Check.Command.Made, got, want)
		}
	}
	dir := t.TempDir()
	knows := agent(dir)
	older, newer := made(now-2000), made(now-1000)
	isCurrent(knows, older, true)
	isCurrent(knows, newer, true)
	isCurrent(knows, newer, true)
	knows.notes.dir.close()
	knows = agent(dir) // it has started again
	result, asked := knows.ask(t.Context(), older)
	if !asked || result.Result != provision.HealthUnknown || !strings.Contains(result.Why, "knows a newer one of this workspace") || !strings.Contains(result.Why, "deploy again") {
		t.Errorf("an older check: %+v, %t", result, asked)
	}
	other := older
	other.Workspace = uuid.New()
	isCurrent(knows, other, true)
	isCurrent(agent(t.TempDir()), older, true)

	// One made by a clock that is ahead keeps out nothing that is made from now on.
	isCurrent(knows, made(now+time.Hour.Milliseconds()), true)
	isCurrent(knows, newer, false)
	isCurrent(knows, made(time.Now().UnixMilli()+1), true)

	if err := os.WriteFile(knows.notes.path(workspace), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if result, _ := knows.ask(t.Context(), newer); !strings.Contains(result.Why, "can't read which check is the newest") {
		t.Errorf("with notes that can't be read: %+v", result)
	}
	if err := knows.notes.note(workspace, now); err != nil {
		t.Fatal(err)
	}
	isCurrent(knows, newer, false)
}
