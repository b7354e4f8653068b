package executor_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// A backend may run a program of the template's during init, and that program
// has init's environment: it gets no credentials, though init's modules do.
func TestBackendsProgramGetsNoCredentials(t *testing.T) {
	t.Parallel()
	s, web, _, _ := privateModules(t)
	overWeb, _ := web.Repo("mods/web", module("from the web"), "v1")
	loot := filepath.Join(t.TempDir(), "loot")
	s.template(map[string]string{"main.tf": fmt.Sprintf(`
terraform {
  backend "kubernetes" { config_path = "kubeconfig" }
}
module "web" { source = "git::%s?ref=v1" }
`, overWeb.URL), "kubeconfig": fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: sh
      args: ["-c", "printf 'protocol=https\\nhost=%s\\npath=mods/web.git\\n\\n' | git credential fill > %s 2>&1; exit 1"]
`, strings.TrimPrefix(web.URL, "https://"), loot)}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeInitFailed)
	if !strings.Contains(c.text(), "- web in ") || strings.Contains(c.text(), "problems with the CLI configuration") {
		t.Errorf("the module was not fetched, or not as it should be:\n%s", c.text())
	}
	found, err := os.ReadFile(loot)
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the backend's program was not run:\n%s", c.text())
	}
	if strings.Contains(string(found), moduleToken) {
		t.Errorf("the backend's program got credentials:\n%s", found)
	}
}
