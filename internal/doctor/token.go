package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// token asks the database how an agent with this token and name would stand. It
// must not register: that would end the agent which runs here.
func (d *doctor) token(ctx context.Context) verdict {
	q, err := d.Open(d.agent())
	if err != nil {
		return fail("correct the queue's settings", "the queue cannot be opened: %v", err)
	}
	defer q.Close()
	before := d.Now()
	standing, err := q.Standing(ctx)
	after := d.Now()
	if missing(err) {
		return d.tokenOnly(ctx, q)
	}
	if err != nil {
		return tokenRefused(err)
	}
	d.standing = &standing
	d.doubt = after.Sub(before) / 2
	d.skew = before.Add(d.doubt).Sub(standing.Now)
	if standing.Paused {
		return warn("have the cluster resumed", "valid for cluster %q, which people have paused: no work is given out", standing.ClusterName)
	}
	return ok("valid for cluster %q", standing.ClusterName)
}

// missing reports whether the database does not know the question.
func missing(err error) bool {
	e, is := errors.AsType[*queue.Error](err)
	return is && (e.Code == "42883" || e.Code == "PGRST202")
}

// tokenOnly asks a database that is older than the question. A heartbeat of an
// agent that nobody knows changes nothing, and is refused in one way where the
// token is valid and in another where it is not.
func (d *doctor) tokenOnly(ctx context.Context, q queue.Queue) verdict {
	_, err := q.Heartbeat(ctx, nil)
	if e, is := errors.AsType[*queue.Error](err); is && e.Code == "PT409" {
		return ok("valid; the database is older than this program and tells no more")
	}
	if err == nil {
		err = errors.New("the database knows an agent that does not exist")
	}
	return tokenRefused(err)
}

func tokenRefused(err error) verdict {
	e, is := errors.AsType[*queue.Error](err)
	if !is {
		return fail("see the message", "the database cannot be asked: %v", err)
	}
	action := e.Hint
	if action == "" {
		action = "see the database's or the gateway's log"
	}
	return fail(action, "%s", strings.TrimSuffix(e.Message, "."))
}

// agent is who would register: with the instance of the data directory, if it
// can be read, so that an agent which runs here is not taken for another.
func (d *doctor) agent() queue.Agent {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	slots, _ := d.Config.RunsAtOnce()
	return queue.Agent{
		Instance: d.instance(), Boot: uuid.New(), Name: d.Config.Name, Host: host,
		Version: d.Version, Contract: queue.Contract, Slots: slots,
	}
}

// instance is the agent's, or a new one where none can be read.
func (d *doctor) instance() uuid.UUID {
	content, err := os.ReadFile(filepath.Join(d.Config.DataDir, "instance"))
	if err == nil {
		if id, err := uuid.ParseBytes([]byte(strings.TrimSpace(string(content)))); err == nil {
			return id
		}
	}
	return uuid.New()
}

func (d *doctor) contract(context.Context) verdict {
	switch {
	case d.standing == nil:
		return warn(`run "trellis migrate" against it`, "the database is older than this program; whether it serves contract %d shows when an agent registers", queue.Contract)
	case d.standing.Contract == queue.Contract-1:
		return warn(`run "trellis migrate" of this release against it`,
			"the database speaks contract %d, one older than this agent's, %d: it serves the agent, but for what is new", d.standing.Contract, queue.Contract)
	case d.standing.Contract < queue.Contract:
		return fail(`upgrade the control plane and run "trellis migrate", or use an older agent`,
			"this agent speaks contract %d, the database only %d", queue.Contract, d.standing.Contract)
	case d.standing.Contract > queue.Contract:
		return ok("the database speaks contract %d and serves this agent's, %d", d.standing.Contract, queue.Contract)
	}
	return ok("agent and database both speak contract %d", queue.Contract)
}

const (
	// Log lines are shown by the agent's clock, and out of order beyond skewWarn.
	skewWarn = 5 * time.Second
	// Clouds and GitHub refuse requests that are signed by a clock so far off.
	skewFail = time.Minute
)

func (d *doctor) clock(context.Context) verdict {
	if d.standing == nil {
		return skipped("not looked at: the database is older than this program")
	}
	off, direction := d.skew, "ahead of"
	if off < 0 {
		off, direction = -off, "behind"
	}
	const action = "let this machine's clock be set by NTP (timedatectl set-ntp true)"
	switch certain := off - d.doubt; {
	case certain > skewFail:
		return fail(action, "this machine's clock is %s %s the database's: clouds refuse what it signs", off.Round(time.Second), direction)
	case certain > skewWarn:
		return warn(action, "this machine's clock is %s %s the database's: logs show wrong times", off.Round(time.Second), direction)
	case certain < 100*time.Millisecond:
		return ok("this machine's clock and the database's agree")
	}
	return ok("this machine's clock is %.1f s %s the database's", off.Seconds(), direction)
}

// publications warns of logical replication of more tables than people may watch:
// Supabase's Realtime tells every subscriber of each row that is deleted.
func (d *doctor) publications(context.Context) verdict {
	switch {
	case d.standing == nil:
		return skipped("not looked at: the database is older than this program")
	case len(d.standing.BroadPublications) > 0:
		return warn("have the database's owner name the tables instead, as docs/SUPABASE.md says",
			"%s: all tables are published: when a row is deleted, Supabase's Realtime tells every subscriber, also those who may not read the row", quoted(d.standing.BroadPublications))
	}
	return ok("no publication of the database covers all tables")
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return strings.Join(all, ", ")
}

func (d *doctor) name(context.Context) verdict {
	switch {
	case d.standing == nil:
		return skipped("not looked at: the database is older than this program")
	case d.standing.NameTakenOn != "" && d.agentRuns:
		// Its instance could not be read, or two agents are at odds over the name.
		return warn("run this as the user that the agent runs as", "%q is in use by an agent on %s, perhaps the one that runs here", d.Config.Name, d.standing.NameTakenOn)
	case d.standing.NameTakenOn != "":
		return fail("give this agent another name, or stop the other one", "%q is in use by another agent of this cluster, on %s", d.Config.Name, d.standing.NameTakenOn)
	}
	return ok("%q is in use by no other agent of this cluster", d.Config.Name)
}
