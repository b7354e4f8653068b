package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) eventsCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "events NUMBER|ID",
		Short:   "List what happened to a provision: stages, resources, cancels",
		Example: `  trellis events 12`,
		Args:    one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			events, err := s.Events(ctx, p.ID)
			if err != nil {
				return err
			}
			var rows []string
			for _, e := range events {
				rows = append(rows, row(e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, oneLine(e.Detail)))
			}
			return a.listing(out, events, "Nothing has happened yet.", "AT\tWHAT\tDETAIL", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) auditCommand() *cobra.Command {
	var limit int
	var out format
	cmd := &cobra.Command{
		Use:     "audit",
		Short:   "List who did what in the organisation, the newest first",
		Example: `  trellis audit -n 20`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10000 {
				return wrongUsage("--limit: from 1 to 10000 are possible")
			}
			entries, err := s.Audit(ctx, limit)
			if err != nil {
				return err
			}
			var rows []string
			for _, e := range entries {
				rows = append(rows, row(e.At.Local().Format(time.DateTime), whoDid(e), e.Action, strings.TrimSpace(e.Object+" "+e.Called), oneLine(e.Detail)))
			}
			return a.listing(out, entries, "Nothing is in the audit yet.", "AT\tWHO\tDID\tTO\tDETAIL", rows)
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many to list")
	addFormat(cmd, &out)
	return cmd
}

// oneLine is JSON without blanks; "" for an empty object.
func oneLine(data json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil || b.String() == "{}" || b.String() == "null" {
		return ""
	}
	return b.String()
}

func whoDid(e store.AuditEvent) string {
	switch {
	case e.ActorName != "":
		return e.ActorName
	case e.Actor != nil:
		return e.Actor.String()
	}
	return "the control plane"
}
