package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// Order is all that a runner is to know. It holds secrets: it is sealed to the runner's key.
type Order struct {
	Agent      queue.Agent        `json:"agent"`
	Registered queue.Registration `json:"registered"`
	// Reach says how the queue is reached, in the words of Options.Reach.
	Reach json.RawMessage `json:"reach"`
	// Job is the child's, but for its directories.
	Job job.Job `json:"job"`
	// Blobs are what the run needs of the database.
	Blobs []OrderedBlob `json:"blobs,omitempty"`
	// GitCA is the PEM bundle that Job.Settings.Git.CAFile names on the agent's machine.
	GitCA []byte `json:"git_ca,omitempty"`
	// Known is what the agent knows of the workspace.
	Known known `json:"known"`
	// Key makes what the cluster's agents believe.
	Key seal.ClaimKey `json:"key"`
	// Env is the environment of the child, where the runner's own does not say otherwise.
	Env []string `json:"env,omitempty"`
	// PassEnv are the names that the runner's own environment may add to it.
	PassEnv []string `json:"pass_env,omitempty"`
	// Telemetry is the runner's own environment, where that does not say otherwise.
	Telemetry    []string      `json:"telemetry,omitempty"`
	DrainTimeout time.Duration `json:"drain_timeout"`
}

// OrderedBlob is something in the database and what opens it: a run's inputs may be larger than
// an order.
type OrderedBlob struct {
	Kind   string `json:"kind"`
	Number int64  `json:"number,omitempty"`
	Digest string `json:"digest"` // of what is stored
	Key    []byte `json:"key"`    // see seal.OpenWith
}

// Hello is a runner's first line.
type Hello struct {
	// Recipient is to whom the order is sealed.
	Recipient string `json:"recipient"`
	// Runner is the credential that the runner has made, as DelegateClaim takes it, for each way to
	// the queue: by a key that signs, or by a token.
	Key   string `json:"key"`
	Token string `json:"token"`
}

// dispatch has a run carried out elsewhere, and returns when it is over, or when it goes on
// without this agent.
func (r *run) dispatch() {
	defer r.boot.childrenEnded.Done()
	defer r.ask()
	ctx, cancel := context.WithCancel(r.boot.deliveries.ctx)
	defer cancel() // what asks it to stop before it is handed over is heard here, later by the runner
	defer context.AfterFunc(r.asked, cancel)()
	// As a process's: whatever the database says, a workspace has one run here.
	release, stopped := r.awaitWorkspace()
	if release == nil {
		r.end(neverStarted(stopped))
		return
	}
	defer release()
	order, err := r.order()
	if err != nil {
		r.cannotStart(err)
		return
	}
	remote, err := r.boot.options.Launcher.Start(ctx, r.remote())
	delegated := false
	if err == nil {
		delegated, err = r.handOver(ctx, remote, order)
	}
	if err != nil && !delegated {
		if remote != nil {
			r.boot.removeRemote(remote)
		}
		if reason := r.stopReason(); reason != "" {
			r.end(neverHandedOver(reason))
			return
		}
		r.cannotStart(err)
		return
	}
	if err != nil {
		// It may have arrived all the same. A runner without an order ends, and that is seen.
		r.log.Error("the order could not be left for the runner", "error", err)
	}
	// The runner renews the lease itself, once it has the order.
	claim := r.assignment.ClaimID
	r.boot.inflight.hold(claim, nil)
	forgotten := time.AfterFunc(untilRenewed, func() { r.boot.inflight.release(claim) })
	defer r.boot.inflight.release(claim)
	defer forgotten.Stop()
	r.boot.follow(remote)
}

// untilRenewed is how long the agent goes on renewing a lease after a run was handed over: a
// kubelet may take a minute or two to renew a volume.
const untilRenewed = 3 * time.Minute

func (r *run) remote() RemoteRun {
	a := r.assignment
	return RemoteRun{
		Claim: a.ClaimID, Provision: a.ProvisionID, Workspace: a.WorkspaceID, Number: a.Number, Name: a.Workspace, Operation: a.Operation,
		Limit: r.timeLimit(), Traceparent: a.Traceparent, From: hex.EncodeToString(r.boot.orders.Public().(ed25519.PublicKey)),
	}
}

