package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// fault begins something bad and returns what ends it.
type fault struct {
	name  string
	begin func(g *grammar) (end func())
}

// nothing is drawn as well: a fault alone is another case than two at once.
var nothing = fault{"nothing", func(*grammar) func() { return func() {} }}

// The grammar: one of each kind at a time, with moments of their own.
var (
	networkFaults = []fault{
		nothing,
		{"latency", func(g *grammar) func() { g.wire().Slow(150*time.Millisecond, 0); return g.heal }},
		{"bandwidth", func(g *grammar) func() { g.wire().Share(48 << 10); return g.heal }},
		{"loss", func(g *grammar) func() { // of one reply in five
			random := rand.New(rand.NewPCG(g.random.Uint64(), 1))
			wire := g.wire()
			lose := make(chan float64, 1)
			lose <- 0
			wire.Judge(func(wiretest.Call) wiretest.Fate {
				<-lose
				drawn := random.Float64()
				lose <- drawn
				if drawn < 0.2 {
					return wiretest.LoseReply
				}
				return wiretest.Deliver
			})
			return func() { wire.Judge(nil); g.heal() }
		}},
		{"black hole", func(g *grammar) func() { g.wire().BlackHole(); return g.heal }},
		{"reset", func(g *grammar) func() {
			for _, wire := range g.wires {
				wire.Cut()
			}
			return g.heal
		}},
		{"refused", func(g *grammar) func() { g.wire().Refuse(); return g.heal }},
		{"half-open", func(g *grammar) func() { // the server's end is gone, and the agent's is not told
			wire := g.wire()
			wire.BlackHole()
			if conn, err := pgx.Connect(g.T.Context(), g.URL); err == nil { // else the server's end is gone already
				defer conn.Close(g.T.Context()) //nolint:errcheck // nothing is left on it
				_, _ = conn.Exec(g.T.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
			}
			return g.heal
		}},
	}
	databaseFaults = []fault{
		nothing,
		{"away", func(g *grammar) func() { g.own.Crash(g.T); return func() { g.own.Start(g.T) } }},
		{"restarting", func(g *grammar) func() { g.own.Stop(g.T); g.own.Start(g.T); return func() {} }},
		{"contract missing", func(g *grammar) func() {
			g.ask("ALTER SCHEMA tendril RENAME TO tendril_away")
			return func() { g.ask("ALTER SCHEMA tendril_away RENAME TO tendril") }
		}},
		{"read-only", func(g *grammar) func() {
			g.ask("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
			return func() {
				g.ask("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
			}
		}},
		{"clock stepped", func(g *grammar) func() {
			g.clock.set([]time.Duration{time.Hour, -time.Hour}[g.random.IntN(2)])
			return func() { g.clock.set(0) }
		}},
		{"slow", func(g *grammar) func() {
			g.ask(`CREATE OR REPLACE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.pg_sleep(0.3); RETURN NULL; END $$`,
				"CREATE TRIGGER linger AFTER INSERT ON public.provision_logs FOR EACH STATEMENT EXECUTE FUNCTION public.linger()")
			return func() { g.ask("DROP TRIGGER linger ON public.provision_logs") }
		}},
	}
	processFaults = []fault{
		nothing,
		{"agent killed", func(g *grammar) func() {
			a := g.agent()
			a.Kill()
			g.hit()
			return func() { a.Start() }
		}},
		{"agent restarted", func(g *grammar) func() { a := g.agent(); a.Kill(); g.hit(); a.Start(); return func() {} }},
		{"agent stopped", func(g *grammar) func() { return freeze(g.T, g.agent(), g.random.IntN(2) == 0) }},
		{"out of memory", func(g *grammar) func() { // the kernel kills a run's process
			a := g.agent()
			children, err := process.Descendants(a.Cmd.Process.Pid)
			if err != nil {
				g.T.Fatal(err)
			}
			for _, child := range children {
				if child.Parent == a.Cmd.Process.Pid {
					_ = syscall.Kill(child.PID, syscall.SIGKILL) // one that has ended meanwhile is none
					g.hit()
					break
				}
			}
			return func() {}
		}},
		{"disk full", func(g *grammar) func() { return fill(g.T, filepath.Join(g.agent().Dir, "spool")) }},
	}
)

// grammar is two agents, each behind a wire of its own, and a server that is theirs.
type grammar struct {
	*works
	own    *pgtest.Own
	clock  *clock
	agents []*site.Agent
	wires  []*wiretest.Proxy
	random *rand.Rand
}

func (g *grammar) agent() *site.Agent    { return g.agents[g.random.IntN(len(g.agents))] }
func (g *grammar) wire() *wiretest.Proxy { return g.wires[g.random.IntN(len(g.wires))] }

// heal ends whatever is wrong with the wires. What lay in a black hole is gone for good, as
// with a router that comes back.
func (g *grammar) heal() {
	for _, wire := range g.wires {
		wire.Pass()
	}
}

// ask tells the database something, on a connection that no fault has met.
func (g *grammar) ask(statements ...string) {
	g.T.Helper()
	await(g.T, "the database to do: "+statements[0], func() bool {
		conn, err := pgx.Connect(g.T.Context(), g.URL)
		if err != nil {
			return false
		}
		defer conn.Close(g.T.Context()) //nolint:errcheck // nothing is left on it
		for _, statement := range statements {
			if _, err := conn.Exec(g.T.Context(), statement); err != nil {
				g.T.Logf("%s: %v", statement, err)
				return false
			}
		}
		return true
	})
}

// hit notes which runs may have lost their last lines to what was killed just now.
func (g *grammar) hit() {
	now := time.Now()
	for _, r := range g.runs[max(0, len(g.runs)-40):] { // the others are long over
		if printed := g.printed(r); r.killed.IsZero() && len(printed) > 0 && (!g.finished(r) || printed[len(printed)-1].After(now.Add(-onItsWay))) {
			r.killed = now
		}
	}
}

// Faults of the network, the database and the processes, one of each kind at once, drawn at
// random from a seed, until the time is over. Then the same is counted as after each fault
// alone: no line lost or doubled, no overlap, no run without an end, no state lost.
// TENDRIL_SEED draws the same again; TENDRIL_CHAOS_TIME is how long make chaos draws (30m).
func TestGrammar(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	t.Logf("TENDRIL_SEED=%d", seed)
	g := newGrammar(t, seed)
	began, long := time.Now(), 30*time.Minute
	if text := os.Getenv("TENDRIL_CHAOS_TIME"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TENDRIL_CHAOS_TIME: %v", err)
		}
	}
	draws := 2
	if each() { // once, in pairs that differ
		draws = 8
	}
	for draw := 0; full() && time.Since(began) < long || !full() && draw < draws; draw++ {
		g.keepBusy(4)
		g.once(draw)
		if draw%16 == draws-1 {
			g.restore()
		}
	}
	g.awaitAll()
	for i := range 4 { // whatever was restored, each workspace's state is known again
		r := g.deploy(fmt.Sprintf("w%d", i), 3, time.Millisecond)
		if got := g.AwaitEnd(r.id); got != "SUCCESS" {
			t.Errorf("the last run in %s = %s: %s, want SUCCESS", r.workspace, got, g.Message(r.id))
		}
	}
	for _, a := range g.agents {
		a.Terminate()
	}
	g.countLeftovers(g.agents[1])
	g.count(g.agents[0], "SUCCESS", "FAILED/agent_lost", "FAILED/agent_restarted", "FAILED/exec_died", "FAILED/spool_failed")
	counted.add("combinations of faults drawn from a seed", 1)
}

func newGrammar(t *testing.T, seed uint64) *grammar {
	t.Helper()
	c, programs := newClock(t)
	w, own := ownWorks(t, pgtest.Durable(), programs)
	w.shortLeases()
	g := &grammar{works: w, own: own, clock: c, random: rand.New(rand.NewPCG(seed, 3))}
	for _, name := range []string{"one", "two"} {
		a, wire := w.wired(name, 2)
		a.Set("TENDRIL_RUN_DISK_WAIT", "1m")
		smallDisk(t, filepath.Join(a.Dir, "spool"), 16<<20)
		g.agents, g.wires = append(g.agents, a), append(g.wires, wire)
		a.Start()
		a.AwaitOutput("registered")
	}
	return g
}

// once draws one fault of each kind, has them begin and end at moments of their own, and
// waits until the database answers.
func (g *grammar) once(draw int) {
	g.T.Helper()
	kinds := [][]fault{networkFaults, databaseFaults, processFaults}
	type step struct {
		at time.Duration
		do func()
	}
	var steps []step
	told := ""
	for kind, faults := range kinds {
		f := faults[g.random.IntN(len(faults))]
		if !full() && each() { // each once, and others beside it
			f = faults[(draw+kind*draw/len(faults)+kind)%len(faults)]
		}
		counted.add("faults drawn: "+[]string{"network", "database", "process"}[kind]+" "+f.name, 1)
		told += " / " + f.name
		from := time.Duration(g.random.IntN(400)) * time.Millisecond
		// Some for longer than a lease, most for less.
		last := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, shortLease() + time.Second}[g.random.IntN(4)]
		end := func() {}
		steps = append(steps, step{from, func() { end = f.begin(g) }}, step{from + last, func() { end() }})
	}
	g.T.Logf("draw %d:%s", draw, told)
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	began := time.Now()
	for _, s := range steps {
		<-time.After(time.Until(began.Add(s.at)))
		s.do()
	}
	g.reconnect()
}

// restore brings the database back to how it was some seconds ago, as OPERATIONS.md says:
// with the agents ended meanwhile.
func (g *grammar) restore() {
	g.T.Helper()
	kept := pgtest.Dir(g.T)
	copyDir := func(from, to string) {
		if out, err := exec.CommandContext(g.T.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
			g.T.Fatalf("cp -a %s %s: %v: %s", from, to, err, out)
		}
	}
	g.own.Stop(g.T)
	copyDir(g.own.DataDir(), filepath.Join(kept, "backup"))
	g.own.Start(g.T)
	g.reconnect()
	g.keepBusy(4)
	g.awaitPrinted(g.runs[len(g.runs)-1], 1) // what the backup does not have
	for _, a := range g.agents {
		a.Terminate()
	}
	g.own.Stop(g.T)
	if err := os.RemoveAll(g.own.DataDir()); err != nil {
		g.T.Fatal(err)
	}
	copyDir(filepath.Join(kept, "backup"), g.own.DataDir())
	g.own.Start(g.T)
	g.reconnect()
	known := g.runs[:0:0]
	for _, r := range g.runs {
		switch g.Text(g.T, "SELECT coalesce((SELECT status FROM public.provisions WHERE id = $1), '')", r.id) {
		case "":
			g.forgotten++
		case "QUEUED": // it is carried out a second time, and prints from the start
			for _, name := range []string{"", ".finished"} {
				_ = os.Remove(filepath.Join(g.journal, strconv.Itoa(r.n)+name)) // it may never have begun
			}
			r.killed, r.again = time.Time{}, true
			known = append(known, r)
		case "PROCESSING": // what it has printed since is gone with the database
			r.killed = time.Unix(0, 0)
			known = append(known, r)
		default:
			known = append(known, r)
		}
	}
	g.runs = known
	for _, a := range g.agents {
		a.Start()
		a.AwaitOutput("registered")
	}
	counted.add("faults drawn: database restored to a minute ago", 1)
}
