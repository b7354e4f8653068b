package devstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/controlplane/inspect"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/sample"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/localironic"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/tracing"
)

// Defaults of Options.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultSlots  = 2
	// ClusterName is the cluster that the local agent belongs to.
	ClusterName = "local"
)

// Options says what to start and where.
type Options struct {
	DataDir string // empty: that of package instance
	// Throwaway says that the caller has just made DataDir for this Stack alone, and
	// removes it: it needs no marker, whose key would outlive it.
	Throwaway bool
	// TrustDataDir vouches for what a data directory without a valid marker has.
	TrustDataDir bool
	Listen       string // host:port of the HTTP server; empty: DefaultListen
	// CertFile and KeyFile are for other machines than this one, which Listen may
	// let in; without them AllowHTTP is needed for that.
	CertFile, KeyFile string
	AllowHTTP         bool
	// DatabaseURL uses that database rather than a private one.
	DatabaseURL string
	Slots       int // how many provisions run at once; 0: DefaultSlots
	// AllowRepos are patterns of repositories that the agent may run besides
	// the sample templates.
	AllowRepos []string
	// RequesterKeys are the agent's policy.requester_keys: those of who starts it.
	RequesterKeys []string
	// AgentCommand runs the agent, to be followed by --config FILE.
	AgentCommand []string
	// Sample fills the private database with sample data, once; see package
	// sample.
	Sample bool
	// PVESim adds a simulated Proxmox cluster, a pool of it, and the template class.
	PVESim bool
	// Metal adds a real OpenStack Ironic with fake hardware, a pool of it, and the template bare-metal.
	Metal bool
	// InspectCommand runs what looks at templates, see package inspect; without
	// it the agent does.
	InspectCommand []string
	// Version is this program's, for people.
	Version string
	// Tracer records requests, and is closed by Stop; nil: none.
	Tracer *tracing.Tracer
	// Report is told how the start and the end go.
	Report Reporter
}

// Reporter hears how a start or an end goes. Its methods may be called from
// several goroutines.
type Reporter interface {
	// Step says that something begins that may take a while. The function it
	// returns is called once with what came of it, when it has succeeded.
	Step(name string) (done func(detail string))
	// Note says one thing worth reading.
	Note(text string)
}

// complete fills in the defaults and refuses what cannot work, before anything
// is made.
func (o Options) complete() (Options, error) {
	o.DataDir = cmp.Or(o.DataDir, instance.DefaultDataDir())
	o.Listen = cmp.Or(o.Listen, DefaultListen)
	o.Slots = cmp.Or(o.Slots, DefaultSlots)
	if o.Slots < 1 || o.Slots > 64 {
		return o, fmt.Errorf("%d slots: from 1 to 64 are possible", o.Slots)
	}
	if err := web.CheckPlain(o.Listen, o.CertFile, o.KeyFile, o.AllowHTTP); err != nil {
		return o, err
	}
	if len(o.AgentCommand) == 0 || o.Report == nil {
		return o, errors.New("devstack: AgentCommand and Report are required")
	}
	if o.DataDir == "" {
		return o, instance.ClaimDataDir("", false)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, fmt.Errorf("find the data directory %s: %w", o.DataDir, err)
	}
	o.DataDir = dir
	if o.Sample && o.DatabaseURL != "" {
		return o, errors.New("sample data is for the private database of a data directory alone: what is in it cannot be removed alone, only with that")
	}
	if o.DatabaseURL != "" {
		// The agent gets the same URL with a login of its own in it.
		if u, err := url.Parse(o.DatabaseURL); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			return o, errors.New("the database must be given as a URL, postgres://USER:PASSWORD@HOST/DATABASE")
		}
	}
	if _, err := source.ParseAllowlist([]string{o.templatePattern()}, true); err != nil {
		return o, fmt.Errorf("the data directory %s cannot hold git repositories, for no URL can name it: choose one with plain letters, digits and . _ - in its path", o.DataDir)
	}
	if _, err := source.ParseAllowlist(o.AllowRepos, true); err != nil {
		return o, err
	}
	return o, nil
}

