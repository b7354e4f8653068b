package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func (a *app) openCommand() *cobra.Command {
	var print bool
	var out format
	cmd := &cobra.Command{
		Use:   "open [NUMBER|ID|WORKSPACE]",
		Short: "Open the console, or a provision's or workspace's page",
		Long: `Opens the server's console in a browser: the page of a provision or a workspace, or the
first page. For what "trellis up" runs here, "trellis link" prints a link that signs a
browser in.`,
		Example: `  trellis open 12`,
		Args:    atMostOne("a provision's number or id, or a workspace"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			page := s.URL() + "/"
			switch {
			case len(args) == 0:
			case isProvision(args[0]):
				p, err := s.Provision(ctx, args[0])
				if err != nil {
					return err
				}
				page += fmt.Sprint("provisions/", p.Number)
			default:
				w, err := s.FindWorkspace(ctx, args[0])
				if err != nil {
					return err
				}
				page += "workspaces/" + url.PathEscape(w.ID.String())
			}
			if !print && out != "json" && a.browse(page) == nil {
				a.say("Opened in a browser: %s", page)
				return nil
			}
			return a.answer(out, map[string]string{"url": page}, "%s", page)
		}),
	}
	cmd.Flags().BoolVar(&print, "print", false, "print the page's URL and open nothing")
	addFormat(cmd, &out)
	return cmd
}
