// Command trellis is the control plane: migrations, deploys, logs, and
// `trellis up`, which is all of it on one machine. One file holds one verb.
//
// It talks to people and decides nothing: what may be done is up to the
// database, what runs is up to the agent.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/version"
)

func main() {
	cobra.EnableCommandSorting = false // they are in the order in which they are met
	os.Exit(newApp(os.Args[0], os.Getenv, os.Stdin, terminalOf(os.Stdout), terminalOf(os.Stderr)).run(os.Args[1:]))
}

// terminalOf looks whether a file is a terminal that understands more than
// plain text: only such one has a window size.
func terminalOf(f *os.File) terminal {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return terminal{
		Writer: f, tty: err == nil && os.Getenv("TERM") != "dumb", color: os.Getenv("NO_COLOR") == "",
		width: func() int { // asked each time: windows are resized
			size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
			if err != nil {
				return 0
			}
			return int(size.Col)
		},
	}
}

// Exit codes; package exitcode says what they mean.
const (
	exitOK          = exitcode.OK
	exitFailed      = exitcode.Failed
	exitUsage       = exitcode.Usage
	exitUnreachable = exitcode.Unreachable
	exitAwaits      = exitcode.Awaits
	exitInterrupted = exitcode.Interrupted
)

// app is what the verbs share.
type app struct {
	program string // as it was called, for commands that people can copy
	getenv  func(string) string
	in      io.Reader
	printer
	browse func(url string) error // shows a page

	dataDir     string
	databaseURL string
	// databaseURLFile holds it instead: arguments are seen by all of a machine.
	databaseURLFile string

	server  string // URL of the one to ask
	context string // or the name that it has
	org     string
	entered bool // a verb has begun: what fails from here on is no wrong usage
}

func newApp(program string, getenv func(string) string, in io.Reader, out, err terminal) *app {
	return &app{program: program, getenv: getenv, in: in, printer: printer{out: out, err: err}, browse: openBrowser}
}

// traceparentEnv has the trace that a verb is part of, as OpenTelemetry passes it to programs.
const traceparentEnv = "TRACEPARENT"

func (a *app) run(args []string) int {
	root := a.command()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(tracing.Into(context.Background(), a.getenv(traceparentEnv)))
	if isAgentVerb(cmd) {
		if err != nil {
			a.say("Error: %s", err)
		}
		return agentExit(err)
	}
	return a.exit(cmd, err)
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "trellis",
		Short: "Deploy Terraform templates through a queue in Postgres, and watch them run",
		Long: `trellis is Tendril's control plane. "trellis up" runs all of it on this machine;
the other verbs ask it, or a server that you have logged in to (trellis login).

` + exitcode.Help(),
		Example: `  trellis demo       start everything, deploy a template, watch it run
  trellis up         start everything and keep it running
  trellis deploy --template hello --workspace demo/hello --var name=Ada --follow`,
		SilenceUsage:     true,
		SilenceErrors:    true,
		Args:             verb,
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(*cobra.Command, []string) { a.entered = true },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagProblem(err) })
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.dataDir, "data-dir", cmp.Or(a.getenv("TRELLIS_DATA_DIR"), instance.DefaultDataDir()), `directory of "trellis up" (TRELLIS_DATA_DIR)`)
	flags.StringVar(&a.databaseURL, "database-url", "", "for up, serve, migrate, gc, link and admin: the database, postgres://… (TRELLIS_DATABASE_URL)")
	flags.StringVar(&a.databaseURLFile, "database-url-file", "", "file with that URL, not readable by others: for one with a password (TRELLIS_DATABASE_URL_FILE)")
	flags.StringVar(&a.server, "server", "", "URL of the server to ask (TRELLIS_URL, with TRELLIS_TOKEN or TRELLIS_TOKEN_FILE)")
	flags.StringVar(&a.context, "context", "", `server to ask, by the name that "trellis contexts" lists; default: the current one`)
	flags.StringVar(&a.org, "org", "", "organisation, by name or id, where you belong to several (TRELLIS_ORG)")
	a.addVerbs(root)
	fitHelp(a, root)
	return root
}

// addVerbs adds all verbs, in the order in which they are met.
func (a *app) addVerbs(root *cobra.Command) {
	for _, group := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"Run it:", []*cobra.Command{upCommand(a), linkCommand(a), demoCommand(a), serveCommand(a), migrateCommand(a), gcCommand(a), adminCommand(a), envCommand(a)}},
		{"Who you are, and where:", []*cobra.Command{loginCommand(a), logoutCommand(a), contextsCommand(a), whoamiCommand(a), apiTokensCommand(a), keysCommand(a), openCommand(a), mcpCommand(a)}},
		{"Deploy and watch:", []*cobra.Command{
			deployCommand(a), planCommand(a), sealCommand(a), statusCommand(a), logsCommand(a), eventsCommand(a), approveCommand(a), rejectCommand(a),
			inputCommand(a), assignCommand(a), commentCommand(a), cancelCommand(a), retryCommand(a),
		}},
		{"What exists, and who may touch it:", []*cobra.Command{
			workspacesCommand(a), outputsCommand(a), resourcesCommand(a), machinesCommand(a), poolsCommand(a), driftCommand(a), stateCommand(a), destroyCommand(a),
			lockCommand(a), unlockCommand(a), releaseCommand(a),
		}},
		{"Look after it:", []*cobra.Command{clustersCommand(a), templatesCommand(a), membersCommand(a), invitationsCommand(a), webhooksCommand(a), auditCommand(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, v := range group.verbs {
			v.GroupID = group.title
			listAlone(v)
		}
		root.AddCommand(group.verbs...)
	}
	root.AddCommand(versionCommand(a), tendrilCommand(a), inspectTemplateCommand(a))
	completeWords(a, root)
}

// listAlone has a verb that can list do so when it is called alone.
func listAlone(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		if child.Name() == "list" && child.Args(child, nil) == nil {
			cmd.RunE = child.RunE
			cmd.Example = cmp.Or(cmd.Example, strings.TrimSuffix(child.Example, " list"))
			cmd.Flags().AddFlagSet(child.Flags())
		}
	}
}

