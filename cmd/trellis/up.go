//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/localironic"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/version"
)

type upFlags struct {
	listen    string
	slots     int
	allow     []string
	sample    bool
	trust     bool
	moveFrom  string
	with      []string // what is started besides
	throwaway bool     // the data directory was made for this start alone
	cert, key string
	allowHTTP bool
}

// What --with may name.
const withPVESim, withIronic = "pve-sim", "ironic"

func (f *upFlags) add(cmd *cobra.Command, listen string) {
	cmd.Flags().StringVar(&f.listen, "listen", listen, "address of the HTTP server (TRELLIS_LISTEN)")
	cmd.Flags().IntVar(&f.slots, "slots", devstack.DefaultSlots, "how many runs run at once, 1 to 64")
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
	for _, name := range f.with {
		switch name {
		case withPVESim:
		case withIronic:
			if err := localironic.Installed(); err != nil {
				return wrongUsage("--with %s: %v", withIronic, err)
			}
		default:
			return wrongUsage("--with: %q is unknown; write %s or %s", name, withPVESim, withIronic)
		}
	}
	if f.slots < 1 {
		return wrongUsage("--slots: from 1 to 64 are possible")
	}
	return nil
}

func upCommand(a *app) *cobra.Command {
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

Ctrl-C lets running runs finish, then ends everything; a second Ctrl-C ends
them at once.`,
		Example: `  trellis up
  trellis up --data-dir look --sample
  trellis up --with pve-sim
  trellis up --with ironic
  trellis up --slots 4 --allow-repo 'https://github.com/acme/**'
  trellis up --database-url postgres://me@db.example/tendril`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return runUp(a, cmd, flags) },
	}
	cmd.Flags().BoolVar(&flags.sample, "sample", false, "fill the private database with sample clusters, members and runs, to try the console with; once")
	cmd.Flags().StringSliceVar(&flags.with, "with", nil, "also start pve-sim: a simulated Proxmox cluster, with a pool of it and the template class, to see machines come up without a hypervisor; or ironic: a real OpenStack Ironic with fake servers, where that is installed")
	cmd.Flags().StringVar(&flags.moveFrom, "move-from", "", "first move the data of this directory, such as an earlier version's .tendril, to the data directory")
	flags.add(cmd, cmp.Or(a.getenv("TRELLIS_LISTEN"), devstack.DefaultListen))
	return cmd
}

