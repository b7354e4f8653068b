package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// deployRequest is what the command line asks for.
type deployRequest struct {
	template            string
	repo, version, path string
	cluster, workspace  string
	vars                map[string]json.RawMessage
	by                  string // what made it, for the snapshot's meta
}

func (a *app) deployCommand() *cobra.Command {
	r := deployRequest{by: "trellis deploy"}
	var vars, files []string
	var follow bool
	var out format
	cmd := &cobra.Command{
		Use:   "deploy {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Queue a provision",
		Long: `Queues a provision: a template at a pinned version, its variables, and the
workspace (the Terraform state) that it belongs to. Deploying to the same
workspace again updates what is there.

The value of --var is read as JSON if it is a JSON number, true, false, null,
list or object; anything else is a text, quotes and all. For a text that looks
like a number, for lists of some length and for secrets, which others on this
machine can see on a command line, use --var-file: one JSON object of variables,
"-" for standard input. --var beats --var-file, and later ones beat earlier ones.`,
		Example: `  trellis deploy --template hello --workspace demo/hello --var name=Ada --follow
  trellis deploy --template fleet --workspace demo/fleet --var ships=40
  trellis deploy --repo https://github.com/acme/network --version v1.2.0 --path vpc \
      --workspace acme/prod --var-file prod.tfvars.json --var 'zones=["a","b"]'`,
		Args: cobra.NoArgs,
		RunE: a.withStore(func(ctx context.Context, s *store.Store, cmd *cobra.Command, _ []string) (err error) {
			if follow && out == "json" {
				return wrongUsage("--follow shows a log; it does not go with -o json")
			}
			if r.vars, err = a.readVariables(files, vars); err != nil {
				return err
			}
			queued, err := a.queue(ctx, s, r)
			if err != nil {
				return err
			}
			switch {
			case out == "json":
				return a.printJSON(queued)
			case follow:
				a.say("Provision %d is queued for workspace %s.", queued.Number, queued.Workspace)
				return a.followToEnd(ctx, s, cmd, queued.ID, queued.Number)
			}
			number := fmt.Sprint(queued.Number)
			return a.print("Provision %s is queued for workspace %s (id %s).\n\nWatch it:  %s\nLook:      %s\nStop it:   %s", number, queued.Workspace, queued.ID,
				a.hint(cmd, "logs "+number+" --follow"), a.hint(cmd, "status "+number), a.hint(cmd, "cancel "+number))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&r.template, "template", "", "template of the catalogue")
	flags.StringVar(&r.repo, "repo", "", "git repository of the template")
	flags.StringVar(&r.version, "version", "", "tag or full commit; with --template, the catalogue's own when left out")
	flags.StringVar(&r.path, "path", "", "directory of the template within the repository")
	flags.StringVar(&r.workspace, "workspace", "", "state that this belongs to, such as acme/prod; default: the variables project_name/environment")
	flags.StringVar(&r.cluster, "cluster", "", "name or id of the cluster; default: the only one")
	flags.StringArrayVar(&vars, "var", nil, "variable as NAME=VALUE (repeatable)")
	flags.StringArrayVar(&files, "var-file", nil, "JSON file of variables (repeatable)")
	flags.BoolVarP(&follow, "follow", "f", false, "show the log until the end, and exit with the outcome")
	addFormat(cmd, &out)
	return cmd
}

// queue checks a request as far as this program can, and queues it.
func (a *app) queue(ctx context.Context, s *store.Store, r deployRequest) (store.Deployed, error) {
	switch {
	case r.template == "" && r.repo == "":
		return store.Deployed{}, wrongUsage("say what to deploy: --template NAME, or --repo URL --version TAG")
	case r.template != "" && (r.repo != "" || r.path != ""):
		return store.Deployed{}, wrongUsage("--template brings its own repository and path: leave --repo and --path out")
	case r.repo != "" && r.version == "":
		return store.Deployed{}, wrongUsage("--version is missing: a tag or a full commit of %s", r.repo)
	}
	cluster, err := s.FindCluster(ctx, r.cluster)
	if err != nil {
		return store.Deployed{}, err
	}
	if r.template != "" {
		if err := fromCatalogue(ctx, s, cluster, &r); err != nil {
			return store.Deployed{}, err
		}
	}
	snapshot, err := r.snapshot()
	if err != nil {
		return store.Deployed{}, err
	}
	return s.Deploy(ctx, cluster.ID, snapshot)
}

func fromCatalogue(ctx context.Context, s *store.Store, cluster store.Cluster, r *deployRequest) error {
	templates, err := s.Templates(ctx, cluster.ID)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(templates, func(t store.Template) bool { return t.Name == r.template })
	if i < 0 {
		names := make([]string, len(templates))
		for i, t := range templates {
			names[i] = t.Name
		}
		return wrongUsage("there is no template %q%s", r.template, provision.DidYouMean(r.template, names))
	}
	r.repo, r.path = templates[i].Repo, templates[i].Path
	if r.version == "" {
		r.version = templates[i].Version
	}
	return nil
}

// snapshot is the request as the database takes it. Problems that can be seen
// from here come back all at once; the database has the last word.
func (r deployRequest) snapshot() (json.RawMessage, error) {
	data, err := json.Marshal(provision.Snapshot{
		TemplateSource: provision.TemplateSource{Repo: r.repo, Version: r.version, Path: r.path},
		TerraformVars:  r.vars, Workspace: r.workspace,
		Meta: map[string]json.RawMessage{"triggered_by": jsonText(r.by)},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the deploy: %w", err)
	}
	s, err := provision.ParseSnapshot(data)
	if err != nil {
		return nil, err
	}
	if _, err := s.WorkspaceName(); err != nil && r.workspace == "" {
		return nil, wrongUsage("--workspace is missing: it names the state that this belongs to, such as acme/prod")
	}
	return data, nil
}
