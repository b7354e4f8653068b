package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/apptest"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// A template from a server that takes a GitHub App's tokens, with a module over
// HTTPS, whose token is replaced between two runs, and one over SSH. The agent
// reads the files; the run, which has another uid where the agent is root, gets
// by.
func TestPrivateTemplateAndModules(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	api := apptest.New(t, nil)
	const firstToken = "ghs_000000000000000000000000000000000001"
	templates := gittest.NewServer(t, gittest.BasicAuth("x-access-token", firstToken))
	web := gittest.NewServer(t, gittest.BasicAuth("oauth2", "glpat-first"))
	shell := gittest.NewSSHServer(t)
	module := gittest.Text(map[string]string{"main.tf": `output "it" { value = "fetched" }`})
	overWeb, _ := web.Repo("modules/web", module, "v1")
	overSSH, _ := shell.Repo("modules/shell", module, "v1")
	template, _ := templates.Repo("acme/app", gittest.Text(map[string]string{"main.tf": fmt.Sprintf(`
variable "name" { type = string }
module "web" { source = "git::%s?ref=v1" }
module "shell" { source = "git::%s?ref=v1" }
output "all" { value = "${var.name} ${module.web.it} ${module.shell.it}" }
resource "terraform_data" "look" {
  triggers_replace = var.name
  provisioner "local-exec" { command = "echo \"seen: $(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -ac -e 'glpa[t]-' -e 'gh[s]_')\"" }
}
`, overWeb.URL, overSSH.URL)}), "v1")

	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	host := func(url string) string { return strings.TrimPrefix(url, "https://") }
	a := s.NewAgent("one", 1, fmt.Sprintf(`
[git.hosts.%q]
app_id = %q
app_installation_id = %q
app_key_file = %q
app_api_url = %q
[git.hosts.%q]
token_file = %q
username = "oauth2"
repos = ["%s/modules/*"]
[git.hosts.%q]
ssh_key_file = %q
known_hosts_file = %q
repos = ["ssh://git@%s/modules/*"]
`, host(templates.URL), apptest.AppID, apptest.Installation, api.KeyFile, api.URL,
		host(web.URL), file("token", "glpat-first\n"), web.URL,
		shell.Addr, file("key", shell.ClientPEM), file("known_hosts", shell.KnownHosts), shell.Addr))
	a.Set("TENDRIL_POLICY_REPOS", templates.URL+"/acme/*")
	a.Start()

	deploy := func(name string) string {
		id := s.DeployTemplate(template.URL, "acme/prod", map[string]any{"name": name})
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, s.Message(id))
		}
		return s.Log(t, id)
	}
	log := deploy("one")
	web.Expect("oauth2", "glpat-second")
	file("token", "glpat-second\n")
	log += deploy("two")
	if !strings.Contains(log, "one fetched fetched") || !strings.Contains(log, "two fetched fetched") {
		t.Errorf("the log lacks what the modules say:\n%s", log)
	}
	// The template looks for them where others' processes show them.
	if got := strings.Count(log, "seen: 0"); got != 2 {
		t.Errorf("the template saw credentials:\n%s", log)
	}
	if got := api.Asked(); got != 1 {
		t.Errorf("requests for App tokens = %d, want 1 for two runs", got)
	}
	a.Terminate() // or it may be removing what is looked at
	key := strings.Split(shell.ClientPEM, "\n")[1]
	for _, secret := range []string{firstToken, "glpat-first", "glpat-second", key} {
		if strings.Contains(log, secret) || strings.Contains(a.Out.String(), secret) {
			t.Errorf("%q is in a log", secret)
		}
		err := filepath.WalkDir(a.Dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), secret) {
				t.Errorf("%s holds %q", path, secret)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
