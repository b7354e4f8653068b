package agentcmd

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// TestMain makes the test binary the program under test when it is started with
// that program's arguments: an agent has a process of its own, and starts
// itself again for each provision.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		if os.Args[1] == "agents" {
			os.Exit(mountedElsewhere())
		}
		os.Exit(Main(nil, os.Args[1:], os.Stdout, os.Stderr))
	}
	pgtest.Main(m)
}

// mountedElsewhere is a program that has the agent's verbs under another.
func mountedElsewhere() int {
	root := &cobra.Command{Use: "other", SilenceErrors: true, SilenceUsage: true}
	agents := &cobra.Command{Use: "agents", Hidden: true}
	agents.AddCommand(Commands(nil)...)
	root.AddCommand(agents)
	return ExitCode(root.Execute())
}
