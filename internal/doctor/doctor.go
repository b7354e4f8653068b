package doctor

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/queue"
)

// Options say what to look at.
type Options struct {
	// Version is the program's.
	Version string
	// File is the configuration file, "" without one.
	File string
	// Config is the agent's configuration, and ConfigErr why there is none.
	Config    config.Config
	ConfigErr error
	// Open opens the queue as an agent does.
	Open func(queue.Agent) (queue.Queue, error)
	// Git is how repositories are reached, credentials included.
	Git func(context.Context) (job.Git, error)
	// Repos are repositories to try beside those that the policy names whole.
	Repos []string
	// Environ is the agent's environment.
	Environ []string
	// Now is the clock; nil is this machine's.
	Now func() time.Time
}

// doctor is one examination.
type doctor struct {
	Options
	uid int

	// standing is what the database answered; set by the check "token".
	standing *queue.Standing
	// skew is how far this clock is ahead of the database's, give or take doubt.
	skew, doubt time.Duration
	// agentRuns: the data directory is locked; set by the check "data_dir".
	agentRuns bool

	mu sync.Mutex
	// read are secrets that a check has read; what hangs may read them late.
	read []string
}

// Examine looks at everything. It takes less than 15 s, whatever hangs.
func Examine(ctx context.Context, o Options) Report {
	if o.Now == nil {
		o.Now = time.Now
	}
	d := &doctor{Options: o, uid: os.Geteuid()}
	return newReport(o.Version, d.scrub(runAll(ctx, d.checks())))
}

// checks lists them in the order of the report.
func (d *doctor) checks() []check {
	configured := func(more ...string) []string { return append([]string{"configuration"}, more...) }
	return []check{
		{"configuration", nil, d.configuration, each},
		{"data_dir", configured(), d.dataDir, each},
		{"identity", configured(), d.identity, each},
		{"disk", configured(), d.disk, each},
		{"caches", configured(), d.caches, each},
		{"states", configured("data_dir"), d.states, each},
		{"queue", configured(), d.queueReachable, each},
		{"token", configured("queue"), d.token, each},
		{"contract", configured("token"), d.contract, each},
		{"clock", configured("token"), d.clock, each},
		{"name", configured("data_dir", "token"), d.name, each},
		{"publications", configured("token"), d.publications, each},
		{"wakes", configured("queue"), d.wakes, each},
		{"health", configured("data_dir"), d.health, each},
		{"engine", configured(), d.engine, engineLimit},
		{"allowlist", configured(), d.allowlist, each},
		{"git", configured(), d.git, each},
		{"backend", configured(), d.backend, each},
		{"secrets", configured(), d.secrets, each},
		{"templates", configured(), d.templates, each},
		{"metadata", configured(), d.metadata, each},
	}
}
