package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/formtest"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"

	"github.com/tendril-run/tendril/e2e/site"
)

// recorded puts a server before a gateway that writes down all questions and
// answers.
func recorded(t testing.TB, gateway *site.Gateway, into io.Writer) (url string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // who asked has gone
		}
		_, _ = fmt.Fprintf(into, "%s %v\n%s\n", r.URL, r.Header, body)
		ask, err := http.NewRequestWithContext(r.Context(), r.Method, gateway.URL+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		ask.Header = r.Header
		answer, err := transport.RoundTrip(ask)
		if err != nil {
			http.Error(w, "", http.StatusBadGateway)
			return
		}
		defer answer.Body.Close() //nolint:errcheck // read
		body, _ = io.ReadAll(answer.Body)
		_, _ = fmt.Fprintf(into, "%v\n%s\n", answer.Header, body)
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = w.Write(body) // an agent that was killed hears nothing
	}))
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return server.URL
}

// secrets are all that is to be seen nowhere, lines by themselves.
func (k *keeper) secrets() (all []string) {
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case string:
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
					all = append(all, line)
				}
			}
		case []string:
			all = append(all, value...)
		case map[string]any:
			for _, member := range value {
				walk(member)
			}
		}
	}
	walk(k.sealed)
	return append(all, append(k.others, k.plain)...)
}

// givenPlain takes out of a text the one place where the plain variable is to
// be: who deployed has written it into the snapshot.
func (k *keeper) givenPlain(text string) string {
	for _, as := range []string{`"plain": "%s"`, `"plain":"%s"`, `\"plain\":\"%s\"`, `\"plain\": \"%s\"`} {
		text = strings.ReplaceAll(text, fmt.Sprintf(as, k.plain), "")
	}
	return text
}

// find returns what of the secrets a text holds, in which form.
func (k *keeper) find(text string) (found []string) {
	text = k.givenPlain(text)
	const least = 16 // bytes that each form has
	forms := map[string][]string{}
	var begins [1 << 16]bool // by two bytes: of the megabytes that are searched few look like a form
	at := func(text string) *bool { return &begins[uint16(text[0])<<8|uint16(text[1])] }
	for _, secret := range k.secrets() {
		for form := range formtest.All(secret) {
			forms[form[:least]] = append(forms[form[:least]], form)
			*at(form) = true
		}
	}
	for i := 0; i+least <= len(text); i++ {
		if !*at(text[i:]) {
			continue
		}
		for _, form := range forms[text[i:i+least]] {
			if strings.HasPrefix(text[i:], form) {
				found = append(found, text[max(0, i-40):min(len(text), i+len(form)+20)])
			}
		}
	}
	return found
}

func (k *keeper) lookAt(where, text string) {
	k.T.Helper()
	if found := k.find(text); len(found) > 0 {
		k.T.Errorf("%s holds %d secrets, such as in %q", where, len(found), found[0])
	}
}

// places are all in which something could be, each with what it says.
func (k *keeper) places() map[string]string {
	k.T.Helper()
	people := k.People()
	all := map[string]string{"the database": k.run(nil, "pg_dump", "--inserts", k.URL)}
	all["the database's log"] = databaseLog(k.Site)[k.logged:]
	for _, a := range k.agents {
		if a.Out != nil {
			all["the log of agent "+a.Name] = a.Out.String()
		}
	}
	if k.rpc != nil {
		all["the gateway's answers"] = k.rpc.String()
		all["the gateway's log"] = k.Gateway.Out.String()
	}
	// What trellis answers, at once.
	var mu sync.Mutex
	var asked sync.WaitGroup
	ask := func(name string, args ...string) {
		asked.Go(func() {
			text := k.run(people, site.Program("trellis"), args...)
			mu.Lock()
			defer mu.Unlock()
			all[name] += text
		})
	}
	for _, id := range k.ids {
		ask("trellis status", "status", id.String(), "-o", "json")
		ask("trellis logs", "logs", k.Text(k.T, "SELECT number::text FROM public.provisions WHERE id = $1", id))
	}
	ask("trellis outputs", "outputs", "acme/well", "-o", "json")
	ask("trellis resources", "resources", "acme/well", "-o", "json")
	asked.Wait()
	return all
}

// databaseLog is what the server has written, for other tests as well.
func databaseLog(s *site.Site) string {
	s.T.Helper()
	log, err := os.ReadFile(filepath.Join(filepath.Dir(s.Text(s.T, "SHOW data_directory")), "postgres.log"))
	if err != nil {
		s.T.Fatal(err)
	}
	return string(log)
}

