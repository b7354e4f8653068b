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
		Use:   "invite EMAIL ROLE",
		Short: "Have whoever signs in with an e-mail address become a member",
		Long: `Has whoever signs in with that e-mail address, if the issuer of identities says that it
is verified, become a member: a viewer, an operator or an admin. Who has signed in with
it already is one at once. No mail is sent: tell them yourself where to sign in.`,
		Example: `  trellis members invite ada@example.com operator`,
		Args:    withRole("an e-mail address"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			id, err := s.Invite(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return a.answer(out, map[string]any{"id": id, "email": args[0], "role": args[1]}, "%s is invited as %s: have them sign in at %s. Take it back:  %s",
				plain(args[0], a.out.tty), args[1], s.URL(), a.hint(cmd, "members uninvite "+quote(args[0])))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) membersInvitationsCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "invitations",
		Short: "List the invitations that nobody has accepted",
		Args:  none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			list, err := s.Invitations(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, i := range list {
				ends := i.ExpiresAt.Local().Format(time.DateTime)
				if i.Expired {
					ends = "has expired"
				}
				rows = append(rows, row(i.Email, i.Role, ends))
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
		Use:     "uninvite EMAIL",
		Short:   "Take an invitation back that nobody has accepted",
		Example: `  trellis members uninvite ada@example.com`,
		Args:    one("an e-mail address"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			list, err := s.Invitations(ctx)
			if err != nil {
				return err
			}
			n := slices.IndexFunc(list, func(i store.Invitation) bool { return strings.EqualFold(i.Email, args[0]) })
			if n < 0 {
				return &store.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: fmt.Sprintf("there is no open invitation of %q", args[0]), Hint: "trellis members invitations"}
			}
			if err := s.RevokeInvitation(ctx, list[n].ID); err != nil {
				return err
			}
			return a.answer(out, list[n], "The invitation of %s is taken back.", plain(list[n].Email, a.out.tty))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}
