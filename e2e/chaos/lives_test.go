package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/trust"
)

// lived writes down, outside, what it makes and takes away.
const lived = `
variable "journal" { type = string }
variable "n" { type = number }
variable "word" { type = string }
variable "pause" { type = string }
resource "terraform_data" "each" {
  for_each         = toset([for i in range(var.n) : "r${i}"])
  input            = { journal = var.journal, key = each.key }
  triggers_replace = var.word
  provisioner "local-exec" {
    command = "umask 0; sleep ${var.pause}; echo \"+${each.key} $(date +%s%N)\" >> ${var.journal}"
  }
  provisioner "local-exec" {
    when    = destroy
    command = "umask 0; echo \"-${self.input.key} $(date +%s%N)\" >> ${self.input.journal}"
  }
}
`

// The versions of the template: one that works, and one for each step that fails.
const (
	works1      = "v1"
	failsPlan   = "v2-plan"
	failsInit   = "v3-init"
	failsApply  = "v4-apply"
	noPlan      = "\nresource \"terraform_data\" \"no\" {\n  lifecycle {\n    precondition {\n      condition     = var.n < 0\n      error_message = \"not today\"\n    }\n  }\n}\n"
	noInit      = "\nmodule \"no\" { source = \"./missing\" }\n"
	noApply     = "\nresource \"terraform_data\" \"no\" {\n  depends_on = [terraform_data.each]\n  input = var.n\n  provisioner \"local-exec\" { command = \"exit 1\" }\n}\n"
	livesLasted = 4 * time.Minute // until all is at rest once nobody does anything any more
)

// lives is a number of workspaces, each with a random life of its own, in a
// cluster of two agents; what befalls the agents and the database; and a witness
// of every change of a status.
type lives struct {
	*works
	own      *pgtest.Own
	identity string
	agents   []*site.Agent
	// requester is somebody whom the agents' policy trusts.
	requester trust.Person
	all       []*life
	random    *rand.Rand
	// torn are the workspaces in which a run's own process was killed, and when:
	// what its engine had not stored yet went with it.
	torn map[string][]time.Time
}

// seedOf is TENDRIL_SEED, or another one each time.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("TENDRIL_SEED")
	if text == "" {
		return rand.Uint64() >> 32
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("TENDRIL_SEED: %v", err)
	}
	return seed
}

// A hundred lives (a dozen, in the short suite): operations of all kinds,
// approvals, cancels, retries, locks in random order, while agents and runs are
// killed and the database goes away. No status becomes what the machine has no
// arrow for, nothing is stuck, no workspace is lost, and what exists is what the
// database says. TENDRIL_SEED has the same chosen again; when it happens, in
// relation to what runs, is never the same.
func TestLives(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	t.Logf("TENDRIL_SEED=%d", seed)
	l := newLives(t, seed)
	for n := range fewer(6, 12, 100) {
		l.all = append(l.all, l.newLife(n, seed))
	}
	for _, a := range l.agents {
		a.Start()
	}
	l.befall(l.live(times(7, 8)))
	l.rest()
	l.compareAll()
	l.lastDeploy()
	for _, a := range l.agents {
		a.Terminate()
	}
	for _, a := range l.agents {
		l.countLeftovers(a)
	}
	l.checkWitness()
	counted.add("lives", len(l.all))
}

func newLives(t *testing.T, seed uint64) *lives {
	t.Helper()
	w, own := ownWorks(t, pgtest.Durable())
	l := &lives{works: w, own: own, identity: w.IdentityFile(), random: rand.New(rand.NewPCG(seed, 1<<32)), torn: map[string][]time.Time{}}
	var err error
	if l.requester, err = trust.NewPerson(); err != nil {
		t.Fatal(err)
	}
	w.shortLeases()
	w.Exec(t, "UPDATE tendril.settings SET retry_after = '200 ms', retry_at_most = '1 s'")
	for _, name := range []string{"one", "two"} {
		a := w.agent(name, 2, "")
		a.ManageState(l.identity)
		a.AllowState(l.requester)
		l.agents = append(l.agents, a)
	}
	repo, _ := w.Git.Repo("lived", gittest.Text(map[string]string{"main.tf": lived}), works1)
	for version, more := range map[string]string{failsPlan: noPlan, failsInit: noInit, failsApply: noApply} {
		repo.Tag(version, repo.Commit(gittest.Text(map[string]string{"main.tf": lived + more})))
	}
	w.repo = repo.URL
	l.watch()
	return l
}

