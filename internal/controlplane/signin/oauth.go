package signin

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/printable"
)

// Clients of language models find the sign-in by themselves: OAuth 2.1 with PKCE, for clients that
// keep no secret. What a client registers is in its id, so nothing is stored for one that never
// comes back. A token is for one resource alone (RFC 8707), and its powers are those that the
// person has chosen on the page.

const (
	// authorizationServer is where clients look for the endpoints (RFC 8414).
	authorizationServer = "/.well-known/oauth-authorization-server"
	// grantLasts is how long a client's token lasts.
	grantLasts = 30 * 24 * time.Hour
	// clientPrefix is how a client's id begins.
	clientPrefix = "trc_"
	// maxClient, maxClientName and maxRedirects bound what a client registers: bytes of its id,
	// characters of its name, addresses.
	maxClient     = 2 << 10
	maxClientName = 100
	maxRedirects  = 5
	// maxState is how many bytes of its own a client gets back.
	maxState = 1 << 10
)

// appSchemes are those of programs that register one for themselves with the operating system.
var appSchemes = []string{"cursor", "vscode", "vscode-insiders", "windsurf", "claude"}

func (s *SignIn) oauth() {
	s.mux.HandleFunc("GET "+authorizationServer, s.authorizationServer)
	s.mux.HandleFunc("POST /oauth/register", s.register)
	s.mux.HandleFunc("GET /oauth/authorize", s.authorize)
	s.mux.HandleFunc("POST /oauth/authorize", s.answerClient)
	s.mux.HandleFunc("POST /oauth/token", s.token)
}

// authorizationServer says where everything is, as RFC 8414 has it.
func (s *SignIn) authorizationServer(w http.ResponseWriter, r *http.Request) {
	base := s.Base(r)
	writeJSON(w, http.StatusOK, map[string]any{
		"issuer": base, "authorization_endpoint": base + "/oauth/authorize", "token_endpoint": base + "/oauth/token", "registration_endpoint": base + "/oauth/register",
		"response_types_supported": []string{"code"}, "grant_types_supported": []string{"authorization_code"}, "code_challenge_methods_supported": []string{"S256"},
		"token_endpoint_auth_methods_supported": []string{"none"}, "authorization_response_iss_parameter_supported": true, "scopes_supported": []string{"tendril"},
	})
}

// resource is what tokens are for.
func (s *SignIn) resource(r *http.Request) string { return s.Base(r) + "/mcp" }

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}

// oauthError is an error as RFC 6749 has it.
func oauthError(w http.ResponseWriter, status int, code, description string) {
	writeJSON(w, status, map[string]string{"error": code, "error_description": description})
}

// oauthClient is what a client says of itself. Nobody has checked it.
type oauthClient struct {
	Name      string   `json:"n"`
	Redirects []string `json:"r"`
}

// id holds the whole client: a program that sends one has registered it, and nothing is stored.
func (c oauthClient) id() string {
	data, _ := json.Marshal(c) // never fails
	return clientPrefix + base64.RawURLEncoding.EncodeToString(data)
}

// readClient reads a client's id.
func readClient(id string) (c oauthClient, err error) {
	text, ok := strings.CutPrefix(id, clientPrefix)
	data, err := base64.RawURLEncoding.DecodeString(text)
	if !ok || err != nil || len(id) > maxClient || json.Unmarshal(data, &c) != nil {
		return c, fmt.Errorf("client_id: is none of this server's; register the client again")
	}
	return c, c.check()
}

// check says what is wrong with a client.
func (c oauthClient) check() error {
	switch {
	case strings.TrimSpace(c.Name) == "" || utf8.RuneCountInString(c.Name) > maxClientName || printable.Text(c.Name) != c.Name || strings.ContainsAny(c.Name, "\r\n"):
		return fmt.Errorf("client_name: must be a line of 1 to %d characters", maxClientName)
	case len(c.Redirects) == 0 || len(c.Redirects) > maxRedirects:
		return fmt.Errorf("redirect_uris: must be 1 to %d addresses", maxRedirects)
	}
	for _, to := range c.Redirects {
		if err := checkRedirect(to); err != nil {
			return err
		}
	}
	return nil
}

