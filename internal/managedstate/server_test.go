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

// client speaks the protocol as an engine does, with what one grant gives.
type client struct {
	t       *testing.T
	grant   *managedstate.Grant
	environ map[string]string
}

func clientOf(t *testing.T, s *managedstate.Server, access managedstate.Access) client {
	grant := s.Grant(access)
	return client{t, grant, grant.Environ()}
}

func serve(t *testing.T, o managedstate.Options) (*managedstate.Server, client) {
	t.Helper()
	s, err := managedstate.Serve(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, clientOf(t, s, managedstate.Write)
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

// refusal is the answer to what no engine does.
func refusal(status int, what string) string {
	return fmt.Sprintf(`%d {"Info":"refused: it tried to %s","Who":"this run's engine"}`, status, what)
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	var saved, refused []string
	full := false
	s, c := serve(t, managedstate.Options{
		Limit: 100, Refused: func(what string) { refused = append(refused, what) },
		Save: func(state []byte, h managedstate.Header) error {
			if full {
				return errors.New("no space left on device")
			}
			saved = append(saved, fmt.Sprint(h.Serial, " ", h.Lineage))
			return nil
		},
	})
	const one, two = `{"version": 4, "serial": 1, "lineage": "l"}`, `{"version": 4, "serial": 2, "lineage": "l"}`
	const other, same = `{"version": 4, "serial": 9, "lineage": "m"}`, `{"version":4, "serial": 1, "lineage": "l"}`
	noID := refusal(423, "write the state without the id of its lock")
	notHeld := refusal(423, "unlock the state without the id of its lock")
	for _, step := range []struct{ method, query, body, want string }{
		{"GET", "", "", "204"},
		{"POST", "", one, refusal(409, "write the state without its lock")},
		{"UNLOCK", "", "", refusal(409, "unlock the state, which is not locked")},
		{"LOCK", "", `{"ID": "a", "Who": "ada"}`, "200"},
		{"LOCK", "", `{"ID": "b"}`, refusal(423, "lock the state, which is locked")},
		{"POST", "?ID=b", one, noID},
		{"POST", "", one, noID},
		{"POST", "?ID=a", one, "200"},
		{"GET", "", "", "200 " + one},
		{"POST", "?ID=a", one, "200"}, // a repeat
		{"POST", "?ID=a", same, refusal(409, "replace the state, serial 1, by one with the serial 1")},
		{"POST", "?ID=a", other, refusal(409, "replace the state by one of another lineage")},
		{"POST", "?ID=a", "{", "400 this is no state"},
		{"POST", "?ID=a", "{}", "400 this is no state"},
		{"POST", "?ID=a", two + strings.Repeat(" ", 100), "413 the state is too large"},
		{"UNLOCK", "", `{"ID": "b"}`, notHeld},
		{"UNLOCK", "", "", notHeld},
		{"UNLOCK", "", "{}", notHeld},
		{"GET", "x", "", "404 404 page not found"},
		{"DELETE", "", "", "405 not part of this protocol"},
		{"LOCK", "", "{", "400 this describes no lock"},
		{"LOCK", "", "{}", "400 this describes no lock"},
		{"UNLOCK", "", `{"ID": "a"}`, "200"},
		{"LOCK", "", `{"ID": "c"}`, refusal(403, "lock the state after the engine had released it")},
	} {
		if got := c.ask(step.method, step.query, step.body); got != step.want {
			t.Errorf("%s %q %s = %s, want %s", step.method, step.query, step.body, got, step.want)
		}
	}
	c.grant.End()
	if got, want := c.ask("LOCK", "", `{"ID": "d"}`), "401 this state is for a command that runs now"; got != want {
		t.Errorf("LOCK by a command that has ended = %s, want %s", got, want)
	}
	next := clientOf(t, s, managedstate.Write)
	if got := next.ask("LOCK", "", `{"ID": "e"}`); got != "200" {
		t.Errorf("LOCK by the next command = %s, want 200", got)
	}
	full = true
	if got, want := next.ask("POST", "?ID=e", two), "500 the state could not be stored"; got != want {
		t.Errorf("POST on a full disk = %s, want %s", got, want)
	}
	if got := string(s.State()); got != one {
		t.Errorf("State() = %s, want the one that is stored", got)
	}
	if got, want := strings.Join(saved, ", "), "1 l, 1 l"; got != want {
		t.Errorf("saved = %s, want %s", got, want)
	}
	if len(refused) != 11 {
		t.Errorf("%d refusals were reported, want all 11:\n%s", len(refused), strings.Join(refused, "\n"))
	}
}

// What a command may do is the least that it needs: a provider that show starts,
// or one of a plan, changes nothing, though it has the engine's environment.
func TestCommandsMayDoWhatTheyNeed(t *testing.T) {
	t.Parallel()
	const state = `{"version": 4, "serial": 1}`
	s, writer := serve(t, managedstate.Options{State: []byte(state), Save: func([]byte, managedstate.Header) error { return nil }})
	reader, planner := clientOf(t, s, managedstate.Read), clientOf(t, s, managedstate.Lock)
	if got := reader.ask("GET", "", ""); got != "200 "+state {
		t.Errorf("GET = %s", got)
	}
	if got, want := reader.ask("LOCK", "", `{"ID": "a"}`), refusal(403, "lock the state during a command that takes no lock"); got != want {
		t.Errorf("LOCK while only reading = %s, want %s", got, want)
	}
	if got := planner.ask("LOCK", "", `{"ID": "a"}`); got != "200" {
		t.Fatalf("LOCK by a plan = %s", got)
	}
	if got, want := planner.ask("POST", "?ID=a", `{"version": 4, "serial": 2}`), refusal(403, "write the state during a command that only reads it"); got != want {
		t.Errorf("POST by a plan = %s, want %s", got, want)
	}
	// Who has learnt the id does not have the lock.
	if got, want := writer.ask("POST", "?ID=a", `{"version": 4, "serial": 2}`), refusal(423, "write the state without the id of its lock"); got != want {
		t.Errorf("POST with another command's id = %s, want %s", got, want)
	}
	if got := writer.ask("UNLOCK", "", `{"ID": "a"}`); !strings.HasPrefix(got, "423 ") {
		t.Errorf("UNLOCK with another command's id = %s, want 423", got)
	}
	planner.grant.End() // killed: it has not unlocked
	if got := writer.ask("LOCK", "", `{"ID": "b"}`); got != "200" {
		t.Errorf("LOCK after a command that was killed = %s, want 200", got)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	_, c := serve(t, managedstate.Options{State: []byte(`{"version": 4}`)})
	_, other := serve(t, managedstate.Options{})
	for _, password := range []string{"", "x", other.grant.Password(), c.grant.Password() + "x", c.grant.Password()[1:]} {
		for _, method := range []string{"GET", "POST", "LOCK", "UNLOCK", "DELETE"} {
			if got, want := c.askAs(password, method, "", "{}"), "401 this state is for a command that runs now"; got != want {
				t.Errorf("%s with another password = %s, want %s", method, got, want)
			}
		}
	}
	if !strings.HasPrefix(c.environ["TF_HTTP_ADDRESS"], "http://127.0.0.1:") {
		t.Errorf("address = %s, want a loopback one", c.environ["TF_HTTP_ADDRESS"])
	}
}

// An engine that finds the state locked is not told by which id: with that a
// template could write in the place of the engine that has the lock.
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
	if err == nil || !strings.Contains(out, "lock") || strings.Contains(out, "of-another") {
		t.Errorf("apply of a locked state = %v\n%s, want it refused, and the lock's id not told", err, out)
	}
	c.grant.End()
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
