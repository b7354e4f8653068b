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
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

func webhooksCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhooks",
		Short: "Send messages to other programs: add, test, list deliveries",
		Args:  verb,
	}
	cmd.AddCommand(webhooksListCommand(a), webhooksAddCommand(a), webhooksRemoveCommand(a), webhooksTestCommand(a), webhooksDeliveriesCommand(a))
	return cmd
}

func webhooksListCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List webhooks and the events each one gets",
		Example: `  trellis webhooks list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Webhooks(ctx)
			return listing(&a.printer, list, err, "There is no webhook yet.", "NAME\tKIND\tTO\tTOLD OF\tSTATE", func(w wire.Webhook) []any {
				return []any{w.Name, w.Kind, w.Host, strings.Join(w.Events, " "), webhookState(w)}
			})
		}),
	})
}

func webhookState(w wire.Webhook) string {
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

func webhooksAddCommand(a *app) *cobra.Command {
	var n wire.NewWebhookInputBody
	var file, cluster, workspace string
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
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) (err error) {
			if n.URL, err = readURL(a, file); err != nil {
				return err
			}
			if cluster != "" {
				c, err := s.FindCluster(ctx, cluster)
				if err != nil {
					return err
				}
				n.ClusterID = &c.ID
			}
			if workspace != "" {
				n.Workspace = &workspace
			}
			n.Name = args[0]
			made, err := s.AddWebhook(ctx, n)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(made)
			}
			a.say("The webhook %s to %s is made. Its secret, which is shown only now:", made.Name, made.Host)
			return a.print("%s", made.Secret)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "url-file", "", `file with the URL to send to, "-" for standard input`)
	flags.StringVar(&n.Kind, "kind", "", "generic (signed JSON) or slack")
	flags.StringSliceVar(&n.Events, "event", nil, "events to send: awaiting_approval, awaiting_input, success, failure, cancelled, drift or health (repeatable); default: the server's")
	flags.StringVar(&cluster, "cluster", "", "only what happens in this cluster")
	flags.StringVar(&workspace, "workspace", "", `only what happens in workspaces named like that, such as "acme/*"`)
	addFormat(a, cmd)
	return cmd
}

// readURL reads a URL that may be a secret, and does not quote it.
func readURL(a *app, file string) (string, error) {
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
func webhookCommand(a *app, use, short string, do func(ctx context.Context, s *client.Client, w wire.Webhook) error) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use: use, Short: short, Args: one("a webhook's name or id"), Example: "  trellis webhooks " + strings.Fields(use)[0] + " deploys",
		RunE: about(a, (*client.Client).FindWebhook, func(ctx context.Context, s *client.Client, _ *cobra.Command, w wire.Webhook) error {
			return do(ctx, s, w)
		}),
	})
}

func webhooksRemoveCommand(a *app) *cobra.Command {
	return webhookCommand(a, "remove NAME|ID", "Remove a webhook, and what was sent to it", func(ctx context.Context, s *client.Client, w wire.Webhook) error {
		return a.answer(s.RemoveWebhook(ctx, w.ID), w, "The webhook %s is removed.", w.Name)
	})
}

func webhooksTestCommand(a *app) *cobra.Command {
	return webhookCommand(a, "test NAME|ID", "Send a message that only tries", func(ctx context.Context, s *client.Client, w wire.Webhook) error {
		id, err := s.TestWebhook(ctx, w.ID)
		return a.answer(err, map[string]uuid.UUID{"webhook": w.ID, "delivery": id}, "A message that only tries is on its way to %s. How it went: trellis webhooks deliveries %s", w.Host, quote(w.Name))
	})
}

func webhooksDeliveriesCommand(a *app) *cobra.Command {
	limit := 20
	cmd := webhookCommand(a, "deliveries NAME|ID", "List what was sent to a webhook, the latest first", func(ctx context.Context, s *client.Client, w wire.Webhook) error {
		list, err := s.Deliveries(ctx, w.ID, limit)
		return listing(&a.printer, list, err, "Nothing was sent to "+w.Name+" yet.", "AT\tEVENT\tSTATE\tTRIES\tANSWER", func(d wire.Delivery) []any {
			answer := "-"
			if n := len(d.Attempts); n > 0 {
				last := d.Attempts[n-1]
				if answer = last.Error; last.Code != 0 {
					answer = fmt.Sprintf("%d %s", last.Code, http.StatusText(last.Code))
				}
			}
			return []any{d.CreatedAt.Local().Format(time.DateTime), d.Event, d.Status, len(d.Attempts), answer}
		})
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", limit, "how many to list")
	return cmd
}