func (o Options) path(names ...string) string {
	return filepath.Join(append([]string{o.DataDir}, names...)...)
}

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
	pveSim   *pvesim.Server      // nil: not wanted
	metal    *localironic.Ironic // likewise
	pools    []agentPool         // the agent's
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
	if s.options.PVESim {
		if err := s.startPVESim(); err != nil {
			return err
		}
	}
	if s.options.Metal {
		if err := s.startMetal(ctx); err != nil {
			return err
		}
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
	if s.pveSim != nil {
		s.pveSim.Close()
	}
	if s.metal != nil {
		s.metal.Kill()
	}
	if s.lock != nil {
		removeRuntime(s.options.DataDir)
	}
	if s.site != nil {
		problems = append(problems, s.endLocal(ctx))
		s.site.EndStreams() // before the server, which waits for them
	}
	if s.gateway != nil {
		s.gateway.EndHeld()
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

const (
	// healthLimit bounds the health check's own query.
	healthLimit = 2 * time.Second
	// gatewayConns is enough for the agents of one machine.
	gatewayConns = 4
)

// health is what /healthz answers.
type health struct {
	Status   string       `json:"status"` // "ok", else "unavailable"
	Version  string       `json:"version"`
	Database part         `json:"database"`
	Agent    agentsHealth `json:"agent"`
}

type part struct {
	OK bool `json:"ok"`
}

type agentsHealth struct {
	part
	Name string `json:"name"`
	// LastHeartbeatAt is null before the first.
	LastHeartbeatAt *time.Time `json:"last_heartbeat_at"`
}

// health asks the database. Why it does not answer is not told: the error may
// name hosts and users, and nobody signs in here.
func (s *Stack) health(ctx context.Context) health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	h := health{Status: "unavailable", Version: s.options.Version, Agent: agentsHealth{Name: s.name}}
	var alive *bool
	err := s.db.QueryRow(ctx, `SELECT max(last_heartbeat_at), max(last_heartbeat_at) > clock_timestamp() - (SELECT agent_alive FROM tendril.settings)
		FROM public.agents WHERE cluster_id = $1 AND name = $2`, s.home.cluster, s.name).Scan(&h.Agent.LastHeartbeatAt, &alive)
	h.Database.OK = err == nil
	h.Agent.OK = err == nil && alive != nil && *alive
	if h.Agent.OK {
		h.Status = "ok"
	}
	return h
}

// serve answers on the stack's listener: health, and agents that are set up to
// reach the queue over HTTP.
func (s *Stack) serve(ctx context.Context, databaseURL string) error {
	if _, err := rpcgateway.Prepare(ctx, databaseURL, queue.Contract); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(&noteWriter{s.report.Note}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	s.gateway, err = rpcgateway.New(ctx, rpcgateway.Options{DatabaseURL: databaseURL, MaxConns: gatewayConns, Log: log})
	if err != nil {
		return err
	}
	key, err := ensureKey(s.options.path("key"))
	if err != nil {
		return err
	}
	if s.site, err = site.Start(ctx, site.Options{Notify: notify.Options{Key: key, Allowed: notify.Local}, DatabaseURL: databaseURL, PublicURL: s.PublicURL(), LocalHost: s.hostName, Version: s.options.Version, Log: log, Tracer: s.options.Tracer,
		Inspect: inspect.Options{Command: s.options.InspectCommand, Files: []string{s.options.templatePattern()}}}); err != nil {
		return err
	}
	var certificate *web.Certificate
	if s.options.CertFile != "" {
		if certificate, err = web.LoadCertificate(s.options.CertFile, s.options.KeyFile, log); err != nil {
			return err
		}
	}
	routes := web.Routes{RPC: s.gateway, RPCPaths: []string{rpcgateway.ProvidersPath}, Rest: s.site, Health: func(r *http.Request) (any, bool) {
		h := s.health(r.Context())
		return h, h.Status == "ok"
	}}
	s.web = append(s.web, web.Start(s.listener, routes, web.Limits{}, certificate, log, s.fail))
	if s.local != s.listener {
		s.web = append(s.web, web.Start(s.local, routes, web.Limits{}, nil, log, s.fail))
	}
	return nil
}

// InUseError says that another Stack runs on the data directory.
type InUseError struct{ *dirlock.InUseError }

func (e *InUseError) Error() string {
	return fmt.Sprintf("trellis up runs already on %s (%s): use that one, stop it, or choose another --data-dir", e.Dir, e.Holder)
}

// lockDataDir takes the directory for this process. It fails with an *InUseError
// while another Stack has it.
func lockDataDir(dir string) (*dirlock.Lock, error) {
	lock, err := dirlock.Take(dir, dirlock.Self("trellis up"))
	if inUse, ok := errors.AsType[*dirlock.InUseError](err); ok {
		return nil, &InUseError{inUse}
	}
	return lock, err
}

func writeRuntime(r instance.Runtime, dataDir string) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // into a 0600 file, which is its place
	if err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	if err := instance.WriteSecret(filepath.Join(dataDir, instance.RuntimeFile), append(data, '\n')); err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	return nil
}

func removeRuntime(dataDir string) { _ = os.Remove(filepath.Join(dataDir, instance.RuntimeFile)) }

// ensureKey reads the control plane's own key, which is made at the first start.
func ensureKey(file string) (*notify.Key, error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := instance.WriteSecret(file, notify.NewKey()); err != nil {
			return nil, err
		}
	}
	return notify.ReadKey(file)
}

const (
	// newSpace is what a new data directory needs: an empty PostgreSQL takes 52 MB,
	// one that is downloaded 60 MB more, and a first run some.
	newSpace = 128 << 20
	// leastSpace is what one with data needs to start: PostgreSQL writes its log in
	// files of 16 MB.
	leastSpace = 32 << 20
	// fullSpace is where a start that failed has failed for want of space: less than
	// one file of that log.
	fullSpace = 16 << 20
)

// FullError says that the file system of a data directory has too little space.
type FullError struct {
	Dir          string
	Free, Needed int64 // bytes
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the data directory %s has %d MB of disk space left and trellis up needs %d MB: free some, or choose another disk with --data-dir or TRELLIS_DATA_DIR",
		e.Dir, e.Free>>20, e.Needed>>20)
}

// checkSpace refuses to start where the disk is too full, before anything is made.
// What cannot be found out is no obstacle.
func checkSpace(o Options) error {
	needed := int64(leastSpace)
	if o.DatabaseURL == "" && !there(o.path("postgres", "data")) {
		needed = newSpace
	}
	if full := shortOf(o.DataDir, needed); full != nil {
		return full
	}
	return nil
}

// becauseFull is the reason of a start that failed, which is the disk's where that
// has filled up: each program has its own words for it, and some have many.
func becauseFull(dir string, err error) error {
	if full := shortOf(dir, fullSpace); full != nil {
		if _, told := errors.AsType[*FullError](err); !told {
			return &FullError{Dir: dir, Free: full.Free, Needed: leastSpace}
		}
	}
	return err
}

// shortOf reports that less than needed is free where a directory is, or is to be.
func shortOf(dir string, needed int64) *FullError {
	at := dir
	for !there(at) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
	}
	if free, err := caches.FreeAt(at); err == nil && free.Bytes < needed {
		return &FullError{Dir: dir, Free: free.Bytes, Needed: needed}
	}
	return nil
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
