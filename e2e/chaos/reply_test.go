package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// kindOf names what an agent asks for: the function, and of reports what they
// are about.
func kindOf(t *testing.T, c wiretest.Call) string {
	if c.Function == "append_provision_log" { // the same, from agents with a connection
		return "insert_provision_log"
	}
	if c.Function != "update_provision_status" {
		return c.Function
	}
	status, told := c.Named["p_status"], c.Named["p_detail"] // over HTTPS
	if len(c.Args) == 4 {
		status, told = c.Args[2], c.Args[3]
	}
	var detail struct{ Stage, Commit string }
	if json.Unmarshal([]byte(told), &detail) != nil {
		t.Errorf("a report that cannot be read: %+v", c)
	}
	switch {
	case status != "PROCESSING":
		return "update_provision_status, the result"
	case detail.Stage == "apply":
		return "update_provision_status, may apply begin"
	case detail.Stage == "init":
		return "update_provision_status, may the template run"
	}
	return "update_provision_status, progress"
}

// everyKind is what an agent asks for in a life with runs and a kill.
var everyKind = []string{
	"agent_heartbeat", "fail_orphaned_provisions", "fetch_next_provision", "insert_provision_log", "register_agent",
	"update_provision_status, may apply begin", "update_provision_status, may the template run",
	"update_provision_status, progress", "update_provision_status, the result",
}

// misfortune gives the first calls of each kind a fate each, and delivers the
// rest. It counts how many it met.
type misfortune struct {
	t     *testing.T
	fates []wiretest.Fate

	mu  sync.Mutex
	met map[string]int
}

func newMisfortune(t *testing.T, fates ...wiretest.Fate) *misfortune {
	return &misfortune{t: t, fates: fates, met: map[string]int{}}
}

func (m *misfortune) judge(c wiretest.Call) wiretest.Fate {
	kind := kindOf(m.t, c)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.met[kind]
	m.met[kind]++
	if n >= len(m.fates) {
		return wiretest.Deliver
	}
	inflicted(m.fates[n], kind)
	return m.fates[n]
}

