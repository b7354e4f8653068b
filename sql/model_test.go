package sql_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// TestModel drives the agents' and the people's functions through random
// sequences of calls, a hundred lives, and has each come to its end. A model in Go says what each call answers and what the
// tables hold afterwards; and after each step the rules of the contract are
// checked on the tables themselves, whatever the model thinks.
//
// -rapid.checks (or RAPID_CHECKS) says how many sequences, -rapid.steps how
// long they are on average.
func TestModel(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	other := *w
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster('second')").Scan(&other.cluster, &other.token)
	})
	clusters := []modelCluster{{w.cluster, w.tokenHash}, {other.cluster, hashOf(other.token)}}
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t.Context(), rt, w.conn, clusters, seen)
		rt.Repeat(m.actions())
		m.finish(rt)
	})
	t.Logf("sequences, steps and what happened in them: %v", seen)
	if seen["steps"] < 5000 {
		return // too few for chance to bring about everything
	}
	for _, needed := range []string{"claimed", "apply begun", "lost while applying", "settled late", "released it", "told to stop after its end", "left out of a sweep", "swept", "state unsaved", "clock set back", "a lease that an outage ended lives on", "approved", "rejected", "retried",
		"awaits approval", "cancelled instead of waiting", "approval needed", "approval expired", "tried again", "attempt due", "attempt dropped", "applied what was approved",
		"set down", "set down by a lost lease", "taken up", "taken up in vain"} {
		if seen[needed] == 0 {
			t.Errorf("not once %s in %d steps: the test does not reach what it is for", needed, seen["steps"])
		}
	}
}

type modelCluster struct {
	id        uuid.UUID
	tokenHash string
}

// model is what the database should hold.
type model struct {
	ctx      context.Context // rapid's actions have no other way to it
	conn     *pgx.Conn
	clusters []modelCluster
	seen     map[string]int // how often what happened, over all sequences

	state  *contractState
	before *contractState // as the database was a step ago

	agents     []*modelAgent
	workspaces []uuid.UUID
	provisions []uuid.UUID        // in the order in which they were made
	claims     []uuid.UUID        // likewise
	hidden     map[uuid.UUID]bool // workspaces of inspections
	answers    map[uuid.UUID]string
	planned    map[uuid.UUID]bool // provisions of which a plan awaited approval
	rules      []string           // by cluster: when a plan must be approved
	released   map[uuid.UUID]bool // claims whose hold an admin has ended

	pulse  stamp
	putOff bool // reaping waits for one lease
	sent   int  // lines so far, so that no two texts are alike
}

// stamp is when something was stamped.
type stamp int

const (
	fresh  stamp = iota
	stale        // long ago
	future       // the clock was ahead
	gap          // as long ago as an outage that puts nothing off
)

// modelAgent is one agent instance, with all its boots; the last one counts.
type modelAgent struct {
	cluster    int
	instance   uuid.UUID
	boots      []uuid.UUID
	name, host string
	heard      stamp
}

func (a *modelAgent) boot() uuid.UUID { return a.boots[len(a.boots)-1] }

// newModel empties the tables and begins with two agents of one cluster, one of
// another, and something queued for each workspace.
func newModel(ctx context.Context, rt *rapid.T, conn *pgx.Conn, clusters []modelCluster, seen map[string]int) *model {
	m := &model{
		ctx: ctx, conn: conn, clusters: clusters, seen: seen, state: newContractState(),
		rules: make([]string, len(clusters)), planned: map[uuid.UUID]bool{}, hidden: map[uuid.UUID]bool{}, answers: map[uuid.UUID]string{}, released: map[uuid.UUID]bool{},
	}
	m.exec(rt, `SET session_replication_role = replica;
		DELETE FROM tendril.blob_parts; DELETE FROM tendril.blobs; DELETE FROM public.provision_stages; DELETE FROM tendril.claims; DELETE FROM tendril.log_heads; DELETE FROM public.provision_progress; DELETE FROM public.provision_logs; DELETE FROM public.provision_log_archives; DELETE FROM tendril.log_ends;
		DELETE FROM public.provision_events; DELETE FROM public.provision_stages; DELETE FROM public.provisions; DELETE FROM public.workspaces; DELETE FROM public.agents;
		SET session_replication_role = origin;
		UPDATE public.clusters SET approval = 'never';
		UPDATE tendril.settings SET retry_after = '1 hour', retry_at_most = '1 day', agent_alive = '10 minutes', lease = '10 minutes'; -- nothing is due, or over, but what a step lets be
		UPDATE tendril.pulse SET stamped_at = clock_timestamp(), reap_not_before = '-infinity';`)
	for _, a := range []struct {
		cluster int
		name    string
	}{{0, "one"}, {0, "two"}, {1, "three"}} {
		m.agents = append(m.agents, &modelAgent{cluster: a.cluster, instance: uuid.New(), boots: []uuid.UUID{uuid.New()}, name: a.name, host: a.name + ".example"})
		want(rt, "register", m.register(rt, m.agents[len(m.agents)-1]), "")
	}
	for i := range modelWorkspaces {
		m.insert(rt, i, provisionRow{Operation: "apply", Approval: "never", Most: 1})
	}
	seen["sequences"]++
	return m
}

