package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) destroyCommand() *cobra.Command {
	var c choices
	var sealed sealedFlags
	var follow, yes bool
	var out format
	cmd := &cobra.Command{
		Use:   "destroy WORKSPACE",
		Short: "Queue the destruction of everything in a workspace",
		Long: `Queues the destruction of everything that the workspace's state records, with the
template and the variables of its newest deploy. With --target it is confined to the
resources named. Where a value of that deploy was sealed the old way, or for a name
that the workspace no longer has, --sealed-var gives it sealed again.

On a terminal it asks for the workspace's name; elsewhere --yes is needed. Where the
cluster wants it, a person must approve the plan first.`,
		Example: `  trellis destroy demo/hello --follow
  trellis destroy demo/fleet --target 'terraform_data.ship["ship-001"]' --yes`,
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
			if err := a.confirm(yes, w.Name, fmt.Sprintf("This destroys %s in workspace %s on cluster %s.", extent(c.targets), w.Name, w.Cluster)); err != nil {
				return err
			}
			queued, err := a.queueOn(ctx, s, w, provision.OperationDestroy, "trellis destroy", func(asked *provision.Snapshot) {
				c.put(asked)
				asked.SealedVars = withSealed(asked.SealedVars, again)
			})
			if err != nil {
				return err
			}
			return a.tellQueued(ctx, s, cmd, queued, follow, out)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.addFlags(cmd, provision.OperationDestroy)
	sealed.addMessages(cmd)
	addFollow(cmd, &follow, &out)
	return cmd
}

func extent(targets []string) string {
	if len(targets) == 0 {
		return "everything"
	}
	return strings.Join(targets, ", ")
}

// confirm has a person type a word, unless they have said so beforehand.
func (a *app) confirm(yes bool, word, what string) error {
	if yes {
		return nil
	}
	if !a.err.tty {
		return wrongUsage("%s Say --yes, for nobody can be asked here", what)
	}
	a.say("%s", what)
	_, _ = fmt.Fprintf(a.err, "Type %s to go on: ", printable.Text(word)) // what is not seen is not answered
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if strings.TrimSpace(answer) != word || err != nil && answer == "" {
		a.say("Nothing was done.")
		return outcome(exitFailed)
	}
	return nil
}

// queueAgain queues an operation on what was last deployed to a workspace.
func (a *app) queueAgain(ctx context.Context, s *client.Client, w store.Workspace, operation provision.Operation, c choices, by string) (store.Deployed, error) {
	return a.queueOn(ctx, s, w, operation, by, c.put)
}

// queueOn queues an operation with the template, the variables and the engine of
// a workspace's newest deploy, and with what change makes of it.
func (a *app) queueOn(ctx context.Context, s *client.Client, w store.Workspace, operation provision.Operation, by string, change func(*provision.Snapshot)) (store.Deployed, error) {
	cluster, last, err := s.LastApplied(ctx, w)
	if err != nil {
		return store.Deployed{}, err
	}
	before, err := provision.ParseSnapshot(last)
	if err != nil {
		return store.Deployed{}, fmt.Errorf("the newest deploy of workspace %s: %w", w.Name, err)
	}
	asked := provision.Snapshot{
		TemplateSource: before.TemplateSource, TerraformVars: before.TerraformVars, SealedVars: before.SealedVars,
		Workspace: w.Name, Terraform: before.Terraform, RequesterKey: before.RequesterKey,
		Meta: map[string]json.RawMessage{"triggered_by": jsonText(by)},
	}
	change(&asked)
	if err := before.SealedElsewhere(asked); err != nil {
		return store.Deployed{}, err
	}
	data, err := json.Marshal(asked)
	if err != nil {
		return store.Deployed{}, fmt.Errorf("encode the request: %w", err)
	}
	if _, err := provision.ParseSnapshot(data); err != nil {
		return store.Deployed{}, err
	}
	return s.Deploy(ctx, cluster, operation, data)
}
