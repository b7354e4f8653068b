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
	More        int    // members besides those listed
	Search      bool
	Invitations []store.Invitation
	PublicURL   string
	// Email and Role are an invitation that was refused.
	Email, Role string
	Refused     *store.RefusedError
}

// Me reports whether a member is who looks at the page.
func (v view) Me(m store.Member) bool { return m.UserID == v.Person.ID }

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
	c.render(w, r, status, "members", view{Title: "Members", Nav: "members", Data: d})
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
	c.redirect(w, r, "/members", flash{Kind: "success", Text: email + " is invited as " + role + ". Tell them to sign in here and accept; no mail is sent."})
	return nil
}

// revokeInvitation revokes an invitation.
func (c *console) revokeInvitation(w http.ResponseWriter, r *request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return &store.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: "there is no such invitation"}
	}
	was, err := r.store.RevokeInvitation(r.Context(), r.org.ID, id)
	if err != nil {
		return err
	}
	f := flash{Kind: "success", Text: "Invitation revoked."}
	if !was {
		f = flash{Kind: "info", Text: "That invitation is no longer open. See the list of members."}
	}
	c.redirect(w, r, "/members", f)
	return nil
}

// setRole gives a member another role.
func (c *console) setRole(w http.ResponseWriter, r *request) error {
	role := r.PostForm.Get("role")
	return c.changeMember(w, r, "That member is "+role+" now.", func(user uuid.UUID) error {
		return r.store.SetMember(r.Context(), r.org.ID, user, role)
	})
}

// removeMember takes a member out, or lets who asks leave, if they are an admin.
func (c *console) removeMember(w http.ResponseWriter, r *request) error {
	return c.changeMember(w, r, "They are no member any more. What they deployed stays.", func(user uuid.UUID) error {
		_, err := r.store.RemoveMember(r.Context(), r.org.ID, user)
		return err
	})
}

func (c *console) changeMember(w http.ResponseWriter, r *request, done string, change func(uuid.UUID) error) error {
	user, err := uuid.Parse(r.PathValue("user"))
	if err != nil {
		return &store.RefusedError{Code: "PT404", Reason: "member_not_found", Message: "there is no such member"}
	}
	if err := change(user); err != nil {
		if refused := refusal(err); refused != nil && refused.Reason == "last_admin" {
			c.redirect(w, r, "/members", flash{Kind: "error", Text: sentence(refused.Error()) + "."})
			return nil
		}
		return err
	}
	c.redirect(w, r, "/members", flash{Kind: "success", Text: done})
	return nil
}
