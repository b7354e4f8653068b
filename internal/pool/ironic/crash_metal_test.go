//go:build metal

package ironic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	testironic "github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

var errKilled = errors.New("the agent was killed")

// until is a Progress that ends what tells it, as a killed agent would, once a step was told.
type until struct {
	*heard
	step string
	kill context.CancelCauseFunc
}

func (u *until) Step(id, label string, percent int) {
	u.heard.Step(id, label, percent)
	if id == u.step {
		u.kill(errKilled)
	}
}

// Whatever moment an agent is killed at, the next one goes on with the same server, and there is
// one machine.
func TestAdoptedAfterACrash(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 1"})
	for _, step := range []string{"allocate", "prepare", "deploying", "active"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			l := labOn(t, i, 2, i.URL)
			spec := l.spec("web", l.names[0])
			ctx, kill := context.WithCancelCause(l.ctx)
			first := &until{&heard{t: t}, step, kill}
			if _, err := l.driver.Create(ctx, spec, first); !errors.Is(err, errKilled) && step != "active" {
				t.Fatalf("Create = %v, want that it was ended", err)
			}
			found, err := l.open(l.URL).Create(l.ctx, spec, &heard{t: t})
			if err != nil || !found.Ready || found.Node != l.names[0] {
				t.Fatalf("the next agent's Create = %+v, %v", found, err)
			}
			if other := l.node(l.names[1]); other.InstanceUUID != "" || other.ProvisionState != "available" {
				t.Errorf("the other server is %+v", other)
			}
			l.destroy(spec)
		})
	}
}

// A machine whose undeployment was interrupted is destroyed by the next one who tries.
func TestDestroyAfterACrash(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 1", Clean: true})
	for _, step := range []string{"undeploy", "deleting", "cleaning", "available"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			l := labOn(t, i, 1, i.URL)
			spec := l.spec("web", l.names[0])
			found := l.create(spec)
			ref := pool.Ref{ID: spec.ID, Name: "web", ExternalID: found.ExternalID, Node: found.Node}
			ctx, kill := context.WithCancelCause(l.ctx)
			err := l.driver.Destroy(ctx, ref, &until{&heard{t: t}, step, kill})
			kill(nil)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			if err := l.open(l.URL).Destroy(l.ctx, ref, &heard{t: t}); err != nil {
				t.Fatal(err)
			}
			if n := l.node(l.names[0]); n.ProvisionState != "available" || n.InstanceUUID != "" || len(n.Extra) > 0 {
				t.Errorf("the server is %+v", n)
			}
		})
	}
}

// A machine that is destroyed while it is deployed is gone, and so is one that was only allocated.
func TestDestroyBeforeItIsMade(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 1"})
	for _, step := range []string{"prepare", "deploying"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			l := labOn(t, i, 1, i.URL)
			spec := l.spec("web", l.names[0])
			ctx, kill := context.WithCancelCause(l.ctx)
			if _, err := l.driver.Create(ctx, spec, &until{&heard{t: t}, step, kill}); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			l.destroy(spec)
			if n := l.node(l.names[0]); n.ProvisionState != "available" || n.InstanceUUID != "" || n.AllocationUUID != "" || len(n.Extra) > 0 {
				t.Errorf("the server is %+v", n)
			}
		})
	}
}

