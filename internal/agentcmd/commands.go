package agentcmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/internal/printable"
)

// Exit codes of the agent's commands; package exitcode says what they mean.
const (
	ExitOK      = exitcode.OK
	ExitFailure = exitcode.Failed
	ExitUsage   = exitcode.Usage
)

// Commands returns the agent's verbs, to be mounted under any command.
func Commands() []*cobra.Command {
	verbs := []*cobra.Command{runCommand(), doctorCommand(), workspacesCommand(), execCommand(), gitHelperCommand(), versionCommand()}
	for _, verb := range verbs {
		complete(verb)
	}
	return verbs
}

// Main is the program tendril: it carries out args (without the program's
// name) and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	root := program()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "Error:", printable.Text(err.Error()))
	}
	if _, ran := errors.AsType[failure](err); err != nil && !ran {
		_, _ = fmt.Fprintf(stderr, "See %q.\n", cmd.CommandPath()+" --help")
	}
	return ExitCode(err)
}

// program is tendril with its verbs.
func program() *cobra.Command {
	root := &cobra.Command{
		Use:   "tendril",
		Short: "Runs Terraform for the provisions of a cluster",
		Long: `tendril is the agent that runs inside your cluster or on your machine. It claims
provisions from the queue in Postgres, runs Terraform for each in a process of
its own, and streams every line back. It opens no port unless health.listen
names one; it needs the queue's URL and the cluster's token, TENDRIL_API_TOKEN.

Where the agent may not reach the database, the URL is https://… of a Supabase
project (with SUPABASE_ANON_KEY, its public key) or of trellis serve.

Everything else has a default, and may stand in a file (--config) or in the
environment.

` + exitcode.Help(),
		Example: `  export TENDRIL_QUEUE_URL=postgres://agent@db.example/tendril
  export TENDRIL_API_TOKEN=tnd_…
  tendril doctor
  tendril run`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(Commands()...)
	return root
}

// failure is an error of a command that was asked for in the right way.
type failure struct {
	err  error
	code int
}

func (f failure) Error() string { return f.err.Error() }

func (f failure) Unwrap() error { return f.err }

// ExitCode returns the exit code for what a command of this package returned.
// What did not come from within a command is wrong usage.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if f, ok := errors.AsType[failure](err); ok {
		return f.code
	}
	return ExitUsage
}
