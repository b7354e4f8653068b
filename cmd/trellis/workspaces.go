package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func workspacesCommand(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "workspaces",
		Short:   "List workspaces, and what goes on there",
		Example: `  trellis workspaces`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10000 {
				return wrongUsage("--limit: from 1 to 10000 are possible")
			}
			list, err := s.Workspaces(ctx, limit)
			return listing(&a.printer, list, err, "There is no workspace yet: the first deploy makes one.", "WORKSPACE\tCLUSTER\tRESOURCES\tLATEST\tAGE\tDOING", func(w wire.Standing) []any {
				latest, since := "-", "-"
				if w.Number != nil {
					latest, since = fmt.Sprintf("%d %s", *w.Number, *w.Status), ago(time.Since(*w.Since))
				}
				return []any{w.Name, w.Cluster, w.Resources, latest, since, w.Doing}
			})
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 1000, "how many to list")
	addFormat(a, cmd)
	return cmd
}

func resourcesCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "resources WORKSPACE",
		Short:   "List what exists in a workspace",
		Long:    `Lists the resources that the workspace's state recorded at the end of its newest apply or destroy. Sensitive attributes are never among what is shown.`,
		Example: `  trellis resources demo/hello`,
		Args:    one("a workspace's name or id"),
		RunE: about(a, (*client.Client).FindWorkspace, func(ctx context.Context, s *client.Client, _ *cobra.Command, w wire.WorkspaceDetail) error {
			list, err := s.Resources(ctx, w.ID)
			return listing(&a.printer, list, err, "Nothing exists in workspace "+w.Name+", as far as its runs have told.", "ADDRESS\tID\tIP\tSTATUS", func(r wire.Resource) []any {
				return []any{r.Address, deref(r.ExternalID), strings.Join(r.IPAddresses, " "), deref(r.Status)}
			})
		}),
	})
}

func outputsCommand(a *app) *cobra.Command {
	var reveal bool
	cmd := &cobra.Command{
		Use:   "outputs WORKSPACE|NUMBER",
		Short: "Show the outputs of a workspace, or of one run",
		Long: `Shows the newest outputs of a workspace, or those of one run, as NAME = JSON. A
sensitive output is recorded sealed to the key of the person who deployed ("trellis keys"), if the
agent's policy.requester_keys name that key; --reveal opens those that are sealed to yours.
-o json has the age message in the field "sealed".`,
		Example: `  trellis outputs demo/hello
  trellis outputs demo/hello --reveal
  trellis outputs 12 -o json`,
		Args: one("a workspace's name or a run's number"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := outputsOf(ctx, a, s, args[0])
			if err != nil {
				return err
			}
			if err := revealed(a, p.Outputs, reveal); err != nil {
				return err
			}
			switch {
			case a.json():
				if p.Outputs == nil {
					p.Outputs = map[string]provision.Output{}
				}
				return a.printJSON(p.Outputs)
			case len(p.Outputs) == 0:
				a.say("Run %d has no outputs.", p.Number)
				return nil
			}
			return a.print("%s", printable.Text(strings.Join(outputLines(p.Outputs), "\n")))
		}),
	}
	addFormat(a, cmd)
	cmd.Flags().BoolVar(&reveal, "reveal", false, "show sensitive outputs that are sealed to your key")
	return cmd
}

// revealed opens sealed outputs if that was asked for, and says what it could not open.
func revealed(a *app, outputs map[string]provision.Output, asked bool) error {
	sealed := 0
	for _, o := range outputs {
		if o.Sealed != "" {
			sealed++
		}
	}
	switch {
	case sealed == 0:
		return nil
	case !asked:
		a.say("Sealed outputs: %d. --reveal shows those that are sealed to your key.", sealed)
		return nil
	}
	opened, err := openSealed(a, outputs)
	if err == nil && opened < sealed {
		a.say("Outputs that are sealed to a key that you don't have here: %d.", sealed-opened)
	}
	return err
}

// outputsOf finds the provision that is meant by a number, an id or a workspace.
func outputsOf(ctx context.Context, a *app, s *client.Client, ref string) (wire.Provision, error) {
	if isProvision(ref) {
		return s.Provision(ctx, ref)
	}
	w, err := s.FindWorkspace(ctx, ref)
	if err != nil {
		return wire.Provision{}, err
	}
	return s.LastOutputs(ctx, w.ID)
}

// isProvision tells a provision's number from a workspace's name.
func isProvision(ref string) bool {
	return strings.Trim(strings.TrimPrefix(ref, "#"), "0123456789") == ""
}

func lockCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "lock WORKSPACE --reason WHY",
		Short: "Keep a workspace from running anything until it is unlocked",
		Long: `Keeps a workspace from running anything until it is unlocked. What runs there goes on;
deploys are queued and wait. Others see who locked it, since when and why.`,
		Example: `  trellis lock acme/prod --reason "migrating the database by hand"`,
		Args:    one("a workspace's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if reason == "" {
				return wrongUsage("--reason is missing: why, for others to read")
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			return a.answer(s.Lock(ctx, w.ID, reason), shown(w), "Workspace %s on cluster %s is locked: nothing starts there until it is unlocked.", w.Name, w.Cluster)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for others to read (required)")
	addFormat(a, cmd)
	return cmd
}

