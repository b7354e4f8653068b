//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/version"
)

type upFlags struct {
	listen    string
	slots     int
	allow     []string
	sample    bool
	trust     bool
	moveFrom  string
	throwaway bool // the data directory was made for this start alone
	cert, key string
	allowHTTP bool
}

func (f *upFlags) add(cmd *cobra.Command, listen string) {
	cmd.Flags().StringVar(&f.listen, "listen", listen, "address of the HTTP server (TRELLIS_LISTEN)")
	cmd.Flags().IntVar(&f.slots, "slots", devstack.DefaultSlots, "how many provisions run at once, 1 to 64")
	cmd.Flags().BoolVar(&f.trust, "trust-data-dir", false, "from now on use this data directory, and run the programs in it, although this user's trellis up did not make it there")
	cmd.Flags().StringVar(&f.cert, "tls-cert", "", "certificate with its chain, PEM, to answer other machines with; read again when it is renewed")
	cmd.Flags().StringVar(&f.key, "tls-key", "", "key of the certificate, PEM")
	cmd.Flags().BoolVar(&f.allowHTTP, "allow-http", false, "answer other machines over plain HTTP: everyone on the way can read passwords and tokens")
	cmd.Flags().StringArrayVar(&f.allow, "allow-repo", nil,
		`repositories that templates may come from besides the samples, such as "https://github.com/acme/**" (repeatable)`)
}

// check refuses what cannot be, before anything is made.
func (f *upFlags) check() error {
	if err := web.CheckPlain(f.listen, f.cert, f.key, f.allowHTTP); err != nil {
		return wrongUsage("%v", err)
	}
	if f.slots < 1 {
		return wrongUsage("--slots: from 1 to 64 are possible")
	}
	return nil
}

func (a *app) upCommand() *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything on this machine until Ctrl-C",
		Long: `Runs everything on this machine: PostgreSQL (one found here, else downloaded), the
migrations, an organisation, a cluster and its token, the sample templates as git
repositories, an agent, and an HTTP server with the console, the REST API, /healthz
and, for further agents, what "trellis serve" serves. A one-time link that signs a
browser in is printed; "trellis link" prints another one.

Everything is in the data directory and survives a restart: $XDG_DATA_HOME/tendril
or ~/.local/share/tendril, for root /var/lib/tendril, or what --data-dir names. It
uses only a directory that this user's trellis up made and that no other user may
write to.

To answer other machines (--listen), it needs --tls-cert and --tls-key, or
--allow-http. It always answers this machine on the loopback, over plain HTTP;
browsers are redirected to a host name of this instance, so that its cookies go
nowhere else.

Ctrl-C lets running provisions finish, then ends everything; a second Ctrl-C ends
them at once.`,
		Example: `  trellis up
  trellis up --data-dir look --sample
  trellis up --slots 4 --allow-repo 'https://github.com/acme/**'
  trellis up --database-url postgres://me@db.example/tendril`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.up(cmd, flags) },
	}
	cmd.Flags().BoolVar(&flags.sample, "sample", false, "fill the private database with sample clusters, members and runs, to look at the console with; once")
	cmd.Flags().StringVar(&flags.moveFrom, "move-from", "", "first move the data of this directory, such as an earlier version's .tendril, to the data directory")
	flags.add(cmd, cmp.Or(a.getenv("TRELLIS_LISTEN"), devstack.DefaultListen))
	return cmd
}

func (a *app) up(cmd *cobra.Command, flags upFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	signals := catchSignals()
	defer signal.Stop(signals)
	if err := a.moveData(cmd, flags.moveFrom); err != nil {
		return err
	}
	stack, err := a.startStack(cmd.Context(), signals, flags, a.ownKeys())
	if err != nil {
		return err
	}
	a.say("\nTendril is up on %s, its data in %s.\n", stack.PublicURL(), a.dataDir)
	if link, err := stack.Link(cmd.Context()); err != nil {
		a.say("A link for a browser cannot be made now: %v; %s makes one later.", err, a.hint(cmd, "link"))
	} else {
		a.say("Open it in a browser, once and within 15 minutes (%s prints another link):\n  %s\n", a.hint(cmd, "link"), link)
	}
	if stack.PublicURL() != stack.Runtime().URL {
		a.say("For a browser on another machine: %s\n", a.hint(cmd, "link --public-url "+stack.PublicURL()))
	}
	a.say("In another terminal:\n  %s\n  %s\n  eval \"$(%s)\"   # for scripts, psql and a second agent\n",
		a.hint(cmd, "deploy --template hello --workspace demo/hello --var name=Ada --follow"), a.hint(cmd, "status"), a.hint(cmd, "env"))
	a.say("Agents may come over HTTP, too, with queue.url = %q and the token of %s.\n", stack.PublicURL(), a.hint(cmd, "env"))
	a.say("Ctrl-C ends everything.")

	var broken error
	select {
	case <-signals:
	case <-stack.Done():
		broken = stack.Err()
		a.say("Error: %v; ending everything else", broken)
	}
	if err := a.stopStack(stack, signals); err != nil {
		return err
	}
	if broken != nil {
		return outcome(exitFailed)
	}
	return nil
}

