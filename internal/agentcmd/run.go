package agentcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/credentials"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/githosts"
	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/pool/drivers"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/version"
	"github.com/tendril-run/tendril/internal/webhook"
)

type runFlags struct {
	config, dataDir, name string
	slots                 int
}

func runCommand(launch OpenLauncher) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Claim provisions and run them until told to stop",
		Long: `Claims provisions and runs them until told to stop.

SIGTERM or Ctrl-C stops claiming and lets running work finish within the drain
time; a second one stops running work at once, each with one interrupt to
Terraform and time to write its state. What cannot be delivered to the database
waits in the data directory and is delivered at the next start.

With health.listen it serves over HTTP, to all who reach that port:

  /healthz   200 while its loops turn, else 503 with which one does not. A
             database that is away, busy slots and a drain are no reason
  /readyz    200 while the database answers heartbeats, else 503 with why not;
             also 503 before the agent has registered and while it drains
  /metrics   for Prometheus

Without it the agent opens no port.`,
		Example: `  tendril run
  tendril run --config /etc/tendril/agent.toml --slots 4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, launch, flags) },
	}
	flags.add(cmd)
	return cmd
}

// add gives a command the flags that say which agent is meant.
func (f *runFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "TOML file with the configuration (TENDRIL_CONFIG)")
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "", "directory that belongs to this agent alone (TENDRIL_DATA_DIR)")
	cmd.Flags().StringVar(&f.name, "name", "", "name of this agent, unique in its cluster (TENDRIL_NAME)")
	cmd.Flags().IntVar(&f.slots, "slots", 0, "how many provisions run at once (TENDRIL_SLOTS)")
}

// file is the configuration file, "" for none.
func (f *runFlags) file() string {
	if f.config != "" {
		return f.config
	}
	return os.Getenv("TENDRIL_CONFIG")
}

// run runs the agent; more is what the environment has in addition.
func run(cmd *cobra.Command, launch OpenLauncher, flags runFlags, more ...string) error {
	// Before the token is read: nobody of this uid may look into us then.
	if err := process.Undumpable(); err != nil {
		return failure{err, ExitFailure}
	}
	environ := append(os.Environ(), more...)
	load := func() (config.Config, error) {
		return config.Load(flags.file(), append(environ, flags.environ(cmd)...))
	}
	settings, err := load()
	if err != nil {
		return failure{err, ExitUsage}
	}
	if settings.Run.Launcher == config.Kubernetes && launch == nil {
		return failure{becomeDispatcher(), ExitFailure}
	}
	log := newLogger(cmd.ErrOrStderr(), settings)
	if key := settings.Queue.Key; key != nil {
		ctx, stop := untilSignalled(cmd.Context(), func() {})
		settings, err = settleRotation(ctx, settings, log, load)
		stop()
		if err != nil {
			return failure{err, ExitFailure}
		}
	}
	if settings.Queue.MustJoin() {
		ctx, stop := untilSignalled(cmd.Context(), func() {})
		settings, err = joinByToken(ctx, settings, log, load)
		stop()
		if err != nil {
			return failure{err, ExitFailure}
		}
	}
	if key := settings.Queue.Key; key != nil {
		log.Info("signing with the agent's own key", "fingerprint", key.Words(), "sha256", key.Fingerprint())
	}
	self, err := os.Executable()
	if err != nil {
		return failure{fmt.Errorf("find this program's file: %w", err), ExitFailure}
	}
	identity := agent.Identity{File: settings.IdentityFile}
	if identity.File != "" {
		if identity.Text, err = secretfile.Read(identity.File); err != nil {
			return failure{fmt.Errorf("identity_file = %q: %w", identity.File, err), ExitUsage}
		}
		identity.Read = func() (string, error) { return secretfile.Read(identity.File) }
	}
	notify, err := inputWebhook(settings.Manual)
	if err != nil {
		return failure{err, ExitUsage}
	}
	pools, err := openPools(settings.Pools)
	if err != nil {
		return failure{err, ExitUsage}
	}
	certifiers, err := parseCertifiers(settings)
	if err != nil {
		return err
	}
	slots, why := settings.RunsAtOnce()
	if why != "" {
		log.Warn("this agent runs one provision at a time: set slots = 1, or start it as root so that each run gets a uid of its own", "slots", settings.Slots, "why", why)
	}
	tracer, err := tracing.Start("tendril", version.String(), os.Getenv, log)
	if err != nil {
		return failure{err, ExitUsage}
	}
	defer tracer.Close()
	options := agent.Options{
		DataDir: settings.DataDir, Name: settings.Name, Version: version.String(), Slots: slots,
		DrainTimeout: settings.DrainTimeout.Duration, Poll: settings.Queue.PollInterval.Duration,
		Open: opener(settings, log), KeyLifetime: settings.Queue.KeyLifetime.Duration,
		Command: append([]string{self}, sibling(cmd, "exec")...), Env: settings.ChildEnv(environ), CheckEnv: settings.CheckEnv(environ), NoCommands: settings.NoCommands(),
		Settings: settings.Settings(), GitHosts: githosts.New(settings.Git).Read, Credentials: credentials.New(settings, environ).For, Requesters: settings.Requesters, Log: log, Tracer: tracer, UIDs: uidsOf(settings), Identity: identity, Certifiers: certifiers,
		InputWebhook: notify, Pools: pools, PoolsFor: settings.Pools.For,
		Caches:       settings.Cache.Limits(),
		SharedCaches: func(dirs job.Dirs) []caches.Cache { return executor.SharedCaches(dirs, settings.Settings().Engine) },
		EngineMark:   executor.EngineMark,
	}
	var running atomic.Pointer[agent.Agent]
	ctx, stop := untilSignalled(cmd.Context(), func() {
		if a := running.Load(); a != nil {
			a.StopNow()
		}
	})
	defer stop()
	if settings.Run.Launcher == config.Kubernetes {
		var closeLauncher func()
		stopStandby, err := standby(settings)
		if err != nil {
			return failure{err, ExitFailure}
		}
		ctx, options.Launcher, closeLauncher, err = launch(ctx, settings, log)
		stopStandby()
		if err != nil {
			return failure{err, ExitFailure}
		}
		defer closeLauncher()
		options.Reach, options.Signs, options.PassEnv = func() (json.RawMessage, error) { return reachOf(settings.Queue) }, settings.Queue.Key != nil, settings.PassedEnv()
		options.Telemetry = slices.DeleteFunc(slices.Clone(environ), func(entry string) bool { return !strings.HasPrefix(entry, "OTEL_") })
	}
	serve := observed(settings, &options)
	a := agent.New(options)
	running.Store(a)
	stopServing, err := serve(a)
	if err != nil {
		return failure{err, ExitFailure}
	}
	defer stopServing() // last: a drain can be watched to its end
	if err := a.Run(ctx); err != nil {
		return failure{err, ExitFailure}
	}
	return nil
}

// dispatcherName is the program that makes Jobs; it lies beside this one.
const dispatcherName = "tendril-dispatcher"

// becomeDispatcher replaces this process, and returns only where it cannot.
func becomeDispatcher() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's file: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), dispatcherName)
	err = syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ()) //nolint:gosec // our own program, with our own arguments
	return fmt.Errorf("run.launcher = \"kubernetes\" needs the program %s: %w. The release's images have it, and for Linux it is a file of the release", program, err)
}

// standby answers that all is well, while another agent holds the Lease.
func standby(c config.Config) (stop func(), err error) {
	if c.Health.Listen == "" || c.Jobs.Lease == "" {
		return func() {}, nil
	}
	server, err := health.Listen(c.Health.Listen, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "another agent holds the Lease; this one waits\n")
	}))
	if err != nil {
		return nil, err
	}
	return server.Close, nil
}

// openPools connects to nothing yet: an agent starts without its hypervisors.
func openPools(all config.Pools) (pools []agent.Pool, err error) {
	for _, p := range all {
		driver, err := drivers.Open(p.Driver())
		if err != nil {
			return nil, fmt.Errorf("pool %s of the agent's configuration: %w", p.Name, err)
		}
		pools = append(pools, agent.Pool{Name: p.Name, Kind: p.Kind, Limits: p.Limits(), Driver: driver})
	}
	return pools, nil
}

// inputWebhook is where the agent says that a run waits for a person's work. Its URL is the
// operator's, so it may lead anywhere, and by a proxy.
func inputWebhook(m config.Manual) (agent.InputWebhook, error) {
	if m.NotificationWebhook == "" {
		return agent.InputWebhook{}, nil
	}
	receiver := func() (webhook.Receiver, error) {
		to := webhook.Receiver{URL: m.NotificationWebhook, Agent: "Tendril-Webhook/" + version.String(), Proxy: http.ProxyFromEnvironment}
		if m.SigningSecretFile == "" {
			return to, nil
		}
		text, err := secretfile.Read(m.SigningSecretFile)
		if err == nil {
			to.Secret, err = webhook.ReadSecret(text)
		}
		if err != nil {
			return to, fmt.Errorf("manual.signing_secret_file = %q: %w", m.SigningSecretFile, err)
		}
		return to, nil
	}
	_, err := receiver()
	return agent.InputWebhook{Receiver: receiver, Kind: m.NotificationKind}, err
}

// uidsOf is what runs run as: only root can give them uids of their own.
func uidsOf(c config.Config) string {
	if os.Geteuid() != 0 {
		return "off"
	}
	return c.Run.UIDs
}

// environ says what the flags say as the environment would, which the
// configuration checks and puts above its file.
func (f runFlags) environ(cmd *cobra.Command) []string {
	var set []string
	for name, value := range map[string]string{"data-dir": f.dataDir, "name": f.name, "slots": strconv.Itoa(f.slots)} {
		if cmd.Flags().Changed(name) {
			set = append(set, "TENDRIL_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+value)
		}
	}
	return set
}

func opener(c config.Config, log *slog.Logger) func(queue.Agent) (queue.Queue, error) {
	token := &tokens{read: c.Queue.TokenNow, log: log, newest: c.Queue.Token}
	return func(a queue.Agent) (queue.Queue, error) {
		if c.Queue.OverHTTP() {
			return rpcqueue.New(rpcqueue.Options{
				URL: c.Queue.URL, APIKey: c.Queue.APIKey, CAFile: c.Queue.CAFile, Token: c.Queue.Token.Reveal(), TokenNow: token.now, Key: c.Queue.PrivateKey(), Agent: a, Log: log,
			})
		}
		// Not the run's context: the queue is needed until the drain is over,
		// and closed by the agent.
		return pgqueue.New(context.Background(), pgqueue.Options{
			URL: c.Queue.URL, URLNow: c.Queue.URLNow, ListenURL: c.Queue.ListenURL, ListenURLNow: c.Queue.ListenURLNow,
			Token: c.Queue.Token.Reveal(), TokenNow: token.now, Agent: a, Log: log,
		})
	}
}

// sibling returns the arguments that reach another verb beside cmd, wherever
// the verbs are mounted.
func sibling(cmd *cobra.Command, verb string) []string {
	return append(strings.Fields(cmd.Parent().CommandPath())[1:], verb)
}

func newLogger(w io.Writer, c config.Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// untilSignalled returns a context that ends with the first SIGTERM or SIGINT.
// The second calls again; from the third on they do what they do by default.
func untilSignalled(parent context.Context, again func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		defer signal.Stop(signals)
		for _, obey := range []func(){cancel, again} {
			select {
			case <-done:
				return
			case <-signals:
				obey()
			}
		}
	}()
	return ctx, func() {
		close(done)
		<-over
		cancel()
	}
}