// outcome is an exit code whose reason has been told already.
type outcome int

func (o outcome) Error() string { return fmt.Sprintf("exit code %d", int(o)) }

// exit tells of the error and returns the exit code that belongs to it.
func (a *app) exit(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	if told, ok := errors.AsType[outcome](err); ok {
		return int(told)
	}
	// A database is tried with TLS and without, and says the same of both.
	a.say("Error: %s", strings.Join(slices.Compact(strings.Split(err.Error(), "\n")), "\n"))
	_, wrong := errors.AsType[*usageError](err)
	_, notOne := errors.AsType[*problem.NotProvisionError](err)
	_, noContext := errors.AsType[*contexts.UnknownError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case !a.entered || wrong || notOne || noContext:
		a.say("Usage: %s\nSee %q.", strings.TrimSpace(cmd.UseLine()), cmd.CommandPath()+" --help")
		return exitUsage
	case isBadSnapshot(err):
		return exitUsage
	case isUnreachable(err):
		return exitUnreachable
	}
	return exitFailed
}

func isUnreachable(err error) bool {
	_, away := errors.AsType[*problem.UnreachableError](err)
	_, notRunning := errors.AsType[*instance.NotRunningError](err)
	return away || notRunning
}

// isBadSnapshot reports whether what was asked for is wrong in itself: a snapshot, or
// the values of a template's variables.
func isBadSnapshot(err error) bool {
	failure, ok := errors.AsType[*provision.Failure](err)
	return ok && (failure.Code == provision.CodeBadSnapshot || failure.Code == provision.CodeVariablesInvalid)
}

// hint is a command that a person can copy.
func (a *app) hint(cmd *cobra.Command, verb string) string {
	command := a.program
	for _, flag := range [][2]string{{"data-dir", a.dataDir}, {"server", a.server}, {"context", a.context}, {"org", a.org}} {
		if cmd.Flags().Changed(flag[0]) {
			command += " --" + flag[0] + " " + quote(flag[1])
		}
	}
	return command + " " + verb
}

// verb refuses a word that is no verb of cmd.
func verb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			known = append(known, c.Name())
		}
	}
	return wrongUsage("there is no %q%s", cmd.CommandPath()+" "+args[0], provision.DidYouMean(args[0], known))
}

// none wants no argument.
func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUsage("%s takes no argument, and there is %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// one wants one argument, which what names.
func one(what string) cobra.PositionalArgs { return each(what) }

// each wants as many arguments as there are names, at most three.
func each(named ...string) cobra.PositionalArgs {
	count := [...]string{"no argument", "one argument", "two arguments", "three arguments"}[len(named)]
	return func(_ *cobra.Command, args []string) error {
		if last := len(named) - 1; len(args) != len(named) {
			all := named[last]
			if last > 0 {
				all = strings.Join(named[:last], ", ") + " and " + all
			}
			return wrongUsage("give %s, %s; there are %d", count, all, len(args))
		}
		return nil
	}
}

// atMostOne wants one argument or none.
func atMostOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return wrongUsage("give one argument at most, %s; there are %d", what, len(args))
		}
		return nil
	}
}

// usageError is a mistake on the command line that a verb found itself.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func wrongUsage(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// flagProblem says what is wrong with a flag, without Go's words for it.
func flagProblem(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if _, ok := errors.AsType[*strconv.NumError](err); ok {
		return wrongUsage("--%s: %q is no number that is possible there", invalid.GetFlag().Name, invalid.GetValue())
	}
	if invalid.GetFlag().Value.Type() == "duration" {
		return wrongUsage("--%s: %q is no time such as 90s, 45m or 24h", invalid.GetFlag().Name, invalid.GetValue())
	}
	return err
}

// Columns that a help text has: as many as the terminal within these bounds, for
// longer lines are hard to read; leastColumns where nobody knows.
const (
	leastColumns = 80
	mostColumns  = 100
)

// fitHelp has the help of a verb and of all below it broken where words end.
func fitHelp(a *app, root *cobra.Command) {
	columns := leastColumns
	if a.out.tty {
		columns = min(max(columns, a.out.width()), mostColumns)
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", columns)))
	var fit func(*cobra.Command)
	fit = func(cmd *cobra.Command) {
		cmd.Long = fitted(cmd.Long, columns)
		for _, child := range cmd.Commands() {
			fit(child)
		}
	}
	fit(root)
}

// fitted breaks the lines of paragraphs again, to fit. What is indented stays as it is.
func fitted(text string, columns int) string {
	var lines []string
	paragraph := ""
	end := func() {
		if paragraph != "" {
			lines = append(lines, wordwrap.WrapString(paragraph, uint(columns)))
		}
		paragraph = ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, " ") {
			end()
			lines = append(lines, line)
			continue
		}
		paragraph = strings.TrimSpace(paragraph + " " + line)
	}
	end()
	return strings.Join(lines, "\n")
}

func versionCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "version",
		Short:   "Print this program's version and the contract it speaks",
		Example: `  trellis version -o json`,
		Args:    none,
		RunE: func(*cobra.Command, []string) error {
			info := version.Of(queue.Contract)
			return a.answer(nil, info, "%s", info.Sentence("trellis"))
		},
	})
}