// live has all lives take their course, so many at a time; the channel is closed
// when they are over.
func (l *lives) live(atOnce int) (over <-chan struct{}) {
	done, places := make(chan struct{}), make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, one := range l.all {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			if err := one.take(); err != nil {
				l.T.Errorf("life %d: %v", one.n, err)
			}
		})
	}
	go func() {
		all.Wait()
		close(done)
	}()
	return done
}

// rest waits until nothing is to be done any more. Those who lead the lives have
// decided all that waits for a person.
func (l *lives) rest() {
	l.T.Helper()
	l.Exec(l.T, "SELECT public.pause_cluster($1, false)", l.Cluster)
	unsettled := func() string {
		return l.Text(l.T, `SELECT coalesce(string_agg(what, E'\n'), '') FROM (
			SELECT format('provision %s in %s: %s, %s', p.number, w.name, p.status, (SELECT string_agg(y.message, '; ') FROM public.why_waiting(p.id) y)) AS what
			FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')
			UNION ALL
			SELECT format('workspace %s: running %s, held %s, reserved %s, head %s, due %s, locked %s, unsaved on %s',
			              name, running_claim, held_by_claim, reserved_by, head_id, due_at, locked_at, unsaved_state_on)
			FROM public.workspaces WHERE (running_claim, held_by_claim, reserved_by, head_id, unsaved_state_on) IS DISTINCT FROM (NULL::uuid, NULL::uuid, NULL::uuid, NULL::uuid, NULL::uuid)
			OR (due_at, locked_at) IS DISTINCT FROM (NULL::timestamptz, NULL::timestamptz)) x`)
	}
	began := time.Now()
	for left := unsettled(); left != ""; left = unsettled() {
		if time.Since(began) > livesLasted {
			l.T.Fatalf("this does not come to rest:\n%s", left)
		}
		<-time.After(50 * time.Millisecond) // between two looks
	}
	for _, a := range l.agents {
		a.AwaitNoSpools()
	}
}

// lastDeploy ends each life by a deploy or a destroy, which must do what it
// says: no workspace is lost.
func (l *lives) lastDeploy() {
	l.T.Helper()
	for _, one := range l.all {
		operation := []string{"apply", "apply", "destroy"}[one.random.IntN(3)]
		one.last = one.newAct(operation, works1)
		l.insert(one)
	}
	for _, one := range l.all {
		if got := l.AwaitEnd(one.last.id); got != "SUCCESS" {
			l.T.Errorf("life %d: the last %s = %s: %s, want SUCCESS\n%s", one.n, one.last.operation, got, l.Message(one.last.id), l.Log(l.T, one.last.id))
			continue
		}
		want := map[string]bool{}
		if one.last.operation == "apply" {
			for i := range one.last.resources {
				want["r"+strconv.Itoa(i)] = true
			}
		}
		if got := l.listed(one, 0); !sameKeys(got, want) {
			l.T.Errorf("life %d: after the last %s the state has %v, want %v", one.n, one.last.operation, got, want)
		}
	}
	l.rest()
	l.compareAll()
}

func (l *lives) insert(one *life) {
	l.T.Helper()
	a := one.last
	l.Exec(l.T, "INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4)", a.id, l.Cluster, a.operation, a.snapshot)
}

func (l *lives) newLife(n int, seed uint64) *life {
	name := fmt.Sprintf("life%03d", n)
	return &life{
		n: n, workspace: name, journal: filepath.Join(l.journal, name), random: rand.New(rand.NewPCG(seed, uint64(n))),
		person: person{url: l.URL, patience: livesLasted}, repo: l.repo, cluster: l.Cluster, t: l.T, requester: l.requester, approved: map[string]string{},
	}
}
