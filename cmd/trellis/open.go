package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func openCommand(a *app) *cobra.Command {
	var print bool
	cmd := &cobra.Command{
		Use:   "open [NUMBER|ID|WORKSPACE]",
		Short: "Open the console, or a run's or workspace's page",
		Long: `Opens the server's console in a browser: the page of a run or a workspace, or the
first page. For what "trellis up" runs here, "trellis link" prints a link that signs a
browser in.`,
		Example: `  trellis open 12`,
		Args:    atMostOne("a run's number or id, or a workspace"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
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
			if !print && !a.json() && a.browse(page) == nil {
				a.say("Opened in a browser: %s", page)
				return nil
			}
			return a.answer(nil, map[string]string{"url": page}, "%s", page)
		}),
	}
	cmd.Flags().BoolVar(&print, "print", false, "print the page's URL and open nothing")
	addFormat(a, cmd)
	return cmd
}

// openBrowser shows a page in the person's browser, without a shell between. It
// does not wait: some of these programs go on as long as the browser.
func openBrowser(url string) error {
	opener := "xdg-open"
	switch runtime.GOOS {
	case "darwin":
		opener = "open"
	case "linux":
	default:
		return errors.New("it is not known how a browser is opened here")
	}
	cmd := exec.Command(opener, url) //nolint:noctx // one argument; it outlives us
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}
