// Package apptest is GitHub's API, as far as an App asks it for installation
// tokens, in the format of GitHub's documentation. For tests only.
package apptest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The one App and its one installation.
const (
	AppID        = "Iv23liTestApp"
	Installation = "4711"
)

// API answers POST /app/installations/4711/access_tokens.
type API struct {
	// URL is the API's base.
	URL string
	// CAFile is its certificate in PEM.
	CAFile string
	// KeyFile is the App's private key.
	KeyFile string
	// Key is what is in KeyFile.
	Key string

	http   *httptest.Server
	public *rsa.PublicKey
	now    func() time.Time

	mu     sync.Mutex
	tokens []string
	asked  int
	answer *answer
}

type answer struct {
	status int
	body   string
}

// New starts an API that ends with the test. Its clock is now, nil for the
// machine's.
func New(t testing.TB, now func() time.Time) *API {
	t.Helper()
	if now == nil {
		now = time.Now
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	a := &API{public: &key.PublicKey, now: now}
	a.Key = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	a.http = httptest.NewTLSServer(a)
	a.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.URL = a.http.URL
	t.Cleanup(a.http.Close)
	dir := t.TempDir()
	a.KeyFile, a.CAFile = filepath.Join(dir, "app.pem"), filepath.Join(dir, "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.http.Certificate().Raw})
	for path, text := range map[string]string{a.KeyFile: a.Key, a.CAFile: string(certificate)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// Transport trusts the API.
func (a *API) Transport() http.RoundTripper { return a.http.Client().Transport }

// Close stops the API before the test ends.
func (a *API) Close() { a.http.Close() }

// Tokens are those given out, oldest first.
func (a *API) Tokens() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, a.tokens...)
}

// Asked counts the requests.
func (a *API) Asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// Answer has every request answered so; status 0 ends that.
func (a *API) Answer(status int, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answer = nil; status != 0 {
		a.answer = &answer{status, body}
	}
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	say := func(status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	if a.answer != nil {
		if strings.HasPrefix(a.answer.body, "https://") {
			w.Header().Set("Location", a.answer.body)
		}
		say(a.answer.status, a.answer.body)
		return
	}
	statement, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		say(http.StatusUnauthorized, `{"message":"A JSON web token could not be decoded","documentation_url":"https://docs.github.com/rest","status":"401"}`)
		return
	}
	var claims jwt.RegisteredClaims
	_, err := jwt.ParseWithClaims(statement, &claims, func(*jwt.Token) (any, error) { return a.public, nil },
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuedAt(), jwt.WithExpirationRequired(), jwt.WithTimeFunc(a.now))
	switch {
	case err != nil:
		say(http.StatusUnauthorized, `{"message":"A JSON web token could not be decoded","documentation_url":"https://docs.github.com/rest","status":"401"}`)
		return
	case claims.ExpiresAt.Sub(a.now()) > 10*time.Minute:
		say(http.StatusUnauthorized, `{"message":"'Expiration time' claim ('exp') is too far in the future","documentation_url":"https://docs.github.com/rest","status":"401"}`)
		return
	case claims.Issuer != AppID:
		say(http.StatusNotFound, `{"message":"Integration not found","documentation_url":"https://docs.github.com/rest","status":"404"}`)
		return
	case r.Method != http.MethodPost || r.URL.Path != "/app/installations/"+Installation+"/access_tokens":
		say(http.StatusNotFound, `{"message":"Not Found","documentation_url":"https://docs.github.com/rest","status":"404"}`)
		return
	}
	var asked struct {
		Permissions map[string]string `json:"permissions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Permissions) != 1 || asked.Permissions["contents"] != "read" {
		say(http.StatusUnprocessableEntity, `{"message":"The permissions requested are not granted to this installation.","documentation_url":"https://docs.github.com/rest","status":"422"}`)
		return
	}
	token := fmt.Sprintf("ghs_%036d", len(a.tokens)+1)
	a.tokens = append(a.tokens, token)
	say(http.StatusCreated, fmt.Sprintf(`{"token":%q,"expires_at":%q,"permissions":{"contents":"read","metadata":"read"},"repository_selection":"selected"}`,
		token, a.now().Add(time.Hour).UTC().Format(time.RFC3339)))
}
