package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
)

// withRole wants two arguments, whom first names and a role.
func withRole(first string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 2 {
			return wrongUsage("give two arguments, %s and a role; there are %d", first, len(args))
		}
		if !slices.Contains(roles, args[1]) {
			return wrongUsage("the role must be viewer, operator or admin")
		}
		return nil
	}
}

func (a *app) membersInviteCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "invite WHO ROLE",
		Short: "Invite someone by e-mail",
		Long: `Invites a person to the organisation as a viewer, an operator or an admin. They join when
they sign in and accept, in the console or by "trellis invitations accept". WHO is an
e-mail address, which their issuer of identities must have verified, or a user's id. No
mail is sent: tell them yourself where to sign in.`,
		Example: `  trellis members invite ada@example.com operator`,
		Args:    withRole("an e-mail address or a user's id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			id, err := s.Invite(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return a.answer(out, map[string]any{"id": id, "who": args[0], "role": args[1]}, "%s is invited as %s: have them sign in at %s and accept. Revoke it:  %s",
				printable.Text(args[0]), args[1], s.URL(), a.hint(cmd, "members uninvite "+quote(args[0])))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) membersInvitationsCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "invitations",
		Short:   "List the invitations that nobody has accepted",
		Example: `  trellis members invitations`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Invitations(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, i := range list {
				ends := i.ExpiresAt.Local().Format(time.DateTime)
				switch {
				case i.Declined:
					ends = "declined"
				case i.Expired:
					ends = "expired"
				}
				rows = append(rows, row(i.Invitee(), i.Role, ends))
			}
			return a.listing(out, list, "There is no open invitation.", "WHO\tROLE\tUNTIL", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) membersUninviteCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "uninvite WHO",
		Short:   "Revoke an invitation that nobody has accepted",
		Example: `  trellis members uninvite ada@example.com`,
		Args:    one("an e-mail address or a user's id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			list, err := s.Invitations(ctx)
			if err != nil {
				return err
			}
			n := slices.IndexFunc(list, func(i store.Invitation) bool { return strings.EqualFold(i.Invitee(), args[0]) })
			if n < 0 {
				return &store.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: fmt.Sprintf("there is no open invitation for %q", args[0]), Hint: "trellis members invitations"}
			}
			if err := s.RevokeInvitation(ctx, list[n].ID); err != nil {
				return err
			}
			return a.answer(out, list[n], "Invitation of %s revoked.", printable.Text(list[n].Invitee()))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

// invitationsCommand is what a person does with the invitations that they got.
func (a *app) invitationsCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "invitations",
		Short: "List, accept and decline your invitations to organisations",
		Example: `  trellis invitations
  trellis invitations accept acme`,
		Args: none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.OwnInvitations(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, i := range list {
				rows = append(rows, row(i.Org, i.Role, i.InvitedBy, i.ExpiresAt.Local().Format(time.DateTime), i.ID))
			}
			return a.listing(out, list, "You have no open invitation.", "ORGANISATION\tROLE\tINVITED BY\tUNTIL\tID", rows)
		}),
	}
	addFormat(cmd, &out)
	cmd.AddCommand(a.invitationsAcceptCommand(), a.invitationsDeclineCommand())
	return cmd
}

func (a *app) invitationsAcceptCommand() *cobra.Command {
	var out format
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept ORGANISATION",
		Short: "Join an organisation that invited you",
		Long: `Joins an organisation that invited you, in the role of the invitation. Its members see your
name and e-mail address from then on. ORGANISATION is its name, or the invitation's id.`,
		Example: `  trellis invitations accept acme`,
		Args:    one("an organisation"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			i, err := findInvitation(ctx, s, args[0])
			if err != nil {
				return err
			}
			if err := a.confirm(yes, i.Org, fmt.Sprintf("You join %s as %s.", printable.Text(i.Org), i.Role)); err != nil {
				return err
			}
			if err := s.AcceptInvitation(ctx, i.ID, i.Role); err != nil {
				return err
			}
			return a.answer(out, i, "You are %s of %s now.", i.Role, printable.Text(i.Org))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) invitationsDeclineCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "decline ORGANISATION",
		Short:   "Decline an invitation",
		Example: `  trellis invitations decline acme`,
		Args:    one("an organisation"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			i, err := findInvitation(ctx, s, args[0])
			if err != nil {
				return err
			}
			if err := s.DeclineInvitation(ctx, i.ID); err != nil {
				return err
			}
			return a.answer(out, i, "You declined the invitation to %s.", printable.Text(i.Org))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

// findInvitation returns the one open invitation to an organisation of that name,
// or of that id.
func findInvitation(ctx context.Context, s *client.Client, org string) (store.OwnInvitation, error) {
	list, err := s.OwnInvitations(ctx)
	if err != nil {
		return store.OwnInvitation{}, err
	}
	list = slices.DeleteFunc(list, func(i store.OwnInvitation) bool {
		return i.Org != org && !strings.EqualFold(i.ID.String(), org) && !strings.EqualFold(i.OrgID.String(), org)
	})
	switch len(list) {
	case 1:
		return list[0], nil
	case 0:
		return store.OwnInvitation{}, &store.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: fmt.Sprintf("you have no open invitation to %q", org), Hint: "trellis invitations"}
	}
	return store.OwnInvitation{}, &store.RefusedError{Code: "PT422", Reason: "invitation_ambiguous", Message: fmt.Sprintf("several organisations called %q invited you", org), Hint: "give the invitation's id: trellis invitations"}
}
