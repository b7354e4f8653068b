package proxies

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// A gateway that was taken over answers an agent's claims as it likes. The agent's own policy
// and what it remembers still decide, so nothing runs that they refuse; and once the gateway is
// what it was, the agent works on.
func TestHostileGateway(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	hostile := &altering{}
	p := &reverse{alter: hostile.alter}
	server := site.Address(t)
	w := way{url: "https://" + p.start(t, server)}
	l := &lab{Site: s, way: w, identity: s.IdentityFile()}
	l.metrics, _ = serve(t, s.World, server, "--agent-url", w.url)
	s.QueueURL = w.url
	a := l.agent("key")
	a.Set("TENDRIL_QUEUE_POLL_INTERVAL", "1s")
	a.Set("TENDRIL_POLICY_OPERATIONS", "plan,apply")
	a.Start()
	a.AwaitOutput("registered")
	repo := s.Template("kept", map[string]string{"main.tf": `resource "terraform_data" "kept" {}`})
	if got := s.AwaitEnd(s.DeployTemplate(repo, "first", nil)); got != "SUCCESS" {
		t.Fatalf("a run by an honest gateway = %s, want SUCCESS", got)
	}
	for name, c := range map[string]struct{ old, replacement, want string }{
		"another repository": {repo, "https://elsewhere.example/x", "FAILED/repo_refused"},
		"a local repository": {repo, "file:///etc", "FAILED/repo_refused"},
		"destroy":            {`"operation":"apply"`, `"operation":"destroy"`, "FAILED/operation_refused"},
		"state":              {`"operation":"apply"`, `"operation":"state"`, "FAILED/operation_refused"},
	} {
		hostile.turn(c.old, c.replacement)
		id := s.DeployTemplate(repo, "first", nil)
		if got := s.AwaitEnd(id); got != c.want {
			t.Errorf("%s: the run = %s: %s, want %s", name, got, s.Message(id), c.want)
		}
		if n := hostile.turn("", ""); n == 0 {
			t.Errorf("%s: the gateway has altered no assignment", name)
		}
		if log := s.Log(t, id); strings.Contains(log, "Apply complete") || strings.Contains(log, "Destroy complete") {
			t.Errorf("%s: something was carried out:\n%s", name, log)
		}
	}
	if got := s.AwaitEnd(s.DeployTemplate(repo, "first", nil)); got != "SUCCESS" {
		t.Errorf("a run when the gateway is honest again = %s, want SUCCESS", got)
	}
}

// altering replaces a text in the assignments that agents get.
type altering struct {
	mu               sync.Mutex
	old, replacement string
	altered          int
}

// turn says what to replace from now on, and answers how many assignments were altered before.
func (h *altering) turn(old, replacement string) (altered int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	altered = h.altered
	h.old, h.replacement, h.altered = old, replacement, 0
	return altered
}

func (h *altering) alter(r *http.Response) error {
	if !strings.HasSuffix(r.Request.URL.Path, "/fetch_next_provision") {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.old != "" && bytes.Contains(body, []byte(h.old)) {
		h.altered++
		body = bytes.ReplaceAll(body, []byte(h.old), []byte(h.replacement))
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.Header.Del("Content-Length")
	return nil
}