// actions are what may happen, the number telling how often.
func (m *model) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"": func(rt *rapid.T) {
			m.seen["steps"]++
			m.compare(rt)
		},
	}
	// rapid draws the first of them more often, by their names.
	all := []struct {
		name  string
		often int
		do    func(*rapid.T)
	}{
		{"claim", 6, m.claimNew}, {"progress", 6, m.progress}, {"lose", 5, m.lose}, {"settle", 4, m.settle}, {"heartbeat", 3, m.heartbeat},
		{"sweep", 3, m.sweep}, {"set down", 3, m.reportSetDown}, {"restart", 3, m.restart}, {"deploy", 3, m.deploy}, {"log", 3, m.log}, {"release", 2, m.release},
		{"time passes", 2, m.timePasses}, {"cancel", 1, m.cancel}, {"claim again", 1, m.claimAgain}, {"await approval", 4, m.await},
		{"store a plan", 3, m.storePlan}, {"set policy", 1, m.setPolicy}, {"come due", 2, m.comeDue}, {"approve", 4, m.approve}, {"reject", 1, m.reject}, {"retry", 1, m.retry},
		{"lock", 1, m.lock}, {"unlock", 3, m.unlock}, {"register again", 1, m.registerAgain}, {"register a name twice", 1, m.registerName}, {"fall silent", 1, m.fallSilent},
	}
	for i, action := range all {
		for n := range action.often {
			actions[fmt.Sprintf("%d.%02d %s", n, i, action.name)] = func(rt *rapid.T) {
				action.do(rt)
				m.seen[action.name]++
			}
		}
	}
	return actions
}

// setModelSize makes the models' tests short, shorter on a slow machine, unless somebody
// wants them longer.
// It is for before any test begins: those side by side read the same flags.
func setModelSize() {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	checks := patience.Fewer(100, 25)
	if testing.Short() {
		checks = 10
	}
	for name, value := range map[string]string{"rapid.checks": strconv.Itoa(checks), "rapid.steps": "75"} {
		if _, env := os.LookupEnv(strings.ToUpper(strings.ReplaceAll(name, ".", "_"))); env || given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// call makes one call and returns the reason of its refusal, "" for none.
func (m *model) call(rt *rapid.T, into any, query string, args ...any) string {
	err := m.conn.QueryRow(m.ctx, query, args...).Scan(into)
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil || errors.Is(err, pgx.ErrNoRows):
		return ""
	case !refused || len(pg.Code) != 5 || pg.Code[:2] != "PT" || pg.Detail == "":
		rt.Fatalf("%s %v: %v, want an answer or a refusal with its reason", query, args, err)
	}
	return pg.Detail
}

func (m *model) exec(rt *rapid.T, query string, args ...any) {
	if _, err := m.conn.Exec(m.ctx, query, args...); err != nil {
		rt.Fatalf("%s: %v", query, err)
	}
}

func want[T comparable](rt *rapid.T, what string, got, want T) {
	rt.Helper()
	if got != want {
		rt.Fatalf("%s = %v, want %v", what, got, want)
	}
}
