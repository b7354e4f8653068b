package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// Main runs the provision handed down on the inherited descriptors (see package
// job) and returns when its result is in the spool and none of its processes
// lives. An error means that there may be no result; it is for the agent's log.
//
// As is "" or, for an agent that runs as root, the uids that this process has
// from then on, see isolation.ParseIDs. GitHelper is the argv that reaches
// githelper.Main.
func Main(as string, gitHelper []string) error {
	return start(as, gitHelper, patience{time: pushPatience})
}

func start(as string, gitHelper []string, patience patience) error {
	// Before anything is read: no process of this uid may look into us, and
	// nothing that others made is looked at by root.
	id, err := becomeUnprivileged(as)
	if err := errors.Join(err, process.Undumpable()); err != nil {
		return fmt.Errorf("prepare the process: %w", err)
	}
	// No template may reach the spool, the lock or the control pipe.
	if err := process.CloseOnExec(job.ControlFD, job.SpoolFD, job.LockFD, job.DoorbellFD, job.TailFD0, job.TailFD1, job.PlanFD, job.StateInFD, job.StateOutA, job.StateOutB); err != nil {
		return fmt.Errorf("exec is started by the agent, with its descriptors, not by hand: %w", err)
	}
	if err := process.Subreaper(); err != nil {
		return fmt.Errorf("prepare the process: %w", err)
	}
	// Only the agent ends a run. Caught rather than ignored: an ignored signal
	// would stay ignored in the engine, which is to be interrupted by SIGINT.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	doorbell, err := spool.NewDoorbell(os.NewFile(job.DoorbellFD, "doorbell"))
	if err != nil {
		return fmt.Errorf("open the doorbell: %w", err)
	}
	log := spool.NewWriter(os.NewFile(job.SpoolFD, "spool"), doorbell)
	log.Gather()
	// Non-blocking, so that closing it ends the read that waits on it: a run
	// ends whether its agent listens or not.
	if err := syscall.SetNonblock(job.ControlFD, true); err != nil {
		return fmt.Errorf("open the control pipe: %w", err)
	}
	return run(id, gitHelper, os.NewFile(job.ControlFD, "control"), log, patience)
}

// becomeUnprivileged gives up root, if we are to. The lock on the uids stays
// ours as long as something runs below us.
func becomeUnprivileged(as string) (*isolation.Identity, error) {
	if as == "" {
		return nil, nil
	}
	ids, err := isolation.ParseIDs(as)
	if err != nil {
		return nil, err
	}
	id, err := isolation.Drop(ids)
	return id, errors.Join(err, process.CloseOnExec(job.UIDLockFD))
}

// run is start on open files.
func run(id *isolation.Identity, gitHelper []string, control *os.File, log *spool.Writer, patience patience) (err error) {
	reader := job.NewReader(control)
	j, err := reader.Job()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	if j.Check != nil { // runs go first
		_ = unix.Setpriority(unix.PRIO_PGRP, 0, checkNice) // at worst they share alike
	}
	log.Mask(append(j.Secrets(os.Environ()), job.FileSecrets(os.Environ())...)...)
	if limit := j.Settings.LogLimit; limit > 0 {
		log.Limit(limit, spool.Tail{os.NewFile(job.TailFD0, "tail"), os.NewFile(job.TailFD1, "tail")})
	}
	if j.Credentials.Note != "" {
		log.System("%s", j.Credentials.Note)
	}
	s := newSession(reader, log, limitOf(j), patience)
	if !j.Launched.IsZero() {
		s.marks = &marks{}
		s.marks.ended("process start", j.Launched)
	}
	log.WaitForRoom(j.Settings.DiskWait, s.ctx.Done(), s.spoolFailed)
	defer func() {
		_ = control.Close()
		s.wait()
		err = errors.Join(err, log.Close())
	}()
	defer func() {
		if p := recover(); p != nil {
			// For the agent's log, which knows no secret.
			what := log.MaskString(fmt.Sprintf("panic: %v", p))
			fmt.Fprintf(os.Stderr, "%s\n%s", what, debug.Stack())
			endDescendants(log)
			err = errors.Join(errors.New(what), log.Update(provision.Report{Status: provision.Failed, Detail: provision.Detail{
				ErrorCode:    provision.CodeInternal,
				ErrorMessage: "Tendril itself failed on this run. That is a defect; the agent's log has the details.",
			}}))
		}
	}()

	return s.settle(carryOut(s, j, id, gitHelper))
}

// checkNice is how much less than runs a health check gets of a processor.
const checkNice = 10

// endDescendants kills what a run has left running. Nobody is told that the run
// is over before: its workspace is free then.
func endDescendants(log *spool.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	if err := process.KillDescendants(ctx, nil); err != nil {
		log.System("Some processes of this run could not be ended: %v", err)
	}
}

// sweepLimit bounds how long a run waits for its last killed process.
const sweepLimit = 10 * time.Second

// carryOut runs the stages with the ending watched over.
func carryOut(s *session, j job.Job, id *isolation.Identity, gitHelper []string) error {
	r, err := newRun(s, j, id)
	if err != nil {
		return err
	}
	r.gitHelper = gitHelper
	defer r.cleanUp()
	// Before the clean-up: what still ran could put back what it removes.
	defer endDescendants(s.log)
	reaping, stopReaping := context.WithCancel(context.Background())
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		process.ReapOrphans(reaping, process.InOwnSession())
	}()
	defer func() {
		stopReaping()
		<-reaped
	}()
	over := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchEnding(over, j.Settings.CancelGrace)
	}()
	defer func() {
		close(over)
		<-watched
	}()
	return r.stages(s.ctx)
}
