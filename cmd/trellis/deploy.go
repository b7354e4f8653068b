package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func deployCommand(a *app) *cobra.Command {
	return requestCommand(a, provision.OperationApply, &cobra.Command{
		Use:   "deploy {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Queue a run",
		Long: `Queues a run: a template at a pinned version, its variables, and the
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

func planCommand(a *app) *cobra.Command {
	return requestCommand(a, provision.OperationPlan, &cobra.Command{
		Use:   "plan {--template NAME | --repo URL --version TAG [--path DIR]} --workspace NAME",
		Short: "Queue a plan: what a deploy would change",
		Long: `Queues a plan, which says what "trellis deploy" with the same words would change, and
changes nothing. It is made by the cluster's agent, with the same template, variables
and state. Nothing is approved by it and nothing waits for it.`,
		Example: `  trellis plan --template hello --workspace demo/hello --var name=Ada --follow`,
	})
}

// requestCommand is a verb that names a template and what to do with it.
func requestCommand(a *app, operation provision.Operation, cmd *cobra.Command) *cobra.Command {
	r := deployRequest{operation: operation, by: "trellis " + strings.Fields(cmd.Use)[0]}
	var vars variableFlags
	var sealed sealedFlags
	var follow bool
	cmd.Args = none
	cmd.RunE = withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, _ []string) (err error) {
		if err := followOrJSON(a, follow); err != nil {
			return err
		}
		if r.vars, err = readVariables(a, vars); err != nil {
			return err
		}
		if r.sealed, err = sealed.read(); err != nil {
			return err
		}
		if r.requesterKey, err = requester(a, sealed.requesterKey); err != nil {
			return err
		}
		queued, err := queueRun(ctx, s, r)
		if err != nil {
			return err
		}
		return tellQueued(ctx, a, s, cmd, queued, follow)
	})
	r.addSource(cmd)
	vars.addFlags(cmd)
	sealed.addFlags(cmd)
	r.addFlags(cmd, operation)
	addFollow(a, cmd, &follow)
	return cmd
}

// addFollow offers to watch what was queued, or to print it as JSON.
func addFollow(a *app, cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "follow", "f", false, "show the log until the end, and exit with the outcome")
	addFormat(a, cmd)
}

func followOrJSON(a *app, follow bool) error {
	if follow && a.json() {
		return wrongUsage("--follow shows a log; it does not go with -o json")
	}
	return nil
}

// shownRun is a queued run as -o json shows it.
type shownRun struct {
	ID        uuid.UUID `json:"id"`
	Number    int64     `json:"number"`
	Workspace string    `json:"workspace"`
}

// tellQueued says what was queued, in the way that was asked for.
func tellQueued(ctx context.Context, a *app, s *client.Client, cmd *cobra.Command, queued wire.QueuedAnswer, follow bool) error {
	switch {
	case a.json():
		return a.printJSON(shownRun{queued.ID, queued.Number, queued.Workspace})
	case follow:
		a.say("Run %d is queued for workspace %s.", queued.Number, queued.Workspace)
		return followToEnd(ctx, a, s, cmd, queued.ID, queued.Number, false)
	}
	number := fmt.Sprint(queued.Number)
	return a.print("Run %s is queued for workspace %s (id %s).\n\nWatch it:  %s\nLook:      %s\nStop it:   %s", number, queued.Workspace, queued.ID,
		a.hint(cmd, "logs "+number+" --follow"), a.hint(cmd, "status "+number), a.hint(cmd, "cancel "+number))
}

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

// addSource offers the flags that say what is deployed, and where.
func (r *deployRequest) addSource(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.template, "template", "", "template of the catalogue")
	flags.StringVar(&r.repo, "repo", "", "git repository of the template")
	flags.StringVar(&r.version, "version", "", "tag or full commit; with --template, the catalogue's own when left out")
	flags.StringVar(&r.path, "path", "", "directory of the template within the repository")
	flags.StringVar(&r.workspace, "workspace", "", "state that this belongs to, such as acme/prod; default: the variables project_name/environment")
	flags.StringVar(&r.cluster, "cluster", "", "name or id of the cluster; default: the only one")
}

func (r *deployRequest) source() provision.TemplateSource {
	return provision.TemplateSource{Repo: r.repo, Version: r.version, Path: r.path}
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
		flags.StringArrayVar(&c.replace, "replace", nil, "resource address to replace (repeatable)")
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

// queueRun checks a request as far as this program can, and queues it.
func queueRun(ctx context.Context, s *client.Client, r deployRequest) (wire.QueuedAnswer, error) {
	cluster, err := r.find(ctx, s)
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	snapshot, err := r.snapshot()
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	return s.Deploy(ctx, cluster.ID, cmp.Or(r.operation, provision.OperationApply), snapshot)
}

// find looks for the cluster and the template that are named.
func (r *deployRequest) find(ctx context.Context, s *client.Client) (cluster wire.Cluster, err error) {
	switch {
	case r.template == "" && r.repo == "":
		return cluster, wrongUsage("say what to deploy: --template NAME, or --repo URL --version TAG")
	case r.template != "" && (r.repo != "" || r.path != ""):
		return cluster, wrongUsage("--template brings its own repository and path: leave --repo and --path out")
	case r.repo != "" && r.version == "":
		return cluster, wrongUsage("--version is missing: a tag or a full commit of %s", r.repo)
	}
	if cluster, err = s.FindCluster(ctx, r.cluster); err == nil && r.template != "" {
		err = fromCatalogue(ctx, s, r)
	}
	return cluster, err
}

func fromCatalogue(ctx context.Context, s *client.Client, r *deployRequest) error {
	templates, err := s.Templates(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(templates, func(t wire.Template) bool { return t.Name == r.template })
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
		TemplateSource: r.source(),
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

// maxVarFile is far more than a snapshot may have (provision.MaxSnapshot).
const maxVarFile = 1 << 20

// variableFlags are the plain variables of a deploy.
type variableFlags struct{ files, texts, jsons []string }

func (f *variableFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.texts, "var", nil, "variable as NAME=TEXT (repeatable)")
	flags.StringArrayVar(&f.jsons, "var-json", nil, "variable as NAME=JSON, for a list, an object or null (repeatable)")
	flags.StringArrayVar(&f.files, "var-file", nil, "JSON file of variables (repeatable)")
}

// readVariables reads files, then single values; later ones win. A text stays a
// text: the agent converts it where the template declares a number or a boolean,
// as Terraform does.
func readVariables(a *app, f variableFlags) (map[string]json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	for _, name := range f.files {
		read, err := readVarFile(a, name)
		if err != nil {
			return nil, err
		}
		maps.Copy(vars, read)
	}
	for _, given := range f.texts {
		name, text, ok := strings.Cut(given, "=")
		if !ok || name == "" {
			return nil, wrongUsage("--var must be NAME=TEXT") // not echoed: it may be a secret
		}
		vars[name] = jsonText(text)
		if text = strings.TrimSpace(text); strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
			if json.Valid([]byte(text)) {
				a.say("Note: --var %s is sent as text. For a list or an object use --var-json %s=….", name, name)
			}
		}
	}
	for _, given := range f.jsons {
		name, text, ok := strings.Cut(given, "=")
		switch {
		case !ok || name == "":
			return nil, wrongUsage("--var-json must be NAME=JSON")
		case !json.Valid([]byte(text)):
			return nil, wrongUsage("--var-json %s: the value is not JSON; for a text use --var %s=TEXT", name, name)
		}
		vars[name] = json.RawMessage(strings.TrimSpace(text))
	}
	return vars, nil
}

func readVarFile(a *app, name string) (map[string]json.RawMessage, error) {
	from, input := name, a.in
	if name == "-" {
		from = "standard input"
	} else {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, wrongUsage("--var-file: %v", err)
		}
		defer func() { _ = file.Close() }()
		input = file
	}
	data, err := io.ReadAll(io.LimitReader(input, maxVarFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", from, err)
	case len(data) > maxVarFile:
		return nil, wrongUsage("--var-file %s: more than %d bytes", from, maxVarFile)
	}
	var vars map[string]json.RawMessage
	if err := json.Unmarshal(data, &vars); err != nil || vars == nil {
		if strings.HasSuffix(name, ".tfvars") {
			return nil, wrongUsage("--var-file %s: only JSON is read; Terraform's own language is for the template", from)
		}
		return nil, wrongUsage("--var-file %s: must hold one JSON object of variables%s", from, cause(err))
	}
	return vars, nil
}

func cause(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// jsonText is a text as JSON.
func jsonText(text string) json.RawMessage {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // no text fails to encode
	}
	return data
}
