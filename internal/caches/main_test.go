package caches

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// holdEnv makes the test binary a process that holds the directory that it is in,
// until its input ends.
const holdEnv = "TENDRIL_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdEnv) != "" {
		_, held := Hold(".")
		fmt.Println(held)
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
