package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
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
func completing(a *app, words asks) completes {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		t, err := chosenTarget(a, cmd)
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

// words are those of the entries of a list.
func words[T any](list func(*client.Client, context.Context) ([]T, error), word func(T) string) asks {
	return func(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
		entries, err := list(s, ctx)
		for _, entry := range entries {
			words = append(words, word(entry))
		}
		return words, err
	}
}

// wordsOf are those of the entries of a list that belongs to a workspace or a cluster,
// which find finds.
func wordsOf[O, T any](find func(*client.Client, context.Context, string) (O, error), list func(*client.Client, context.Context, uuid.UUID) ([]T, error), id func(O) uuid.UUID, word func(T) string) asks {
	return func(ctx context.Context, s *client.Client, of string) ([]string, error) {
		owner, err := find(s, ctx, of)
		if err != nil {
			return nil, err
		}
		listed := func(s *client.Client, ctx context.Context) ([]T, error) { return list(s, ctx, id(owner)) }
		return words(listed, word)(ctx, s, of)
	}
}

var (
	clusterWords  = words((*client.Client).Clusters, func(c wire.Cluster) string { return described(c.Name, "%s", c.Connectivity) })
	templateWords = words((*client.Client).Templates, func(t wire.Template) string { return described(t.Name, "%s %s", t.Version, t.Description) })
	memberWords   = words((*client.Client).Members, func(m wire.Member) string {
		return described(cmp.Or(m.Email, m.UserID.String()), "%s %s", m.Role, m.Name)
	})
	invitedWords       = words((*client.Client).Invitations, func(i wire.Invitation) string { return described(cmp.Or(i.Email, i.ID.String()), "as %s", i.Role) })
	ownInvitationWords = words((*client.Client).OwnInvitations, func(i wire.OwnInvitation) string { return described(i.Org, "as %s", i.Role) })
	apiTokenWords      = words((*client.Client).APITokens, func(t wire.Credential) string { return described(t.ID.String(), "%s", t.Name) })
	quotaWords         = words((*client.Client).PoolQuotas, func(q wire.PoolQuota) string { return described(q.ID.String(), "of %s", q.Workspaces) })
	webhookWords       = words((*client.Client).Webhooks, func(w wire.Webhook) string { return described(w.Name, "%s to %s", w.Kind, w.Host) })

	clusterTokenWords = credentialWords("token")
	clusterKeyWords   = credentialWords("key")
	addressWords      = wordsOf((*client.Client).FindWorkspace, (*client.Client).Resources, workspaceID,
		func(r wire.Resource) string { return described(r.Address, "%s", r.Type) })
	stateVersionWords = wordsOf((*client.Client).FindWorkspace, (*client.Client).StateVersions, workspaceID,
		func(v wire.StateVersion) string {
			return described(fmt.Sprint(v.Version), "stored %s", v.StoredAt.Local().Format(time.DateTime))
		})
)

// credentialWords are those of a cluster's tokens, or of its keys.
func trustWords(ctx context.Context, s *client.Client, of string) (words []string, err error) {
	c, err := s.FindCluster(ctx, of)
	if err != nil {
		return nil, err
	}
	all, err := s.TrustedIssuers(ctx, c.ID)
	for _, t := range all {
		words = append(words, described(t.ID.String(), "%s", t.Issuer))
	}
	return words, err
}

func credentialWords(kind string) asks {
	return func(ctx context.Context, s *client.Client, of string) (words []string, err error) {
		_, list, err := credentialsOf(ctx, s, of, kind)
		for _, t := range list {
			words = append(words, described(t.ID.String(), "%s", cmp.Or(t.Words, "made "+t.CreatedAt.Local().Format(time.DateTime))))
		}
		return words, err
	}
}

func workspaceID(w wire.WorkspaceDetail) uuid.UUID { return w.ID }

func workspaceWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Workspaces(ctx, mostCompletions)
	for _, w := range list {
		words = append(words, described(w.Name, "on %s", w.Cluster))
	}
	return words, err
}

// numberWords are those of the provisions that fit; nil: all.
func numberWords(fit func(wire.Provision) bool) asks {
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

func machineWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Machines(ctx, client.MachineFilter{})
	for _, m := range list {
		if hostName.MatchString(m.Name) { // others would be several words
			words = append(words, described(m.Name, "%s, of %s", m.Status, m.Workspace))
		}
	}
	return words, err
}

func poolWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Pools(ctx, "")
	for _, p := range list {
		words = append(words, described(p.Name, "%s, on %s", p.State, p.Cluster))
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
func argumentWords(a *app) map[string]completes {
	numbers := func(fit func(wire.Provision) bool) completes { return inOrder(completing(a, numberWords(fit))) }
	awaiting := numbers(func(p wire.Provision) bool { return p.Status == provision.AwaitingApproval })
	asks := func(p wire.Provision) bool { return p.Status == provision.AwaitingInput }
	asking := numbers(asks)
	going := numbers(func(p wire.Provision) bool { return !p.Status.Terminal() })
	ended := numbers(func(p wire.Provision) bool { return p.Status.Terminal() })
	member, role, addresses := completing(a, memberWords), choice(roles...), completing(a, addressWords)
	workspace, cluster := completing(a, workspaceWords), completing(a, clusterWords)
	words := map[string]completes{
		"approve": awaiting, "reject": awaiting, "input": asking, "assign": inOrder(completing(a, numberWords(asks)), member), "comment": going, "cancel": going, "retry": ended,
		"clusters tokens revoke": inOrder(cluster, completing(a, clusterTokenWords)), "clusters keys revoke": inOrder(cluster, completing(a, clusterKeyWords)), "clusters trust remove": inOrder(cluster, completing(a, trustWords)), "api-tokens revoke": inOrder(completing(a, apiTokenWords)),
		"members set": inOrder(member, role), "members remove": inOrder(member), "members invite": inOrder(cobra.NoFileCompletions, role),
		"members uninvite": inOrder(completing(a, invitedWords)),
		"state mv":         inOrder(workspace, addresses), "state rollback": inOrder(workspace, completing(a, stateVersionWords)), "state push": inOrder(workspace, files), "keys use": inOrder(files), "templates check": inOrder(directories), "machines import": inOrder(files), "machines provision": completing(a, machineWords),
		"pools show": inOrder(completing(a, poolWords)), "pools enroll": inOrder(completing(a, poolWords), files), "pools set-image": inOrder(completing(a, poolWords)), "pools delete-image": inOrder(completing(a, poolWords)), "pools set-template": inOrder(completing(a, poolWords), completing(a, templateWords)), "pools delete-template": inOrder(completing(a, poolWords)), "pools quota delete": inOrder(completing(a, quotaWords)),
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
		"cluster":   {"clusters pause", "clusters resume", "clusters rotate-token", "clusters policy", "clusters tokens", "clusters tokens list", "clusters keys", "clusters keys list", "clusters join-token", "clusters trust", "clusters trust list", "clusters trust add"},
		"template":  {"templates show", "templates inspect", "templates remove", "templates pin"},
		"webhook":   {"webhooks remove", "webhooks test", "webhooks deliveries"},
		"machine":   {"machines show", "machines ssh", "machines reveal", "machines start", "machines stop", "machines restart", "machines rescue", "machines unrescue", "machines refresh", "machines rebuild", "machines destroy", "machines delete", "pools free"},
		"invited":   {"invitations accept", "invitations decline"},
		"context":   {"contexts use", "contexts remove", "logout"},
	} {
		for _, verb := range verbs {
			words[verb] = inOrder(map[string]completes{
				"numbers": completing(a, numberWords(nil)), "workspace": workspace, "cluster": cluster, "template": completing(a, templateWords), "machine": completing(a, machineWords),
				"webhook": completing(a, webhookWords), "invited": completing(a, ownInvitationWords), "context": completeContexts(a),
			}[found])
		}
	}
	return words
}

// flagWords are the words of the flags, by their names, which mean the same in every
// verb; nil where a flag's value can be anything.
func flagWords(a *app, verb, flag string) completes {
	approvals := choice("never", "destructive", "always")
	if verb == "state pull" && flag == "version" {
		return completing(a, stateVersionWords)
	}
	if strings.HasSuffix(flag, "-file") || strings.HasPrefix(flag, "tls-") {
		return files
	}
	return map[string]completes{
		"cluster": completing(a, clusterWords), "pool": completing(a, poolWords), "workspace": completing(a, workspaceWords), "template": completing(a, templateWords),
		"target": completing(a, addressWords), "replace": completing(a, addressWords), "org": completing(a, orgWords), "context": completeContexts(a),
		"data-dir": directories, "move-from": directories, "sealed-vars": files, "to": files,
		"output": outputWords(verb), "approval": approvals, "approvers": choice("operator", "admin"), "log-format": choice("text", "json"),
		"access-log": choice("refused", "all"), "kind": choice("generic", "slack"),
		"status": choice("planned", "reserved", "creating", "running", "stopped", "failed", "unknown", "gone"),
		"health": choice("healthy", "unhealthy", "unknown"),
		"event":  choice("awaiting_approval", "awaiting_input", "success", "failure", "cancelled", "drift", "health"),
	}[flag]
}

// outputWords are the formats that a verb prints.
func outputWords(verb string) completes {
	if verb == "machines" || verb == "machines list" {
		return choice("text", "json", "ansible", "ansible-file", "ssh-config")
	}
	return choice("text", "json")
}

// completeWords gives verbs and flags their words, an explicit none where there are none:
// a shell offers the files of the directory otherwise.
func completeWords(a *app, root *cobra.Command) {
	arguments := argumentWords(a)
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
			words := flagWords(a, path, flag.Name)
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

func completeContexts(a *app) completes {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		kept, _ := contexts.Load(contexts.Path(a.getenv)) // nobody asked for its error
		return append([]string{contexts.Local}, kept.Names()...), cobra.ShellCompDirectiveNoFileComp
	}
}
