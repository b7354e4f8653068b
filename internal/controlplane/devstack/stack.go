package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/sample"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/dirlock"
)

// Stack is everything, running. Whoever started it must call Stop, even when
// Done says that it has broken.
type Stack struct {
	options Options
	report  Reporter

	lock     *dirlock.Lock
	listener net.Listener
	local    net.Listener     // this machine's; the same as listener where that is
	postgres *postgres.Server // nil with a database of the user's own
	db       *pgxpool.Pool
	home     home
	name     string // the agent's
	hostName string // of this instance, for browsers
	agent    *agentProcess
	agentLog *agentLog
	web      []*web.Server
	site     *site.Site
	gateway  *rpcgateway.Gateway
	apiToken string // of the local user
	runtime  instance.Runtime

	background sync.WaitGroup
	stopBack   context.CancelFunc

	broken   chan struct{}
	breaking sync.Once
	cause    error // valid once broken is closed

	stopping sync.Once
	stopped  error
}

// Start starts everything and returns when the agent has registered and HTTP is
// served. The context bounds the start only. What was started is ended again
// when it fails. The error is an *InUseError when another Stack has the data
// directory, and a *store.UnreachableError when the database given cannot be
// reached.
func Start(ctx context.Context, o Options) (*Stack, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	s := &Stack{options: o, report: o.Report, broken: make(chan struct{})}
	if err := s.start(ctx); err != nil {
		err = becauseFull(o.DataDir, err)
		// Nothing runs yet that would have to finish.
		now, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		return nil, errors.Join(err, s.Stop(now))
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) (err error) {
	o := s.options
	if err := checkSpace(o); err != nil {
		return err
	}
	if !o.Throwaway {
		if err := instance.ClaimDataDir(o.DataDir, o.TrustDataDir); err != nil {
			return err
		}
	}
	if s.lock, err = lockDataDir(o.DataDir); err != nil {
		return err
	}
	removeRuntime(o.DataDir) // of one that was killed
	// Before anything that takes long: a port that is taken is a common slip.
	var listen net.ListenConfig
	if s.listener, err = listen.Listen(ctx, "tcp", o.Listen); err != nil {
		return fmt.Errorf("listen on %s: %w; %s", o.Listen, listenCause(err), listenAction(err))
	}
	s.local = s.listener
	if !web.Loopback(o.Listen) || o.CertFile != "" {
		if s.local, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return fmt.Errorf("listen on this machine's loopback: %w", listenCause(err))
		}
	}
	databaseURL, err := s.startDatabase(ctx)
	if err != nil {
		return err
	}
	if err := s.migrate(ctx, databaseURL); err != nil {
		return err
	}
	queueURL, err := s.furnish(ctx, databaseURL)
	if err != nil {
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopBack = stop
	s.background.Go(func() { s.keep(background) })
	if err := s.fillSample(ctx, background); err != nil {
		return err
	}
	if err := s.startAgent(ctx, queueURL); err != nil {
		return err
	}
	if err := s.serve(ctx, databaseURL); err != nil {
		return err
	}
	if err := s.beginLocal(ctx); err != nil {
		return err
	}
	s.runtime = instance.Runtime{
		PID: os.Getpid(), URL: "http://" + s.local.Addr().String(), BrowserURL: "http://" + s.browserHost(), DatabaseURL: databaseURL, QueueURL: queueURL,
		Token: s.home.token, APIToken: s.apiToken, Version: o.Version, StartedAt: time.Now().UTC().Truncate(time.Second),
	}
	return writeRuntime(s.runtime, o.DataDir)
}

// furnish puts into the database what a deploy needs, and returns the URL that
// the agent connects with.
func (s *Stack) furnish(ctx context.Context, databaseURL string) (string, error) {
	done := s.report.Step("Organisation, cluster and templates")
	var err error
	if s.home, err = settle(ctx, s.db, s.options.path("token")); err != nil {
		return "", err
	}
	l, err := ensureLogin(ctx, s.db, s.options.path("agent-login.json"))
	if err != nil {
		return "", err
	}
	if s.name, err = agentName(l); err != nil {
		return "", err
	}
	s.hostName = hostName(l)
	samples, err := publish(ctx, s.db, s.options, s.home.org)
	if err != nil {
		return "", err
	}
	done(fmt.Sprintf("cluster %s, templates %s", ClusterName, strings.Join(samples, ", ")))
	return l.url(databaseURL)
}

// fillSample adds the sample data, if it is wanted, and keeps it alive if it is
// there.
func (s *Stack) fillSample(ctx, background context.Context) error {
	if s.options.DatabaseURL != "" {
		return nil
	}
	if s.options.Sample {
		done := s.report.Step("Sample data")
		filled, err := sample.Fill(ctx, s.db, s.home.org, instance.LocalUser)
		if err != nil {
			return err
		}
		done(map[bool]string{true: "clusters, members and some weeks of runs; remove them with the data directory", false: "there already"}[filled])
	}
	there, err := sample.Filled(ctx, s.db, s.home.org)
	if err != nil {
		return fmt.Errorf("look for sample data: %w", err)
	}
	if there {
		s.background.Go(func() { sample.Keep(background, s.db, s.home.org) })
	}
	return nil
}

// PublicURL is how others reach the Stack. Where other machines may, this one's
// name stands for an address that stands for all.
func (s *Stack) PublicURL() string {
	scheme := "http://"
	if s.options.CertFile != "" {
		scheme = "https://"
	}
	host, port, _ := net.SplitHostPort(s.listener.Addr().String()) // of our own listener
	if address, err := netip.ParseAddr(host); err == nil && address.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return scheme + net.JoinHostPort(host, port)
}

// browserHost is host and port for browsers on this machine. Cookies ignore
// ports, so a host name of this instance alone keeps its sessions from whatever
// else answers on the loopback, another instance or a CLI's sign-in included.
// Browsers resolve names below localhost themselves.
func (s *Stack) browserHost() string {
	_, port, _ := net.SplitHostPort(s.local.Addr().String()) // of our own listener
	return net.JoinHostPort(s.hostName, port)
}

// Runtime is how to reach the Stack.
func (s *Stack) Runtime() instance.Runtime { return s.runtime }

// Done is closed when the Stack has broken: its database ended by itself, or
// HTTP can no longer be served. Err says why.
func (s *Stack) Done() <-chan struct{} { return s.broken }

// Err says why the Stack has broken, nil while it has not.
func (s *Stack) Err() error {
	select {
	case <-s.broken:
		return s.cause
	default:
		return nil
	}
}

func (s *Stack) fail(err error) {
	s.breaking.Do(func() {
		s.cause = err
		close(s.broken)
	})
}

// Stop ends everything in reverse and waits for it: the agent first, which may
// finish what it runs until the context ends and then has to end it at once.
// PostgreSQL outlives it, so that results arrive. Further calls wait for the
// first one and return the same.
func (s *Stack) Stop(ctx context.Context) error {
	s.stopping.Do(func() { s.stopped = s.stop(ctx) })
	return s.stopped
}

func (s *Stack) stop(ctx context.Context) error {
	var problems []error
	if s.agent != nil {
		problems = append(problems, s.agent.stop(ctx))
		s.agentLog.close()
	}
	if s.lock != nil {
		removeRuntime(s.options.DataDir)
	}
	if s.site != nil {
		problems = append(problems, s.endLocal(ctx))
		s.site.EndStreams() // before the server, which waits for them
	}
	for _, server := range s.web {
		server.Stop()
	}
	for _, listener := range []net.Listener{s.listener, s.local} {
		if listener != nil {
			_ = listener.Close() // a server has closed it already
		}
	}
	if s.site != nil {
		s.site.Close()
	}
	if s.gateway != nil {
		s.gateway.Close()
	}
	if s.stopBack != nil {
		s.stopBack()
	}
	if s.db != nil {
		s.db.Close()
	}
	if s.postgres != nil {
		// Its own limits apply: the caller's patience was for the runs.
		problems = append(problems, s.postgres.Stop(context.WithoutCancel(ctx)))
	}
	s.background.Wait()
	if s.lock != nil {
		s.lock.Release()
	}
	return errors.Join(problems...)
}

// listenAction says what to do about an address that cannot be listened on.
func listenAction(err error) string {
	const another = "choose another address with --listen or TRELLIS_LISTEN"
	if errors.Is(err, syscall.EADDRINUSE) {
		return "stop the program that uses it, or " + another
	}
	return another
}

// listenCause leaves out what net repeats.
func listenCause(err error) error {
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		return call.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
