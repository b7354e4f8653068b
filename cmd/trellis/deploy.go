package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) deployCommand() *cobra.Command {
	return a.requestCommand(provision.OperationApply, &cobra.Command{
		Use:   "deploy {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Queue a provision",
		Long: `Queues a provision: a template at a pinned version, its variables, and the
workspace (the Terraform state) that it belongs to. Deploying to the same
workspace again updates what is there.

The value of --var is text, converted where the template declares a number or a
boolean: --var name=1.10 stays 1.10 for a string. A list, an object or null is given
by --var-json. A --var-file holds one JSON object of variables; "-" reads standard
input. --var-json wins over --var, --var over --var-file, and later ones win.

A variable that the template declares sensitive is taken sealed only (unless the
agent's policy.plain_sensitive admits plain ones). It is sealed for this cluster,
workspace and template, and opens for no other: see "trellis seal --help".`,
		Example: `  trellis deploy --template hello --workspace demo/hello --var name=Ada --follow
  trellis deploy --template fleet --workspace demo/fleet --var ships=40
  trellis deploy --repo https://github.com/acme/network --version v1.2.0 \
      --path vpc --workspace acme/prod --var-file prod.tfvars.json \
      --var-json 'zones=["a","b"]'
  trellis seal db_password --template app --workspace acme/prod \
      > db_password.age
  trellis deploy --template app --workspace acme/prod \
      --sealed-var db_password=db_password.age`,
	})
}

func (a *app) planCommand() *cobra.Command {
	return a.requestCommand(provision.OperationPlan, &cobra.Command{
		Use:   "plan {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Queue a plan: what a deploy would change",
		Long: `Queues a plan, which says what "trellis deploy" with the same words would change, and
changes nothing. It is made by the cluster's agent, with the same template, variables
and state. Nothing is approved by it and nothing waits for it.`,
		Example: `  trellis plan --template hello --workspace demo/hello --var name=Ada --follow`,
	})
}

// requestCommand is a verb that names a template and what to do with it.
func (a *app) requestCommand(operation provision.Operation, cmd *cobra.Command) *cobra.Command {
	r := deployRequest{operation: operation, by: "trellis " + strings.Fields(cmd.Use)[0]}
	var vars variableFlags
	var sealed sealedFlags
	var follow bool
	var out format
	cmd.Args = none
	cmd.RunE = a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, _ []string) (err error) {
		if err := followOrJSON(follow, out); err != nil {
			return err
		}
		if r.vars, err = a.readVariables(vars); err != nil {
			return err
		}
		if r.sealed, err = sealed.read(); err != nil {
			return err
		}
		if r.requesterKey, err = a.requester(sealed.requesterKey); err != nil {
			return err
		}
		queued, err := a.queue(ctx, s, r)
		if err != nil {
			return err
		}
		return a.tellQueued(ctx, s, cmd, queued, follow, out)
	})
	flags := cmd.Flags()
	flags.StringVar(&r.template, "template", "", "template of the catalogue")
	flags.StringVar(&r.repo, "repo", "", "git repository of the template")
	flags.StringVar(&r.version, "version", "", "tag or full commit; with --template, the catalogue's own when left out")
	flags.StringVar(&r.path, "path", "", "directory of the template within the repository")
	flags.StringVar(&r.workspace, "workspace", "", "state that this belongs to, such as acme/prod; default: the variables project_name/environment")
	flags.StringVar(&r.cluster, "cluster", "", "name or id of the cluster; default: the only one")
	vars.addFlags(cmd)
	sealed.addFlags(cmd)
	r.addFlags(cmd, operation)
	addFollow(cmd, &follow, &out)
	return cmd
}

// addFollow offers to watch what was queued, or to print it as JSON.
func addFollow(cmd *cobra.Command, follow *bool, out *format) {
	cmd.Flags().BoolVarP(follow, "follow", "f", false, "show the log until the end, and exit with the outcome")
	addFormat(cmd, out)
}

func followOrJSON(follow bool, out format) error {
	if follow && out == "json" {
		return wrongUsage("--follow shows a log; it does not go with -o json")
	}
	return nil
}

// tellQueued says what was queued, in the way that was asked for.
func (a *app) tellQueued(ctx context.Context, s *client.Client, cmd *cobra.Command, queued store.Deployed, follow bool, out format) error {
	switch {
	case out == "json":
		return a.printJSON(queued)
	case follow:
		a.say("Provision %d is queued for workspace %s.", queued.Number, queued.Workspace)
		return a.followToEnd(ctx, s, cmd, queued.ID, queued.Number, out, false)
	}
	number := fmt.Sprint(queued.Number)
	return a.print("Provision %s is queued for workspace %s (id %s).\n\nWatch it:  %s\nLook:      %s\nStop it:   %s", number, queued.Workspace, queued.ID,
		a.hint(cmd, "logs "+number+" --follow"), a.hint(cmd, "status "+number), a.hint(cmd, "cancel "+number))
}
