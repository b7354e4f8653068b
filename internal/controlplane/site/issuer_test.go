package site_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	clientID     = "trellis"
	clientSecret = "a secret of the client's"
)

// issuer speaks OpenID Connect as issuers do, and as the test wants it wrong.
type issuer struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	keys     []key
	attempts map[string]url.Values // what was asked for, by the code that was given
	exchange func(claims jwt.MapClaims, header map[string]any)
	info     map[string]any
	asked    int // for keys
}

// key is one that it signs with.
type key struct {
	id     string
	method jwt.SigningMethod
	pair   crypto.Signer
}

func newKey(t *testing.T, id string, method jwt.SigningMethod) key {
	t.Helper()
	var pair crypto.Signer
	var err error
	if method == jwt.SigningMethodES256 {
		pair, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		pair, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key{id, method, pair}
}

// jwk is the key's public half as RFC 7517 has it.
func (k key) jwk() map[string]any {
	encode := base64.RawURLEncoding.EncodeToString
	jwk := map[string]any{"kid": k.id, "alg": k.method.Alg(), "use": "sig"}
	switch public := k.pair.Public().(type) {
	case *rsa.PublicKey:
		jwk["kty"], jwk["n"], jwk["e"] = "RSA", encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
	case *ecdsa.PublicKey:
		point, _ := public.Bytes() // of a curve that has them
		jwk["kty"], jwk["crv"], jwk["x"], jwk["y"] = "EC", "P-256", encode(point[1:33]), encode(point[33:])
	}
	return jwk
}

// sign makes a JWT; header, where it is not nil, has the last word.
func (k key) sign(t *testing.T, claims jwt.MapClaims, header func(map[string]any)) string {
	t.Helper()
	token := jwt.NewWithClaims(k.method, claims)
	token.Header["kid"] = k.id
	if header != nil {
		header(token.Header)
	}
	signed, err := token.SignedString(k.pair)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func newIssuer(t *testing.T, keys ...key) *issuer {
	t.Helper()
	i := &issuer{t: t, keys: keys, attempts: map[string]url.Values{}}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{
			"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token", "jwks_uri": i.URL + "/keys",
			"userinfo_endpoint":                     i.URL + "/userinfo",
			"id_token_signing_alg_values_supported": []string{"RS256", "ES256", "HS256", "none"}, // it may say so: we decide
		})
	})
	keySet := func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		set := []any{}
		for _, k := range i.keys {
			set = append(set, k.jwk())
		}
		answer(w, http.StatusOK, map[string]any{"keys": set})
	}
	mux.HandleFunc("GET /keys", keySet)
	mux.HandleFunc("GET /auth/v1/.well-known/jwks.json", keySet)
	// Whoever comes is signed in, and sent back with a code.
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		code, asked := rand.Text(), r.URL.Query()
		i.mu.Lock()
		i.attempts[code] = asked
		i.mu.Unlock()
		http.Redirect(w, r, asked.Get("redirect_uri")+"?"+url.Values{"code": {code}, "state": {asked.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		asked, ok := i.attempts[r.PostFormValue("code")]
		delete(i.attempts, r.PostFormValue("code"))
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		id, secret, _ := r.BasicAuth()
		switch {
		case id != clientID || secret != url.QueryEscape(clientSecret):
			answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		case !ok || asked.Get("code_challenge_method") != "S256" || asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]) ||
			asked.Get("redirect_uri") != r.PostFormValue("redirect_uri"):
			answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		default:
			claims := i.claims()
			claims["nonce"] = asked.Get("nonce")
			header := map[string]any{}
			if i.exchange != nil {
				i.exchange(claims, header)
			}
			answer(w, http.StatusOK, map[string]any{"access_token": "an access token", "token_type": "Bearer", "expires_in": 60,
				"id_token": i.keys[0].sign(t, claims, func(h map[string]any) {
					for name, value := range header {
						h[name] = value
					}
				})})
		}
	})
	mux.HandleFunc("GET /userinfo", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer an access token" {
			answer(w, http.StatusUnauthorized, map[string]any{})
			return
		}
		answer(w, http.StatusOK, i.info)
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

// claims are those of a token that counts.
func (i *issuer) claims() jwt.MapClaims {
	now := time.Now()
	return jwt.MapClaims{"iss": i.URL, "sub": "ada|1815", "aud": clientID, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"name": "Ada Lovelace", "email": "ada@example.com", "email_verified": true}
}

// spoil has the issuer answer otherwise from now on.
func (i *issuer) spoil(with func(claims jwt.MapClaims, header map[string]any)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exchange = with
}
