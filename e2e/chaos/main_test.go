package chaos

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

func TestMain(m *testing.M) {
	if isEngine() {
		syscall.Exit(playEngine(os.Args[1:], os.Stdout)) // os.Exit would wait a second for the race detector
	}
	if os.Getenv("TENDRIL_TEST_QUEUE") == "" { // what breaks must not matter to either
		if err := os.Setenv("TENDRIL_TEST_QUEUE", "any"); err != nil {
			panic(err) // a name is a name
		}
	}
	site.Main(told{m})
}

// told prints what was injected and compared when the tests have run.
type told struct{ m *testing.M }

func (r told) Run() int {
	// Most of them wait most of the time.
	if flag.Parse(); flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err) // a number is a number
		}
	}
	code := r.m.Run()
	counted.print(os.Stdout)
	return code
}

// full says that the whole suite is wanted, not the short one.
func full() bool { return os.Getenv("TENDRIL_CHAOS") == "full" }

// each says that every fault is to be met.
func each() bool { return os.Getenv("TENDRIL_TEST_FAULTS") == "all" }

// fewer is times where a test that only draws some of the faults injects fewer.
func fewer(drawn, short, whole int) int {
	if !full() && !each() {
		return drawn
	}
	return times(short, whole)
}

// some are those of a series that a test takes: all where each fault is to be met, else one
// that is drawn.
func some[T any](all ...T) []T {
	if full() || each() {
		return all
	}
	drawn := rand.N(len(all))
	return all[drawn : drawn+1]
}

// times is how often a fault is injected.
func times(short, whole int) int {
	if full() {
		return whole
	}
	return short
}
