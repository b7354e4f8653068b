package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
)

// Two workspaces at once, and one that is not configured: each run has its own
// credentials, and none has the agent's.
func TestCredentialsByWorkspace(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	meet := site.Meeting(t)
	a := s.NewAgent("one", 3, "")
	values := map[string]string{"prod": canary(), "dev": canary(), "agent": canary(), "token": canary()}
	for _, name := range []string{"prod", "dev"} {
		file := filepath.Join(filepath.Dir(a.Dir), name+".env")
		token := filepath.Join(filepath.Dir(a.Dir), name+".json")
		for path, content := range map[string]string{file: "AWS_SECRET_ACCESS_KEY=" + values[name] + "\n", token: values["token"] + "-of-" + name} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a.Configure("\n[[credentials]]\nworkspace = \"acme/" + name + "\"\nenv_file = \"" + file + "\"\nfiles = { GOOGLE_APPLICATION_CREDENTIALS = \"" + token + "\" }\n")
	}
	a.Set("AWS_SECRET_ACCESS_KEY", values["agent"])
	a.Start()
	repo := s.Template("greedy", map[string]string{"main.tf": `
variable "name" { type = string }
resource "terraform_data" "a" {
  triggers_replace = timestamp()
  provisioner "local-exec" {
    command = "touch ` + meet + `/$NAME; until [ -e ` + meet + `/prod ] && [ -e ` + meet + `/dev ]; do sleep 0.05; done; echo \"has $AWS_SECRET_ACCESS_KEY and $(cat $GOOGLE_APPLICATION_CREDENTIALS </dev/null)\"; (env; cat $GOOGLE_APPLICATION_CREDENTIALS </dev/null) > ` + meet + `/env.$NAME"
    environment = { NAME = var.name }
  }
}
`})
	ids := map[string]uuid.UUID{}
	for _, name := range []string{"prod", "dev", "other"} {
		ids[name] = s.DeployTemplate(repo, "acme/"+name, map[string]any{"name": name})
	}
	for name, id := range ids {
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision of acme/%s = %s: %s", name, got, s.Message(id))
		}
		content, err := os.ReadFile(filepath.Join(meet, "env."+name))
		if err != nil {
			t.Fatal(err)
		}
		has, log := string(content), s.Log(t, id)
		for of, value := range values {
			if want := of == name || of == "token" && name != "other"; strings.Contains(has, value) != want {
				t.Errorf("the run of acme/%s has the credentials of %s: %t, want %t", name, of, !want, want)
			}
			if strings.Contains(log, value) {
				t.Errorf("the log of acme/%s shows the credentials of %s", name, of)
			}
		}
		want := "has *** and ***"
		if name == "other" {
			want = "No credentials of the agent's configuration are for the workspace acme/other"
		}
		if !strings.Contains(log, want) {
			t.Errorf("the log of acme/%s lacks %q:\n%s", name, want, log)
		}
		if name != "other" && !strings.Contains(has, values["token"]+"-of-"+name) {
			t.Errorf("the run of acme/%s has not its own file", name)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(a.Dir, "work", "*", "secrets")); len(left) > 0 {
		t.Errorf("after the runs there is still %v", left)
	}
	// A file that others may read serves no run, and says why.
	if err := os.Chmod(filepath.Join(filepath.Dir(a.Dir), "dev.env"), 0o644); err != nil {
		t.Fatal(err)
	}
	open := s.DeployTemplate(repo, "acme/dev", map[string]any{"name": "dev"})
	if got := s.AwaitEnd(open); got != "FAILED/credentials_missing" || !strings.Contains(s.Message(open), "others may read it") {
		t.Errorf("provision with an open file = %s: %s, want FAILED/credentials_missing", got, s.Message(open))
	}
	if strings.Contains(dump(s)+a.Out.String(), "canary-") {
		t.Error("the database or the agent's log holds a credential")
	}
}
