package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/delivery"
	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// checkoutTime is how long a check may take beside its time-out: for the template's files.
	checkoutTime = time.Minute
	// checkGrace is how long a check may go on that is to end.
	checkGrace = 2 * time.Second
	// checkLog is how much of what a check prints is kept, in bytes.
	checkLog = 64 << 10
)

// commandChecks asks machines how they are by commands of their templates: each in a child
// as a run has, with a uid and directories of its own that are gone afterwards. It takes no
// slot, and the child has neither state nor variables nor credentials but those for git.
type commandChecks struct {
	options  Options
	dirs     workspaceDirs
	children *children
	locks    *locks
	margin   time.Duration
	log      *slog.Logger
	most     int // at a time
}

func (b *boot) newCommandChecks() *commandChecks {
	c := &commandChecks{
		options: b.options, dirs: b.dirs, children: b.children, locks: &b.workspaces,
		margin: b.limits.endMargin, log: b.log, most: commandsAtOnce,
	}
	if b.options.NoCommands != "" {
		c.most = 0 // others may
		b.log.Warn("this agent asks no machine how it is by a command of its template", "why", b.options.NoCommands)
	} else if b.dirs.uids != nil { // those that runs may need are theirs
		c.most = min(commandsAtOnce, isolation.MaxRuns-b.options.Slots)
	}
	return c
}

// ask asks once. The check is one that an agent of this cluster has authenticated.
func (c *commandChecks) ask(ctx context.Context, due queue.MachineCheck) (found provision.MachineHealth, why string) {
	log := c.log.With("machine", due.Name, "check_of", due.Check.Command.Workspace)
	result, err := c.carryOut(ctx, due, log)
	switch {
	case err != nil:
		log.Error("a health check could not be started", "error", err)
		return provision.HealthUnknown, "the agent could not start the check; its log has the details"
	case ctx.Err() != nil:
		return provision.HealthUnknown, "the agent was shut down meanwhile"
	case result == nil:
		return provision.HealthUnknown, "the check ended without a result"
	case result.Status == provision.Success:
		return provision.Healthy, ""
	case result.Detail.ErrorCode == job.CodeUnhealthy:
		return provision.Unhealthy, result.Detail.ErrorMessage
	}
	return provision.HealthUnknown, result.Detail.ErrorMessage
}

// job is what the child is told.
func (c *commandChecks) job(ctx context.Context, due queue.MachineCheck) (j job.Job, err error) {
	command, settings := due.Check.Command, c.options.Settings
	settings.Timeout, settings.Timeouts = due.Check.Limit()+checkoutTime, nil
	settings.CancelGrace, settings.LogLimit, settings.DiskWait = checkGrace, checkLog, 0
	if read := c.options.GitHosts; read != nil {
		settings.Git.Hosts = read(ctx)
	}
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]string{"repo": command.Repo, "version": command.Version, "path": command.Path},
		"terraform_vars":  struct{}{}, "workspace": command.Workspace,
	})
	return job.Job{
		Assignment: provision.Assignment{
			ClaimID: uuid.New(), ProvisionID: uuid.New(), WorkspaceID: due.Workspace, Workspace: command.Workspace,
			Operation: provision.OperationRefresh, Snapshot: snapshot, PinnedCommit: command.Commit,
		},
		Settings: settings, Check: &job.Check{Machine: due.Name, Check: due.Check},
	}, err
}

// carryOut runs the child; its result is nil where there is none.
func (c *commandChecks) carryOut(ctx context.Context, due queue.MachineCheck, log *slog.Logger) (result *provision.Report, err error) {
	j, err := c.job(ctx, due)
	if err != nil {
		return nil, err
	}
	// Of this check alone: nothing of it meets a run's, nor another check's.
	id := uuid.New()
	release, _ := c.locks.tryTake(id)
	defer release()
	dirs, uid, err := c.dirs.open(id, log)
	j.Dirs = dirs
	defer c.dirs.remove(id, log)
	if err != nil {
		return nil, err
	}
	files, err := newCheckFiles()
	if err != nil {
		return nil, err
	}
	defer files.close()
	child, err := launcher{c.options.Command, c.options.CheckEnv, c.dirs.uids, c.children}.start(j, files, uid)
	if err != nil {
		return nil, err
	}
	c.supervise(ctx, child, j.Settings, log)
	if err := c.children.sweep(); err != nil {
		log.Error("what a health check left running could not be ended", "error", err)
		c.dirs.uids.abandon(id)
	}
	if said := child.clear(); said != "" {
		log.Warn("the process of a health check said", "output", said)
	}
	dead := make(chan struct{})
	close(dead)
	delivered, err := delivery.NewPump(checkLines{}, j.Assignment.ClaimID, files.lines, delivery.PumpOptions{Tail: files.tail}).Run(ctx, nil, dead)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	return delivered.Result, nil
}

// supervise returns when the child has ended, which it asks for when ctx ends.
func (c *commandChecks) supervise(ctx context.Context, child *child, settings job.Settings, log *slog.Logger) {
	limit := time.NewTimer(settings.Timeout + settings.CancelGrace + c.margin)
	defer limit.Stop()
	stop := ctx.Done()
	for {
		select {
		case <-child.ended:
			return
		case <-stop:
			child.control.send(job.Control{Stop: job.StopDrained})
			limit.Reset(settings.CancelGrace + c.margin)
			stop = nil
		case <-limit.C:
			log.Error("killing the process of a health check: it did not end in time")
			child.kill()
		}
	}
}

// newCheckFiles are the files of a check's child. They are in memory: nothing of them is for
// the next start, and they are bounded.
func newCheckFiles() (f childFiles, err error) {
	defer func() {
		if err != nil {
			f.close()
			err = fmt.Errorf("make the files of a check: %w", err)
		}
	}()
	for _, file := range []**os.File{&f.lines, &f.tail[0], &f.tail[1]} {
		fd, err := unix.MemfdCreate("check", unix.MFD_CLOEXEC)
		if err != nil {
			return f, err
		}
		*file = os.NewFile(uintptr(fd), "check")
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
			return f, err
		}
	}
	for _, file := range []**os.File{&f.lock, &f.plan, &f.stateIn, &f.stateOut[0], &f.stateOut[1]} {
		if *file, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return f, err
		}
	}
	return f, nil
}

// checkLines drops what a check prints: only its result counts.
type checkLines struct{}

// AppendLog implements delivery.Queue.
func (checkLines) AppendLog(_ context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	return first + int64(len(chunks)), nil
}

// Report implements delivery.Queue.
func (checkLines) Report(context.Context, uuid.UUID, provision.Report) error { return nil }
