//go:build metal

package ironic

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	testironic "github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/provisioner"
)

func refTo(spec pool.Spec) pool.Ref { return pool.Ref{ID: spec.ID, Name: spec.Name} }

// A machine boots a rescue system by the password that it is given, gets another one, is switched
// there, and leaves it.
func TestRescue(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	defer l.destroy(spec)
	if found, err := l.driver.Unrescue(l.ctx, refTo(spec), &heard{t: t}); err != nil || !found.Ready {
		t.Errorf("to unrescue what is not in rescue: %+v, %v", found, err)
	}
	for _, password := range []string{"FIRST", "SECOND"} {
		p := &heard{t: t}
		found, err := l.driver.Rescue(l.ctx, refTo(spec), password, p)
		if err != nil || !found.Ready || found.Status != provisioner.StatusRunning || found.Mark != spec.ID {
			t.Fatalf("Rescue = %+v, %v", found, err)
		}
		if n := l.node(l.names[0]); n.ProvisionState != "rescue" || n.InstanceUUID != spec.ID || n.AllocationUUID != spec.ID {
			t.Errorf("the server is %+v", n)
		}
		if len(p.percent) == 0 || p.percent[len(p.percent)-1] != 100 || slices.ContainsFunc(p.logs, func(line string) bool { return strings.Contains(line, password) }) {
			t.Errorf("it was told as %v with %v percent and %q", p.ids, p.percent, p.logs)
		}
	}
	if found, err := l.driver.Power(l.ctx, refTo(spec), provisioner.PowerRestart, &heard{t: t}); err != nil || found.Status != provisioner.StatusRunning {
		t.Errorf("to restart it in rescue: %+v, %v", found, err)
	}
	inventory, err := l.driver.List(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(inventory.Nodes, func(n pool.Node) bool { return n.Name == l.names[0] })
	if s := inventory.Nodes[at].Server; s.Health != provision.ServerWarning || !strings.Contains(s.HealthWhy, "In rescue") {
		t.Errorf("in rescue the server's health is %s: %s", s.Health, s.HealthWhy)
	}
	if found, err := l.driver.Unrescue(l.ctx, refTo(spec), &heard{t: t}); err != nil || !found.Ready {
		t.Fatalf("Unrescue = %+v, %v", found, err)
	}
	if n := l.node(l.names[0]); n.ProvisionState != "active" || n.InstanceUUID != spec.ID {
		t.Errorf("afterwards the server is %+v", n)
	}
}

// What can't be rescued is left as it is, and the error says why.
func TestNothingToRescue(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3)
	rescue := func(ref pool.Ref) error {
		_, err := l.driver.Rescue(l.ctx, ref, "PASSWORD", &heard{t: t})
		if err != nil && strings.Contains(err.Error(), "PASSWORD") {
			t.Errorf("the error has the password: %v", err)
		}
		return err
	}
	if err := rescue(pool.Ref{ID: l.spec("none", "").ID, Name: "none"}); !errors.Is(err, pool.ErrGone) {
		t.Errorf("of a machine that does not exist: %v", err)
	}
	if err := rescue(pool.Ref{ID: l.spec("none", "").ID, Name: "none", Server: true}); err == nil {
		t.Error("a server that is enrolled is rescued")
	}
	// Allocated, and not deployed.
	allocated := l.spec("allocated", l.names[0])
	if err := l.Patch(l.ctx, l.names[0], add("/instance_uuid", allocated.ID)); err != nil {
		t.Fatal(err)
	}
	if err := rescue(refTo(allocated)); err == nil || !strings.Contains(err.Error(), "in the state available") {
		t.Errorf("of one that is not deployed: %v", err)
	}
	kept := l.spec("kept", l.names[1])
	l.create(kept)
	defer l.destroy(kept)
	if err := l.Call(l.ctx, http.MethodPut, "/v1/nodes/"+l.names[1]+"/maintenance", map[string]any{"reason": "a fan is broken"}, nil); err != nil {
		t.Fatal(err)
	}
	wantCode(t, rescue(refTo(kept)), provision.CodeServerNotAvailable, "a fan is broken", "maintenance unset")
	if err := l.Call(l.ctx, http.MethodDelete, "/v1/nodes/"+l.names[1]+"/maintenance", nil, nil); err != nil {
		t.Fatal(err)
	}
	// Without a rescue interface.
	without := l.spec("without", l.names[2])
	if err := l.Patch(l.ctx, l.names[2], add("/rescue_interface", "no-rescue")); err != nil {
		t.Fatal(err)
	}
	l.create(without)
	defer l.destroy(without)
	if err := rescue(refTo(without)); err == nil || !strings.Contains(err.Error(), "rescue_interface") {
		t.Errorf("of one without a rescue interface: %v", err)
	}
	for _, name := range l.names[1:] {
		if n := l.node(name); n.ProvisionState != "active" {
			t.Errorf("the server %s is in the state %s", name, n.ProvisionState)
		}
	}
}

// The agent is killed while a server boots the rescue system, and Ironic with it: who asks again has
// it rescued by their own password.
func TestRescueAfterACrash(t *testing.T) {
	t.Parallel()
	i := testironic.Start(t, testironic.Options{Fake: "rescue_delay = 3"})
	l := labOn(t, i, 1, i.URL)
	spec := l.spec("web", l.names[0])
	l.create(spec)
	killed, kill := context.WithCancelCause(l.ctx)
	var rescuing sync.WaitGroup
	rescuing.Go(func() {
		if _, err := l.driver.Rescue(killed, refTo(spec), "LOST", &heard{t: t}); !errors.Is(err, errKilled) {
			t.Errorf("the killed agent's Rescue ends by %v", err)
		}
	})
	if err := l.Await(l.ctx, l.names[0], "rescuing"); err != nil {
		t.Fatal(err)
	}
	kill(errKilled)
	rescuing.Wait()
	began := time.Now()
	var again sync.WaitGroup
	again.Go(func() {
		if found, err := l.driver.Rescue(l.ctx, refTo(spec), "FOUND", &heard{t: t}); err != nil || !found.Ready {
			t.Errorf("Rescue = %+v, %v", found, err)
		}
	})
	// Not before the first has ended is the second asked for, and the conductor ends in the middle of it.
	for {
		n := l.node(l.names[0])
		if n.InstanceInfo["rescue_password"] == "******" && n.ProvisionState == "rescuing" && time.Since(began) > 4*time.Second {
			break
		}
		if l.ctx.Err() != nil {
			t.Fatal("it is not rescued once more")
		}
		time.Sleep(50 * time.Millisecond)
	}
	i.Kill()
	if err := i.Restart(l.ctx); err != nil {
		t.Fatal(err)
	}
	again.Wait()
	if n := l.node(l.names[0]); n.ProvisionState != "rescue" || n.InstanceUUID != spec.ID {
		t.Errorf("the server is %+v", n)
	}
}
