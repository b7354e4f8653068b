package managedstate_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/managedstate"
)

const template = `terraform {
  backend "http" {}
}
variable "names" { type = set(string) }
resource "terraform_data" "each" {
  for_each = var.names
  input    = each.key
}
resource "terraform_data" "looks" {
  triggers_replace = var.names
  provisioner "local-exec" {
    command = "${path.module}/look"
  }
  depends_on = [terraform_data.each]
}
`

// engines are those on this machine; Terraform is.
func engines(t *testing.T) []string {
	t.Helper()
	found := []string{}
	for _, name := range []string{"terraform", "tofu"} {
		if path, err := exec.LookPath(name); err == nil {
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		t.Fatal("no terraform in PATH")
	}
	return found
}

// engine is a template's directory and an engine for it.
type engine struct {
	t         *testing.T
	path, dir string
}

func (e engine) run(s *managedstate.Server, args ...string) (string, error) {
	e.t.Helper()
	grant := s.Grant(managedstate.Write)
	defer grant.End()
	var environ []string
	for name, value := range grant.Environ() {
		environ = append(environ, name+"="+value)
	}
	cmd := exec.CommandContext(e.t.Context(), e.path, args...)
	cmd.Dir = e.dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "TF_") }),
		append(environ, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1")...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e engine) must(s *managedstate.Server, args ...string) string {
	e.t.Helper()
	out, err := e.run(s, args...)
	if err != nil {
		e.t.Fatalf("%s %s: %v\n%s", filepath.Base(e.path), strings.Join(args, " "), err, out)
	}
	return out
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// resources lists what a state has.
func resources(t *testing.T, state []byte) string {
	t.Helper()
	var s struct {
		Resources []struct {
			Name      string
			Instances []struct {
				Key any `json:"index_key"`
			}
		}
	}
	if err := json.Unmarshal(state, &s); err != nil {
		t.Fatalf("%s: %v", state, err)
	}
	var names []string
	for _, r := range s.Resources {
		for _, i := range r.Instances {
			if key, ok := i.Key.(string); ok {
				names = append(names, key)
			} else {
				names = append(names, r.Name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A whole life of a state, over two servers: a plan that was saved with one is
// applied with another, on another port and with another password, and holds
// neither; nor does what init leaves.
func TestEngineLife(t *testing.T) {
	t.Parallel()
	for _, path := range engines(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			e := engine{t, path, t.TempDir()}
			write(t, filepath.Join(e.dir, "main.tf"), template, 0o600)
			// What a template's command can do with the password that it inherits.
			write(t, filepath.Join(e.dir, "look"), "#!/bin/sh\nset -e\n"+
				`curl -sf -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" "$TF_HTTP_ADDRESS" > seen`+"\n"+
				`for path in x ../x %2e%2e/x; do curl -s -o /dev/null -w "%{http_code} " --path-as-is -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" "$TF_HTTP_ADDRESS$path"; done > others`+"\n"+
				`curl -s -o /dev/null -w "%{http_code}" -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" -d '{"version": 4}' "$TF_HTTP_ADDRESS" > written`+"\n"+
				`curl -s -o /dev/null -w "%{http_code}" -u "$TF_HTTP_USERNAME:wrong" "$TF_HTTP_ADDRESS" > stranger`+"\n", 0o700)

			var mu sync.Mutex // an engine that has ended is nothing that Go knows to wait for
			var saved []byte
			serials := []uint64{}
			stored := func() []byte {
				mu.Lock()
				defer mu.Unlock()
				return saved
			}
			next := func() *managedstate.Server {
				s, err := managedstate.Serve(managedstate.Options{State: stored(), Save: func(state []byte, h managedstate.Header) error {
					mu.Lock()
					defer mu.Unlock()
					saved = state
					serials = append(serials, h.Serial)
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				return s
			}
			one := next()
			e.must(one, "init", "-input=false")
			e.must(one, "apply", "-input=false", "-auto-approve", `-var=names=["a","b","c"]`)
			if got, want := resources(t, stored()), "a b c looks"; got != want {
				t.Errorf("resources = %q, want %q", got, want)
			}
			for file, want := range map[string]string{"others": "404 404 404 ", "written": "423", "stranger": "401"} {
				if got, err := os.ReadFile(filepath.Join(e.dir, file)); err != nil || string(got) != want {
					t.Errorf("%s = %q, %v, want %q", file, got, err, want)
				}
			}
			e.must(one, "plan", "-input=false", "-out=plan", `-var=names=["a","d"]`)
			for _, file := range []string{"plan", ".terraform/terraform.tfstate"} {
				content, err := os.ReadFile(filepath.Join(e.dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(content, []byte("127.0.0.1")) {
					t.Errorf("%s names the server of its run", file)
				}
			}
			one.Close()
			two := next()
			e.must(two, "apply", "-input=false", "plan")
			if got, want := resources(t, stored()), "a d looks"; got != want {
				t.Errorf("resources after a saved plan = %q, want %q", got, want)
			}
			if out, err := e.run(two, "apply", "-input=false", "plan"); err == nil || !strings.Contains(out, "stale") {
				t.Errorf("apply of a plan of an older state = %v\n%s, want it refused as stale", err, out)
			}
			e.must(two, "destroy", "-input=false", "-auto-approve", `-var=names=[]`)
			if got := resources(t, stored()); got != "" {
				t.Errorf("resources after destroy = %q, want none", got)
			}
			two.Close()
			if !slices.IsSorted(serials) {
				t.Errorf("serials = %d, want them to grow", serials)
			}
		})
	}
}

// attack is a template's command that tries, with the environment that it inherits,
// to put a forged state in the place of the engine's, in each way that the
// protocol has: while the engine holds the lock, and again and again until long
// after the engine has released it.
const attack = `#!/bin/sh
ask() { curl -s -o answer -w '%{http_code}' -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" -X "$@"; }
forge='{"version": 4, "serial": 999, "lineage": "forged", "resources": []}'
ask LOCK -d '{"ID": "mine"}' "$TF_HTTP_ADDRESS" > /dev/null
id=$(sed -n 's/.*"ID": *"\([^"]*\)".*/\1/p' answer)
ask POST -d "$forge" "$TF_HTTP_ADDRESS?ID=$id" > with-its-id
ask UNLOCK "$TF_HTTP_ADDRESS" > by-force
ask LOCK -d '{"ID": "mine"}' "$TF_HTTP_ADDRESS" > locked
ask POST -d "$forge" "$TF_HTTP_ADDRESS?ID=mine" > written
(
  exec > /dev/null 2>&1 < /dev/null
  while [ ! -e over ]; do
    ask LOCK -d '{"ID": "mine"}' "$TF_HTTP_ADDRESS" && ask POST -d "$forge" "$TF_HTTP_ADDRESS?ID=mine"
    : > tried
  done
  : > stopped
) &
`

// A hostile template can neither write its state nor take the lock, during the
// engine's command or after it.
func TestTemplateCannotReplaceItsState(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	refused := map[string]bool{}
	s, _ := serve(t, managedstate.Options{
		Save: func([]byte, managedstate.Header) error { return nil },
		Refused: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			refused[what] = true
		},
	})
	e := engine{t, engines(t)[0], t.TempDir()}
	write(t, filepath.Join(e.dir, "main.tf"), `terraform {
  backend "http" {}
}
resource "terraform_data" "hostile" {
  provisioner "local-exec" {
    command = "${path.module}/attack"
  }
}
`, 0o600)
	write(t, filepath.Join(e.dir, "attack"), attack, 0o700)
	e.must(s, "init", "-input=false")
	e.must(s, "apply", "-input=false", "-auto-approve")
	// What it has left running goes on while the next command begins and ends.
	e.must(s, "plan", "-input=false")
	if err := os.Remove(filepath.Join(e.dir, "tried")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	waitForFile(t, filepath.Join(e.dir, "tried"))
	write(t, filepath.Join(e.dir, "over"), "", 0o600)
	waitForFile(t, filepath.Join(e.dir, "stopped"))
	if got, want := resources(t, s.State()), "hostile"; got != want || bytes.Contains(s.State(), []byte("forged")) {
		t.Errorf("the state records %q, want %q; it is %s", got, want, s.State())
	}
	for _, file := range []string{"with-its-id", "by-force", "locked", "written"} {
		if got, err := os.ReadFile(filepath.Join(e.dir, file)); err != nil || string(got) != "423" {
			t.Errorf("%s was answered %s (%v), want 423", file, got, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, what := range []string{"write the state without the id of its lock", "unlock the state without the id of its lock", "lock the state, which is locked"} {
		if !refused[what] {
			t.Errorf("it was not reported that a process tried to %s; reported: %v", what, refused)
		}
	}
}

func waitForFile(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("no %s within a minute", path)
		}
	}
}
