package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/printable"
)

func (a *app) whoamiCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Say which server is asked, and as whom",
		Example: `  trellis whoami`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			me, err := s.Me(ctx)
			if err != nil {
				return err
			}
			if out == "json" {
				return a.printJSON(struct {
					Server string `json:"server"`
					client.Me
				}{s.URL(), me})
			}
			table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintf(table, "Server\t%s\nYou\t%s\nId\t%s\n", s.URL(), printable.Text(me.Called()), me.ID) // Flush tells of errors
			for _, org := range me.Orgs {
				_, _ = fmt.Fprintf(table, "Organisation\t%s, as %s\n", printable.Text(org.Name), org.Role)
			}
			return table.Flush()
		}),
	}
	addFormat(cmd, &out)
	return cmd
}
