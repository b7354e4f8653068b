package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"

	"github.com/google/uuid"
)

// lastRunnerDelivery is how long a runner that must end waits for a database that is away. A
// Launcher gives runners that time.
const lastRunnerDelivery = 90 * time.Second

// errUndelivered is why a runner ends that could not tell all.
var errUndelivered = errors.New("the end of the run could not be delivered to the database")

// CarryOut carries out one claim, which another agent has delegated, until its end is in the
// database; ctx ends it as it ends an agent. It returns what is known of the workspace then, for
// that agent. The Agent's data directory is of this claim alone.
func (a *Agent) CarryOut(ctx context.Context, o Order) (notes []byte, err error) {
	if err := errors.Join(process.Undumpable(), process.Subreaper()); err != nil {
		return nil, fmt.Errorf("prepare the process: %w", err)
	}
	children, err := newChildren()
	if err != nil {
		return nil, err
	}
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var reaper sync.WaitGroup
	reaper.Go(func() { process.ReapOrphans(reaping, children.keep) })
	defer reaper.Wait()
	defer stopReaping()
	dir, err := openDataDir(a.options.DataDir, a.options.Name)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	a.status.spools.Store(dir)
	dir.instance = o.Job.Instance
	o.Agent.Runner = &queue.Runner{Claim: o.Job.Assignment.ClaimID, Registered: o.Registered}
	q, err := a.options.Open(o.Agent)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	if err := persist(ctx, func(ctx context.Context) error { _, err := q.Register(ctx); return patiently(err) }); err != nil {
		return nil, err
	}
	if len(o.GitCA) > 0 {
		o.Job.Settings.Git.CAFile = dir.path("git-ca.pem")
		if err := durable.WriteFile(o.Job.Settings.Git.CAFile, o.GitCA); err != nil {
			return nil, fmt.Errorf("leave the git servers' certificates: %w", err)
		}
	}
	a.ordered(o)
	a.limits.lastDelivery = lastRunnerDelivery // what is not delivered then is lost
	b := newBoot(a, workspaceDirs{dir: dir}, q, children, &keys{claim: &o.Key, log: a.options.Log})
	b.opened = func(provision.Assignment) (vars, input map[string]json.RawMessage, err error) {
		return o.Job.SealedVars, o.Job.SealedInput, nil
	}
	b.given = func(ctx context.Context, _ provision.Assignment) (fetched, error) { return o.fetch(ctx, q) }
	b.tidier = newTidier(b.dirs, &b.workspaces, a.options, a.limits.tidyPause)
	b.contract, b.registered = o.Registered.Contract, o.Registered
	b.keys.contract.Store(int64(o.Registered.Contract))
	workspace := o.Job.Assignment.WorkspaceID
	if err := errors.Join(b.notes.write(workspace, o.Known), b.checkNotes.note(workspace, o.Job.ChecksAfter)); err != nil {
		return nil, err
	}
	b.carryOut(ctx, o.Job.Assignment)
	k, err := b.notes.read(workspace)
	if err != nil {
		return nil, err
	}
	if notes, err = json.Marshal(k); err != nil {
		return nil, fmt.Errorf("write what is known of the workspace: %w", err)
	}
	if left, err := leftClaims(dir); err != nil || len(left) > 0 || b.unsaid.Load() {
		return notes, errors.Join(errUndelivered, err)
	}
	return notes, a.keepStates(ctx, dir, workspace)
}

// keepStates waits for as long as the process may, where a state is in its data directory that
// neither the backend nor the database took: with the process goes the directory.
func (a *Agent) keepStates(ctx context.Context, dir *dataDir, workspace uuid.UUID) error {
	kept, _ := filepath.Glob(dir.path("state", workspace.String(), job.KeptStates)) // fails only for a bad pattern
	rejected, _ := filepath.Glob(dir.path("rejected", "*.state*"))
	if kept = append(kept, rejected...); len(kept) == 0 {
		return nil
	}
	a.options.Log.Error("a state of this run is stored nowhere else. Copy it out of here and bring it in, then delete this Job; until then this pod stays, and its workspace is used by no other run of this agent", "files", kept)
	<-ctx.Done()
	return fmt.Errorf("states are left that are stored nowhere else: %s", strings.Join(kept, ", "))
}

