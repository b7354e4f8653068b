package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/internal/githelper"
	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/metrics"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/version"
)

// Exit codes of the agent's commands; package exitcode says what they mean.
const (
	ExitOK      = exitcode.OK
	ExitFailure = exitcode.Failed
	ExitUsage   = exitcode.Usage
)

// OpenLauncher makes what carries runs out elsewhere, and what ends it. The agent runs until the
// context that it returns ends.
type OpenLauncher func(context.Context, config.Config, *slog.Logger) (context.Context, agent.Launcher, func(), error)

// Commands returns the agent's verbs, to be mounted under any command. launch is nil in programs
// that carry runs out themselves.
func Commands(launch OpenLauncher) []*cobra.Command {
	verbs := []*cobra.Command{runCommand(launch), joinCommand(launch), doctorCommand(), workspacesCommand(), identityCommand(), provisionerCommand(), execCommand(), runnerCommand(), gitHelperCommand(), versionCommand(nameOf(launch))}
	for _, verb := range verbs {
		complete(verb)
	}
	return verbs
}

// Main is the program tendril: it carries out args (without the program's
// name) and returns the exit code.
func Main(launch OpenLauncher, args []string, stdout, stderr io.Writer) int {
	root := program(launch)
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
func program(launch OpenLauncher) *cobra.Command {
	root := &cobra.Command{
		Use:   nameOf(launch),
		Short: "Runs Terraform for the provisions of a cluster",
		Long: `tendril is the agent that runs inside your cluster or on your machine. It claims
provisions from the queue in Postgres, runs Terraform for each in a process of
its own, and streams every line back. It opens no port unless health.listen
names one.

It joins a cluster by a key of its own, which signs all that it asks of trellis
serve: "tendril join URL". Agents that reach the database itself, or a Supabase
project (with SUPABASE_ANON_KEY, its public key), need the queue's URL and the
cluster's token, TENDRIL_API_TOKEN.

Everything else has a default, and may stand in a file (--config) or in the
environment.

` + exitcode.Help(),
		Example: `  tendril join https://trellis.example

  export TENDRIL_QUEUE_URL=postgres://agent@db.example/tendril
  export TENDRIL_API_TOKEN=tnd_…
  tendril doctor
  tendril run`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(Commands(launch)...)
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

// complete gives a verb, those below it and their flags their words: where there are
// none it says so, since a shell offers the files of the directory otherwise.
func complete(verb *cobra.Command) {
	for _, child := range verb.Commands() {
		complete(child)
	}
	if verb.ValidArgsFunction == nil {
		verb.ValidArgsFunction = cobra.NoFileCompletions
	}
	verb.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Value.Type() == "bool" {
			return
		}
		words := cobra.NoFileCompletions
		switch flag.Name {
		case "config", "file", "to", "yes-with", "key", "certificate":
			words = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
		case "data-dir":
			words = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case "output":
			words = cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)
		}
		_ = verb.RegisterFlagCompletionFunc(flag.Name, words) // the flag is there
	})
}

// nameOf is how the program is called.
func nameOf(launch OpenLauncher) string {
	if launch != nil {
		return dispatcherName
	}
	return "tendril"
}

func versionCommand(name string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and the contract it speaks",
		Long: `Print this program's version, the commit it was built from, and the version of
the SQL contract it speaks. A database of the same contract, of one version older
or of any newer one serves it.`,
		Example: `  tendril version -o json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Of(queue.Contract)
			switch output {
			case "text":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), info.Sentence(name))
				return err
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(info)
			default:
				return wrongOutput(output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func wrongOutput(output string) error {
	return fmt.Errorf("invalid argument %q for \"-o, --output\": it is text or json", output)
}

// gitHelperCommand is what git starts while an engine fetches modules. Its
// arguments are git's.
func gitHelperCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "git-helper",
		Short:              "Ask the run that git belongs to for its credentials",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			// A password passes through.
			if err := process.Undumpable(); err != nil {
				return failure{err, ExitFailure}
			}
			os.Exit(githelper.Main(args, os.Stdin, os.Stdout, os.Stderr))
			return nil
		},
	}
}

// tokens is the cluster's token, which may be changed in its file meanwhile.
type tokens struct {
	read func() (config.Secret, error)
	log  *slog.Logger

	mu     sync.Mutex
	newest config.Secret
	told   bool // that it cannot be read
}

// now is the token that the file has, or had when it could be read last: that one
// is valid for as long as the database says so.
func (t *tokens) now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	read, err := t.read()
	switch {
	case err != nil && !t.told:
		t.log.Warn("the cluster's token cannot be read again; the last one is used", "error", err)
	case err == nil && read != t.newest:
		t.newest = read
		t.log.Info("the cluster's token has changed in its file")
	}
	t.told = err != nil
	return t.newest.Reveal()
}

// execCommand is what an agent starts for each provision. It is no use to
// people: without the descriptors that it inherits it can only fail.
func execCommand() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use:    "exec",
		Short:  "Carry out one provision for an agent that started this process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return failure{fmt.Errorf("find this program's file: %w", err), ExitFailure}
			}
			if err := executor.Main(as, append([]string{self}, sibling(cmd, "git-helper")...)); err != nil {
				return failure{err, ExitFailure}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "uids to take in place of root")
	return cmd
}

// observed has an agent that is to be made tell how it is, where the
// configuration wants a port for that. serve opens it, before the agent begins;
// what serve returns closes it, after the agent has ended.
func observed(c config.Config, o *agent.Options) (serve func(*agent.Agent) (stop func(), err error)) {
	if c.Health.Listen == "" {
		return func(*agent.Agent) (func(), error) { return func() {}, nil }
	}
	measured := metrics.New(o.Version)
	o.Observer, o.Loops, o.Standing = measured, health.NewLoops(health.Margin), health.NewStanding()
	log, loops, standing := o.Log, o.Loops, o.Standing
	return func(a *agent.Agent) (func(), error) {
		measured.Watch(func() metrics.Status { return metrics.Status(a.Status()) })
		measured.WatchData(a.DataBytes)
		server, err := health.Listen(c.Health.Listen, health.Handler(loops, standing, measured.Handler(log)))
		if err != nil {
			return nil, err
		}
		log.Info("serving health and metrics", slog.String("address", server.Address()))
		return server.Close, nil
	}
}