// shownWorkspace is a workspace that something was done to, as -o json shows it.
type shownWorkspace struct {
	ID      uuid.UUID `json:"id"`
	Name    string    `json:"name"`
	Cluster string    `json:"cluster"`
	Home    string    `json:"home,omitempty"`
}

func shown(w wire.WorkspaceDetail) shownWorkspace {
	return shownWorkspace{w.ID, w.Name, w.Cluster, w.Home}
}

func unlockCommand(a *app) *cobra.Command {
	var sealed sealedFlags
	var reason, stateLock string
	var follow, yes bool
	cmd := &cobra.Command{
		Use:   "unlock WORKSPACE",
		Short: "End a person's lock, or a state's lock that was left behind",
		Long: `Ends the lock that a person has put on a workspace: your own, or as an admin
anybody's.

With --state-lock ID, as an admin, it queues the release of the lock that some run has left on the
Terraform state (terraform force-unlock), by an agent of the cluster. The id stands in
the error of the run that met the lock, with who holds it and since when. Make sure
first that its holder is dead: two runs on one state destroy it.`,
		Example: `  trellis unlock acme/prod
  trellis unlock acme/prod --follow \
      --state-lock 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
		Args: one("a workspace's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			again, err := sealed.readToQueue(a, follow)
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if stateLock == "" {
				return a.answer(s.Unlock(ctx, w.ID, reason), shown(w), "Workspace %s on cluster %s is unlocked; what is queued there may start.", w.Name, w.Cluster)
			}
			if err := confirm(a, yes, w.Name, "This takes the lock "+stateLock+" from its holder on the state of workspace "+w.Name+"."); err != nil {
				return err
			}
			queued, err := queueOn(ctx, a, s, w, provision.OperationUnlock, "trellis unlock", func(asked *provision.Snapshot) {
				asked.LockID = stateLock
				asked.SealedVars = withSealed(asked.SealedVars, again)
				if reason != "" {
					asked.Meta["reason"] = jsonText(reason)
				}
			})
			if err != nil {
				return err
			}
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&reason, "reason", "", "why, for the audit")
	flags.StringVar(&stateLock, "state-lock", "", "id of the lock on the Terraform state")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	sealed.addMessages(cmd)
	addFollow(a, cmd, &follow)
	return cmd
}

func releaseCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "release WORKSPACE",
		Short: "Free a workspace whose agent will not come back",
		Long: `Frees a workspace that an agent holds although it runs nothing there: the agent was
lost while it applied, or it keeps a state that it could not store. Both end by
themselves when that agent comes back; this is for one that will not.

Make sure first that its Terraform no longer runs: whatever is queued for the
workspace starts at once, and a state that the lost agent could not store is given
up. Should the agent come back after all it is told to stop, and its result is
recorded unless the workspace has been used since.

A workspace whose state is a file on its agent stays with that agent: only it can
run the workspace, before and after the release.`,
		Example: `  trellis release acme/prod --reason "the node is gone"`,
		Args:    one("a workspace's name or id"),
		RunE: about(a, (*client.Client).FindWorkspace, func(ctx context.Context, s *client.Client, _ *cobra.Command, w wire.WorkspaceDetail) error {
			if err := s.Release(ctx, w.ID, reason); err != nil {
				return err
			}
			if w.Home != "" {
				return a.answer(nil, shown(w), "Workspace %s on cluster %s is released. Its state is a file on agent %s; only that agent can run it.", w.Name, w.Cluster, w.Home)
			}
			return a.answer(nil, shown(w), "Workspace %s on cluster %s is released; what is queued there may start.", w.Name, w.Cluster)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log and the audit")
	addFormat(a, cmd)
	return cmd
}

func driftCommand(a *app) *cobra.Command {
	var every time.Duration
	var never, now, follow bool
	cmd := &cobra.Command{
		Use:   "drift [WORKSPACE]",
		Short: "Show what has changed outside, or have it looked for",
		Long: `Shows where the infrastructure differs from what Terraform's state says: for all
workspaces that are checked, or for one with the resources concerned. Looking changes
nothing, neither the infrastructure nor the state.

With --now it is looked for at once, with --every by a schedule.`,
		Example: `  trellis drift
  trellis drift demo/hello --now --follow
  trellis drift demo/hello --every 24h`,
		Args: atMostOne("a workspace's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			schedule := cmd.Flags().Changed("every")
			switch {
			case len(args) == 0 && (schedule || never || now):
				return wrongUsage("name the workspace")
			case schedule && (never || every < 5*time.Minute || every > 366*24*time.Hour):
				return wrongUsage("--every: how often, such as 24h, from 5m to 8784h (366 days); --never ends it")
			case len(args) == 0:
				return printDrifts(ctx, a, s)
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if schedule || never {
				if err := s.WatchDrift(ctx, w.ID, every); err != nil {
					return err
				}
				if a.json() {
					d, err := s.Drift(ctx, w.ID)
					if err != nil {
						return err
					}
					return a.printJSON(d)
				}
				if never {
					return a.print("Workspace %s is no longer checked for drift.", w.Name)
				}
				return a.print("Workspace %s is checked for drift every %s.", w.Name, span(every))
			}
			if now {
				if err := followOrJSON(a, follow); err != nil {
					return err
				}
				queued, err := queueAgain(ctx, a, s, w, provision.OperationRefresh, choices{}, "trellis drift")
				if err != nil {
					return err
				}
				return tellQueued(ctx, a, s, cmd, queued, follow)
			}
			d, err := s.Drift(ctx, w.ID)
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printJSON(d)
			}
			return printDrift(a, cmd, d)
		}),
	}
	flags := cmd.Flags()
	flags.DurationVar(&every, "every", 0, "look for drift that often, from 5m on")
	flags.BoolVar(&never, "never", false, "end the schedule")
	flags.BoolVar(&now, "now", false, "look for drift now")
	addFollow(a, cmd, &follow)
	return cmd
}

func printDrifts(ctx context.Context, a *app, s *client.Client) error {
	list, err := s.Drifts(ctx)
	return listing(&a.printer, list, err, "No workspace is checked for drift yet.", "WORKSPACE\tCLUSTER\tDRIFTED\tCHECKED\tEVERY", func(d wire.Drift) []any {
		return []any{d.Workspace, d.Cluster, drifted(d), at(d.LookedAt), interval(d)}
	})
}

func printDrift(a *app, cmd *cobra.Command, d wire.Drift) error {
	if d.LookedAt == nil {
		a.say("Workspace %s was never checked for drift. Check it now: %s", d.Workspace, a.hint(cmd, "drift "+d.Workspace+" --now --follow"))
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s on cluster %s: %s (checked %s, schedule: %s)\n", d.Workspace, d.Cluster, drifted(d), at(d.LookedAt), interval(d))
	for _, change := range d.Changes {
		text.WriteString(changeLines(a, change))
	}
	_, err := io.WriteString(a.out, a.out.fit(text.String()))
	return err
}

func drifted(d wire.Drift) string {
	switch {
	case d.LookedAt == nil:
		return "not known"
	case d.Count == 0:
		return "no drift"
	case d.Count == 1:
		return "1 resource"
	}
	return fmt.Sprintf("%d resources", d.Count)
}

func interval(d wire.Drift) string {
	if d.Every == nil {
		return "none"
	}
	return span(time.Duration(*d.Every * float64(time.Second)))
}

func destroyCommand(a *app) *cobra.Command {
	var c choices
	var sealed sealedFlags
	var follow, yes bool
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
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			again, err := sealed.readToQueue(a, follow)
			if err != nil {
				return err
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := confirm(a, yes, w.Name, fmt.Sprintf("This destroys %s in workspace %s on cluster %s.", extent(c.targets), w.Name, w.Cluster)); err != nil {
				return err
			}
			queued, err := queueOn(ctx, a, s, w, provision.OperationDestroy, "trellis destroy", func(asked *provision.Snapshot) {
				c.put(asked)
				asked.SealedVars = withSealed(asked.SealedVars, again)
			})
			if err != nil {
				return err
			}
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.addFlags(cmd, provision.OperationDestroy)
	sealed.addMessages(cmd)
	addFollow(a, cmd, &follow)
	return cmd
}

func extent(targets []string) string {
	if len(targets) == 0 {
		return "everything"
	}
	return strings.Join(targets, ", ")
}

// confirm has a person type a word, unless they have said so beforehand.
func confirm(a *app, yes bool, word, what string) error {
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
func queueAgain(ctx context.Context, a *app, s *client.Client, w wire.WorkspaceDetail, operation provision.Operation, c choices, by string) (wire.QueuedAnswer, error) {
	return queueOn(ctx, a, s, w, operation, by, c.put)
}

// queueOn queues an operation with the template, the variables and the engine of
// a workspace's newest deploy, and with what change makes of it.
func queueOn(ctx context.Context, a *app, s *client.Client, w wire.WorkspaceDetail, operation provision.Operation, by string, change func(*provision.Snapshot)) (wire.QueuedAnswer, error) {
	cluster, last, err := s.LastApplied(ctx, w.ID)
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	key, err := requester(a, "")
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	data, err := provision.Again(last, w.Name, by, key, change)
	if err != nil {
		return wire.QueuedAnswer{}, fmt.Errorf("the newest deploy of workspace %s: %w", w.Name, err)
	}
	return s.Deploy(ctx, cluster, operation, data)
}
