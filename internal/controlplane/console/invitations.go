package console

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

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
	c.render(w, r, http.StatusOK, "invitations", view{Title: "Invitations", Data: open})
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
	c.redirect(w, r, "/", flash{Kind: "success", Text: "You joined the organisation."})
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
	c.redirect(w, r, "/invitations", flash{Kind: "success", Text: "Invitation declined."})
	return nil
}

// invitationRefused says on the page of the invitations why nothing happened: the
// invitation was changed or revoked while it was shown.
func (c *console) invitationRefused(w http.ResponseWriter, r *request, err error) error {
	refused := refusal(err)
	if refused == nil {
		return err
	}
	c.redirect(w, r, "/invitations", flash{Kind: "error", Text: sentence(refused.Error()) + "."})
	return nil
}

func invitationID(r *request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil, &store.RefusedError{Code: "PT404", Reason: "invitation_not_found", Message: "you have no such invitation"}
	}
	return id, nil
}