// struck lists the kinds that met all fates.
func (m *misfortune) struck() (kinds []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for kind, n := range m.met {
		if n > len(m.fates) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func inflicted(fate wiretest.Fate, kind string) {
	switch fate {
	case wiretest.LoseReply:
		counted.add("faults: reply lost to "+kind, 1)
	case wiretest.LoseRequest:
		counted.add("faults: request lost of "+kind, 1)
	case wiretest.Delay:
		counted.add("faults: request late of "+kind, 1)
	case wiretest.Deliver:
	}
}

// countOnce looks for what a repeated call may have done twice.
func (w *works) countOnce() {
	w.T.Helper()
	for what, query := range map[string]string{
		"events told twice": `SELECT count(*)::text FROM (SELECT FROM public.provision_events
			GROUP BY provision_id, kind, detail HAVING count(*) > 1) twice`,
		"provisions without stage events": `SELECT count(*)::text FROM public.provisions p WHERE status = 'SUCCESS' AND
			NOT EXISTS (SELECT FROM public.provision_events e WHERE e.provision_id = p.id AND e.kind = 'stage' AND e.detail ->> 'stage' = 'apply')`,
		"successes whose progress does not say so": `SELECT count(*)::text FROM public.provisions p JOIN public.provision_progress g ON g.provision_id = p.id
			WHERE p.status = 'SUCCESS' AND (g.stage <> 'done' OR g.percent <> 100)`,
		"claims beside one for each provision": `SELECT abs((SELECT count(*) FROM tendril.claims) - (SELECT count(*) FROM public.provisions))::text`,
		"agents of one name":                   `SELECT count(*)::text FROM (SELECT FROM public.agents GROUP BY cluster_id, name HAVING count(*) > 1) twice`,
	} {
		if got := w.Text(w.T, query); got != "0" {
			w.T.Errorf("%s %s, want none", got, what)
		}
	}
	counted.add("repeats looked for, in provisions", len(w.runs))
}

// The first call of each kind is done and its answer lost, the second never
// arrives, and the third arrives when the agent has long given it up.
func TestEveryReplyLostOnce(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a, wire := w.wired("one", 1)
	for range times(1, 8) {
		first := newMisfortune(t, wiretest.LoseReply, wiretest.LoseRequest, wiretest.Delay)
		wire.Judge(first.judge)
		done, long := w.deploy("a", 40, 10*time.Millisecond), w.deploy("b", endless, 10*time.Millisecond)
		a.Start()
		w.awaitPrinted(long, 5)
		a.Kill()
		w.running(time.Now())

		second := newMisfortune(t, wiretest.LoseReply, wiretest.LoseRequest, wiretest.Delay)
		wire.Judge(second.judge)
		after := w.deploy("b", 40, 10*time.Millisecond)
		a.Start()
		if got := w.AwaitEnd(long.id); got != "FAILED/agent_restarted" {
			t.Errorf("the run of a killed agent = %s, want FAILED/agent_restarted", got)
		}
		if late := wire.DeliverDelayed(); late == 0 {
			t.Error("no call was late")
		}
		for _, r := range []*workRun{done, after} {
			if got := w.AwaitEnd(r.id); got != "SUCCESS" {
				t.Errorf("run %d = %s, want SUCCESS", r.n, got)
			}
		}
		wire.DeliverDelayed()
		a.Terminate()
		for _, m := range []*misfortune{first, second} {
			want := slices.Clone(everyKind)
			if w.ByKey && m == first { // it has joined then
				want = slices.Insert(want, slices.Index(want, "register_agent")+1, "request_join")
			}
			if got := m.struck(); !slices.Equal(got, want) {
				t.Errorf("calls whose replies were lost = %q, want %q", got, want)
			}
		}
	}
	w.countOnce()
	w.count(a, "SUCCESS", "FAILED/agent_restarted")
}

// One call in three comes to grief, all through a batch of runs.
func TestRepliesLostAtRandom(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a, wire := w.wired("one", 3)
	wire.Judge(func(c wiretest.Call) wiretest.Fate {
		fate := wiretest.Deliver
		switch dice := rand.N(100); {
		case dice < 20:
			fate = wiretest.LoseReply
		case dice < 26:
			fate = wiretest.LoseRequest
		case dice < 32:
			fate = wiretest.Delay
		}
		inflicted(fate, kindOf(t, c))
		return fate
	})
	a.Start()
	for range times(1, 12) {
		for i := range 8 {
			w.deploy(fmt.Sprintf("w%d", i%4), 5+rand.N(80), 5*time.Millisecond)
		}
		await(t, "all to end", func() bool {
			wire.DeliverDelayed()
			return w.Text(t, "SELECT count(*)::text FROM public.provisions WHERE status IN ('QUEUED', 'PROCESSING')") == "0"
		})
	}
	a.Terminate()
	wire.DeliverDelayed()
	w.nobodyLost()
	w.countOnce()
	w.count(a, "SUCCESS")
}

// A question for work that the agent gave up, and asked again with nothing for
// an answer, arrives after all and is given work. Nobody must have to find out
// by a lease that runs out.
func TestLateClaimIsNoStray(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.quickly()
	a, wire := w.wired("one", 1)
	asked := make(chan struct{}, 100)
	m := newMisfortune(t, wiretest.Delay)
	wire.Judge(func(c wiretest.Call) wiretest.Fate {
		if c.Function != "fetch_next_provision" {
			return wiretest.Deliver
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return m.judge(c)
	})
	a.Start()
	for range 3 { // late, answered, and once more
		<-asked
	}
	busy := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(busy, 5)
	w.deploy("b", 5, time.Millisecond)
	if late := wire.DeliverDelayed(); late != 1 {
		t.Errorf("%d late questions, want 1", late)
	}
	w.awaitMore(busy, 200)
	w.enough(busy)
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.countOnce()
	w.count(a, "SUCCESS")
}

// The answer to a claim is lost, and the agent cannot ask again for longer than
// the lease, while its heartbeats go on: what may be its own it keeps alive.
func TestClaimIsKeptWhileItsAnswerIsLost(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.shortLeases()
	a, wire := w.wired("one", 1)
	var asked, mended atomic.Bool
	wire.Judge(func(c wiretest.Call) wiretest.Fate {
		fate := wiretest.Deliver
		switch {
		case c.Function != "fetch_next_provision" || mended.Load():
		case asked.Swap(true):
			fate = wiretest.LoseRequest
		default:
			fate = wiretest.LoseReply
		}
		inflicted(fate, c.Function)
		return fate
	})
	w.deploy("a", 5, time.Millisecond)
	a.Start()
	w.Await("the claim", "SELECT EXISTS (SELECT FROM tendril.claims)")
	w.Await("two leases to pass", "SELECT clock_timestamp() > created_at + 2 * (SELECT lease FROM tendril.settings) FROM tendril.claims")
	mended.Store(true)
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.countOnce()
	w.count(a, "SUCCESS")
}