// checkRedirect says why a code is not sent to an address (RFC 9700, 2.1).
func checkRedirect(to string) error {
	u, err := url.Parse(to)
	if err != nil || u.Fragment != "" || u.User != nil || u.Opaque != "" || strings.ContainsAny(to, "\\\t\r\n *") {
		return fmt.Errorf("redirect_uris: %q is no address that a code can be sent to", to)
	}
	switch {
	case u.Scheme == "https" && u.Hostname() != "", u.Scheme == "http" && isLoopback(u.Hostname()), slices.Contains(appSchemes, u.Scheme):
		return nil
	}
	return fmt.Errorf("redirect_uris: %q must begin with https://, or with http:// on this machine, or with one of %s", to, strings.Join(appSchemes, ", "))
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// has reports whether a client has registered an address. The port of a loopback address may be
// another one (RFC 8252, 7.3).
func (c oauthClient) has(to string) bool {
	return checkRedirect(to) == nil && slices.ContainsFunc(c.Redirects, func(registered string) bool {
		return registered == to || withoutPort(registered) == withoutPort(to)
	})
}

// withoutPort is a loopback address without its port; others are as they are.
func withoutPort(to string) string {
	if u, err := url.Parse(to); err == nil && u.Scheme == "http" && isLoopback(u.Hostname()) {
		u.Host = u.Hostname()
		return u.String()
	}
	return to
}

// register answers a client with an id (RFC 7591).
func (s *SignIn) register(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	var in struct {
		Name      string   `json:"client_name"`
		Redirects []string `json:"redirect_uris"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<10)).Decode(&in); err != nil {
		oauthError(w, http.StatusBadRequest, "invalid_client_metadata", "the body must be a JSON object of at most 8 KiB with client_name and redirect_uris")
		return
	}
	c := oauthClient{strings.TrimSpace(in.Name), in.Redirects}
	if c.Name == "" {
		c.Name = "a client without a name"
	}
	if err := c.check(); err != nil {
		code := "invalid_client_metadata"
		if strings.HasPrefix(err.Error(), "redirect_uris") {
			code = "invalid_redirect_uri"
		}
		oauthError(w, http.StatusBadRequest, code, err.Error())
		return
	}
	id := c.id()
	if len(id) > maxClient {
		oauthError(w, http.StatusBadRequest, "invalid_redirect_uri", fmt.Sprintf("redirect_uris: are longer than %d bytes together", maxClient))
		return
	}
	writeJSON(w, http.StatusCreated, map[string]any{
		"client_id": id, "client_id_issued_at": time.Now().Unix(), "client_name": c.Name, "redirect_uris": c.Redirects,
		"token_endpoint_auth_method": "none", "grant_types": []string{"authorization_code"}, "response_types": []string{"code"},
	})
}

// clientRequest is what a client asks of a browser.
type clientRequest struct {
	Client      oauthClient
	ID          string
	Redirect    string
	State       string
	Challenge   string
	Resource    string
	RedirectsTo string // for people: the host, or the program's scheme
}

// Values are the request as a form or an address has it.
func (c clientRequest) Values() url.Values {
	return url.Values{"response_type": {"code"}, "client_id": {c.ID}, "redirect_uri": {c.Redirect}, "state": {c.State}, "code_challenge": {c.Challenge}, "code_challenge_method": {"S256"}, "resource": {c.Resource}}
}

// back is where the browser is sent with an answer.
func (c clientRequest) back(issuer string, answer url.Values) string {
	u, _ := url.Parse(c.Redirect) // was checked
	q := u.Query()
	for key, value := range answer {
		q[key] = value
	}
	if c.State != "" {
		q.Set("state", c.State)
	}
	q.Set("iss", issuer)
	u.RawQuery = q.Encode()
	return u.String()
}

// readClientRequest reads what a client asks. An error says that the browser must stay here: it is
// not known where it may be sent. What is wrong otherwise is told the client, by its code.
func (s *SignIn) readClientRequest(r *http.Request, v url.Values) (c clientRequest, wrong, why string, err error) {
	c = clientRequest{ID: v.Get("client_id"), Redirect: v.Get("redirect_uri"), State: v.Get("state"), Challenge: v.Get("code_challenge"), Resource: v.Get("resource")}
	if c.Client, err = readClient(c.ID); err != nil {
		return c, "", "", err
	}
	if c.Redirect == "" && len(c.Client.Redirects) == 1 {
		c.Redirect = c.Client.Redirects[0]
	}
	if !c.Client.has(c.Redirect) {
		return c, "", "", fmt.Errorf("redirect_uri: %q is none that the client has registered", c.Redirect)
	}
	u, _ := url.Parse(c.Redirect) // was checked
	c.RedirectsTo = u.Host
	if u.Scheme != "https" && u.Scheme != "http" {
		c.RedirectsTo = "the program that opens " + u.Scheme + ": addresses"
	}
	if c.Resource == "" {
		c.Resource = s.resource(r)
	}
	switch {
	case len(c.State) > maxState:
		c.State = ""
		return c, "invalid_request", fmt.Sprintf("state: is longer than %d bytes", maxState), nil
	case v.Get("response_type") != "code":
		return c, "unsupported_response_type", "response_type: must be code", nil
	case v.Get("code_challenge_method") != "S256" || !challengePattern.MatchString(c.Challenge):
		return c, "invalid_request", "code_challenge: the SHA-256 of a verifier in base64url is needed, with code_challenge_method S256", nil
	case strings.TrimSuffix(c.Resource, "/") != s.resource(r):
		return c, "invalid_target", "resource: must be " + s.resource(r), nil
	}
	c.Resource = s.resource(r)
	return c, "", "", nil
}

// clientFor reads a client's request and who is asked: somebody at a browser.
func (s *SignIn) clientFor(w http.ResponseWriter, r *http.Request, v url.Values) (c clientRequest, p person.Person, ok bool) {
	c, wrong, why, err := s.readClientRequest(r, v)
	if err != nil {
		s.show(w, http.StatusBadRequest, "note", note{"Sign in a program", "This is not what a program may ask: " + err.Error() + ".", "Begin again in the program."})
		return c, p, false
	}
	if u, _ := url.Parse(c.Redirect); wrong != "" && (u == nil || !isLoopback(u.Hostname())) {
		// An attacker can write any client id. A redirect here would be an open one, so show the error.
		s.show(w, http.StatusBadRequest, "note", note{"Sign in a program", "This is not what a program may ask: " + why + ".", "Begin again in the program."})
		return c, p, false
	} else if wrong != "" {
		http.Redirect(w, r, c.back(s.Base(r), url.Values{"error": {wrong}, "error_description": {why}}), http.StatusSeeOther) //nolint:gosec // an address that readClientRequest has checked
		return c, p, false
	}
	p, ok = person.From(r.Context())
	if !ok || !p.Browser {
		http.Redirect(w, r, "/signin?to="+url.QueryEscape("/oauth/authorize?"+c.Values().Encode()), http.StatusSeeOther)
		return c, p, false
	}
	return c, p, true
}

// authorize asks a person whether a client may act for them, and how far.
func (s *SignIn) authorize(w http.ResponseWriter, r *http.Request) {
	c, p, ok := s.clientFor(w, r, r.URL.Query())
	if !ok {
		return
	}
	// The answer to the form leads there, which browsers count as its action.
	u, _ := url.Parse(c.Redirect) // was checked
	source := u.Scheme + ":"
	if u.Scheme == "https" || u.Scheme == "http" {
		source = u.Scheme + "://" + u.Host
	}
	h := w.Header()
	h.Set("Content-Security-Policy", strings.Replace(h.Get("Content-Security-Policy"), "form-action 'self'", "form-action 'self' "+source, 1))
	s.show(w, http.StatusOK, "oauth", map[string]any{"Title": "Sign in a program", "Request": c, "Person": p, "Days": int(grantLasts.Hours() / 24)})
}

func (s *SignIn) answerClient(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return
	}
	c, p, ok := s.clientFor(w, r, r.PostForm)
	if !ok {
		return
	}
	if r.PostForm.Get("answer") != "yes" {
		// Nobody is led where the asker chose.
		s.show(w, http.StatusOK, "note", note{"Sign in a program", "Nothing was allowed.", "You can close this page, and end the sign-in in the program."})
		return
	}
	powers := &person.Powers{Change: "propose"}
	if r.PostForm.Get("change") != "propose" {
		powers.Change = "nothing"
	}
	code := newSecret()
	if err := s.records.addGrant(r.Context(), p.ID, digest(code), c.Challenge, c.Client.Name, grant{powers, c.Resource, clientDigest(c.ID, c.Redirect)}); err != nil {
		s.fail(w, r, "let a client in", err)
		return
	}
	http.Redirect(w, r, c.back(s.Base(r), url.Values{"code": {code}}), http.StatusSeeOther) //nolint:gosec // an address that readClientRequest has checked
}

// clientDigest names a client and where its code was sent.
func clientDigest(id, redirect string) string {
	sum := sha256.Sum256([]byte(id + "\n" + redirect))
	return hex.EncodeToString(sum[:])
}

// token gives a client that shows a code, and the verifier of its challenge, a token. A code counts
// once, whatever is shown with it.
func (s *SignIn) token(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		oauthError(w, http.StatusBadRequest, "invalid_request", "the body must be a form")
		return
	}
	form := r.PostForm
	if form.Get("grant_type") != "authorization_code" {
		oauthError(w, http.StatusBadRequest, "unsupported_grant_type", "grant_type: must be authorization_code")
		return
	}
	id, redirect, verifier := form.Get("client_id"), form.Get("redirect_uri"), form.Get("code_verifier")
	c, err := readClient(id)
	if err != nil {
		oauthError(w, http.StatusUnauthorized, "invalid_client", err.Error())
		return
	}
	if redirect == "" && len(c.Redirects) == 1 {
		redirect = c.Redirects[0]
	}
	if !verifierPattern.MatchString(verifier) {
		verifier = "" // nobody's; the code is used up all the same
	}
	if resource := form.Get("resource"); resource != "" && strings.TrimSuffix(resource, "/") != s.resource(r) {
		oauthError(w, http.StatusBadRequest, "invalid_target", "resource: must be "+s.resource(r))
		return
	}
	made, ok, err := s.records.redeemGrant(r.Context(), digest(form.Get("code")), verifier, clientDigest(id, redirect))
	switch {
	case err != nil && r.Context().Err() == nil:
		s.Log.Error("somebody could not sign a program in", "error", err)
		w.Header().Set("Retry-After", "2")
		oauthError(w, http.StatusServiceUnavailable, "temporarily_unavailable", "the database does not answer; try again")
	case err != nil:
	case !ok:
		oauthError(w, http.StatusBadRequest, "invalid_grant", "the code has been used, is too old, or is not this client's; begin again")
	default:
		writeJSON(w, http.StatusOK, map[string]any{"access_token": made, "token_type": "Bearer", "expires_in": int(grantLasts.Seconds()), "scope": "tendril"})
	}
}
