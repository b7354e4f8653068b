package console

import (
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (c *console) memberPages() {
	c.page("GET /members", c.members)
	c.page("POST /members/invite", c.invite)
	c.page("POST /members/invitations/{id}/revoke", c.revokeInvitation)
	c.page("POST /members/{user}/role", c.setRole)
	c.page("POST /members/{user}/remove", c.removeMember)
}

// mostMembers are listed at once; others are found by the search.
const mostMembers = 100

// membersData is what the page of the members shows.
type membersData struct {
	Members     []store.Member
	Words       string // that they were searched by
	More        int    // members that are not listed
	Search      bool
	Invitations []store.Invitation
	PublicURL   string
	// Email and Role are an invitation that was refused.
	Email, Role string
	Refused     *store.RefusedError
}

// members is the page of who belongs to the organisation.
func (c *console) members(w http.ResponseWriter, r *request) error {
	return c.showMembers(w, r, http.StatusOK, membersData{Role: "operator"})
}

func (c *console) showMembers(w http.ResponseWriter, r *request, status int, d membersData) (err error) {
	if d.Members, err = r.store.Members(r.Context(), r.org.ID); err != nil {
		return err
	}
	if d.Invitations, err = r.store.Invitations(r.Context(), r.org.ID); err != nil {
		return err
	}
	d.Words = strings.TrimSpace(r.URL.Query().Get("q"))
	if d.Search = d.Words != "" || len(d.Members) > mostMembers; d.Search {
		d.Members = slices.DeleteFunc(d.Members, func(m store.Member) bool {
			return !strings.Contains(strings.ToLower(m.Name+" "+m.Email+" "+m.Role+" "+m.UserID.String()), strings.ToLower(d.Words))
		})
	}
	if d.More = len(d.Members) - mostMembers; d.More > 0 {
		d.Members = d.Members[:mostMembers]
	}
	d.PublicURL = c.PublicURL
	c.render(w, r, status, "members", view{Nav: "members", Data: d})
	return nil
}

// invite invites a person, who joins when they accept.
func (c *console) invite(w http.ResponseWriter, r *request) error {
	email, role := strings.TrimSpace(r.PostForm.Get("email")), r.PostForm.Get("role")
	if _, err := r.store.Invite(r.Context(), r.org.ID, email, nil, role); err != nil {
		if refused := refusal(err); refused != nil {
			return c.showMembers(w, r, refused.Status(), membersData{Email: email, Role: role, Refused: refused})
		}
		return err
	}
	c.redirect(w, r, "/members", done("member-invited", email, role))
	return nil
}

// revokeInvitation revokes an invitation.
func (c *console) revokeInvitation(w http.ResponseWriter, r *request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return refuse("invitation_not_found")
	}
	was, err := r.store.RevokeInvitation(r.Context(), r.org.ID, id)
	if err != nil {
		return err
	}
	f := done("invitation-revoked")
	if !was {
		f = noted("invitation-closed")
	}
	c.redirect(w, r, "/members", f)
	return nil
}

// setRole gives a member another role.
func (c *console) setRole(w http.ResponseWriter, r *request) error {
	role := r.PostForm.Get("role")
	return c.changeMember(w, r, done("member-role", role), func(user uuid.UUID) error {
		return r.store.SetMember(r.Context(), r.org.ID, user, role)
	})
}

// removeMember takes a member out, or lets who asks leave, if they are an admin.
func (c *console) removeMember(w http.ResponseWriter, r *request) error {
	return c.changeMember(w, r, done("member-removed"), func(user uuid.UUID) error {
		_, err := r.store.RemoveMember(r.Context(), r.org.ID, user)
		return err
	})
}

func (c *console) changeMember(w http.ResponseWriter, r *request, said flash, change func(uuid.UUID) error) error {
	user, err := uuid.Parse(r.PathValue("user"))
	if err != nil {
		return refuse("member_not_found")
	}
	if err := change(user); err != nil {
		if refused := refusal(err); refused != nil && refused.Reason == "last_admin" {
			c.redirect(w, r, "/members", refusedFlash(refused))
			return nil
		}
		return err
	}
	c.redirect(w, r, "/members", said)
	return nil
}

func (c *console) invitationPages() {
	c.page("GET /invitations", c.invitations)
	c.page("POST /invitations/{id}/accept", c.acceptInvitation)
	c.page("POST /invitations/{id}/decline", c.declineInvitation)
}

// invitations is the page of what a person is invited to: joining an organisation
// is their own decision, and nothing of theirs is shown there before.
func (c *console) invitations(w http.ResponseWriter, r *request) error {
	open, err := r.store.OwnInvitations(r.Context())
	if err != nil {
		return err
	}
	c.render(w, r, http.StatusOK, "invitations", view{Data: open})
	return nil
}

// acceptInvitation joins an organisation in the role that the page showed, and
// leads there.
func (c *console) acceptInvitation(w http.ResponseWriter, r *request) error {
	id, err := invitationID(r)
	if err != nil {
		return err
	}
	org, err := r.store.AcceptInvitation(r.Context(), id, r.PostForm.Get("role"))
	if err != nil {
		return c.invitationRefused(w, r, err)
	}
	r.jar.Set(w, r.Request, orgCookie, org.String(), orgCookieLasts)
	c.redirect(w, r, "/", done("invitation-accepted"))
	return nil
}

// declineInvitation declines an invitation.
func (c *console) declineInvitation(w http.ResponseWriter, r *request) error {
	id, err := invitationID(r)
	if err != nil {
		return err
	}
	if err := r.store.DeclineInvitation(r.Context(), id); err != nil {
		return c.invitationRefused(w, r, err)
	}
	c.redirect(w, r, "/invitations", done("invitation-declined"))
	return nil
}

// invitationRefused says on the page of the invitations why nothing happened: the
// invitation was changed or revoked while it was shown.
func (c *console) invitationRefused(w http.ResponseWriter, r *request, err error) error {
	refused := refusal(err)
	if refused == nil {
		return err
	}
	c.redirect(w, r, "/invitations", refusedFlash(refused))
	return nil
}

func invitationID(r *request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil, refuse("invitation_not_found")
	}
	return id, nil
}

// chooseOrg remembers which of their organisations a person looks at.
func (c *console) chooseOrg(w http.ResponseWriter, r *request) error {
	for _, o := range r.orgs {
		if o.ID.String() != r.PostFormValue("org") {
			continue
		}
		r.jar.Set(w, r.Request, orgCookie, o.ID.String(), orgCookieLasts)
		// What the page showed is the other organisation's: its list has a
		// counterpart here, it has not.
		to := "/" + strings.SplitN(strings.TrimPrefix(r.PostFormValue("to"), "/"), "/", 2)[0]
		if !inMenu(to) {
			to = "/"
		}
		c.redirect(w, r, to, done("org-chosen", o.Name))
		return nil
	}
	return refuse("org_not_found")
}

func inMenu(path string) bool {
	for _, e := range menu {
		if e.Path == path {
			return true
		}
	}
	return false
}
