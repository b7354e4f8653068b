package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// deployRequest is what the command line asks for.
type deployRequest struct {
	operation           provision.Operation // "": apply
	template            string
	repo, version, path string
	cluster, workspace  string
	vars                map[string]json.RawMessage
	sealed              map[string]string
	requesterKey        string
	by                  string // what made it, for the snapshot's meta
	choices
}

// choices are what can be said of any run, whatever it runs.
type choices struct {
	targets, replace []string
	approval         string
	timeout          time.Duration
	attempts         int
	reason           string
}

// addFlags offers those that go with the operation.
func (c *choices) addFlags(cmd *cobra.Command, operation provision.Operation) {
	flags := cmd.Flags()
	flags.StringArrayVar(&c.targets, "target", nil, "resource address to which this is confined (repeatable)")
	if operation == provision.OperationApply || operation == provision.OperationPlan {
		flags.StringArrayVar(&c.replace, "replace", nil, "resource address to be made anew (repeatable)")
	}
	if operation == provision.OperationApply || operation == provision.OperationDestroy {
		flags.StringVar(&c.approval, "approval", "", "have a person approve the plan: never, destructive or always; never less than the cluster wants")
	}
	flags.DurationVar(&c.timeout, "timeout", 0, "the longest that it may run, such as 45m; default: the agent's limit")
	flags.IntVar(&c.attempts, "max-attempts", 0, "how often it is tried when it fails before anything was changed; default 1")
	flags.StringVar(&c.reason, "reason", "", "why, for others to read")
}

// put writes the choices into a snapshot.
func (c choices) put(s *provision.Snapshot) {
	s.Targets, s.Replace = c.targets, c.replace
	s.Approval = provision.Approval(c.approval)
	s.TimeoutSeconds = int(c.timeout / time.Second)
	s.MaxAttempts = c.attempts
	if c.reason != "" {
		s.Meta["reason"] = jsonText(c.reason)
	}
}

// queue checks a request as far as this program can, and queues it.
func (a *app) queue(ctx context.Context, s *client.Client, r deployRequest) (store.Deployed, error) {
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
		if err := fromCatalogue(ctx, s, &r); err != nil {
			return store.Deployed{}, err
		}
	}
	snapshot, err := r.snapshot()
	if err != nil {
		return store.Deployed{}, err
	}
	return s.Deploy(ctx, cluster.ID, cmp.Or(r.operation, provision.OperationApply), snapshot)
}

func fromCatalogue(ctx context.Context, s *client.Client, r *deployRequest) error {
	templates, err := s.Templates(ctx)
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
	asked := provision.Snapshot{
		TemplateSource: provision.TemplateSource{Repo: r.repo, Version: r.version, Path: r.path},
		TerraformVars:  r.vars, SealedVars: r.sealed, RequesterKey: r.requesterKey, Workspace: r.workspace,
		Meta: map[string]json.RawMessage{"triggered_by": jsonText(r.by)},
	}
	r.put(&asked)
	data, err := json.Marshal(asked)
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