// moveData moves a data directory to where it belongs now: the one that is named,
// or what an earlier version left in the current directory. The latter only after a
// yes, since a cloned repository may have brought it.
func (a *app) moveData(cmd *cobra.Command, from string) error {
	if from == "" {
		if from = instance.Earlier(); from == "" || cmd.Flags().Changed("data-dir") || a.getenv("TRELLIS_DATA_DIR") != "" {
			return nil
		}
		what := fmt.Sprintf("%s has the data of an earlier version of trellis up, which now belongs in %s. trellis up runs programs in it, so move it only if you made it.", from, a.dataDir)
		if !a.err.tty {
			return wrongUsage("%s Run trellis up --move-from %s, or name another directory with --data-dir", what, instance.EarlierDataDir)
		}
		a.say("%s", what)
		_, _ = fmt.Fprintf(a.err, "Move it? Type yes, or no to begin with an empty instance: ") // what is not seen is not answered
		answer, err := bufio.NewReader(a.in).ReadString('\n')
		switch strings.TrimSpace(answer) {
		case "yes":
		case "no":
			return nil
		default:
			a.say("Nothing was done.")
			return errors.Join(outcome(exitFailed), err)
		}
	}
	if err := instance.MoveDataDir(from, a.dataDir); err != nil {
		return err
	}
	a.say("Moved the data from %s to %s.", from, a.dataDir)
	return nil
}

// catchSignals takes over the signals that ask a program to end. A terminal
// that goes away is one.
func catchSignals() chan os.Signal {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	return signals
}

// startStack starts everything, with an agent that trusts the keys of requesters; a
// signal ends that.
func (a *app) startStack(ctx context.Context, signals <-chan os.Signal, flags upFlags, requesters []string) (*devstack.Stack, error) {
	if err := flags.check(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	given, err := a.givenDatabase()
	if err != nil {
		return nil, err
	}
	// What an agent leaves behind when it is killed falls to us: see endStragglers.
	if err := process.Subreaper(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	started, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			cancel()
		case <-started:
		}
	}()
	report := newSteps(a.err)
	stack, err := devstack.Start(ctx, devstack.Options{
		RequesterKeys: requesters,
		DataDir:       a.dataDir, Throwaway: flags.throwaway, TrustDataDir: flags.trust, Listen: flags.listen, CertFile: flags.cert, KeyFile: flags.key, AllowHTTP: flags.allowHTTP, DatabaseURL: given, Slots: flags.slots, AllowRepos: flags.allow, Sample: flags.sample,
		AgentCommand: []string{self, "tendril", "run"}, InspectCommand: []string{self, inspectVerb}, Version: version.String(), Report: report,
	})
	close(started)
	<-watched
	interrupted := ctx.Err() != nil
	cancel()
	switch {
	case err == nil && !interrupted:
		return stack, nil
	case err == nil: // between the last step and here
		err = a.stopStack(stack, signals)
	}
	report.close()
	if interrupted {
		a.say("Interrupted; everything that was started has ended.")
		return nil, errors.Join(outcome(exitInterrupted), err)
	}
	if _, away := errors.AsType[*store.UnreachableError](err); away && a.databaseURL == "" && a.databaseURLFile == "" && given != "" {
		err = fmt.Errorf("%w (it is named by %s; unset that to use a private database)", err, a.databaseSource())
	}
	return nil, err
}

// stopStack lets what runs finish; one more signal ends it at once.
func (a *app) stopStack(stack *devstack.Stack, signals <-chan os.Signal) error {
	drain, now := context.WithCancel(context.Background())
	defer now()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			a.say("Ending what runs now: each is interrupted once and may write its state.")
			now()
		case <-ended:
		}
	}()
	if running, err := stack.Running(drain); err == nil && len(running) > 0 {
		a.say("\nWaiting for what runs to finish: %s. Ctrl-C once more ends it now.", strings.Join(running, ", "))
	} else {
		a.say("\nEnding everything.")
	}
	err := stack.Stop(drain)
	close(ended)
	<-watched
	return errors.Join(err, endStragglers())
}
