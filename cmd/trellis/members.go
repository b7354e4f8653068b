package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
)

// roles are what a member may be.
var roles = []string{"viewer", "operator", "admin"}

func membersCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List, invite and remove members, and change their roles",
		Args:  verb,
	}
	cmd.AddCommand(membersListCommand(a), membersInviteCommand(a), membersInvitationsCommand(a), membersUninviteCommand(a), membersSetCommand(a), membersRemoveCommand(a))
	return cmd
}

func membersListCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List who belongs to the organisation, and their roles",
		Example: `  trellis members list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			members, err := s.Members(ctx)
			return listing(&a.printer, members, err, "Nobody belongs to the organisation.", "WHO\tROLE\tSINCE\tID", func(m wire.Member) []any {
				return []any{called(m.Name, m.Email, m.UserID), m.Role, m.Since.Local().Format(time.DateOnly), m.UserID}
			})
		}),
	})
}

// called is what to call a person.
func called(name, email string, id uuid.UUID) string {
	switch {
	case name != "" && email != "":
		return name + " <" + email + ">"
	case name+email != "":
		return name + email
	}
	return id.String()
}

func membersSetCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "set WHO ROLE",
		Short: "Give a member another role: viewer, operator or admin",
		Long: `Gives a member another role: a viewer reads, an operator deploys and approves, an admin
manages clusters, templates and members. WHO is an e-mail address, a name or an id.`,
		Example: `  trellis members set ada@example.com operator`,
		Args:    withRole("a member"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			m, err := s.FindMember(ctx, args[0])
			if err != nil {
				return err
			}
			m.Role = args[1]
			return a.answer(s.SetMember(ctx, m.UserID, m.Role), m, "%s is %s now.", printable.Text(called(m.Name, m.Email, m.UserID)), m.Role)
		}),
	})
}

func membersRemoveCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove WHO",
		Short:   "Take a member out of the organisation",
		Example: `  trellis members remove ada@example.com`,
		Args:    one("a member's e-mail address, name or id"),
		RunE: about(a, (*client.Client).FindMember, func(ctx context.Context, s *client.Client, cmd *cobra.Command, m wire.Member) error {
			if err := confirm(a, yes, cmd.Flags().Arg(0), fmt.Sprintf("This takes %s, %s, out of the organisation.", printable.Text(called(m.Name, m.Email, m.UserID)), m.Role)); err != nil {
				return err
			}
			return a.answer(s.RemoveMember(ctx, m.UserID), m, "%s is no member any more.", printable.Text(called(m.Name, m.Email, m.UserID)))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(a, cmd)
	return cmd
}

// withRole wants two arguments, whom first names and a role.
func withRole(first string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if err := each(first, "a role")(nil, args); err != nil {
			return err
		}
		if !slices.Contains(roles, args[1]) {
			return wrongUsage("the role must be viewer, operator or admin")
		}
		return nil
	}
}

func membersInviteCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "invite WHO ROLE",
		Short: "Invite someone by e-mail",
		Long: `Invites a person to the organisation as a viewer, an operator or an admin. They join when
they sign in and accept, in the console or by "trellis invitations accept". WHO is an
e-mail address, which their issuer of identities must have verified, or a user's id. No
mail is sent: tell them yourself where to sign in.`,
		Example: `  trellis members invite ada@example.com operator`,
		Args:    withRole("an e-mail address or a user's id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			id, err := s.Invite(ctx, args[0], args[1])
			return a.answer(err, map[string]any{"id": id, "who": args[0], "role": args[1]}, "%s is invited as %s: have them sign in at %s and accept. Revoke it:  %s",
				printable.Text(args[0]), args[1], s.URL(), a.hint(cmd, "members uninvite "+quote(args[0])))
		}),
	})
}

func membersInvitationsCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "invitations",
		Short:   "List the invitations that nobody has accepted",
		Example: `  trellis members invitations`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Invitations(ctx)
			return listing(&a.printer, list, err, "There is no open invitation.", "WHO\tROLE\tUNTIL", func(i wire.Invitation) []any {
				ends := i.ExpiresAt.Local().Format(time.DateTime)
				switch {
				case i.Declined:
					ends = "declined"
				case i.Expired:
					ends = "expired"
				}
				return []any{invitee(i), i.Role, ends}
			})
		}),
	})
}

func membersUninviteCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "uninvite WHO",
		Short:   "Revoke an invitation that nobody has accepted",
		Example: `  trellis members uninvite ada@example.com`,
		Args:    one("an e-mail address or a user's id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			list, err := s.Invitations(ctx)
			if err != nil {
				return err
			}
			n := slices.IndexFunc(list, func(i wire.Invitation) bool { return strings.EqualFold(invitee(i), args[0]) })
			if n < 0 {
				return &problem.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: fmt.Sprintf("there is no open invitation for %q", args[0]), Hint: "trellis members invitations"}
			}
			return a.answer(s.RevokeInvitation(ctx, list[n].ID), list[n], "Invitation of %s revoked.", printable.Text(invitee(list[n])))
		}),
	})
}

// invitee is the address or the id of the person that an invitation is for.
func invitee(i wire.Invitation) string {
	if i.UserID != nil {
		return i.UserID.String()
	}
	return i.Email
}

// invitationsCommand is what a person does with the invitations that they got.
func invitationsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "invitations",
		Short: "List, accept and decline your invitations to organisations",
		Example: `  trellis invitations
  trellis invitations accept acme`,
		Args: none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.OwnInvitations(ctx)
			return listing(&a.printer, list, err, "You have no open invitation.", "ORGANISATION\tROLE\tINVITED BY\tUNTIL\tID", func(i wire.OwnInvitation) []any {
				return []any{i.Org, i.Role, i.InvitedBy, i.ExpiresAt.Local().Format(time.DateTime), i.ID}
			})
		}),
	}
	addFormat(a, cmd)
	cmd.AddCommand(invitationsAcceptCommand(a), invitationsDeclineCommand(a))
	return cmd
}

func invitationsAcceptCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept ORGANISATION",
		Short: "Join an organisation that invited you",
		Long: `Joins an organisation that invited you, in the role of the invitation. Its members see your
name and e-mail address from then on. ORGANISATION is its name, or the invitation's id.`,
		Example: `  trellis invitations accept acme`,
		Args:    one("an organisation"),
		RunE: about(a, (*client.Client).FindOwnInvitation, func(ctx context.Context, s *client.Client, _ *cobra.Command, i wire.OwnInvitation) error {
			if err := confirm(a, yes, i.Org, fmt.Sprintf("You join %s as %s.", printable.Text(i.Org), i.Role)); err != nil {
				return err
			}
			return a.answer(s.AcceptInvitation(ctx, i.ID, i.Role), i, "You are %s of %s now.", i.Role, printable.Text(i.Org))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(a, cmd)
	return cmd
}

func invitationsDeclineCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "decline ORGANISATION",
		Short:   "Decline an invitation",
		Example: `  trellis invitations decline acme`,
		Args:    one("an organisation"),
		RunE: about(a, (*client.Client).FindOwnInvitation, func(ctx context.Context, s *client.Client, _ *cobra.Command, i wire.OwnInvitation) error {
			return a.answer(s.DeclineInvitation(ctx, i.ID), i, "You declined the invitation to %s.", printable.Text(i.Org))
		}),
	})
}
