package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

// shownContext is a context as it is listed: without its token.
type shownContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	contexts.Context
}

func (a *app) contextsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "contexts",
		Short: "List the servers that you are logged in to, and choose one",
		Long: `Lists the servers that you are logged in to; the one with the star is asked. "local"
is what trellis up runs on the data directory.

A server is chosen, in this order, by --server or --context, by TRELLIS_URL (with
TRELLIS_TOKEN or TRELLIS_TOKEN_FILE), by a data directory that is named, by the current
context; else it is local.`,
		Args: verb,
	}
	cmd.AddCommand(a.contextsListCommand(), a.contextsUseCommand(), a.contextsRemoveCommand())
	return cmd
}

func (a *app) contextsListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the servers that you are logged in to",
		Example: `  trellis contexts list`,
		Args:    none,
		RunE: func(*cobra.Command, []string) error {
			list, err := a.listContexts()
			if err != nil {
				return err
			}
			var rows []string
			for _, c := range list {
				mark := ""
				if c.Current {
					mark = "*"
				}
				rows = append(rows, row(mark, c.Name, c.URL, c.User, c.Org))
			}
			return a.listing(out, list, "", "\tNAME\tSERVER\tAS\tORG", rows) // local is always there
		},
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) listContexts() ([]shownContext, error) {
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return nil, err
	}
	local := shownContext{Name: contexts.Local, Current: kept.Current == "" || kept.Current == contexts.Local, Context: contexts.Context{URL: "not running"}}
	if runtime, err := instance.ReadRuntime(a.dataDir); err == nil {
		local.URL = runtime.URL
	}
	list := []shownContext{local}
	for _, name := range kept.Names() {
		list = append(list, shownContext{Name: name, Current: name == kept.Current, Context: kept.Contexts[name]})
	}
	return list, nil
}

func (a *app) contextsUseCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "use NAME",
		Short:   "Have another server asked from now on",
		Example: "  trellis contexts use local",
		Args:    one("the context's name"),
		RunE: func(_ *cobra.Command, args []string) error {
			var chosen contexts.Context
			err := contexts.Update(contexts.Path(a.getenv), func(f *contexts.File) (err error) {
				if args[0] != contexts.Local {
					chosen, err = f.Find(args[0])
				}
				f.Current = args[0]
				return err
			})
			if err != nil {
				return err
			}
			return a.answer(out, shownContext{Name: args[0], Current: true, Context: chosen}, "The context %s is the current one.", args[0])
		},
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) contextsRemoveCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "remove NAME",
		Short:   "Forget a server and its token; see also trellis logout",
		Long:    `Forgets a server and its token, without asking the server. "trellis logout" revokes the token as well.`,
		Example: `  trellis contexts remove trellis.example`,
		Args:    one("the context's name"),
		RunE: func(_ *cobra.Command, args []string) error {
			gone, err := a.forget(args[0])
			if err != nil {
				return err
			}
			return a.answer(out, shownContext{Name: args[0], Context: gone}, "The context %s is forgotten.", args[0])
		},
	}
	addFormat(cmd, &out)
	return cmd
}

// forget removes a context and returns it.
func (a *app) forget(name string) (gone contexts.Context, err error) {
	err = contexts.Update(contexts.Path(a.getenv), func(f *contexts.File) (err error) {
		if gone, err = f.Find(name); err != nil {
			return err
		}
		delete(f.Contexts, name)
		if f.Current == name {
			f.Current = ""
		}
		return nil
	})
	return gone, err
}

func (a *app) logoutCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "logout [CONTEXT]",
		Short:   "Revoke the token of a server, and forget it",
		Long:    `Revokes the token that "trellis login" has kept of a server, the current one unless another is named, and forgets it.`,
		Example: `  trellis logout trellis.example`,
		Args:    atMostOne("a context's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.untilInterrupted(cmd, func(ctx context.Context) error { return a.logout(ctx, args, out) })
		},
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) logout(ctx context.Context, args []string, out format) error {
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return err
	}
	name := kept.Current
	if len(args) == 1 {
		name = args[0]
	} else if a.context != "" {
		name = a.context
	}
	if name == "" || name == contexts.Local {
		return wrongUsage("there is nothing to log out of: %q is what trellis up runs here, and its token ends with it", contexts.Local)
	}
	t, err := a.namedTarget(name)
	if err != nil {
		return err
	}
	s, err := client.New(t.Options)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.RevokeOwnToken(ctx); err != nil && !unknownToken(err) {
		return fmt.Errorf("%w; the context %s is still there: trellis contexts remove %s forgets it all the same", err, name, name)
	}
	gone, err := a.forget(name)
	if err != nil {
		return err
	}
	return a.answer(out, shownContext{Name: name, Context: gone}, "You are logged out of %s.", t.URL)
}