// ordered sets what an order decides.
func (a *Agent) ordered(o Order) {
	a.options.Slots, a.options.DrainTimeout = 1, o.DrainTimeout
	a.options.Settings = o.Job.Settings
	a.options.GitHosts = func(context.Context) []job.GitHost { return o.Job.Settings.Git.Hosts }
	a.options.Credentials = func(string, uuid.UUID) (job.Credentials, error) { return o.Job.Credentials, nil }
	a.options.PoolsFor = func(string, uuid.UUID) ([]pool.Config, error) { return o.Job.Pools, nil }
}

// carryOut runs one assignment until nothing of it is left.
func (b *boot) carryOut(ctx context.Context, one provision.Assignment) {
	alive, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	b.deliveries.ctx, b.deliveries.stop = context.WithCancel(alive)
	defer b.deliveries.stop()
	b.heartbeat = b.newHeartbeat(b.registered, func(error) {})
	<-b.slots
	b.start(one)
	var beating sync.WaitGroup
	beating.Go(func() { b.heartbeat.run(alive) })
	beating.Go(func() { b.deliveries.notifier.run(alive) })
	defer beating.Wait()
	defer stopBeating()
	over, end := context.WithCancel(ctx)
	go func() {
		defer end()
		b.runsOver.Wait()
	}()
	b.drain().after(over, func(context.Context) {})
}

// fetch reads what the order names, and opens it.
func (o Order) fetch(ctx context.Context, q blobReader) (f fetched, err error) {
	f.trusted.recipient, f.trusted.refused = o.Job.Requester, o.Job.RequesterRefused
	f.managed, f.key = o.Job.ManagedState, o.Job.ClusterKey
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return f, fmt.Errorf("make a file in memory: %w", err)
	}
	f.stateIn = os.NewFile(uintptr(fd), "state")
	defer func() {
		if err != nil {
			closeAll(f.stateIn)
		}
	}()
	command := o.Job.Assignment.Operation == provision.OperationState
	for n, blob := range o.Blobs {
		content, err := o.read(ctx, q, blob)
		if err != nil {
			return f, err
		}
		switch {
		case blob.Kind == queue.BlobPlan:
			f.approved = content
		case command && n < len(o.Blobs)-1, blob.Kind == queue.BlobUpload, f.managed == nil:
			f.given = content
		default: // the newest state is read last
			if _, err := f.stateIn.Write(content); err != nil {
				return f, fmt.Errorf("hand the state down: %w", err)
			}
		}
	}
	return f, nil
}

func (o Order) read(ctx context.Context, q blobReader, blob OrderedBlob) ([]byte, error) {
	var sealed []byte
	err := persist(ctx, func(ctx context.Context) (err error) {
		_, sealed, err = q.GetBlob(ctx, o.Job.Assignment.ClaimID, blob.Kind, blob.Number)
		return patiently(err)
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, errStopped
		}
		return nil, fmt.Errorf("fetch the %s: %w", blob.Kind, err)
	}
	if digestOf(sealed) != blob.Digest {
		return nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("The %s in the database is another one than the agent has read and checked: somebody has changed it. Nothing was run.", blob.Kind), nil)
	}
	content, err := seal.OpenWith(blob.Key, sealed, statechain.MaxState)
	if err != nil {
		return nil, fmt.Errorf("open the %s: %w", blob.Kind, err)
	}
	return content, nil
}

// digestOf is how what is stored is told apart.
func digestOf(sealed []byte) string { return statechain.Digest(sealed) }
