package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) stateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Look at a workspace's Terraform state, or change it",
		Long: `Looks at a workspace's Terraform state, or changes it. Each of these is an operation
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
			long:    "Records something that exists, by its provider's id, under an address that the template declares.",
			example: `  trellis state import acme/prod aws_instance.web i-0123456789abcdef0`},
		{use: "adopt WORKSPACE", short: "Take over the state of the backend that the template declares", args: 0, word: true,
			long: `Copies the state from the backend that the template declares into the managed state,
which must be empty. The other one stays where it is: make sure that nobody uses it any
more.`,
			example: `  trellis state adopt acme/prod`},
	} {
		cmd.AddCommand(a.stateVerbCommand(c))
	}
	cmd.AddCommand(a.stateVersionsCommand(), a.stateRollbackCommand(), a.statePullCommand(), a.statePushCommand())
	return cmd
}

// stateVerb is one that passes its words on.
type stateVerb struct {
	use, short, long, example string
	args                      int  // beside the workspace; -1: one or more
	word                      bool // the workspace's name must be typed
}

func (a *app) stateVerbCommand(v stateVerb) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Example: v.example, Args: func(_ *cobra.Command, args []string) error {
		if n := len(args) - 1; n < 0 || v.args >= 0 && n != v.args || v.args < 0 && n < 1 {
			return wrongUsage("give %s", v.use)
		}
		return nil
	}}
	var out format
	cmd.RunE = a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
		w, err := s.FindWorkspace(ctx, args[0])
		if err != nil {
			return err
		}
		if err := a.confirm(yes || !v.word, w.Name, fmt.Sprintf("This changes the state of workspace %s on cluster %s.", w.Name, w.Cluster)); err != nil {
			return err
		}
		return a.runState(ctx, s, cmd, w, provision.StateCommand{Command: cmd.Name(), Args: args[1:]}, out)
	})
	addFormat(cmd, &out)
	if v.word {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}

// queueState queues a command on a workspace's state.
func (a *app) queueState(ctx context.Context, s *client.Client, w store.Workspace, c provision.StateCommand, key string) (store.Deployed, error) {
	return a.queueOn(ctx, s, w, provision.OperationState, "trellis state "+c.Command, func(asked *provision.Snapshot) {
		asked.State = &c
		if key != "" {
			asked.RequesterKey = key
		}
	})
}

// runState queues a command and shows its log to the end; as JSON, the provision
// that it was.
func (a *app) runState(ctx context.Context, s *client.Client, cmd *cobra.Command, w store.Workspace, c provision.StateCommand, out format) error {
	queued, err := a.queueState(ctx, s, w, c, "")
	if err != nil {
		return err
	}
	if out == "json" {
		p, err := a.await(ctx, s, queued.ID)
		if err != nil {
			return err
		}
		if err := a.printJSON(p); err != nil || p.Status == provision.Success {
			return err
		}
		return a.conclude(p)
	}
	return a.followToEnd(ctx, s, cmd, queued.ID, queued.Number, out, false)
}

func (a *app) stateVersionsCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "versions WORKSPACE",
		Short:   "List the managed states that are kept",
		Example: `  trellis state versions demo/hello`,
		Args:    one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			list, err := s.StateVersions(ctx, w.ID)
			if err != nil {
				return err
			}
			var rows []string
			for _, v := range list {
				serial := "-"
				if v.Serial != nil {
					serial = fmt.Sprint(*v.Serial)
				}
				rows = append(rows, row(v.Version, serial, at(&v.StoredAt), v.Bytes))
			}
			return a.listing(out, list, "No managed state is kept of workspace "+w.Name+".", "VERSION\tSERIAL\tSTORED\tBYTES, SEALED", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) stateRollbackCommand() *cobra.Command {
	var yes bool
	var out format
	cmd := &cobra.Command{
		Use:   "rollback WORKSPACE VERSION",
		Short: "Return to an earlier state",
		Long: `Stores an earlier managed state as the newest one. The infrastructure is not touched:
what was made since is recorded nowhere any more, and the next plan says what differs.
"trellis state versions" lists the states that are kept. The order is signed with your
key ("trellis keys"), which the agent's policy.requester_keys must trust.`,
		Example: `  trellis state rollback demo/hello 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return wrongUsage("give two arguments, a workspace and a version")
			}
			return nil
		},
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || version < 1 {
				return wrongUsage("%q is not a version", args[1])
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := a.confirm(yes, w.Name, fmt.Sprintf("This returns the state of workspace %s to version %d.", w.Name, version)); err != nil {
				return err
			}
			command, err := a.ordered(ctx, s, w, provision.StateCommand{Command: "rollback", Version: version}, "")
			if err != nil {
				return err
			}
			return a.runState(ctx, s, cmd, w, command, out)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(cmd, &out)
	return cmd
}
