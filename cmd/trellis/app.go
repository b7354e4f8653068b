package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/internal/provision"
)

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
	out     terminal               // what was asked for: logs, ids, tables
	err     terminal               // what is said about it
	browse  func(url string) error // shows a page

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
	return &app{program: program, getenv: getenv, in: in, out: out, err: err, browse: openBrowser}
}

func (a *app) run(args []string) int {
	root := a.command()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
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
	a.fitHelp(root)
	return root
}

// addVerbs adds all verbs, in the order in which they are met.
func (a *app) addVerbs(root *cobra.Command) {
	for _, group := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"Run it:", []*cobra.Command{a.upCommand(), a.linkCommand(), a.demoCommand(), a.serveCommand(), a.migrateCommand(), a.gcCommand(), a.adminCommand(), a.envCommand()}},
		{"Who you are, and where:", []*cobra.Command{a.loginCommand(), a.logoutCommand(), a.contextsCommand(), a.whoamiCommand(), a.apiTokensCommand(), a.keysCommand(), a.openCommand()}},
		{"Deploy and watch:", []*cobra.Command{
			a.deployCommand(), a.planCommand(), a.sealCommand(), a.statusCommand(), a.logsCommand(), a.eventsCommand(), a.approveCommand(), a.rejectCommand(),
			a.cancelCommand(), a.retryCommand(),
		}},
		{"What exists, and who may touch it:", []*cobra.Command{
			a.workspacesCommand(), a.outputsCommand(), a.resourcesCommand(), a.driftCommand(), a.stateCommand(), a.destroyCommand(),
			a.lockCommand(), a.unlockCommand(), a.releaseCommand(),
		}},
		{"Look after it:", []*cobra.Command{a.clustersCommand(), a.templatesCommand(), a.membersCommand(), a.invitationsCommand(), a.webhooksCommand(), a.auditCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, v := range group.verbs {
			v.GroupID = group.title
			listAlone(v)
		}
		root.AddCommand(group.verbs...)
	}
	root.AddCommand(a.versionCommand(), a.tendrilCommand(), a.inspectTemplateCommand())
	a.complete(root)
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
	_, notOne := errors.AsType[*store.NotProvisionError](err)
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
	_, away := errors.AsType[*store.UnreachableError](err)
	_, notRunning := errors.AsType[*instance.NotRunningError](err)
	return away || notRunning
}

// isBadSnapshot reports whether what was asked for is wrong in itself.
func isBadSnapshot(err error) bool {
	failure, ok := errors.AsType[*provision.Failure](err)
	return ok && failure.Code == provision.CodeBadSnapshot
}

// say writes one message to the person.
func (a *app) say(format string, args ...any) {
	_, _ = io.WriteString(a.err, a.err.fit(fmt.Sprintf(format, args...))+"\n") // nobody is left to tell
}

// print writes a line of what was asked for.
func (a *app) print(format string, args ...any) error {
	_, err := io.WriteString(a.out, a.out.fit(fmt.Sprintf(format, args...))+"\n")
	return err
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
