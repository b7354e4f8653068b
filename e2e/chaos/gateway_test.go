package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
)

// The gateway is killed again and again, in the middle of calls.
func TestGatewayKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	if s.Gateway == nil {
		s.Serve()
	}
	w := newWorks(s)
	a := w.alone("one", 3).Start()
	a.AwaitOutput("registered")
	for range fewer(3, 6, 60) {
		w.keepBusy(4)
		<-time.After(rand.N(300 * time.Millisecond))
		w.Gateway.Kill()
		counted.add("faults: gateway killed", 1)
		<-time.After(rand.N(time.Second))
		w.Gateway.Start()
	}
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.count(a, "SUCCESS")
}

// A gateway that is told to end answers what it is doing first, so an agent
// that is served by the next one notices nothing.
func TestGatewayReplaced(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	if s.Gateway == nil {
		s.Serve()
	}
	w := newWorks(s)
	a := w.alone("one", 2).Start()
	for i := range fewer(2, 4, 40) {
		w.deploy(fmt.Sprintf("w%d", i%2), 60, 5*time.Millisecond)
		w.Gateway.Replace()
		counted.add("faults: gateway replaced", 1)
	}
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.countOnce()
	w.count(a, "SUCCESS")
}

// Of two gateways behind a balancer one is killed, and the other told to end, in turn: agents
// go on by the one that is there.
func TestTwoGateways(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	gateways := []*site.Gateway{s.Serve(), s.Serve()}
	s.QueueURL = "https://" + site.Balance(t, gateways[0].Address, gateways[1].Address).Address
	w := newWorks(s)
	a := w.alone("one", 3).Start()
	a.AwaitOutput("registered")
	for i := range fewer(3, 6, 60) {
		w.keepBusy(4)
		<-time.After(rand.N(300 * time.Millisecond))
		if gone := gateways[i%2]; rand.N(2) == 0 {
			gone.Kill()
			counted.add("faults: one of two gateways killed", 1)
			w.Await("runs to go on by the other", "SELECT bool_or(last_heartbeat_at > $1) FROM public.agents", time.Now())
			gone.Start()
		} else {
			gone.Replace()
			counted.add("faults: one of two gateways replaced", 1)
		}
	}
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.count(a, "SUCCESS")
}
