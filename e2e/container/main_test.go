package container

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// shared is what the tests of this process run in. A test process is the one
// place where such a thing cannot be handed down: testing.M passes nothing to
// tests.
var shared *stage

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	// Nothing can be pulled here, the library's cleaner neither; what is made is
	// removed by who made it.
	for name, value := range map[string]string{"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err) // names and values that are always valid
		}
	}
	ctx, cancel := patience.Context(context.Background(), 15*time.Minute)
	defer cancel()
	var err error
	if shared, err = newStage(ctx); err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "e2e/container:", err)
		code = 1
	}
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/container: cleaning up:", err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: Errors on successful test run:", err)
			code = 1
		}
	}
	return code
}