// run is what a program says in an environment; nil: the test's own.
func (k *keeper) run(env []string, program string, args ...string) string {
	cmd := exec.CommandContext(k.T.Context(), program, args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.T.Errorf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// files are what there is in the agents' directories, plans as such.
func (k *keeper) files() map[string]string {
	k.T.Helper()
	all := map[string]string{}
	for _, a := range k.agents {
		err := filepath.WalkDir(a.Dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
				return nil
			}
			content, err := os.ReadFile(path)
			if !errors.Is(err, fs.ErrNotExist) { // a living agent's
				all[path] = string(content)
				return err
			}
			return nil
		})
		if err != nil && a.Out != nil {
			k.T.Fatal(err)
		}
	}
	return all
}

// isState reports whether a file is Terraform's own state.
func isState(path string) bool {
	name := filepath.Base(path)
	return filepath.Base(filepath.Dir(filepath.Dir(path))) == "state" && (name == "terraform.tfstate" || name == "terraform.tfstate.backup")
}

// wantNowhere looks at all of it.
func (k *keeper) wantNowhere(when string) {
	k.T.Helper()
	for _, a := range k.agents {
		if a.Out != nil {
			a.AwaitNoSpools()
		}
	}
	for place, text := range k.places() {
		if text == "" {
			k.T.Errorf("%s %s says nothing, so the test shows nothing of it", when, place)
		}
		k.lookAt(when+" "+place, text)
	}
	states := 0
	for path, content := range k.files() {
		found := k.find(content)
		if isState(path) {
			if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm()&0o077 != 0 {
				k.T.Errorf("%s the directory of %s has mode %v, %v, want it shut for others", when, path, info.Mode(), err)
			}
			states += min(len(found), 1)
			continue
		}
		if len(found) > 0 {
			k.T.Errorf("%s %s holds %d secrets, such as in %q", when, path, len(found), found[0])
		}
		// A saved plan is an archive, in which no text is found.
		if strings.Contains(content, "PK\x03\x04") && strings.Contains(content, "tfplan") {
			k.T.Errorf("%s %s has a plan in clear", when, path)
		}
		if strings.Contains(path, "/secrets/") {
			k.T.Errorf("%s there is still %s", when, path)
		}
	}
	if k.rpc == nil && states == 0 {
		k.T.Errorf("%s no state holds a secret, so the search finds nothing", when)
	}
}

// wantTheSearchToFind plants a value in each place, each time in another form,
// and has the search find it.
func (k *keeper) wantTheSearchToFind() {
	k.T.Helper()
	password := k.sealed["password"].(string)
	forms := formtest.Forms(password, []byte("x"), []byte("yz"))
	well := k.ids[slices.IndexFunc(k.ids, func(id uuid.UUID) bool {
		return k.Text(k.T, "SELECT config_snapshot ->> 'workspace' FROM public.provisions WHERE id = $1", id) == "acme/well"
	})]
	k.Exec(k.T, "SET session_replication_role = replica")
	for statement, form := range map[string]string{
		"UPDATE public.provisions SET outputs = jsonb_build_object('planted', jsonb_build_object('value', $2::text)) WHERE workspace_id = (SELECT workspace_id FROM public.provisions WHERE id = $1)": forms["URL base64"],
		"UPDATE public.provision_logs SET log_chunk = log_chunk || $2 WHERE provision_id = $1":                                                                                                        forms["query"],
		"INSERT INTO public.resources (org_id, workspace_id, address, type, external_id) SELECT org_id, workspace_id, 'planted', 'x', $2 FROM public.provisions WHERE id = $1":                        forms["hex"],
		"UPDATE public.workspaces SET lock_reason = $2, locked_at = now() WHERE id = (SELECT workspace_id FROM public.provisions WHERE id = $1)":                                                      forms["JSON"],
	} {
		k.Exec(k.T, statement, well, form)
	}
	k.Exec(k.T, "RESET session_replication_role")
	for _, out := range []*outputtest.Buffer{k.agents[0].Out, k.agents[1].Out, k.rpc, k.Gateway.Out} {
		_, _ = fmt.Fprintln(out, forms["base64"])
	}
	for place, text := range k.places() {
		if len(k.find(text)) == 0 {
			k.T.Errorf("%s says what was planted there, and the search does not find it", place)
		}
	}
	planted := filepath.Join(k.agents[1].Dir, "rejected", "planted")
	if err := os.WriteFile(planted, []byte(forms["path"]), 0o600); err != nil {
		k.T.Fatal(err)
	}
	if len(k.find(k.files()[planted])) == 0 {
		k.T.Error("the search does not find the planted file")
	}
}
