package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/store"
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

// completing asks the server for words of which there can be most. What goes
// wrong is nobody's concern who has only pressed Tab.
func (a *app) completing(most int, words func(ctx context.Context, s *client.Client) ([]string, error)) completes {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
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
		found, _ := words(ctx, s)
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// anyNumber is for flags: they complete whatever the arguments are.
const anyNumber = -1

// described is a word with what it stands for, as cobra wants it.
func described(word, format string, args ...any) string {
	return word + "\t" + plain(fmt.Sprintf(format, args...), true)
}

func clusterWords(ctx context.Context, s *client.Client) (words []string, err error) {
	list, err := s.Clusters(ctx)
	for _, c := range list {
		words = append(words, described(c.Name, "%s", c.Connectivity))
	}
	return words, err
}

func workspaceWords(ctx context.Context, s *client.Client) (words []string, err error) {
	list, err := s.Workspaces(ctx, mostCompletions)
	for _, w := range list {
		words = append(words, described(w.Name, "on %s", w.Cluster))
	}
	return words, err
}

func templateWords(ctx context.Context, s *client.Client) (words []string, err error) {
	list, err := s.Templates(ctx)
	for _, t := range list {
		words = append(words, described(t.Name, "%s %s", t.Version, t.Description))
	}
	return words, err
}

// numberWords are those of the provisions that fit; nil: all.
func numberWords(fit func(store.Provision) bool) func(context.Context, *client.Client) ([]string, error) {
	return func(ctx context.Context, s *client.Client) (words []string, err error) {
		list, err := s.Provisions(ctx, 50)
		for _, p := range list {
			if fit == nil || fit(p) {
				words = append(words, described(fmt.Sprint(p.Number), "%s %s on %s", p.Status, p.Operation, p.Workspace))
			}
		}
		return words, err
	}
}

// complete gives verbs and flags their words.
func (a *app) complete(root *cobra.Command) {
	numbers := func(fit func(store.Provision) bool) completes { return a.completing(1, numberWords(fit)) }
	any := numbers(nil)
	awaiting := numbers(func(p store.Provision) bool { return p.Status == provision.AwaitingApproval })
	going := numbers(func(p store.Provision) bool { return !p.Status.Terminal() })
	ended := numbers(func(p store.Provision) bool { return p.Status.Terminal() })
	workspaces, clusters, templates := a.completing(1, workspaceWords), a.completing(1, clusterWords), a.completing(1, templateWords)
	words := map[string]completes{
		"status": any, "logs": any, "events": any, "open": any, "approve": awaiting, "reject": awaiting, "cancel": going, "retry": ended,
		"resources": workspaces, "outputs": workspaces, "drift": workspaces, "destroy": workspaces, "lock": workspaces, "unlock": workspaces, "release": workspaces,
		"clusters pause": clusters, "clusters resume": clusters, "clusters rotate-token": clusters, "clusters policy": clusters,
		"clusters tokens list": clusters, "clusters tokens revoke": clusters,
		"templates show": templates, "templates inspect": templates, "templates remove": templates,
	}
	flags := map[string]completes{
		"cluster": a.completing(anyNumber, clusterWords), "workspace": a.completing(anyNumber, workspaceWords), "template": a.completing(anyNumber, templateWords),
	}
	_ = root.RegisterFlagCompletionFunc("context", a.completeContexts) // the flag is there
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		if found := words[path]; found != nil {
			cmd.ValidArgsFunction = found
		} else if cmd.Parent() != nil && cmd.Parent().Name() == "state" {
			cmd.ValidArgsFunction = workspaces
		}
		for name, found := range flags {
			if cmd.Flags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, found)
			}
		}
		for _, child := range cmd.Commands() {
			if child.Name() != agentVerb {
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
