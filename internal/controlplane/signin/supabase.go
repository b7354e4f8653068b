package signin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/uuid"
	"golang.org/x/oauth2"
)

// Supabase is a project whose users are this server's.
type Supabase struct {
	URL string // https://PROJECT.supabase.co; "": there is none
	// Key is the project's publishable (anon) key: every browser may have it.
	Key string
	// Provider is how browsers sign in there, such as github; "": not at all.
	Provider string
}

// goTrue is what such a project's users sign in at. A subject there is a user's id,
// as auth.uid() answers it.
type goTrue struct {
	Supabase
	client   *http.Client
	verifier *oidc.IDTokenVerifier
}

func newGoTrue(s Supabase, client *http.Client) *goTrue {
	base := s.URL + "/auth/v1"
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), base+"/.well-known/jwks.json")
	return &goTrue{Supabase: s, client: client,
		verifier: oidc.NewVerifier(base, keys, &oidc.Config{ClientID: "authenticated", SupportedSigningAlgs: algorithms})}
}

func (g *goTrue) name() string { return g.Provider }

// begin: there is neither state nor nonce in this flow. Another browser's code
// does not fit this one's verifier, which does what they would.
func (g *goTrue) begin(_ context.Context, callback string, f flight) (string, error) {
	return g.URL + "/auth/v1/authorize?" + url.Values{
		"provider": {g.Provider}, "redirect_to": {callback}, "code_challenge": {oauth2.S256ChallengeFromVerifier(f.Verifier)}, "code_challenge_method": {"s256"},
	}.Encode(), nil
}

func (g *goTrue) finish(ctx context.Context, _ string, query url.Values, f flight) (claims, error) {
	body, err := json.Marshal(map[string]string{"auth_code": query.Get("code"), "code_verifier": f.Verifier})
	if err != nil {
		return claims{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/auth/v1/token?grant_type=pkce", bytes.NewReader(body)) //nolint:gosec // the project that the server was told
	if err != nil {
		return claims{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("apikey", g.Key)
	response, err := g.client.Do(r) //nolint:gosec // as above
	if err != nil {
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	case response.StatusCode >= 500:
		return claims{}, fmt.Errorf("exchange the code: Supabase answers %s", response.Status)
	case response.StatusCode != http.StatusOK:
		return claims{}, &refusedError{"Supabase does not take its code back (" + response.Status + ")"}
	}
	var token struct {
		User struct {
			ID          string     `json:"id"`
			Email       string     `json:"email"`
			ConfirmedAt *time.Time `json:"email_confirmed_at"`
			Metadata    metadata   `json:"user_metadata"`
		} `json:"user"`
	}
	if err := json.Unmarshal(answer, &token); err != nil {
		return claims{}, errors.New("exchange the code: what Supabase answers cannot be read") // the cause may quote a token
	}
	u := token.User
	return g.claims(u.ID, u.Metadata, u.Email, u.ConfirmedAt != nil, time.Time{})
}

func (g *goTrue) verify(ctx context.Context, jwt string) (claims, error) {
	id, err := g.verifier.Verify(ctx, jwt)
	if err != nil {
		return claims{}, unverified("", err)
	}
	var more struct {
		Email    string   `json:"email"`
		Role     string   `json:"role"`
		Metadata metadata `json:"user_metadata"`
	}
	if err := id.Claims(&more); err != nil {
		return claims{}, &refusedError{"the token's claims cannot be read: " + err.Error()}
	}
	if more.Role != "authenticated" {
		return claims{}, &refusedError{fmt.Sprintf("the token's role is %q, not authenticated", more.Role)}
	}
	// Whether the address is confirmed is not in the token; what says so there the
	// user can change.
	return g.claims(id.Subject, more.Metadata, more.Email, false, id.Expiry)
}

func (g *goTrue) claims(subject string, m metadata, email string, verified bool, expires time.Time) (claims, error) {
	user, err := uuid.Parse(subject)
	if err != nil || user == uuid.Nil {
		return claims{}, &refusedError{"the subject is no user's id"}
	}
	return claims{Issuer: strings.TrimRight(g.URL, "/") + "/auth/v1", Subject: user.String(), User: &user, Name: cmp.Or(m.FullName, m.Name, m.UserName), Email: email, Verified: verified, Expires: expires}, nil
}

// metadata is what a user says of themselves.
type metadata struct {
	FullName string `json:"full_name"`
	Name     string `json:"name"`
	UserName string `json:"user_name"`
}
