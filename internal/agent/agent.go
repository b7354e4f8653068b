package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/trust"
)

// Options are what an agent is told about itself and its surroundings.
type Options struct {
	// DataDir belongs to this agent alone; it is made if it is not there.
	DataDir string
	// Name is unique among the agents of a cluster that are alive.
	Name string
	// Version is this program's, for people.
	Version string
	// Slots is how many provisions run at once, 1 to 64.
	Slots int
	// DrainTimeout is how long running work may go on after ctx has ended.
	DrainTimeout time.Duration
	// Poll is the time between two looks at the queue when nothing wakes the
	// agent; 0 takes what the database advises.
	Poll time.Duration
	// Open opens the queue. It is called once, with a boot id that is new.
	Open func(queue.Agent) (queue.Queue, error)
	// UIDs is "auto", or the first of the uids that runs have, for an agent that
	// is root; "" or "off" where runs have the agent's.
	UIDs string
	// KeyLifetime is how long the agent signs with one key of its own before it makes
	// another; 0: for good.
	KeyLifetime time.Duration
	// Identity has the private keys to which variables are sealed, which all
	// agents of a cluster share; the zero value is for one of this agent's own.
	Identity Identity
	// Certifiers are the keys whose certificates move the identity between agents.
	Certifiers identity.Certifiers
	// Command is the argv of a child, such as {"/usr/bin/tendril", "exec"}. Where
	// runs have uids of their own it gets "--as CACHE:RUN" as well.
	Command []string
	// Env is the whole environment of a child.
	Env []string
	// CheckEnv is that of one that asks how a machine is. NoCommands is why this agent asks no
	// machine by a command of its template, "" where it does.
	CheckEnv   []string
	NoCommands string
	// Settings are handed to each child. A child that outlives their Timeout by
	// more than their CancelGrace and half a minute is killed.
	Settings job.Settings
	// GitHosts reads the credentials that a run gets; nil gives none. It is
	// called when a run begins and soon returns.
	GitHosts func(context.Context) []job.GitHost
	// Credentials reads what the runs of a workspace sign in to clouds with; nil
	// gives none. It is called when a run begins.
	Credentials func(workspace string, id uuid.UUID) (job.Credentials, error)
	// Pools are what the agent reports to the database, and PoolsFor reads those that the runs
	// of a workspace may use, with their secrets; nil gives none.
	Pools    []Pool
	PoolsFor func(workspace string, id uuid.UUID) ([]pool.Config, error)
	// Requesters reads to whom may be sealed and whose orders count; nil: nobody. It is
	// called when a run begins.
	Requesters func() (*trust.Keyring, error)
	// InputWebhook is told of runs that start to wait for a person's work.
	InputWebhook InputWebhook
	// Launcher carries runs out elsewhere; nil: they are processes of this machine. Reach says how
	// runners reach the queue, in words for their Open, and Signs that they do so with a key.
	Launcher Launcher
	Reach    func() (json.RawMessage, error)
	Signs    bool
	// PassEnv are the names that a runner's own environment may add to Env, and Telemetry is what it
	// has of the agent's beside that: where traces go.
	PassEnv, Telemetry []string
	// Noted gets what is known of a runner's workspace after each state that is stored, for the
	// agent that started the runner. nil: no call.
	Noted func(notes []byte)
	// Caches says how much is kept of what could be fetched again.
	Caches caches.Limits
	// SharedCaches are those that all runs fill, in the directories of their job; nil:
	// there are none.
	SharedCaches func(job.Dirs) []caches.Cache
	// EngineMark is how an entry of the environment begins of every process that a run
	// starts in a work directory, such as "DIR=" and a path in it; nil: there are none.
	EngineMark func(work string) string
	// Observer hears what happens; nil: nobody does.
	Observer Observer
	// Tracer records how long each run took with what; nil: nothing is recorded.
	Tracer *tracing.Tracer
	// Loops and Standing are told how the agent is; they may be nil.
	Loops    *health.Loops
	Standing *health.Standing
	Log      *slog.Logger
}

// Identity is a file of age identities, the current one first, and its text. Read
// reads it again, while the agent runs; nil: it stays as it is.
type Identity struct {
	File, Text string
	Read       func() (string, error)
}

// Agent is one agent process.
type Agent struct {
	options Options
	status  status
	stopNow chan struct{}
	once    sync.Once
	limits  limits
	tidier  atomic.Pointer[tidier] // from when it has begun
}

// limits bound what nobody else does.
type limits struct {
	// endMargin is how much longer than its grace a child may take to end
	// before it is killed: for its last lines, and for killing what ignores it.
	endMargin time.Duration
	// lastDelivery is how long an agent that is to end, and whose children have
	// ended, waits for a database that cannot be reached.
	lastDelivery time.Duration
	// tidyPause is the least time between two looks at the caches.
	tidyPause time.Duration
}

