package signin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// tokenLasts is how long a CLI stays signed in.
const tokenLasts = 90 * 24 * time.Hour

// cliRequest is what a CLI that listens on a loopback port asks of a browser: a
// code, which only the CLI that made the challenge can use (RFC 8252, RFC 7636).
type cliRequest struct {
	Port             int
	State, Challenge string
	Host             string // where it says that it runs, for people
}

var (
	challengePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)       // S256
	verifierPattern  = regexp.MustCompile(`^[A-Za-z0-9._~-]{43,128}$`) // RFC 7636
	statePattern     = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,128}$`)
	hostPattern      = regexp.MustCompile(`^[A-Za-z0-9._ -]{1,100}$`)
)

func readCLIRequest(values url.Values) (cliRequest, error) {
	port, err := strconv.Atoi(values.Get("port"))
	c := cliRequest{Port: port, State: values.Get("state"), Challenge: values.Get("challenge"), Host: values.Get("host")}
	switch {
	case err != nil || port < 1024 || port > 65535:
		return c, fmt.Errorf("port: a number from 1024 to 65535 is needed")
	case !challengePattern.MatchString(c.Challenge):
		return c, fmt.Errorf("challenge: the SHA-256 of a verifier in base64url is needed")
	case !statePattern.MatchString(c.State):
		return c, fmt.Errorf("state: from 1 to 128 letters, digits and . _ ~ - are needed")
	case c.Host != "" && !hostPattern.MatchString(c.Host):
		return c, fmt.Errorf("host: up to 100 letters, digits, blanks and . _ - are allowed")
	}
	return c, nil
}

// callback is where the CLI listens. It is always this machine's own loopback, so
// a code goes nowhere else.
func (c cliRequest) callback(key, value string) string {
	return fmt.Sprintf("http://127.0.0.1:%d/callback?%s", c.Port, url.Values{key: {value}, "state": {c.State}}.Encode())
}

// authorizeCLI asks a person whether a CLI may act for them.
func (s *SignIn) authorizeCLI(w http.ResponseWriter, r *http.Request) {
	c, p, ok := s.cliFor(w, r, r.URL.Query())
	if !ok {
		return
	}
	// The answer to the form leads there, which browsers count as its action.
	h := w.Header()
	h.Set("Content-Security-Policy", strings.Replace(h.Get("Content-Security-Policy"), "form-action 'self'", fmt.Sprintf("form-action 'self' http://127.0.0.1:%d", c.Port), 1))
	s.show(w, http.StatusOK, "cli", map[string]any{"Title": "Sign in the CLI", "Request": c, "Person": p})
}

func (s *SignIn) answerCLI(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return
	}
	c, p, ok := s.cliFor(w, r, r.PostForm)
	if !ok {
		return
	}
	if r.PostForm.Get("answer") != "yes" {
		// Nobody is led to a port that the asker chose.
		s.show(w, http.StatusOK, "note", note{"Sign in the CLI", "Nothing was allowed.", `If you started "trellis login", end it in its terminal with Ctrl-C.`})
		return
	}
	code := newSecret()
	if err := s.records.addCode(r.Context(), p.ID, digest(code), c.Challenge, c.Host); err != nil {
		s.fail(w, r, "let a CLI in", err)
		return
	}
	http.Redirect(w, r, c.callback("code", code), http.StatusSeeOther) //nolint:gosec // always to 127.0.0.1
}

// cliFor reads the request of a CLI and who is asked: somebody at a browser.
func (s *SignIn) cliFor(w http.ResponseWriter, r *http.Request, values url.Values) (cliRequest, person.Person, bool) {
	c, err := readCLIRequest(values)
	if err != nil {
		s.show(w, http.StatusBadRequest, "note", note{"Sign in the CLI", "This is not what a CLI asks: " + err.Error() + ".", `Run "trellis login" again.`})
		return c, person.Person{}, false
	}
	p, ok := person.From(r.Context())
	if !ok || !p.Browser {
		http.Redirect(w, r, "/signin?to="+url.QueryEscape("/cli/authorize?"+values.Encode()), http.StatusSeeOther)
		return c, p, false
	}
	return c, p, true
}

// exchange gives the CLI that shows a code, and the verifier of its challenge, an
// API token. A code counts once, whatever is shown with it.
func (s *SignIn) exchange(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	var in wire.CliCode
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&in); err != nil {
		problem.Write(w, http.StatusBadRequest, "bad_body", "the body must be a JSON object with code and verifier")
		return
	}
	if !verifierPattern.MatchString(in.Verifier) {
		in.Verifier = "" // nobody's; the code is used up all the same
	}
	made, ok, err := s.records.redeemCode(r.Context(), digest(in.Code), in.Verifier)
	switch {
	case err != nil && r.Context().Err() == nil:
		s.Log.Error("somebody could not sign a CLI in", "error", err)
		problem.Write(w, http.StatusServiceUnavailable, "unavailable", "the database does not answer; try again")
	case err != nil:
	case !ok:
		problem.Write(w, http.StatusForbidden, "code_invalid", `the code has been used, is too old, or is not this CLI's; run "trellis login" again`)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(made) // the client is gone: nobody to tell
	}
}
