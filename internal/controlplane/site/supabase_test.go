package site_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
)

// newGoTrue is what a project's users sign in at, in its wire format: a code for
// whoever comes, and for it and its verifier what user says.
func newGoTrue(t *testing.T, user func() map[string]any) *httptest.Server {
	t.Helper()
	challenges := map[string]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /auth/v1/authorize", func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.Query()
		if asked.Get("provider") != "github" || asked.Get("code_challenge_method") != "s256" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		code := uuid.NewString()
		challenges[code] = asked.Get("code_challenge")
		http.Redirect(w, r, asked.Get("redirect_to")+"?code="+code, http.StatusFound)
	})
	mux.HandleFunc("POST /auth/v1/token", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Code     string `json:"auth_code"`
			Verifier string `json:"code_verifier"`
		}
		err := json.NewDecoder(r.Body).Decode(&in)
		sum := sha256.Sum256([]byte(in.Verifier))
		challenge, ok := challenges[in.Code]
		delete(challenges, in.Code)
		w.Header().Set("Content-Type", "application/json")
		if err != nil || !ok || r.URL.Query().Get("grant_type") != "pkce" || r.Header.Get("apikey") != "sb_publishable_x" || challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"code": 400, "error_code": "bad_code_verifier", "msg": "code challenge does not match previously saved code verifier"}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "x", "token_type": "bearer", "expires_in": 3600, "refresh_token": "x", "user": user()})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// A user of the project is the person of that id.
func TestSignInAtSupabase(t *testing.T) {
	t.Parallel()
	user := map[string]any{"id": uuid.NewString(), "aud": "authenticated", "email": "ada@example.com", "email_confirmed_at": time.Now(), "user_metadata": map[string]any{"full_name": "Ada Lovelace"}}
	project := newGoTrue(t, func() map[string]any { return maps.Clone(user) })
	w := newWorld(t, func(o *site.Options) {
		o.Supabase = signin.Supabase{URL: project.URL, Key: "sb_publishable_x", Provider: "github"}
	})
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, user["id"])
	client := browser(t)
	if status, to := w.comeBack(t, client, w.toIssuer(t, client, "/x")); status != http.StatusSeeOther || to != "/x" {
		t.Fatalf("coming back = %d to %q, want 303 to /x", status, to)
	}
	if status, body := w.whoami(t, client); status != http.StatusOK || !strings.Contains(body, user["id"].(string)) || !strings.Contains(body, "Ada Lovelace") || !strings.Contains(body, `"role":"viewer"`) {
		t.Errorf("GET /api/v1/me = %d %s, want Ada, a viewer", status, body)
	}
	other := browser(t)
	w.toIssuer(t, other, "/")
	if status, _ := w.comeBack(t, other, w.toIssuer(t, browser(t), "/")); status != http.StatusForbidden {
		t.Errorf("coming back with another browser's code = %d, want 403", status)
	}
	if status, _ := w.comeBack(t, browser(t), &url.URL{Path: "/signin/callback", RawQuery: "code=x"}); status != http.StatusForbidden {
		t.Errorf("coming back without having asked = %d, want 403", status)
	}
}

// The JWTs of the project's users count for programs as well; those of its keys,
// and what names no user, do not.
func TestSupabaseJWTs(t *testing.T) {
	t.Parallel()
	k := newKey(t, "only", jwt.SigningMethodES256)
	project := newIssuer(t, k)
	w := newWorld(t, func(o *site.Options) { o.Supabase = signin.Supabase{URL: project.URL, Key: "x"} })
	user := w.member(t, "viewer").String()
	w.Exec(t, "SELECT public.invite_member($1, 'eve@example.com', 'admin')", w.Org)
	claims := func(name string, value any) string {
		return k.sign(t, jwt.MapClaims{"iss": project.URL + "/auth/v1", "sub": user, "aud": "authenticated", "role": "authenticated", "exp": time.Now().Add(time.Hour).Unix(),
			"email": "eve@example.com", "user_metadata": map[string]any{"email_verified": true}, name: value}, nil)
	}
	if status, body := w.whoami(t, browser(t), "Authorization", "Bearer "+claims("aal", "aal1")); status != http.StatusOK || !strings.Contains(body, user) {
		t.Errorf("a user's JWT: %d %s, want 200", status, body)
	}
	for name, value := range map[string]any{"iss": project.URL, "aud": "anon", "role": "service_role", "sub": "ada", "exp": 1} {
		if status, _ := w.whoami(t, browser(t), "Authorization", "Bearer "+claims(name, value)); status != http.StatusUnauthorized {
			t.Errorf("a JWT whose %s is %v: %d, want 401", name, value, status)
		}
	}
	// Users write their metadata themselves: it verifies no address.
	stranger := uuid.NewString()
	if _, body := w.whoami(t, browser(t), "Authorization", "Bearer "+claims("sub", stranger)); !strings.Contains(body, stranger) || !strings.Contains(body, `"orgs":[]`) {
		t.Errorf("who says that an invited address is theirs: %s, want no organisation", body)
	}
	if _, body := w.ask(t, browser(t), http.MethodGet, "/api/v1/me/invitations", nil, "Authorization", "Bearer "+claims("sub", stranger)); !strings.Contains(body, `"items":[]`) {
		t.Errorf("who says that an invited address is theirs is offered %s, want no invitation", body)
	}
	if response, _ := w.ask(t, browser(t), http.MethodGet, "/signin/start", nil); response.StatusCode != http.StatusNotFound {
		t.Errorf("GET /signin/start without a provider = %d, want 404", response.StatusCode)
	}
}
