package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) unlockCommand() *cobra.Command {
	var sealed sealedFlags
	var reason, stateLock string
	var follow, yes bool
	var out format
	cmd := &cobra.Command{
		Use:   "unlock WORKSPACE",
		Short: "End a person's lock, or a state's lock that was left behind",
		Long: `Ends the lock that a person has put on a workspace: your own, or as an admin
anybody's.

With --state-lock ID, as an admin, it queues the release of the lock that some run has left on the
Terraform state (terraform force-unlock), by an agent of the cluster. The id stands in
the error of the run that met the lock, with who holds it and since when. Make sure
first that whoever holds it is dead: two runs on one state destroy it.`,
		Example: `  trellis unlock acme/prod
  trellis unlock acme/prod --follow \
      --state-lock 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
		Args: one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(follow, out); err != nil {
				return err
			}
			again, err := sealed.read()
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if stateLock == "" {
				if err := s.Unlock(ctx, w.ID, reason); err != nil {
					return err
				}
				return a.answer(out, w, "Workspace %s on cluster %s is unlocked; what is queued there may start.", w.Name, w.Cluster)
			}
			if err := a.confirm(yes, w.Name, "This takes the lock "+stateLock+" from whoever holds it on the state of workspace "+w.Name+"."); err != nil {
				return err
			}
			queued, err := a.queueOn(ctx, s, w, provision.OperationUnlock, "trellis unlock", func(asked *provision.Snapshot) {
				asked.LockID = stateLock
				asked.SealedVars = withSealed(asked.SealedVars, again)
				if reason != "" {
					asked.Meta["reason"] = jsonText(reason)
				}
			})
			if err != nil {
				return err
			}
			return a.tellQueued(ctx, s, cmd, queued, follow, out)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&reason, "reason", "", "why, for the audit")
	flags.StringVar(&stateLock, "state-lock", "", "id of the lock on the Terraform state")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	sealed.addMessages(cmd)
	addFollow(cmd, &follow, &out)
	return cmd
}
