package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// membership is a person's role in an organisation, and what they see of it.
func (w *world) membership(t *testing.T, user uuid.UUID) string {
	t.Helper()
	role := one[string](t, w.conn, "SELECT coalesce((SELECT role FROM public.org_members WHERE org_id = $1 AND user_id = $2), 'none')", w.org, user)
	orgs, err := person[int](t, w, user, "SELECT count(*)::int FROM public.orgs")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s, sees %d", role, orgs)
}

// offered is what a person is told of the invitations that they may accept.
func (w *world) offered(t *testing.T, user uuid.UUID) string {
	t.Helper()
	got, err := person[string](t, w, user, "SELECT coalesce(string_agg(org_name || ' as ' || role || ' by ' || invited_by, ', ' ORDER BY org_name), '') FROM public.own_invitations()")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// An invitation makes nobody a member, neither a person who has signed in before
// nor one who signs in later; and the organisation sees nothing of them until they
// accept.
func TestAnInvitationAloneMakesNoMember(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	ada := one[uuid.UUID](t, w.conn, signIn, "ada", "Ada", "ada@example.com", true)
	for _, email := range []string{"Ada@Example.com", "grace@example.com"} {
		if err := w.does(t, w.adminID, "SELECT public.invite_member($1, $2, 'operator')", w.org, email); err != nil {
			t.Fatal(err)
		}
	}
	grace := one[uuid.UUID](t, w.conn, signIn, "grace", "Grace", "grace@example.com", true)
	for name, user := range map[string]uuid.UUID{"who had signed in": ada, "who signs in later": grace} {
		if got := w.membership(t, user); got != "none, sees 0" {
			t.Errorf("%s is %s after the invitation, want no member, and to see nothing", name, got)
		}
		if seen, err := person[int](t, w, w.adminID, "SELECT count(*)::int FROM public.people WHERE user_id = $1", user); err != nil || seen != 0 {
			t.Errorf("the admin sees %d names of %s, %v, want none before they accept", seen, name, err)
		}
	}
	// Nor does an admin make somebody a member by their id.
	if err := w.does(t, w.adminID, "SELECT public.set_member($1, $2, 'viewer')", w.org, ada); err == nil {
		t.Error("set_member made a person a member without asking them")
	}
	if got := w.membership(t, ada); got != "none, sees 0" {
		t.Errorf("after set_member, Ada is %s, want no member", got)
	}
}

// The person who is invited is told what they join, as what, and by whom; they
// accept the role that they saw, once, or decline.
func TestInvitationsAreAccepted(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "SELECT tendril.name_person($1, 'Boss', 'boss@example.com', true)", w.adminID)
	ada := one[uuid.UUID](t, w.conn, signIn, "ada", "Ada", "ada@example.com", true)
	eve := one[uuid.UUID](t, w.conn, signIn, "eve", "Eve", "eve@example.com", true)
	mallory := one[uuid.UUID](t, w.conn, signIn, "mallory", "Mallory", "ada@example.com", false) // says so, unverified
	invite := func(email any, role string, user any) uuid.UUID {
		t.Helper()
		id, err := person[uuid.UUID](t, w, w.adminID, "SELECT public.invite_member($1, $2, $3, $4)", w.org, email, role, user)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	const accept, decline = "SELECT public.accept_invitation($1, $2)", "SELECT public.decline_invitation($1)"
	id := invite("ada@example.com", "operator", nil)
	if got := w.offered(t, ada); got != "acme as operator by Boss" {
		t.Errorf("Ada is offered %q, want the organisation, the role and who invites", got)
	}
	for name, other := range map[string]uuid.UUID{"Eve": eve, "Mallory": mallory, "nobody": uuid.New()} {
		if got := w.offered(t, other); got != "" {
			t.Errorf("%s is offered %q, want nothing", name, got)
		}
		wantRefusal(t, w.does(t, other, accept, id, "operator"), "PT404", "invitation_not_found")
		wantRefusal(t, w.does(t, other, decline, id), "PT404", "invitation_not_found")
	}
	wantRefusal(t, w.try(t, "anon", uuid.Nil, func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), accept, id, "operator"); return err }), "42501", "")

	// The admin changes their mind while Ada reads: she has not accepted that.
	invite("ada@example.com", "admin", nil)
	wantRefusal(t, w.does(t, ada, accept, id, "operator"), "PT409", "invitation_changed")
	wantRefusal(t, w.does(t, ada, accept, id, nil), "PT409", "invitation_changed")
	if got := w.membership(t, ada); got != "none, sees 0" {
		t.Fatalf("Ada is %s, want no member yet", got)
	}
	if err := w.does(t, ada, accept, id, "admin"); err != nil {
		t.Fatal(err)
	}
	if got := w.membership(t, ada); got != "admin, sees 1" {
		t.Errorf("Ada is %s, want admin of one", got)
	}
	if got := w.audited(t, ada); !strings.Contains(got, `accept_invitation`) || !strings.Contains(got, `"role": "admin"`) {
		t.Errorf("audited = %s, want who joined, and as what", got)
	}
	wantRefusal(t, w.does(t, ada, accept, id, "admin"), "PT404", "invitation_not_found") // once

	// Declining is told, leaves no member, and can be followed by another invitation.
	id = invite(nil, "viewer", eve)
	if got := w.offered(t, eve); got != "acme as viewer by Boss" {
		t.Errorf("Eve is offered %q, want what she is invited to by her id", got)
	}
	if err := w.does(t, eve, decline, id); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, w.does(t, eve, accept, id, "viewer"), "PT404", "invitation_not_found")
	if got := w.membership(t, eve); got != "none, sees 0" || w.offered(t, eve) != "" {
		t.Errorf("Eve is %s after declining, want no member", got)
	}
	invite(nil, "viewer", eve)
	if w.offered(t, eve) == "" {
		t.Error("Eve is offered nothing after she was invited again")
	}
	// Revoked, or too old: neither is there to accept.
	mustExec(t, w.conn, "UPDATE public.invitations SET expires_at = clock_timestamp() WHERE id = $1", id)
	wantRefusal(t, w.does(t, eve, accept, id, "viewer"), "PT404", "invitation_not_found")
	_, err := person[uuid.UUID](t, w, w.adminID, "SELECT public.invite_member($1, 'eve@example.com', 'viewer', $2)", w.org, eve)
	wantRefusal(t, err, "PT422", "bad_email")

	mustExec(t, w.conn, "UPDATE tendril.settings SET invitation_limit = 2")
	_, err = person[uuid.UUID](t, w, w.adminID, "SELECT public.invite_member($1, 'third@example.com', 'viewer')", w.org)
	wantRefusal(t, err, "PT429", "too_many_invitations")
}