// New returns an Agent that does nothing until Run.
func New(o Options) *Agent {
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	return &Agent{options: o, stopNow: make(chan struct{}), limits: limits{endMargin: 30 * time.Second, lastDelivery: 10 * time.Second, tidyPause: 10 * time.Second}}
}

// StopNow cuts the drain short, whether it has begun or not: what still runs is
// stopped as if the drain time were over. It may be called more than once.
func (a *Agent) StopNow() { a.once.Do(func() { close(a.stopNow) }) }

// DataBytes is what the data directory holds, in bytes by kind (caches.Kinds), as
// it was found last: at the start, after runs, and once an hour. It looks at
// nothing and may be called at any time; before the first look it is nil.
func (a *Agent) DataBytes() map[string]int64 {
	if t := a.tidier.Load(); t != nil {
		return t.sizes()
	}
	return nil
}

// Run claims and supervises until ctx ends, then drains. It returns nil after a
// drain, and an error that is a sentence for people when the agent cannot start
// (data directory in use, refused by the database) or must not go on (another
// boot has taken its place). Run is called once.
func (a *Agent) Run(ctx context.Context) error {
	if err := errors.Join(process.Undumpable(), process.Subreaper()); err != nil {
		return fmt.Errorf("prepare the process: %w", err)
	}
	children, err := newChildren()
	if err != nil {
		return err
	}
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var reaper sync.WaitGroup
	reaper.Go(func() { process.ReapOrphans(reaping, children.keep) })
	defer reaper.Wait()
	defer stopReaping()
	dir, err := a.openWhenFree(ctx)
	if ctx.Err() != nil && dir == nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	a.status.spools.Store(dir)
	uids, err := takeUIDs(dir, a.options.UIDs)
	if err != nil {
		return err
	}
	own, from, err := loadIdentities(dir, a.options.Identity)
	if err != nil {
		return err
	}
	host, err := hostIdentity(dir)
	if err != nil {
		return err
	}
	public := queue.NewPublicKey(own.Public())
	about := queue.Agent{
		Instance: dir.instance, Boot: uuid.New(), Name: a.options.Name, Host: host, Kernel: dirlock.Kernel(), Uptime: uptime(),
		Version: a.options.Version, Contract: queue.Contract, Slots: a.options.Slots, AgePublicKey: public,
		Operations: a.options.Settings.Policy.Operations,
	}
	q, err := a.options.Open(about)
	if err != nil {
		return err
	}
	defer q.Close()
	dirs := workspaceDirs{dir, uids}
	b := newBoot(a, dirs, q, children, &keys{identity: from, public: public, own: own, log: a.options.Log})
	b.agent = about
	cluster := func() string { return b.sealed.cluster }
	if a.options.Identity.File == "" {
		b.keys.shares = &identityShares{dir: dir, ask: q.SharedIdentity, present: q.ShareIdentity, cluster: cluster, certifiers: a.options.Certifiers, log: a.options.Log}
	}
	b.keys.waiting = &certificates{certifiers: a.options.Certifiers, queue: q, cluster: cluster, log: a.options.Log}
	b.tidier = newTidier(dirs, &b.workspaces, a.options, a.limits.tidyPause)
	a.tidier.Store(b.tidier)
	return b.live(ctx)
}

// openWhenFree opens the data directory. Another process that has it, in the
// same container or on the same machine, does not go away by itself: that is an error.
// Any other, such as the pod before this one that still drains on the same volume, is
// waited for until ctx ends: an agent that ended instead would only be started again.
func (a *Agent) openWhenFree(ctx context.Context) (*dataDir, error) {
	loop := a.options.Loops.Begin("data directory")
	defer loop.End()
	for told := false; ; told = true {
		dir, err := openDataDir(a.options.DataDir, a.options.Name)
		taken, inUse := errors.AsType[*dirlock.InUseError](err)
		if !inUse {
			if told && err == nil {
				a.options.Log.Info("the data directory is free", "dir", a.options.DataDir)
			}
			return dir, err
		}
		if taken.Holder.Beside(dirlock.Self(a.options.Name)) {
			return nil, fmt.Errorf("the data directory %s is in use by %s: stop that agent, or give this one a data directory and a name of its own (--data-dir, --name)",
				taken.Dir, taken.Holder)
		}
		if !told {
			a.options.Log.Warn("another agent has the data directory: waiting until it ends", "dir", taken.Dir, "agent", taken.Holder.String())
			a.options.Standing.Missed("its data directory is in use by " + taken.Holder.String())
		}
		loop.Turns(dirPause)
		if !wait(ctx, dirPause) {
			return nil, ctx.Err()
		}
	}
}

// Status may be called at any time, by several goroutines.
func (a *Agent) Status() Status {
	return Status{Slots: a.options.Slots, Busy: int(a.status.busy.Load()), LogLag: a.status.lag(), SpoolBytes: a.status.spooled()}
}
