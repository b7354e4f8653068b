package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) webhooksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhooks",
		Short: "Send messages to other programs: add, test, list deliveries",
		Args:  verb,
	}
	cmd.AddCommand(a.webhooksListCommand(), a.webhooksAddCommand(), a.webhooksRemoveCommand(), a.webhooksTestCommand(), a.webhooksDeliveriesCommand())
	return cmd
}

func (a *app) webhooksListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List webhooks and the events each one gets",
		Example: `  trellis webhooks list`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Webhooks(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, w := range list {
				rows = append(rows, row(w.Name, w.Kind, w.Host, strings.Join(w.Events, " "), webhookState(w)))
			}
			return a.listing(out, list, "There is no webhook yet.", "NAME\tKIND\tTO\tTOLD OF\tSTATE", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func webhookState(w store.Webhook) string {
	switch {
	case !w.Enabled && w.DisabledWhy != nil:
		return "off: " + *w.DisabledWhy
	case !w.Enabled:
		return "off"
	case w.FailingSince != nil:
		return "failing since " + at(w.FailingSince)
	}
	return "on"
}

func (a *app) webhooksAddCommand() *cobra.Command {
	var n client.NewWebhook
	var file, cluster string
	var out format
	cmd := &cobra.Command{
		Use:   "add NAME --url-file FILE|-",
		Short: "Add a webhook and print the secret of its signatures, once",
		Long: `Adds a webhook and prints the secret by which its receiver verifies signatures, which
happens only once. Its URL may be a secret itself, as Slack's are: so it is read from a
file or from standard input ("-"), never from the command line.`,
		Example: `  trellis webhooks add deploys --url-file url.txt \
      --event failure --event awaiting_approval
  trellis webhooks add team --kind slack --url-file - < slack-url.txt`,
		Args: one("the webhook's name"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) (err error) {
			if n.URL, err = a.readURL(file); err != nil {
				return err
			}
			if cluster != "" {
				c, err := s.FindCluster(ctx, cluster)
				if err != nil {
					return err
				}
				n.ClusterID = &c.ID
			}
			n.Name = args[0]
			made, err := s.AddWebhook(ctx, n)
			if err != nil {
				return err
			}
			if out == "json" {
				return a.printJSON(made)
			}
			a.say("The webhook %s to %s is made. Its secret, which is shown only now:", made.Name, made.Host)
			return a.print("%s", made.Secret)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "url-file", "", `file with the URL to send to, "-" for standard input`)
	flags.StringVar(&n.Kind, "kind", "", "generic (signed JSON) or slack")
	flags.StringSliceVar(&n.Events, "event", nil, "events to send: awaiting_approval, success, failure, cancelled or drift (repeatable); default: the server's")
	flags.StringVar(&cluster, "cluster", "", "only what happens in this cluster")
	flags.StringVar(&n.Workspace, "workspace", "", `only what happens in workspaces named like that, such as "acme/*"`)
	addFormat(cmd, &out)
	return cmd
}

// readURL reads a URL that may be a secret, and does not quote it.
func (a *app) readURL(file string) (string, error) {
	switch file {
	case "":
		return "", wrongUsage(`--url-file is missing: a file with the URL, or "-" for standard input`)
	case "-":
		return readToken("--url-file", a.in)
	}
	opened, err := os.Open(filepath.Clean(file))
	if err != nil {
		return "", wrongUsage("--url-file: names no file that can be read") // it may be the URL
	}
	defer func() { _ = opened.Close() }()
	return readToken("--url-file", opened)
}

// webhookCommand is a verb about one webhook.
func (a *app) webhookCommand(use, short string, do func(ctx context.Context, s *client.Client, w store.Webhook, out format) error) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use: use, Short: short, Args: one("a webhook's name or id"), Example: "  trellis webhooks " + strings.Fields(use)[0] + " deploys",
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			w, err := findWebhook(ctx, s, args[0])
			if err != nil {
				return err
			}
			return do(ctx, s, w, out)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) webhooksRemoveCommand() *cobra.Command {
	return a.webhookCommand("remove NAME|ID", "Remove a webhook, and what was sent to it", func(ctx context.Context, s *client.Client, w store.Webhook, out format) error {
		if err := s.RemoveWebhook(ctx, w.ID); err != nil {
			return err
		}
		return a.answer(out, w, "The webhook %s is removed.", w.Name)
	})
}

func (a *app) webhooksTestCommand() *cobra.Command {
	return a.webhookCommand("test NAME|ID", "Send a message that only tries", func(ctx context.Context, s *client.Client, w store.Webhook, out format) error {
		id, err := s.TestWebhook(ctx, w.ID)
		if err != nil {
			return err
		}
		return a.answer(out, map[string]uuid.UUID{"webhook": w.ID, "delivery": id}, "A message that only tries is on its way to %s. How it went: trellis webhooks deliveries %s", w.Host, quote(w.Name))
	})
}

func (a *app) webhooksDeliveriesCommand() *cobra.Command {
	limit := 20
	cmd := a.webhookCommand("deliveries NAME|ID", "List what was sent to a webhook, the latest first", func(ctx context.Context, s *client.Client, w store.Webhook, out format) error {
		list, err := s.Deliveries(ctx, w.ID, limit)
		if err != nil {
			return err
		}
		var rows []string
		for _, d := range list {
			answer := "-"
			if n := len(d.Attempts); n > 0 {
				last := d.Attempts[n-1]
				if answer = last.Error; last.Code != 0 {
					answer = fmt.Sprintf("%d %s", last.Code, http.StatusText(last.Code))
				}
			}
			rows = append(rows, row(d.CreatedAt.Local().Format(time.DateTime), d.Event, d.Status, len(d.Attempts), answer))
		}
		return a.listing(out, list, "Nothing was sent to "+w.Name+" yet.", "AT\tEVENT\tSTATE\tTRIES\tANSWER", rows)
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", limit, "how many to list")
	return cmd
}

func findWebhook(ctx context.Context, s *client.Client, ref string) (store.Webhook, error) {
	list, err := s.Webhooks(ctx)
	if err != nil {
		return store.Webhook{}, err
	}
	var names []string
	for _, w := range list {
		if w.Name == ref || strings.EqualFold(w.ID.String(), ref) {
			return w, nil
		}
		names = append(names, w.Name)
	}
	hint := "there are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		hint = "there is none yet: trellis webhooks add"
	}
	return store.Webhook{}, &store.RefusedError{Code: "PT404", Reason: "webhook_not_found", Message: fmt.Sprintf("there is no webhook %q that you may see", ref), Hint: hint}
}

func webhookWords(ctx context.Context, s *client.Client, _ string) (words []string, err error) {
	list, err := s.Webhooks(ctx)
	for _, w := range list {
		words = append(words, described(w.Name, "%s to %s", w.Kind, w.Host))
	}
	return words, err
}