// handOver delegates the claim to the runner and gives it the order. Once it is delegated, it is
// the runner's to end, whatever becomes of the order.
func (r *run) handOver(ctx context.Context, remote Remote, order Order) (delegated bool, err error) {
	line, err := remote.Hello(ctx, func(what string) {
		note := provision.Report{Status: provision.Processing, Detail: provision.Detail{SetAside: "The run has not started yet. " + what}}
		if err := r.boot.queue.Report(ctx, r.assignment.ClaimID, note); err != nil {
			r.log.Warn("what the run waits for could not be reported", "waits_for", what, "error", err)
		}
	})
	if err != nil {
		return false, err
	}
	var hello Hello
	if err := json.Unmarshal([]byte(line), &hello); err != nil {
		return false, fmt.Errorf("the runner's first line is no greeting: %w", err)
	}
	recipient, err := seal.ParseRecipient(hello.Recipient)
	if err != nil {
		return false, fmt.Errorf("the runner's first line: %w", err)
	}
	credential := hello.Token
	if r.boot.options.Signs {
		credential = hello.Key
	}
	text, err := json.Marshal(order)
	if err != nil {
		return false, fmt.Errorf("encode the order: %w", err)
	}
	sealed, err := seal.To(recipient, text)
	if err != nil {
		return false, err
	}
	err = persist(ctx, func(ctx context.Context) error {
		return patiently(r.boot.queue.DelegateClaim(ctx, r.assignment.ClaimID, credential))
	})
	switch queue.KindOf(err) {
	case queue.CancelRequested:
		r.stop(job.StopCancelled)
	case queue.ClaimLost:
		r.stop(job.StopLost)
	}
	if err != nil {
		return false, fmt.Errorf("hand the run over: %w", err)
	}
	// A cancel is the runner's from now on, so nothing but the agent's end cuts this short.
	return true, remote.Hand(r.boot.deliveries.ctx, append(ed25519.Sign(r.boot.orders, signedOrder(sealed)), sealed...))
}

// order is what the runner is to know.
func (r *run) order() (o Order, err error) {
	b := r.boot
	read := &readBlobs{blobReader: b.queue}
	j, f, err := r.gather(b.inputs.from(read).fetch)
	if err != nil {
		return o, err
	}
	closeAll(f.stateIn)
	if o.Blobs, err = read.ordered(b.keys.held()); err != nil {
		return o, err
	}
	if o.Known, err = b.notes.read(r.assignment.WorkspaceID); err != nil {
		return o, err
	}
	if file := j.Settings.Git.CAFile; file != "" {
		if o.GitCA, err = os.ReadFile(file); err != nil {
			return o, fmt.Errorf("git.ca_file: %w", err)
		}
	}
	if o.Reach, err = b.options.Reach(); err != nil {
		return o, err
	}
	o.Agent, o.Registered, o.Job, o.Env, o.DrainTimeout = b.agent, b.registered, j, b.options.Env, b.options.DrainTimeout
	o.PassEnv, o.Telemetry = b.options.PassEnv, b.options.Telemetry
	o.Key = b.keys.identities().ForClaim(r.assignment.WorkspaceID, r.assignment.ClaimID)
	return o, nil
}

// follow waits for a runner's end and settles what it did not, or returns when the agent is asked
// to end: the run goes on, and the next start follows it.
func (b *boot) follow(remote Remote) {
	run := remote.Run()
	log := b.log.With("provision", run.Number, "workspace", run.Name, "claim", run.Claim)
	log.Info("handed over to its runner")
	end, err := remote.Ended(b.leaving)
	if err != nil {
		if b.leaving.Err() == nil {
			log.Error("the runner cannot be watched", "error", err)
		}
		return
	}
	if end.Notes != "" {
		b.noteRemote(run, end.Notes)
	}
	switch {
	case end.Well:
		log.Info("its runner has ended")
	case end.Unknown:
		log.Error("the runner is lost, and its processes may still be at work: its lease decides", "why", end.Why)
	default:
		log.Error("the runner ended before all of the run was in the database", "why", end.Why)
		report := provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeExecDied, ErrorMessage: end.Why + " " +
			"Where its last stage was apply, some resources may exist that the state does not know of. Check the log and the infrastructure, then deploy again."}}
		err := persist(b.deliveries.ctx, func(ctx context.Context) error { return patiently(b.queue.Report(ctx, run.Claim, report)) })
		if err != nil && queue.KindOf(err) != queue.ClaimLost { // it had told its end
			log.Error("the run's end could not be reported", "error", err)
			return
		}
	}
	b.removeRemote(remote)
}

// noteRemote remembers what a runner knew of its workspace at its end. Without it the next run
// learns that from the database, which could show a state in between.
func (b *boot) noteRemote(run RemoteRun, notes string) {
	var k known
	if err := json.Unmarshal([]byte(notes), &k); err != nil {
		b.log.Warn("the runner's last line says nothing of its workspace", "claim", run.Claim)
		return
	}
	before, err := b.notes.read(run.Workspace)
	if err == nil && k.Version > before.Version && k.Claim == run.Claim {
		before.Version, before.Digest, before.Format, before.Previous, before.Chain, before.Claim = k.Version, k.Digest, k.Format, k.Previous, k.Chain, k.Claim
		err = b.notes.write(run.Workspace, before)
	}
	if err != nil {
		b.log.Warn("what a runner knew of its workspace could not be noted", "workspace", run.Name, "error", err)
	}
}

// removeLimit bounds the removal of what was made for a run: the cluster's clean-up does it too.
const removeLimit = 30 * time.Second

