package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

// role is a person's in the organisation, or "none".
func (w *world) role(t *testing.T, p person.Person) string {
	t.Helper()
	var role string
	if err := w.Conn.QueryRow(t.Context(), "SELECT coalesce((SELECT role FROM public.org_members WHERE org_id = $1 AND user_id = $2), 'none')", w.Org, p.ID).Scan(&role); err != nil {
		t.Fatal(err)
	}
	return role
}

// Admins change, remove and invite; others see who there is, and the database
// refuses them whatever they post.
func TestMembersPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "SELECT tendril.name_person($1, '<b>Ada</b>', 'ada@example.com', true)", w.operator.ID)
	path := "/members/" + w.operator.ID.String()
	for _, p := range []person.Person{w.viewer, w.operator, w.stranger} {
		page := w.get(t, p, "/members")
		if got, want := strings.Contains(page, "&lt;b&gt;Ada&lt;/b&gt;"), p.ID != w.stranger.ID; got != want || strings.Contains(page, "<b>Ada") {
			t.Errorf("%s is shown Ada: %t, want %t, and her name as text", p.Name, got, want)
		}
		if forms := strings.Count(page, `action="/members/`); p.ID != w.stranger.ID && forms != 0 {
			t.Errorf("%s is offered %d forms, want none", p.Name, forms)
		}
		if p.ID == w.stranger.ID {
			continue
		}
		for form, values := range map[string]url.Values{
			path + "/role": {"role": {"admin"}}, path + "/remove": {}, "/members/invite": {"email": {"eve@example.com"}, "role": {"admin"}},
		} {
			if answer, _ := w.ask(t, p, form, values); answer.StatusCode != http.StatusNotFound || w.role(t, w.operator) != "operator" {
				t.Errorf("POST %s as %s = %d, want 404 and no change", form, p.Name, answer.StatusCode)
			}
		}
	}
	post := func(p person.Person, path string, values url.Values, want int) string {
		t.Helper()
		answer, page := w.ask(t, p, path, values)
		if answer.StatusCode != want {
			t.Fatalf("POST %s = %d, want %d: %s", path, answer.StatusCode, want, page)
		}
		return page
	}
	post(w.admin, path+"/role", url.Values{"role": {"viewer"}}, http.StatusSeeOther)
	if got := w.role(t, w.operator); got != "viewer" {
		t.Errorf("role = %s, want viewer", got)
	}
	post(w.admin, "/members/"+w.admin.ID.String()+"/remove", url.Values{}, http.StatusSeeOther) // refused: the last admin
	if got := w.role(t, w.admin); got != "admin" {
		t.Errorf("the last admin's role after leaving = %s, want admin", got)
	}
	post(w.admin, path+"/remove", url.Values{}, http.StatusSeeOther)
	if got := w.role(t, w.operator); got != "none" {
		t.Errorf("role after the removal = %s, want none", got)
	}
	// Ada has signed in before, and is no member until she accepts. She declines, and
	// accepts when she is invited again, in the role that her page showed.
	post(w.admin, "/members/invite", url.Values{"email": {" ADA@example.com"}, "role": {"operator"}}, http.StatusSeeOther)
	if got := w.role(t, w.operator); got != "none" {
		t.Errorf("role after the invitation = %s, want none until she accepts", got)
	}
	if page := w.get(t, w.operator, "/"); !strings.Contains(page, "1 open invitation") {
		t.Errorf("Ada's home: %s, want it to lead to her invitation", page)
	}
	answer := func(what string) string {
		t.Helper()
		page := w.get(t, w.operator, "/invitations")
		if !strings.Contains(page, "acme") || !strings.Contains(page, "Operator") || strings.Contains(w.get(t, w.viewer, "/invitations"), "/accept") {
			t.Fatalf("Ada's invitations: %s, want the organisation and the role, for her alone", page)
		}
		return regexp.MustCompile(`/invitations/[0-9a-f-]+/` + what).FindString(page)
	}
	post(w.operator, answer("decline"), url.Values{}, http.StatusSeeOther)
	if page := w.get(t, w.admin, "/members"); w.role(t, w.operator) != "none" || !strings.Contains(page, "Declined") {
		t.Errorf("the members after Ada has declined: %s, want to be told, and no member", page)
	}
	post(w.admin, "/members/invite", url.Values{"email": {"ada@example.com"}, "role": {"operator"}}, http.StatusSeeOther)
	accept := answer("accept")
	post(w.admin, "/members/invite", url.Values{"email": {"ada@example.com"}, "role": {"viewer"}}, http.StatusSeeOther)
	post(w.operator, accept, url.Values{"role": {"operator"}}, http.StatusSeeOther)
	if got := w.role(t, w.operator); got != "none" {
		t.Errorf("role after accepting what the invitation no longer says = %s, want none", got)
	}
	post(w.operator, accept, url.Values{"role": {"viewer"}}, http.StatusSeeOther)
	if got := w.role(t, w.operator); got != "viewer" {
		t.Errorf("role after accepting = %s, want viewer", got)
	}
	if page := post(w.admin, "/members/invite", url.Values{"email": {"ada@example.com"}, "role": {"admin"}}, http.StatusConflict); !strings.Contains(page, "already a member") {
		t.Errorf("inviting a member: %s, want it to say so", page)
	}
	if page := post(w.admin, "/members/invite", url.Values{"email": {"nobody"}, "role": {"admin"}}, http.StatusUnprocessableEntity); !strings.Contains(page, `value="nobody"`) {
		t.Errorf("inviting what is no address: %s, want what was typed", page)
	}
	post(w.admin, "/members/invite", url.Values{"email": {"grace@example.com"}, "role": {"admin"}}, http.StatusSeeOther)
	revoke := regexp.MustCompile(`/members/invitations/[0-9a-f-]+/revoke`).FindString(w.get(t, w.admin, "/members"))
	post(w.admin, revoke, url.Values{}, http.StatusSeeOther)
	if page := w.get(t, w.admin, "/members"); strings.Contains(page, "grace@example.com") {
		t.Errorf("the members after revoking the invitation: %s, want no Grace", page)
	}
}

