package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
)

// roles are what a member may be.
var roles = []string{"viewer", "operator", "admin"}

func (a *app) membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List, invite and remove members, and change their roles",
		Args:  verb,
	}
	cmd.AddCommand(a.membersListCommand(), a.membersInviteCommand(), a.membersInvitationsCommand(), a.membersUninviteCommand(), a.membersSetCommand(), a.membersRemoveCommand())
	return cmd
}

func (a *app) membersListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List who belongs to the organisation, and their roles",
		Example: `  trellis members list`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			members, err := s.Members(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, m := range members {
				rows = append(rows, row(called(m), m.Role, m.Since.Local().Format(time.DateOnly), m.UserID))
			}
			return a.listing(out, members, "Nobody belongs to the organisation.", "WHO\tROLE\tSINCE\tID", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func called(m store.Member) string {
	switch {
	case m.Name != "" && m.Email != "":
		return m.Name + " <" + m.Email + ">"
	case m.Name+m.Email != "":
		return m.Name + m.Email
	}
	return m.UserID.String()
}

func (a *app) membersSetCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "set WHO ROLE",
		Short: "Give a member another role: viewer, operator or admin",
		Long: `Gives a member another role: a viewer reads, an operator deploys and approves, an admin
manages clusters, templates and members. WHO is an e-mail address, a name or an id.`,
		Example: `  trellis members set ada@example.com operator`,
		Args:    withRole("a member"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := findMember(ctx, s, args[0])
			if err != nil {
				return err
			}
			if err := s.SetMember(ctx, m.UserID, args[1]); err != nil {
				return err
			}
			m.Role = args[1]
			return a.answer(out, m, "%s is %s now.", printable.Text(called(m)), m.Role)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) membersRemoveCommand() *cobra.Command {
	var yes bool
	var out format
	cmd := &cobra.Command{
		Use:     "remove WHO",
		Short:   "Take a member out of the organisation",
		Example: `  trellis members remove ada@example.com`,
		Args:    one("a member's e-mail address, name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := findMember(ctx, s, args[0])
			if err != nil {
				return err
			}
			if err := a.confirm(yes, args[0], fmt.Sprintf("This takes %s, %s, out of the organisation.", printable.Text(called(m)), m.Role)); err != nil {
				return err
			}
			if err := s.RemoveMember(ctx, m.UserID); err != nil {
				return err
			}
			return a.answer(out, m, "%s is no member any more.", printable.Text(called(m)))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(cmd, &out)
	return cmd
}

// findMember returns the one member that a word names.
func findMember(ctx context.Context, s *client.Client, who string) (store.Member, error) {
	members, err := s.Members(ctx)
	if err != nil {
		return store.Member{}, err
	}
	var found []store.Member
	for _, m := range members {
		if strings.EqualFold(m.Email, who) || m.Name == who || strings.EqualFold(m.UserID.String(), who) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return store.Member{}, &store.RefusedError{Code: "PT404", Reason: "member_not_found", Message: fmt.Sprintf("there is no member %q", who), Hint: "trellis members list"}
	}
	return store.Member{}, &store.RefusedError{Code: "PT422", Reason: "member_ambiguous", Message: fmt.Sprintf("several members are called %q", who), Hint: "give the id: trellis members list"}
}
