package managedstate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/managedstate"
)

// client speaks the protocol as an engine does.
type client struct {
	t       *testing.T
	environ map[string]string
}

func serve(t *testing.T, o managedstate.Options) (*managedstate.Server, client) {
	t.Helper()
	s, err := managedstate.Serve(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c := client{t, map[string]string{}}
	for _, entry := range s.Environ() {
		key, value, _ := strings.Cut(entry, "=")
		c.environ[key] = value
	}
	return s, c
}

// ask answers "STATUS body".
func (c client) ask(method, query, body string) string {
	c.t.Helper()
	return c.askAs(c.environ["TF_HTTP_PASSWORD"], method, query, body)
}

func (c client) askAs(password, method, query, body string) string {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.environ["TF_HTTP_ADDRESS"]+query, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth(c.environ["TF_HTTP_USERNAME"], password)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(fmt.Sprint(answer.StatusCode, " ", string(text)))
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	var saved []string
	full := false
	s, c := serve(t, managedstate.Options{Limit: 100, Save: func(state []byte, h managedstate.Header) error {
		if full {
			return errors.New("no space left on device")
		}
		saved = append(saved, fmt.Sprint(h.Serial, " ", h.Lineage))
		return nil
	}})
	const one, two = `{"version": 4, "serial": 1, "lineage": "l"}`, `{"version": 4, "serial": 2, "lineage": "l"}`
	for _, step := range []struct{ method, query, body, want string }{
		{"GET", "", "", "204"},
		{"POST", "", one, "409 the state is not locked"},
		{"LOCK", "", `{"ID": "a", "Who": "ada"}`, "200"},
		{"LOCK", "", `{"ID": "b"}`, `423 {"ID": "a", "Who": "ada"}`},
		{"POST", "?ID=b", one, `423 {"ID": "a", "Who": "ada"}`},
		{"POST", "", one, `423 {"ID": "a", "Who": "ada"}`},
		{"POST", "?ID=a", one, "200"},
		{"GET", "", "", "200 " + one},
		{"POST", "?ID=a", "{", "400 this is no state"},
		{"POST", "?ID=a", "{}", "400 this is no state"},
		{"POST", "?ID=a", two + strings.Repeat(" ", 100), "413 the state is too large"},
		{"UNLOCK", "", `{"ID": "b"}`, `423 {"ID": "a", "Who": "ada"}`},
		{"GET", "x", "", "404 404 page not found"},
		{"DELETE", "", "", "405 not part of this protocol"},
		{"LOCK", "", "{", "400 this describes no lock"},
		{"LOCK", "", "{}", "400 this describes no lock"},
		{"UNLOCK", "", `{"ID": "a"}`, "200"},
		{"UNLOCK", "", `{"ID": "a"}`, "200"},
		{"LOCK", "", `{"ID": "b"}`, "200"},
		{"UNLOCK", "", "", "200"}, // by force
		{"LOCK", "", `{"ID": "c"}`, "200"},
	} {
		if got := c.ask(step.method, step.query, step.body); got != step.want {
			t.Errorf("%s %q %s = %s, want %s", step.method, step.query, step.body, got, step.want)
		}
	}
	full = true
	if got, want := c.ask("POST", "?ID=c", two), "500 the state could not be stored"; got != want {
		t.Errorf("POST on a full disk = %s, want %s", got, want)
	}
	if got := string(s.State()); got != one {
		t.Errorf("State() = %s, want the one that is stored", got)
	}
	s.Unlock()
	if got := c.ask("LOCK", "", `{"ID": "d"}`); got != "200" {
		t.Errorf("LOCK after Unlock() = %s, want 200", got)
	}
	if got, want := strings.Join(saved, ", "), "1 l"; got != want {
		t.Errorf("saved = %s, want %s", got, want)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	s, c := serve(t, managedstate.Options{State: []byte(`{"version": 4}`)})
	_, other := serve(t, managedstate.Options{})
	for _, password := range []string{"", "x", other.environ["TF_HTTP_PASSWORD"], s.Password() + "x", s.Password()[1:]} {
		for _, method := range []string{"GET", "POST", "LOCK", "UNLOCK", "DELETE"} {
			if got, want := c.askAs(password, method, "", "{}"), "401 this state is for one run alone"; got != want {
				t.Errorf("%s with another password = %s, want %s", method, got, want)
			}
		}
	}
	if !strings.HasPrefix(c.environ["TF_HTTP_ADDRESS"], "http://127.0.0.1:") {
		t.Errorf("address = %s, want a loopback one", c.environ["TF_HTTP_ADDRESS"])
	}
}

// An engine that finds the state locked says so. (Of who has it Terraform 1.11 shows
// the id alone: the rest of its "Lock Info" is its own.)
func TestEngineFindsItLocked(t *testing.T) {
	t.Parallel()
	s, c := serve(t, managedstate.Options{Save: func([]byte, managedstate.Header) error { return context.Canceled }})
	if got := c.ask("LOCK", "", `{"ID": "of-another", "Who": "ada@laptop", "Operation": "OperationTypeApply"}`); got != "200" {
		t.Fatalf("LOCK = %s, want 200", got)
	}
	e := engine{t, engines(t)[0], t.TempDir()}
	write(t, filepath.Join(e.dir, "main.tf"), "terraform {\n  backend \"http\" {}\n}\nresource \"terraform_data\" \"a\" {}\n", 0o600)
	e.must(s, "init", "-input=false")
	out, err := e.run(s, "apply", "-input=false", "-auto-approve")
	if err == nil || !strings.Contains(out, "of-another") {
		t.Errorf("apply of a locked state = %v\n%s, want it refused with who has it", err, out)
	}
	s.Unlock()
	if _, err := e.run(s, "apply", "-input=false", "-auto-approve"); err == nil {
		t.Error("apply whose state cannot be stored = nil, want an error")
	}
	if content, err := os.ReadFile(filepath.Join(e.dir, "errored.tfstate")); err != nil || !strings.Contains(string(content), "terraform_data") {
		t.Errorf("errored.tfstate = %s, %v, want the state that could not be stored", content, err)
	}
}

// What could not be saved is there for who looks after an engine that was killed,
// until a newer state is saved; and no engine waits to send it again.
func TestRefusedStateIsRemembered(t *testing.T) {
	t.Parallel()
	full := true
	s, c := serve(t, managedstate.Options{Save: func([]byte, managedstate.Header) error {
		if full {
			return errors.New("the disk is full")
		}
		return nil
	}})
	c.ask("LOCK", "", `{"ID": "a"}`)
	for _, serial := range []string{"1", "2"} {
		state := `{"version": 4, "serial": ` + serial + `}`
		if got := c.ask(http.MethodPost, "?ID=a", state); !strings.HasPrefix(got, "500") || string(s.Refused()) != state {
			t.Errorf("POST = %s, Refused() = %s, want 500 and %s", got, s.Refused(), state)
		}
	}
	if got := c.environ["TF_HTTP_RETRY_MAX"]; got != "0" {
		t.Errorf("TF_HTTP_RETRY_MAX = %q, want 0", got)
	}
	full = false
	c.ask(http.MethodPost, "?ID=a", `{"version": 4, "serial": 3}`)
	if got := s.Refused(); got != nil {
		t.Errorf("Refused() once a newer one is saved = %s, want nothing", got)
	}
}
