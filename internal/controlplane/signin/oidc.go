package signin

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// OIDC is an issuer that speaks OpenID Connect.
type OIDC struct {
	// Issuer is its URL, as its tokens have it; "": there is none.
	Issuer string
	// ClientID and ClientSecret are this server's there. Without a secret it is a
	// public client: PKCE protects its codes.
	ClientID, ClientSecret string
	// Audience is whom JWTs that programs send must be meant for; "": ClientID.
	Audience string
}

// openID is such an issuer. What it says of itself is asked for when it is needed
// first: it may be away when this server starts.
type openID struct {
	OIDC
	client *http.Client

	asking singleflight.Group

	mu       sync.Mutex
	provider *oidc.Provider
	failed   error // the last time it was asked, until retry
	retry    time.Time
}

// askAgain is how long an issuer that has not answered is not asked again: whoever
// comes meanwhile learns at once that it is away.
const askAgain = 2 * time.Second

func (o *openID) name() string {
	if u, err := url.Parse(o.Issuer); err == nil {
		return u.Host
	}
	return o.Issuer
}

// discovered returns what the issuer says of itself. It is asked once for all who
// wait, and nobody waits longer than they like.
func (o *openID) discovered(ctx context.Context) (*oidc.Provider, error) {
	if provider, err := o.known(); provider != nil || err != nil {
		return provider, err
	}
	asked := o.asking.DoChan("", func() (any, error) {
		// The keys are fetched by this context's client later on, whenever one is not known.
		provider, err := oidc.NewProvider(oidc.ClientContext(context.Background(), o.client), o.Issuer)
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil {
			o.failed, o.retry = fmt.Errorf("ask the issuer %s about itself: %s", o.Issuer, short(err.Error())), time.Now().Add(askAgain)
			return (*oidc.Provider)(nil), o.failed
		}
		o.provider = provider
		return provider, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-asked:
		provider, _ := answer.Val.(*oidc.Provider)
		return provider, answer.Err
	}
}

// known is what the issuer has said, or that it is away; neither where it is to be
// asked.
func (o *openID) known() (*oidc.Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.provider == nil && time.Now().Before(o.retry) {
		return nil, o.failed
	}
	return o.provider, nil
}

func (o *openID) oauth(provider *oidc.Provider, callback string) *oauth2.Config {
	endpoint := provider.Endpoint()
	if o.ClientSecret == "" {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{ClientID: o.ClientID, ClientSecret: o.ClientSecret, Endpoint: endpoint, RedirectURL: callback,
		Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}
}

func (o *openID) begin(ctx context.Context, callback string, f flight) (string, error) {
	provider, err := o.discovered(ctx)
	if err != nil {
		return "", err
	}
	return o.oauth(provider, callback).AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
}

func (o *openID) finish(ctx context.Context, callback string, query url.Values, f flight) (claims, error) {
	if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(f.State)) != 1 {
		return claims{}, &refusedError{"this answer belongs to another attempt to sign in"}
	}
	if iss := query.Get("iss"); iss != "" && iss != o.Issuer { // RFC 9207
		return claims{}, &refusedError{"this answer is another issuer's"}
	}
	provider, err := o.discovered(ctx)
	if err != nil {
		return claims{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	oauth := o.oauth(provider, callback)
	token, err := oauth.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(f.Verifier))
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response.StatusCode < 500 {
		return claims{}, &refusedError{fmt.Sprintf("the issuer does not take its code back (%s)", cmp.Or(refused.ErrorCode, refused.Response.Status))}
	}
	if err != nil {
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: o.ClientID, SupportedSigningAlgs: algorithms}).Verify(ctx, raw)
	if err != nil {
		return claims{}, unverified("the issuer's answer does not count: ", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return claims{}, &refusedError{"the issuer's answer belongs to another attempt to sign in (nonce)"}
	}
	c, err := o.read(id)
	if err == nil && c.Email == "" && provider.UserInfoEndpoint() != "" {
		// Some issuers say no more than who in the token.
		if info, err := provider.UserInfo(ctx, oauth.TokenSource(ctx, token)); err == nil && info.Subject == c.Subject {
			var more said
			if info.Claims(&more) == nil {
				c.Email, c.Verified, c.Name = more.Email, bool(more.Verified), cmp.Or(c.Name, more.name())
			}
		}
	}
	return c, err
}

func (o *openID) verify(ctx context.Context, jwt string) (claims, error) {
	provider, err := o.discovered(ctx)
	if err != nil {
		return claims{}, err
	}
	id, err := provider.Verifier(&oidc.Config{ClientID: cmp.Or(o.Audience, o.ClientID), SupportedSigningAlgs: algorithms}).Verify(ctx, jwt)
	if err != nil {
		return claims{}, unverified("", err)
	}
	return o.read(id)
}

func (o *openID) read(id *oidc.IDToken) (claims, error) {
	var more said
	if err := id.Claims(&more); err != nil {
		return claims{}, &refusedError{"the token's claims cannot be read: " + err.Error()}
	}
	if id.Subject == "" || len(id.Subject) > 255 || id.Subject != storable(id.Subject) {
		return claims{}, &refusedError{"the token has no subject that could be kept"}
	}
	return claims{Issuer: o.Issuer, Subject: id.Subject, Name: more.name(), Email: more.Email, Verified: bool(more.Verified), Expires: id.Expiry}, nil
}

// said are the claims that name a person.
type said struct {
	Name     string `json:"name"`
	Login    string `json:"preferred_username"`
	Email    string `json:"email"`
	Verified truth  `json:"email_verified"`
}

func (s said) name() string { return cmp.Or(s.Name, s.Login) }

// truth is a boolean that some issuers write as a text.
type truth bool

// UnmarshalJSON implements json.Unmarshaler.
func (t *truth) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	*t = value == true || value == "true"
	return nil
}
