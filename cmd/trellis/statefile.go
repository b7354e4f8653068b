package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// mostState is the most bytes of a state that can be brought or fetched.
const mostState = 60 << 20

func (a *app) statePullCommand() *cobra.Command {
	var file string
	var version int64
	var out format
	cmd := &cobra.Command{
		Use:   "pull WORKSPACE",
		Short: "Fetch the state, which holds secrets",
		Long: `Fetches the state and prints it, or writes it to a file that only you can read. On its
way it is sealed to your key ("trellis keys"), which the agent's policy.requester_keys
must name: neither the database nor the control plane can read it, or have it sealed to
another key. It is audited.`,
		Example: `  trellis state pull demo/hello --to hello.tfstate`,
		Args:    one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			own, err := a.key()
			if err != nil {
				return err
			}
			queued, err := a.queueState(ctx, s, w, provision.StateCommand{Command: "pull", Version: version}, own.Asks(time.Now()))
			if err != nil {
				return err
			}
			p, err := a.await(ctx, s, queued.ID)
			if err != nil {
				return err
			}
			if p.Status != provision.Success {
				return a.conclude(p)
			}
			sealed, err := s.Result(ctx, queued.ID)
			if err != nil {
				return err
			}
			state, err := own.Open(sealed, mostState)
			if err != nil {
				return fmt.Errorf("open what the agent has left: %w", err)
			}
			return a.writeState(file, state, out)
		}),
	}
	cmd.Flags().StringVar(&file, "to", "", "file to write; default: standard output")
	cmd.Flags().Int64Var(&version, "version", 0, "one of those that are kept; default: the state as it is")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) writeState(file string, state []byte, out format) error {
	if file == "" { // which is JSON
		if a.out.tty {
			state = printable.JSON(state)
		}
		_, err := a.out.Write(state)
		return err
	}
	opened, err := os.OpenFile(filepath.Clean(file), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return wrongUsage("--to: %v", err)
	}
	_, err = opened.Write(state)
	if err := errors.Join(err, opened.Close()); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if out == "json" {
		return a.printJSON(map[string]any{"file": file, "bytes": len(state)})
	}
	a.say("The state is in %s (%d bytes). It holds secrets: remove it when you are done.", file, len(state))
	return nil
}

func (a *app) statePushCommand() *cobra.Command {
	var yes bool
	var to sealRequest
	var out format
	cmd := &cobra.Command{
		Use:   "push WORKSPACE FILE",
		Short: "Bring in a state from a file",
		Long: `Stores a state from a file, "-" for standard input: one that was kept elsewhere so far,
or that was fetched with "trellis state pull" and mended. As with terraform state push a
state of another lineage or an older one is refused. It is sealed to the cluster's key
here, before it is sent, and the order is signed with your key ("trellis keys"), which
the agent's policy.requester_keys must trust.`,
		Example: `  trellis state push acme/prod terraform.tfstate`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return wrongUsage("give two arguments, a workspace and a file")
			}
			return nil
		},
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			state, err := a.readState(args[1])
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := a.confirm(yes, w.Name, fmt.Sprintf("This changes the state of workspace %s on cluster %s.", w.Name, w.Cluster)); err != nil {
				return err
			}
			c, err := s.FindCluster(ctx, w.Cluster)
			if err != nil {
				return err
			}
			key, whose, err := to.recipient(&c)
			if err != nil {
				return err
			}
			recipient, err := seal.ParseRecipient(key)
			if err != nil {
				return err
			}
			sealed, err := seal.To(recipient, state)
			if err != nil {
				return err
			}
			upload, err := s.Upload(ctx, c.ID, sealed)
			if err != nil {
				return err
			}
			a.say("Sealed to %s: %s", whose, seal.Fingerprint(key))
			digest := sha256.Sum256(state)
			command, err := a.ordered(ctx, s, w, provision.StateCommand{Command: "push", Upload: upload.String()}, hex.EncodeToString(digest[:]))
			if err != nil {
				return err
			}
			return a.runState(ctx, s, cmd, w, command, out)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&to.fingerprint, "fingerprint", "", "the fingerprint that the cluster's key must have, SHA256:…")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) readState(name string) ([]byte, error) {
	input := a.in
	if name != "-" {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, wrongUsage("%v", err)
		}
		defer file.Close() //nolint:errcheck // only read
		input = file
	}
	state, err := io.ReadAll(io.LimitReader(input, mostState+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the state: %w", err)
	case len(state) > mostState:
		return nil, wrongUsage("%s: more than %d MiB, which is the most that can be brought", name, mostState>>20)
	case len(state) == 0:
		return nil, wrongUsage("%s is empty", name)
	}
	return state, nil
}
