package agent

import (
	"os"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// roleEnv makes the test binary the program under test: the agent has a process
// of its own, for it ends whatever is not its child, and so have its children.
const roleEnv = "TENDRIL_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "agent":
		os.Exit(agentProcess())
	case "child":
		os.Exit(childProcess())
	}
	pgtest.Main(m)
}
