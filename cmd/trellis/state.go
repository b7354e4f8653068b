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
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

func stateCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Show a workspace's Terraform state, or change it",
		Long: `Shows a workspace's Terraform state, or changes it. Each of these is an operation
like a deploy: an agent of the cluster carries it out, under the workspace's claim, with
the template and the variables of the newest deploy; it is queued, logged and audited.
A state holds every secret of its workspace: all of these but list are for admins.`,
		Example: `  trellis state list acme/prod`,
		Args:    verb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range []stateVerb{
		{use: "list WORKSPACE", short: "List the resources that the state records", args: 0,
			example: `  trellis state list acme/prod`},
		{use: "rm WORKSPACE ADDRESS…", short: "Forget resources: they go on existing", args: -1, word: true,
			example: `  trellis state rm acme/prod 'module.db.aws_db_instance.main'`},
		{use: "mv WORKSPACE FROM TO", short: "Record a resource under another address", args: 2,
			example: `  trellis state mv acme/prod aws_instance.web 'module.web.aws_instance.this'`},
		{use: "import WORKSPACE ADDRESS ID", short: "Record something that exists", args: 2,
			long: `Records something that exists, by its provider's id, under an address that the template
declares. A machine of a Proxmox pool is machine.NAME, and its id NODE/VMID: the agent marks
it as Tendril's, if the pool's import_ids allow it.`,
			example: `  trellis state import acme/prod aws_instance.web i-0123456789abcdef0`},
		{use: "adopt WORKSPACE", short: "Take over the state of the backend that the template declares", args: 0, word: true,
			long: `Copies the state from the backend that the template declares into the managed state,
which must be empty. The other one stays where it is: make sure that nobody uses it any
more.`,
			example: `  trellis state adopt acme/prod`},
	} {
		cmd.AddCommand(stateVerbCommand(a, c))
	}
	cmd.AddCommand(stateVersionsCommand(a), stateRollbackCommand(a), statePullCommand(a), statePushCommand(a))
	return cmd
}

// stateVerb is one that passes its words on.
type stateVerb struct {
	use, short, long, example string
	args                      int  // beside the workspace; -1: one or more
	word                      bool // the workspace's name must be typed
}

func stateVerbCommand(a *app, v stateVerb) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Example: v.example, Args: func(_ *cobra.Command, args []string) error {
		if n := len(args) - 1; n < 0 || v.args >= 0 && n != v.args || v.args < 0 && n < 1 {
			return wrongUsage("give %s", v.use)
		}
		return nil
	}}
	cmd.RunE = withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
		w, err := s.FindWorkspace(ctx, args[0])
		if err != nil {
			return err
		}
		if err := confirm(a, yes || !v.word, w.Name, fmt.Sprintf("This changes the state of workspace %s on cluster %s.", w.Name, w.Cluster)); err != nil {
			return err
		}
		return runState(ctx, a, s, cmd, w, provision.StateCommand{Command: cmd.Name(), Args: args[1:]})
	})
	addFormat(a, cmd)
	if v.word {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}

// queueState queues a command on a workspace's state.
func queueState(ctx context.Context, a *app, s *client.Client, w wire.WorkspaceDetail, c provision.StateCommand, key string) (wire.QueuedAnswer, error) {
	return queueOn(ctx, a, s, w, provision.OperationState, "trellis state "+c.Command, func(asked *provision.Snapshot) {
		asked.State = &c
		if key != "" {
			asked.RequesterKey = key
		}
	})
}

// runState queues a command and shows its log to the end; as JSON, the provision
// that it was.
func runState(ctx context.Context, a *app, s *client.Client, cmd *cobra.Command, w wire.WorkspaceDetail, c provision.StateCommand) error {
	queued, err := queueState(ctx, a, s, w, c, "")
	if err != nil {
		return err
	}
	if a.json() {
		p, err := awaitRun(ctx, a, s, queued.ID)
		if err != nil {
			return err
		}
		if err := a.printJSON(p); err != nil || p.Status == provision.Success {
			return err
		}
		return conclude(a, p)
	}
	return followToEnd(ctx, a, s, cmd, queued.ID, queued.Number, false)
}

func stateVersionsCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "versions WORKSPACE",
		Short:   "List the managed states that are kept",
		Example: `  trellis state versions demo/hello`,
		Args:    one("a workspace's name or id"),
		RunE: about(a, (*client.Client).FindWorkspace, func(ctx context.Context, s *client.Client, _ *cobra.Command, w wire.WorkspaceDetail) error {
			list, err := s.StateVersions(ctx, w.ID)
			return listing(&a.printer, list, err, "No managed state is kept of workspace "+w.Name+".", "VERSION\tSERIAL\tSTORED\tBYTES, SEALED", func(v wire.StateVersion) []any {
				serial := "-"
				if v.Serial != nil {
					serial = fmt.Sprint(*v.Serial)
				}
				return []any{v.Version, serial, at(&v.StoredAt), v.Bytes}
			})
		}),
	})
}

func stateRollbackCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "rollback WORKSPACE VERSION",
		Short: "Return to an earlier state",
		Long: `Stores an earlier managed state as the newest one. The infrastructure is not touched:
what was made since is recorded nowhere any more, and the next plan says what differs.
"trellis state versions" lists the states that are kept. The order is signed with your
key ("trellis keys"), which the agent's policy.requester_keys must trust.`,
		Example: `  trellis state rollback demo/hello 3`,
		Args:    each("a workspace", "a version"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || version < 1 {
				return wrongUsage("%q is not a version", args[1])
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := confirm(a, yes, w.Name, fmt.Sprintf("This returns the state of workspace %s to version %d.", w.Name, version)); err != nil {
				return err
			}
			command, err := ordered(ctx, a, s, w, provision.StateCommand{Command: "rollback", Version: version}, "")
			if err != nil {
				return err
			}
			return runState(ctx, a, s, cmd, w, command)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(a, cmd)
	return cmd
}

// mostState is the most bytes of a state that can be brought or fetched.
const mostState = 60 << 20

func statePullCommand(a *app) *cobra.Command {
	var file string
	var version int64
	cmd := &cobra.Command{
		Use:   "pull WORKSPACE",
		Short: "Fetch the state, which holds secrets",
		Long: `Fetches the state and prints it, or writes it to a file that only you can read. On its
way it is sealed to your key ("trellis keys"), which the agent's policy.requester_keys
must name: neither the database nor the control plane can read it, or have it sealed to
another key. It is audited.`,
		Example: `  trellis state pull demo/hello --to hello.tfstate`,
		Args:    one("a workspace's name or id"),
		RunE: about(a, (*client.Client).FindWorkspace, func(ctx context.Context, s *client.Client, _ *cobra.Command, w wire.WorkspaceDetail) error {
			own, err := ownKey(a)
			if err != nil {
				return err
			}
			queued, err := queueState(ctx, a, s, w, provision.StateCommand{Command: "pull", Version: version}, own.Asks(time.Now()))
			if err != nil {
				return err
			}
			if _, err := awaitSuccess(ctx, a, s, queued.ID); err != nil {
				return err
			}
			sealed, err := s.Result(ctx, queued.ID)
			if err != nil {
				return err
			}
			state, err := own.Open(sealed, mostState)
			if err != nil {
				return fmt.Errorf("open what the agent has left: %w", err)
			}
			return writeState(a, file, state)
		}),
	}
	cmd.Flags().StringVar(&file, "to", "", "file to write; default: standard output")
	cmd.Flags().Int64Var(&version, "version", 0, "one of those that are kept; default: the state as it is")
	addFormat(a, cmd)
	return cmd
}

func writeState(a *app, file string, state []byte) error {
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
	if a.json() {
		return a.printJSON(map[string]any{"file": file, "bytes": len(state)})
	}
	a.say("The state is in %s (%d bytes). It holds secrets: remove it when you are done.", file, len(state))
	return nil
}

func statePushCommand(a *app) *cobra.Command {
	var yes bool
	var to sealRequest
	cmd := &cobra.Command{
		Use:   "push WORKSPACE FILE",
		Short: "Bring in a state from a file",
		Long: `Stores a state from a file, "-" for standard input: one that was kept elsewhere so far,
or that was fetched with "trellis state pull" and fixed. As with terraform state push a
state of another lineage or an older one is refused. It is sealed to the cluster's key
here, before it is sent, and the order is signed with your key ("trellis keys"), which
the agent's policy.requester_keys must trust.`,
		Example: `  trellis state push acme/prod terraform.tfstate`,
		Args:    each("a workspace", "a file"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			state, err := readFile(a, args[1], "the state", mostState)
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := confirm(a, yes, w.Name, fmt.Sprintf("This changes the state of workspace %s on cluster %s.", w.Name, w.Cluster)); err != nil {
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
			command, err := ordered(ctx, a, s, w, provision.StateCommand{Command: "push", Upload: upload.String()}, hex.EncodeToString(digest[:]))
			if err != nil {
				return err
			}
			return runState(ctx, a, s, cmd, w, command)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&to.fingerprint, "fingerprint", "", "the fingerprint that the cluster's key must have, SHA256:…")
	addFormat(a, cmd)
	return cmd
}

// readFile reads a file, or standard input for "-", of at most so many bytes.
func readFile(a *app, name, what string, most int) ([]byte, error) {
	input := a.in
	if name != "-" {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, wrongUsage("%v", err)
		}
		defer file.Close() //nolint:errcheck // only read
		input = file
	}
	text, err := io.ReadAll(io.LimitReader(input, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", what, err)
	case len(text) > most:
		return nil, wrongUsage("%s: more than %d MiB, which is the most that can be brought", name, most>>20)
	case len(text) == 0:
		return nil, wrongUsage("%s is empty", name)
	}
	return text, nil
}
