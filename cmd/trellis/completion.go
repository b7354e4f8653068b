package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	// completionLimit is how long somebody who has pressed Tab waits.
	completionLimit = 2 * time.Second
	// mostCompletions is how much is asked for to choose from.
	mostCompletions = 200
)

// completes is what cobra calls for the words of a verb or a flag.
type completes = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completing asks the server for words. What goes wrong is nobody's concern who has
// only pressed Tab.
func (a *app) completing(words asks) completes {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		t, err := a.target(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := client.New(t.Options)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer s.Close()
		found, _ := words(ctx, s, of(cmd, args))
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// asks gets words from the server; of is what they belong to: a workspace or a
// cluster.
type asks = func(ctx context.Context, s *client.Client, of string) ([]string, error)

// of is what a word belongs to that is no verb's first argument, and no flag's value
// that stands alone: the first argument, or the workspace that a flag names.
func of(cmd *cobra.Command, args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	if flag := cmd.Flags().Lookup("workspace"); flag != nil {
		return flag.Value.String()
	}
	return ""
}

// described is a word with what it stands for, as cobra wants it.
func described(word, format string, args ...any) string {
	return word + "\t" + printable.Text(fmt.Sprintf(format, args...))
}

func clusterWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Clusters(ctx)
	for _, c := range list {
		words = append(words, described(c.Name, "%s", c.Connectivity))
	}
	return words, err
}

func workspaceWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Workspaces(ctx, mostCompletions)
	for _, w := range list {
		words = append(words, described(w.Name, "on %s", w.Cluster))
	}
	return words, err
}

func templateWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Templates(ctx)
	for _, t := range list {
		words = append(words, described(t.Name, "%s %s", t.Version, t.Description))
	}
	return words, err
}

// numberWords are those of the provisions that fit; nil: all.
func numberWords(fit func(store.Provision) bool) asks {
	return func(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
		list, err := s.Provisions(ctx, 50)
		for _, p := range list {
			if fit == nil || fit(p) {
				words = append(words, described(fmt.Sprint(p.Number), "%s %s on %s", p.Status, p.Operation, p.Workspace))
			}
		}
		return words, err
	}
}

func memberWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Members(ctx)
	for _, m := range list {
		words = append(words, described(cmp.Or(m.Email, m.UserID.String()), "%s %s", m.Role, m.Name))
	}
	return words, err
}

func invitedWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Invitations(ctx)
	for _, i := range list {
		words = append(words, described(cmp.Or(i.Email, i.ID.String()), "as %s", i.Role))
	}
	return words, err
}

func ownInvitationWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.OwnInvitations(ctx)
	for _, i := range list {
		words = append(words, described(i.Org, "as %s", i.Role))
	}
	return words, err
}

func orgWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	me, err := s.Me(ctx)
	for _, o := range me.Orgs {
		words = append(words, described(o.Name, "as %s", o.Role))
	}
	return words, err
}

func apiTokenWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.APITokens(ctx)
	for _, t := range list {
		words = append(words, described(t.ID.String(), "%s", t.Name))
	}
	return words, err
}

func clusterTokenWords(ctx context.Context, s *client.Client, cluster string) (words []string, err error) {
	c, err := s.FindCluster(ctx, cluster)
	if err != nil {
		return nil, err
	}
	list, err := s.ClusterTokens(ctx, c.ID)
	for _, t := range list {
		words = append(words, described(t.ID.String(), "made %s", t.CreatedAt.Local().Format(time.DateTime)))
	}
	return words, err
}

func addressWords(ctx context.Context, s *client.Client, workspace string) (words []string, err error) {
	w, err := s.FindWorkspace(ctx, workspace)
	if err != nil {
		return nil, err
	}
	list, err := s.Resources(ctx, w.ID)
	for _, r := range list {
		words = append(words, described(r.Address, "%s", r.Type))
	}
	return words, err
}

func stateVersionWords(ctx context.Context, s *client.Client, workspace string) (words []string, err error) {
	w, err := s.FindWorkspace(ctx, workspace)
	if err != nil {
		return nil, err
	}
	list, err := s.StateVersions(ctx, w.ID)
	for _, v := range list {
		words = append(words, described(fmt.Sprint(v.Version), "stored %s", v.StoredAt.Local().Format(time.DateTime)))
	}
	return words, err
}

// files and directories complete the names of those.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func choice(words ...string) completes {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// inOrder completes a verb's arguments, each by its own function; there are no words
// for more.
func inOrder(each ...completes) completes {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return each[len(args)](cmd, args, typed)
	}
}