// Thirty machines on thirty servers, by two agents of four each, while agents and Ironic are killed
// at random moments: no server is taken twice, none is left without an owner, and what others have
// is not touched.
func TestThirtyAtOnce(t *testing.T) {
	t.Parallel()
	machines, kills := 30, 3
	if short {
		machines, kills = 10, 1
	}
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 1"})
	l := labOn(t, i, machines+1, i.URL)
	ctx, cancel := patience.Context(t.Context(), 8*time.Minute)
	defer cancel()
	l.ctx = ctx
	foreign := l.spec("foreign", "")
	if err := l.Patch(ctx, l.names[machines], add("/instance_uuid", foreign.ID)); err != nil {
		t.Fatal(err)
	}
	before := l.node(l.names[machines])
	var specs []pool.Spec
	for n := range machines {
		// Two want each of half of the servers: Ironic decides.
		specs = append(specs, l.spec(fmt.Sprintf("m%02d", n), l.names[n/2]))
	}
	var mu sync.Mutex
	found := map[string]pool.Found{}
	queue := make(chan pool.Spec, machines)
	for _, s := range specs {
		queue <- s
	}
	var doing, killing sync.WaitGroup
	agents := make([]context.CancelCauseFunc, 2)
	contexts := make([]context.Context, 2)
	renew := func(n int) { contexts[n], agents[n] = context.WithCancelCause(ctx) }
	renew(0)
	renew(1)
	left := machines
	done := make(chan struct{})
	for slot := range 8 {
		doing.Go(func() {
			d := l.open(l.URL)
			for {
				var s pool.Spec
				select {
				case s = <-queue:
				case <-done:
					return
				}
				mu.Lock()
				agent := contexts[slot%2]
				mu.Unlock()
				f, err := d.Create(agent, s, &heard{t: t})
				mu.Lock()
				switch {
				case err == nil:
					found[s.Name] = f
					if left--; left == 0 {
						close(done)
					}
				case errors.Is(err, errKilled):
					queue <- s // another agent takes it up
				default:
					t.Errorf("%s: %v", s.Name, err)
					if left--; left == 0 {
						close(done)
					}
				}
				mu.Unlock()
			}
		})
	}
	killing.Go(func() {
		for n := range kills {
			for _, what := range []string{"agent", "ironic"} {
				wait := time.NewTimer(time.Duration(rand.IntN(3000)) * time.Millisecond)
				select {
				case <-done:
					wait.Stop()
					return
				case <-wait.C: // a random moment
				}
				if what == "ironic" {
					i.Kill()
					if err := i.Restart(ctx); err != nil {
						t.Error(err)
						return
					}
					continue
				}
				mu.Lock()
				agents[n%2](errKilled)
				renew(n % 2)
				mu.Unlock()
			}
		}
	})
	doing.Wait()
	killing.Wait()
	servers := map[string]string{}
	for name, f := range found {
		if other, twice := servers[f.ExternalID]; twice {
			t.Errorf("%s and %s have the server %s", name, other, f.Node)
		}
		servers[f.ExternalID] = name
	}
	all, err := l.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if n.ResourceClass != l.class || n.Name == before.Name {
			continue
		}
		owned := slices.ContainsFunc(specs, func(s pool.Spec) bool { return s.ID == n.InstanceUUID })
		if !owned || n.ProvisionState != "active" || n.Extra[extraMachine] != n.InstanceUUID {
			t.Errorf("the server %s is %s with the instance %q", n.Name, n.ProvisionState, n.InstanceUUID)
		}
	}
	if after := l.node(before.Name); after.UpdatedAt != before.UpdatedAt || after.InstanceUUID != foreign.ID {
		t.Errorf("the foreign server was touched: %+v, was %+v", after, before)
	}
	for n, s := range specs {
		if n < 3 { // the rest goes with its Ironic
			l.destroy(s)
		}
	}
}

// Ironic is killed in the middle of a deployment: it says of it that it failed, and it is begun
// again.
func TestConductorEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "deploy_delay = 3"})
	l := labOn(t, i, 1, i.URL)
	spec := l.spec("web", l.names[0])
	p := &heard{t: t}
	var creating sync.WaitGroup
	creating.Go(func() {
		if f, err := l.driver.Create(l.ctx, spec, p); err != nil || !f.Ready {
			t.Errorf("Create = %+v, %v", f, err)
		}
	})
	if err := l.Await(l.ctx, l.names[0], "deploying"); err != nil {
		t.Fatal(err)
	}
	i.Kill()
	if err := i.Restart(l.ctx); err != nil {
		t.Fatal(err)
	}
	creating.Wait()
	if !slices.ContainsFunc(p.logs, func(line string) bool { return strings.Contains(line, "begun again") }) {
		t.Errorf("the log does not say that it was begun again: %q", p.logs)
	}
}

// What a deployment costs beyond the calls that it consists of.
func TestCostOfADeployment(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{})
	l := labOn(t, i, 2, i.URL)
	bare := func(name, id string) time.Duration {
		began := time.Now()
		for _, call := range []struct {
			method, path string
			body         any
		}{
			{http.MethodPatch, "/v1/nodes/" + name, []map[string]any{
				add("/instance_uuid", id), add("/instance_info/image_source", "http://127.0.0.1/i.raw"), add("/instance_info/image_checksum", "d41d8cd98f00b204e9800998ecf8427e"),
			}},
			{http.MethodPut, "/v1/nodes/" + name + "/states/provision", map[string]any{"target": "active", "configdrive": map[string]any{"meta_data": map[string]any{"name": "web"}, "user_data": "#cloud-config"}}},
		} {
			if err := l.Again(l.ctx, func() error { return l.Call(l.ctx, call.method, call.path, call.body, nil) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Await(l.ctx, name, "active"); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	var ours, theirs []time.Duration
	for n := range 6 {
		if err := l.Power(l.ctx, l.names[0], "power on"); err != nil {
			t.Fatal(err)
		}
		spec := l.spec("web", l.names[0])
		began := time.Now()
		l.create(spec)
		took := time.Since(began)
		l.destroy(spec)
		without := bare(l.names[1], l.spec("", "").ID)
		if err := l.To(l.ctx, l.names[1], "deleted", "available"); err != nil {
			t.Fatal(err)
		}
		if n > 0 { // the first one is of a connection that is opened
			ours, theirs = append(ours, took), append(theirs, without)
		}
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	more := ours[len(ours)/2] - theirs[len(theirs)/2]
	t.Logf("available → active: %s, and %s by the bare calls: %s more (medians of %d)", ours[len(ours)/2].Round(time.Millisecond), theirs[len(theirs)/2].Round(time.Millisecond), more.Round(time.Millisecond), len(ours))
	if limit := patience.For(500 * time.Millisecond); more > limit {
		t.Errorf("it costs %s more than the bare calls, want at most %s", more, limit)
	}
}