func runUp(a *app, cmd *cobra.Command, flags upFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	signals := catchSignals()
	defer signal.Stop(signals)
	if err := moveData(a, cmd, flags.moveFrom); err != nil {
		return err
	}
	stack, err := startStack(cmd.Context(), a, signals, flags, ownKeys(a))
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
	a.say("To have a language model use it (see docs/MCP.md for other programs):\n  %s\n", a.addToModel())
	a.say("Another agent joins by its own key: tendril join %s\n", stack.PublicURL())
	a.say("Ctrl-C ends everything.")

	var broken error
	select {
	case <-signals:
	case <-stack.Done():
		broken = stack.Err()
		a.say("Error: %v; ending everything else", broken)
	}
	if err := stopStack(a, stack, signals); err != nil {
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
func moveData(a *app, cmd *cobra.Command, from string) error {
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
func startStack(ctx context.Context, a *app, signals <-chan os.Signal, flags upFlags, requesters []string) (*devstack.Stack, error) {
	if err := flags.check(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	given, err := givenDatabase(a)
	if err != nil {
		return nil, err
	}
	tracer, err := tracing.Start("trellis", version.String(), a.getenv, slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, wrongUsage("%v", err)
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
		Tracer:        tracer,
		RequesterKeys: requesters,
		DataDir:       a.dataDir, Throwaway: flags.throwaway, TrustDataDir: flags.trust, Listen: flags.listen, CertFile: flags.cert, KeyFile: flags.key, AllowHTTP: flags.allowHTTP, DatabaseURL: given, Slots: flags.slots, AllowRepos: flags.allow, Sample: flags.sample, PVESim: slices.Contains(flags.with, withPVESim), Metal: slices.Contains(flags.with, withIronic),
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
		err = stopStack(a, stack, signals)
	}
	report.close()
	if interrupted {
		a.say("Interrupted; everything that was started has ended.")
		return nil, errors.Join(outcome(exitInterrupted), err)
	}
	if _, away := errors.AsType[*problem.UnreachableError](err); away && a.databaseURL == "" && a.databaseURLFile == "" && given != "" {
		err = fmt.Errorf("%w (it is named by %s; unset that to use a private database)", err, databaseSource(a))
	}
	return nil, err
}

// stopStack lets what runs finish; one more signal ends it at once.
func stopStack(a *app, stack *devstack.Stack, signals <-chan os.Signal) error {
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

// steps tells a person how a start goes: a line for each step when it is done,
// and on a TTY one for the step that goes on.
type steps struct {
	mu     sync.Mutex
	screen *screen
	t      terminal
}

var _ devstack.Reporter = (*steps)(nil)

func newSteps(t terminal) *steps { return &steps{screen: newScreen(t), t: t} }

// Step implements devstack.Reporter.
func (s *steps) Step(name string) func(string) {
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.screen.show("… " + name) // progress is worth no failure
	return func(detail string) {
		took := time.Since(began)
		s.mu.Lock()
		defer s.mu.Unlock()
		mark := ""
		if s.t.tty {
			mark = s.t.paint(green, "✓") + " "
		}
		_ = s.screen.show("")
		_ = s.screen.write(provision.Stdout, fmt.Sprintf("%s%s: %s %s\n", mark, name, detail, s.t.paint(dim, "("+seconds(took)+")")))
	}
}

// Note implements devstack.Reporter.
func (s *steps) Note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := ""
	if s.t.tty {
		mark = "  "
	}
	_ = s.screen.write(provision.Stdout, mark+text+"\n")
}

// close takes away what is shown of a step that has not ended.
func (s *steps) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.screen.close()
}

const (
	// stragglerGrace is how long processes that outlived their agent may take:
	// a run that has lost its agent interrupts its engine and waits for it.
	stragglerGrace = 40 * time.Second
	// stragglerLook is how often they are looked for.
	stragglerLook = 100 * time.Millisecond
	// killLimit is how long killed ones may take to be gone.
	killLimit = 5 * time.Second
)

// endStragglers returns when no process lives that we, or something we
// started, started: usually at once.
func endStragglers() error {
	tick := time.NewTicker(stragglerLook)
	defer tick.Stop()
	for deadline := time.Now().Add(stragglerGrace); time.Now().Before(deadline); <-tick.C {
		left, err := process.Descendants(os.Getpid())
		if err != nil {
			return err
		}
		living := false
		for _, p := range left {
			living = living || !p.Zombie
		}
		if !living {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	return process.KillDescendants(ctx, nil)
}

const (
	demoWorkspace = "demo/hello"
	// joinLimit is how long an instance that is still starting is waited for.
	joinLimit = time.Minute
	// cancelLimit bounds the last request of a demo that is interrupted.
	cancelLimit = 5 * time.Second
)

func demoCommand(a *app) *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start everything, deploy the template hello, watch it run",
		Long: `Deploys the sample template hello and shows its log while Terraform runs. It uses
the instance that runs on the data directory, else starts one and ends it
afterwards. The exit code is the run's.

An instance that it starts leaves nothing behind: its data is in a temporary
directory, which is removed at the end. With --data-dir (TRELLIS_DATA_DIR) or a
database of yours, the data is kept.`,
		Example: `  trellis demo
  trellis demo --data-dir look`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(a, cmd, flags) },
	}
	flags.add(cmd, "127.0.0.1:0") // any free port: nobody has to know it
	return cmd
}

func runDemo(a *app, cmd *cobra.Command, flags upFlags) (err error) {
	signals := catchSignals()
	defer signal.Stop(signals)
	remove, err := throwawayData(a, cmd, &flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()             // after everything has ended
	stack, err := startStack(cmd.Context(), a, signals, flags, nil) // nothing is left behind, and so no key
	var runtime instance.Runtime
	if inUse, ok := errors.AsType[*devstack.InUseError](err); ok {
		a.say("Using the instance that runs on %s (%s).", a.dataDir, inUse.Holder)
		runtime, err = awaitRuntime(cmd.Context(), a)
	}
	if err != nil {
		return err
	}
	if stack != nil {
		runtime = stack.Runtime()
		defer func() { err = errors.Join(err, stopStack(a, stack, signals)) }()
	}

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			cancel()
		case <-ended:
		}
	}()
	defer func() {
		close(ended)
		<-watched
	}()
	s, err := client.New(targetOf(runtime).Options)
	if err != nil {
		return err
	}
	defer s.Close()
	return deployHello(ctx, a, cmd, s, stack != nil)
}

// throwawayData has a demo that starts an instance of its own keep its data in a
// temporary directory, unless a person has said where the data is. It returns what
// removes that.
func throwawayData(a *app, cmd *cobra.Command, flags *upFlags) (remove func() error, err error) {
	given, err := givenDatabase(a)
	if err != nil {
		return nil, err
	}
	_, running := dirlock.InUse(a.dataDir)
	if cmd.Flags().Changed("data-dir") || a.getenv("TRELLIS_DATA_DIR") != "" || given != "" || running {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "trellis-demo-")
	if err == nil && os.Geteuid() == 0 {
		err = os.Chmod(dir, 0o711) //nolint:gosec // PostgreSQL runs as another user, below
	}
	if err != nil {
		return nil, fmt.Errorf("make a directory for the demo: %w; name one with --data-dir", err)
	}
	a.dataDir, flags.throwaway = dir, true
	return func() error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the demo's data: %w; remove %s yourself", err, dir)
		}
		return nil
	}, nil
}

// deployHello deploys and follows. A demo that is interrupted takes its
// provision with it where the whole instance ends.
func deployHello(ctx context.Context, a *app, cmd *cobra.Command, s *client.Client, own bool) error {
	request := deployRequest{template: "hello", cluster: devstack.ClusterName, workspace: demoWorkspace, by: "trellis demo",
		vars: map[string]json.RawMessage{"name": jsonText(cmp.Or(a.getenv("USER"), "world"))}}
	queued, err := queueRun(ctx, s, request)
	if err != nil {
		return err
	}
	a.say("\nProvision %d: hello on workspace %s\n", queued.Number, queued.Workspace)
	if !own {
		return followToEnd(ctx, a, s, cmd, queued.ID, queued.Number, false)
	}
	p, err := followRun(ctx, a, s, queued.ID, false)
	if err != nil && ctx.Err() != nil {
		a.say("Interrupted: cancelling run %d.", queued.Number)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
		defer cancel()
		_, _ = s.Cancel(last, queued.ID) // it may have ended; the agent ends it in any case
		return outcome(exitInterrupted)
	}
	if err != nil {
		return err
	}
	return conclude(a, p)
}

// awaitRuntime waits for an instance that is still starting.
func awaitRuntime(ctx context.Context, a *app) (instance.Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		runtime, err := instance.ReadRuntime(a.dataDir)
		if _, missing := errors.AsType[*instance.NotRunningError](err); !missing {
			return runtime, err
		}
		select {
		case <-ctx.Done():
			return runtime, fmt.Errorf("the instance on %s has not come up within %s", a.dataDir, joinLimit)
		case <-tick.C:
		}
	}
}