// argumentWords are the words of the verbs' arguments, by the verb. One that is not
// named takes none, or what exists nowhere yet.
func (a *app) argumentWords() map[string]completes {
	numbers := func(fit func(store.Provision) bool) completes { return inOrder(a.completing(numberWords(fit))) }
	awaiting := numbers(func(p store.Provision) bool { return p.Status == provision.AwaitingApproval })
	going := numbers(func(p store.Provision) bool { return !p.Status.Terminal() })
	ended := numbers(func(p store.Provision) bool { return p.Status.Terminal() })
	member, role, addresses := a.completing(memberWords), choice(roles...), a.completing(addressWords)
	workspace, cluster := a.completing(workspaceWords), a.completing(clusterWords)
	words := map[string]completes{
		"approve": awaiting, "reject": awaiting, "cancel": going, "retry": ended,
		"clusters tokens revoke": inOrder(cluster, a.completing(clusterTokenWords)), "api-tokens revoke": inOrder(a.completing(apiTokenWords)),
		"members set": inOrder(member, role), "members remove": inOrder(member), "members invite": inOrder(cobra.NoFileCompletions, role),
		"members uninvite": inOrder(a.completing(invitedWords)),
		"state mv":         inOrder(workspace, addresses), "state rollback": inOrder(workspace, a.completing(stateVersionWords)), "state push": inOrder(workspace, files), "keys use": inOrder(files),
		"state rm": func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return workspace(cmd, args, typed)
			}
			return addresses(cmd, args, typed)
		},
	}
	for found, verbs := range map[string][]string{
		"numbers":   {"status", "logs", "events", "open"},
		"workspace": {"resources", "outputs", "drift", "destroy", "lock", "unlock", "release", "state list", "state import", "state adopt", "state versions", "state pull"},
		"cluster":   {"clusters pause", "clusters resume", "clusters rotate-token", "clusters policy", "clusters tokens", "clusters tokens list"},
		"template":  {"templates show", "templates inspect", "templates remove", "templates pin"},
		"webhook":   {"webhooks remove", "webhooks test", "webhooks deliveries"},
		"invited":   {"invitations accept", "invitations decline"},
		"context":   {"contexts use", "contexts remove", "logout"},
	} {
		for _, verb := range verbs {
			words[verb] = inOrder(map[string]completes{
				"numbers": a.completing(numberWords(nil)), "workspace": workspace, "cluster": cluster, "template": a.completing(templateWords),
				"webhook": a.completing(webhookWords), "invited": a.completing(ownInvitationWords), "context": a.completeContexts,
			}[found])
		}
	}
	return words
}

// flagWords are the words of the flags, by their names, which mean the same in every
// verb; nil where a flag's value can be anything.
func (a *app) flagWords(verb, flag string) completes {
	approvals := choice("never", "destructive", "always")
	if verb == "state pull" && flag == "version" {
		return a.completing(stateVersionWords)
	}
	if strings.HasSuffix(flag, "-file") || strings.HasPrefix(flag, "tls-") {
		return files
	}
	return map[string]completes{
		"cluster": a.completing(clusterWords), "workspace": a.completing(workspaceWords), "template": a.completing(templateWords),
		"target": a.completing(addressWords), "replace": a.completing(addressWords), "org": a.completing(orgWords), "context": a.completeContexts,
		"data-dir": directories, "move-from": directories, "sealed-vars": files, "to": files,
		"output": choice("text", "json"), "approval": approvals, "approvers": choice("operator", "admin"), "log-format": choice("text", "json"),
		"access-log": choice("refused", "all"), "kind": choice("generic", "slack"),
		"event": choice("awaiting_approval", "success", "failure", "cancelled", "drift"),
	}[flag]
}

// complete gives verbs and flags their words, an explicit none where there are none:
// a shell offers the files of the directory otherwise.
func (a *app) complete(root *cobra.Command) {
	arguments := a.argumentWords()
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		cmd.ValidArgsFunction = arguments[path]
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
		flags := cmd.LocalNonPersistentFlags()
		if cmd == root {
			flags = cmd.PersistentFlags()
		}
		flags.VisitAll(func(flag *pflag.Flag) {
			if flag.Value.Type() == "bool" {
				return
			}
			words := a.flagWords(path, flag.Name)
			if words == nil {
				words = cobra.NoFileCompletions
			}
			_ = cmd.RegisterFlagCompletionFunc(flag.Name, words) // the flag is there
		})
		for _, child := range cmd.Commands() {
			if child.Name() != agentVerb { // which has its own
				walk(child, strings.TrimSpace(path+" "+child.Name()))
			}
		}
	}
	walk(root, "")
}

func (a *app) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	kept, _ := contexts.Load(contexts.Path(a.getenv)) // nobody asked for its error
	return append([]string{contexts.Local}, kept.Names()...), cobra.ShellCompDirectiveNoFileComp
}