func (b *boot) removeRemote(remote Remote) {
	ctx, cancel := context.WithTimeout(b.deliveries.ctx, removeLimit)
	defer cancel()
	if err := remote.Remove(ctx); err != nil {
		b.log.Warn("what was made for a run could not be removed", "claim", remote.Run().Claim, "error", err)
	}
}

// adopt follows the runners that earlier starts have handed over, each with a slot, and ends those
// that were not.
func (b *boot) adopt(ctx context.Context) error {
	if b.options.Launcher == nil {
		return nil
	}
	var left []Remote
	err := persist(ctx, func(ctx context.Context) (err error) {
		left, err = b.options.Launcher.Started(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the runners of earlier starts: %w", err)
	}
	for _, remote := range left {
		ended, err := b.endNotDelegated(ctx, remote)
		if err != nil {
			return err
		}
		if ended {
			continue
		}
		b.status.busy.Add(1)
		b.runsOver.Go(func() {
			defer b.status.busy.Add(-1)
			select {
			case <-b.slots:
				defer func() { b.slots <- struct{}{} }()
			default: // there are fewer slots than before
			}
			if free, _ := b.workspaces.take(remote.Run().Workspace, nil); free != nil {
				defer free()
			}
			b.follow(remote)
		})
	}
	return nil
}

// endNotDelegated ends a run that no earlier start has delegated. The database decides: where it
// delegates the claim to nobody now, nobody else can, and what was delegated has a runner.
func (b *boot) endNotDelegated(ctx context.Context, remote Remote) (ended bool, err error) {
	run := remote.Run()
	err = persist(ctx, func(ctx context.Context) error {
		return patiently(b.queue.DelegateClaim(ctx, run.Claim, queue.RunnerToken(rand.Text())))
	})
	switch queue.KindOf(err) {
	case queue.ClaimLost, queue.CancelRequested: // the sweep has ended it
	default:
		if err != nil && ctx.Err() != nil {
			return false, err
		}
		if err != nil {
			return false, nil //nolint:nilerr // it is delegated
		}
		b.log.Warn("a run was not handed over before the agent ended; it ends", "provision", run.Number, "claim", run.Claim)
		report := provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeAgentRestarted,
			ErrorMessage: "The agent was restarted while it handed the run over to its runner. Apply had not begun, so nothing was changed."}}
		if err := persist(ctx, func(ctx context.Context) error { return patiently(b.queue.Report(ctx, run.Claim, report)) }); err != nil && queue.KindOf(err) != queue.ClaimLost {
			return false, err
		}
	}
	b.removeRemote(remote)
	return true, nil
}

// readBlobs notes what is read from the database.
type readBlobs struct {
	blobReader
	all []readBlob
}

type readBlob struct {
	kind   string
	number int64
	sealed []byte
}

// GetBlob implements blobReader.
func (r *readBlobs) GetBlob(ctx context.Context, claim uuid.UUID, kind string, number int64) (queue.Blob, []byte, error) {
	blob, sealed, err := r.blobReader.GetBlob(ctx, claim, kind, number)
	if err == nil {
		r.all = append(r.all, readBlob{kind, blob.Number, sealed})
	}
	return blob, sealed, err
}

// ordered is what a runner needs to read the same.
func (r *readBlobs) ordered(identities seal.Identities) (all []OrderedBlob, err error) {
	for _, one := range r.all {
		key, err := identities.FileKey(one.sealed)
		if err != nil {
			return nil, fmt.Errorf("hand a %s down: %w", one.kind, err)
		}
		all = append(all, OrderedBlob{Kind: one.kind, Number: one.number, Digest: digestOf(one.sealed), Key: key})
	}
	return all, nil
}

// signedOrder is what the signature of an order is of: nobody can give a runner another, who may
// write where orders lie and has read the runner's first line.
func signedOrder(sealed []byte) []byte { return append([]byte("tendril order 1\n"), sealed...) }

// ReadOrder verifies by whom an order is, and opens it.
func ReadOrder(order []byte, from ed25519.PublicKey, open func([]byte, int64) ([]byte, error)) (o Order, err error) {
	if len(order) <= ed25519.SignatureSize || !ed25519.Verify(from, signedOrder(order[ed25519.SignatureSize:]), order[:ed25519.SignatureSize]) {
		return o, errors.New("the order is not by the agent that had this runner started: nothing was run")
	}
	text, err := open(order[ed25519.SignatureSize:], maxOrder)
	if err != nil {
		return o, fmt.Errorf("open the order: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&o); err != nil {
		return o, fmt.Errorf("read the order: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return o, errors.New("read the order: more follows it")
	}
	if o.Job.Assignment.ClaimID == uuid.Nil || strings.TrimSpace(string(o.Reach)) == "" {
		return o, errors.New("read the order: it lacks a claim, or how the queue is reached")
	}
	return o, nil
}

// maxOrder is the largest order, in bytes. A Kubernetes Secret holds a mebibyte.
const maxOrder = 1 << 20