// A token is in the answer that makes it and nowhere else; what is one's own can be
// ended, what is another's cannot.
func TestAccountPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer, page := w.ask(t, w.viewer, "/account/tokens", url.Values{"name": {"<i>ci</i>"}, "days": {"30"}})
	token := regexp.MustCompile(`trt_[A-Za-z0-9_-]{43}`).FindString(page)
	if answer.StatusCode != http.StatusOK || token == "" || !strings.Contains(answer.Header.Get("Cache-Control"), "no-store") {
		t.Fatalf("POST /account/tokens = %d, kept by %q: %s, want a token that nothing keeps", answer.StatusCode, answer.Header.Get("Cache-Control"), page)
	}
	page = w.get(t, w.viewer, "/account")
	if strings.Contains(page, token) || !strings.Contains(page, "&lt;i&gt;ci&lt;/i&gt;") {
		t.Errorf("GET /account = %s, want the token's name alone", page)
	}
	revoke := regexp.MustCompile(`/account/credentials/[0-9a-f-]+/revoke`).FindString(page)
	lives := func() (n int) {
		t.Helper()
		if err := w.Conn.QueryRow(t.Context(), "SELECT count(*) FROM tendril.find_person('api_token', sha256(convert_to($1, 'UTF8')))", token).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if w.ask(t, w.admin, revoke, url.Values{}); lives() != 1 {
		t.Error("another person has ended the token")
	}
	if strings.Contains(w.get(t, w.admin, "/account"), revoke) {
		t.Error("GET /account shows another person's token")
	}
	if w.ask(t, w.viewer, revoke, url.Values{}); lives() != 0 {
		t.Error("the token lives on after it was revoked")
	}
	byToken := w.viewer
	byToken.Browser, byToken.Token = false, true
	if answer, page := w.ask(t, byToken, "/account/tokens", url.Values{"name": {"x"}}); answer.StatusCode != http.StatusForbidden || strings.Contains(page, "trt_") {
		t.Errorf("POST /account/tokens by a token = %d, want 403", answer.StatusCode)
	}
	if answer, page := w.ask(t, w.viewer, "/account/tokens", url.Values{"name": {" "}}); answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(page, "1 to 200 characters") {
		t.Errorf("POST /account/tokens without a name = %d, want 422 and why", answer.StatusCode)
	}
	// A token that may do less, by a form that a link has filled in; what is refused is kept.
	if page := w.get(t, w.viewer, "/account?name=assistant&change=propose&may_apply=lab%2F*&days=30"); !strings.Contains(page, `value="assistant"`) || !strings.Contains(page, `value="lab/*"`) || !strings.Contains(page, `value="propose" checked`) || !strings.Contains(page, `value="30" selected`) {
		t.Errorf("the form of a link = %s, want it filled in", page)
	}
	limited := url.Values{"name": {"assistant"}, "change": {"propose"}, "may_apply": {"lab/*, dev/* "}, "runs_per_hour": {"7"}}
	if answer, page := w.ask(t, w.viewer, "/account/tokens", limited); answer.StatusCode != http.StatusOK || !strings.Contains(page, `propose, apply in <code class="break">lab/*</code>, <code class="break">dev/*</code>, destroy nothing, 7 runs an hour`) {
		t.Errorf("POST /account/tokens with powers = %d: %s", answer.StatusCode, page)
	}
	limited.Set("may_apply", strings.Repeat("x", 201))
	if answer, page := w.ask(t, w.viewer, "/account/tokens", limited); answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(page, strings.Repeat("x", 201)) {
		t.Errorf("POST /account/tokens with a long pattern = %d: %s", answer.StatusCode, page)
	}
	if _, page := w.ask(t, w.viewer, "/account/tokens", url.Values{"name": {"reader"}, "change": {"nothing"}, "may_apply": {"*"}}); !strings.Contains(page, `>May read</div>`) {
		t.Errorf("POST /account/tokens that reads: %s", page)
	}
	if _, page := w.ask(t, w.viewer, "/account/tokens", url.Values{"name": {"slow reader"}, "change": {"nothing"}, "calls_per_minute": {"30"}}); !strings.Contains(page, `>May read, 30 calls a minute</div>`) {
		t.Errorf("POST /account/tokens that reads 30 times a minute: %s", page)
	}
	if page := w.get(t, w.viewer, "/account?change=propose&calls_per_minute=30"); !strings.Contains(page, `max="6000" value="30"`) {
		t.Errorf("the form of a link = %s, want its limit filled in", page)
	}
	for form, want := range map[string]string{
		"change=nothing&calls_per_minute=6001": "from 1 to 6000", "change=nothing&calls_per_minute=many": "from 1 to 6000", "change=propose&calls_per_minute=0": "from 1 to 6000",
		"change=propose&runs_per_hour=1e9": "from 1 to 1000", "calls_per_minute=30": "Only a token that reads or proposes",
	} {
		typed, _ := url.ParseQuery("name=limited&" + form)
		if answer, page := w.ask(t, w.viewer, "/account/tokens", typed); answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(page, want) || strings.Contains(page, "trt_") {
			t.Errorf("POST /account/tokens with %s = %d: %s, want %q", form, answer.StatusCode, page, want)
		}
	}
	w.Exec(t, "SELECT tendril.add_credential('session', $1, sha256('a'), NULL, 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36')", w.viewer.ID)
	if page := w.get(t, w.viewer, "/account"); !strings.Contains(page, "Chrome on Linux") {
		t.Errorf("GET /account = %s, want the browser by its name", page)
	}
	if answer, _ := w.ask(t, w.viewer, "/account/signout", url.Values{"tokens": {"1"}}); answer.Header.Get("Location") != "/signin?out" {
		t.Errorf("signing out everywhere leads to %q, want the sign-in", answer.Header.Get("Location"))
	}
	if page := w.get(t, w.viewer, "/account"); strings.Contains(page, "Chrome on Linux") {
		t.Error("a session lives on after signing out everywhere")
	}
}
