//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/dirlock"
)

const (
	demoWorkspace = "demo/hello"
	// joinLimit is how long an instance that is still starting is waited for.
	joinLimit = time.Minute
	// cancelLimit bounds the last request of a demo that is interrupted.
	cancelLimit = 5 * time.Second
)

func (a *app) demoCommand() *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start everything, deploy the template hello, watch it run",
		Long: `Deploys the sample template hello and shows its log while Terraform runs. It uses
the instance that runs on the data directory, else starts one and ends it
afterwards. The exit code is the provision's.

An instance that it starts leaves nothing behind: its data is in a temporary
directory, which is removed at the end. With --data-dir (TRELLIS_DATA_DIR) or a
database of yours, the data is kept.`,
		Example: `  trellis demo
  trellis demo --data-dir look`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd, flags) },
	}
	flags.add(cmd, "127.0.0.1:0") // any free port: nobody has to know it
	return cmd
}

func (a *app) demo(cmd *cobra.Command, flags upFlags) (err error) {
	signals := catchSignals()
	defer signal.Stop(signals)
	remove, err := a.throwaway(cmd, &flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()            // after everything has ended
	stack, err := a.startStack(cmd.Context(), signals, flags, nil) // nothing is left behind, and so no key
	var runtime instance.Runtime
	if inUse, ok := errors.AsType[*devstack.InUseError](err); ok {
		a.say("Using the instance that runs on %s (%s).", a.dataDir, inUse.Holder)
		runtime, err = a.awaitRuntime(cmd.Context())
	}
	if err != nil {
		return err
	}
	if stack != nil {
		runtime = stack.Runtime()
		defer func() { err = errors.Join(err, a.stopStack(stack, signals)) }()
	}

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			cancel()
		case <-ended:
		}
	}()
	defer func() {
		close(ended)
		<-watched
	}()
	s, err := client.New(targetOf(runtime).Options)
	if err != nil {
		return err
	}
	defer s.Close()
	return a.deployHello(ctx, cmd, s, stack != nil)
}

// throwaway has a demo that starts an instance of its own keep its data in a
// temporary directory, unless a person has said where the data is. It returns what
// removes that.
func (a *app) throwaway(cmd *cobra.Command, flags *upFlags) (remove func() error, err error) {
	given, err := a.givenDatabase()
	if err != nil {
		return nil, err
	}
	_, running := dirlock.InUse(a.dataDir)
	if cmd.Flags().Changed("data-dir") || a.getenv("TRELLIS_DATA_DIR") != "" || given != "" || running {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "trellis-demo-")
	if err == nil && os.Geteuid() == 0 {
		err = os.Chmod(dir, 0o711) //nolint:gosec // PostgreSQL runs as another user, below
	}
	if err != nil {
		return nil, fmt.Errorf("make a directory for the demo: %w; name one with --data-dir", err)
	}
	a.dataDir, flags.throwaway = dir, true
	return func() error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the demo's data: %w; remove %s yourself", err, dir)
		}
		return nil
	}, nil
}

// deployHello deploys and follows. A demo that is interrupted takes its
// provision with it where the whole instance ends.
func (a *app) deployHello(ctx context.Context, cmd *cobra.Command, s *client.Client, own bool) error {
	request := deployRequest{template: "hello", cluster: devstack.ClusterName, workspace: demoWorkspace, by: "trellis demo",
		vars: map[string]json.RawMessage{"name": jsonText(cmp.Or(a.getenv("USER"), "world"))}}
	queued, err := a.queue(ctx, s, request)
	if err != nil {
		return err
	}
	a.say("\nProvision %d: hello on workspace %s\n", queued.Number, queued.Workspace)
	if !own {
		return a.followToEnd(ctx, s, cmd, queued.ID, queued.Number, "text", false)
	}
	p, err := a.follow(ctx, s, queued.ID, "text", false)
	if err != nil && ctx.Err() != nil {
		a.say("Interrupted: cancelling provision %d.", queued.Number)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
		defer cancel()
		_, _ = s.Cancel(last, queued.ID) // it may have ended; the agent ends it in any case
		return outcome(exitInterrupted)
	}
	if err != nil {
		return err
	}
	return a.conclude(p)
}

// awaitRuntime waits for an instance that is still starting.
func (a *app) awaitRuntime(ctx context.Context) (instance.Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		runtime, err := instance.ReadRuntime(a.dataDir)
		if _, missing := errors.AsType[*instance.NotRunningError](err); !missing {
			return runtime, err
		}
		select {
		case <-ctx.Done():
			return runtime, fmt.Errorf("the instance on %s has not come up within %s", a.dataDir, joinLimit)
		case <-tick.C:
		}
	}
}
