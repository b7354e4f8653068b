package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/seal"

	"github.com/tendril-run/tendril/e2e/site"
)

// secretive prints what it was given and keeps a digest alone in its state.
const secretive = `
variable "fate" { type = string }
variable "password" {
  type      = string
  sensitive = true
}
variable "key" {
  type      = object({ pem = string, hosts = list(string) })
  sensitive = true
}
variable "once" {
  type      = string
  ephemeral = true
}
variable "undeclared" { type = string }
resource "terraform_data" "a" {
  triggers_replace = sha256("${var.fate}${var.password}${var.key.pem}${var.undeclared}")
  input            = var.fate == "plan" ? file("${path.module}/none-of-${sha256(var.password)}") : "x"
  provisioner "local-exec" {
    command     = "echo \"password is $P\"; echo \"$K\"; echo \"$J\"; echo \"$U\"; if [ $FATE = wait ]; then echo waiting; while sleep 0.1; do :; done; fi; [ $FATE != apply ]"
    environment = {
      P = nonsensitive(var.password), K = nonsensitive(var.key.pem), J = jsonencode(nonsensitive(var.key)), U = var.undeclared, FATE = var.fate
    }
  }
}
`

// keeper is an agent, its key, and values that are to be seen nowhere.
type keeper struct {
	*site.Site
	agent  *site.Agent
	key    seal.Identities
	repo   string
	values map[string]any
	ids    []uuid.UUID
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	s := site.New(t)
	k := &keeper{Site: s, agent: s.NewAgent("one", 2, "").Start(), repo: s.Template("secretive", map[string]string{"main.tf": secretive})}
	k.key = keyOf(k.agent)
	k.values = map[string]any{
		"password": canary() + "<&>\"", "once": canary(), "undeclared": canary(),
		"key": map[string]any{"pem": canary() + "\n  " + canary() + "\n", "hosts": []string{canary()}},
	}
	return k
}

// keyOf reads the identities of an agent that has been started.
func keyOf(a *site.Agent) seal.Identities {
	a.Site.T.Helper()
	a.AwaitOutput("registered")
	text, err := os.ReadFile(filepath.Join(a.Dir, "identity"))
	if err != nil {
		a.Site.T.Fatal(err)
	}
	key, err := seal.ParseIdentities("identity", string(text))
	if err != nil {
		a.Site.T.Fatal(err)
	}
	return key
}

// deploy deploys with all values sealed. In the workspace acme/approval a plan
// waits for approval.
func (k *keeper) deploy(workspace, fate string) uuid.UUID {
	k.T.Helper()
	more := map[string]any{"terraform_vars": map[string]any{"fate": fate}}
	if workspace == "acme/approval" {
		more["approval"] = "always"
	}
	id := deploySealed(k.Site, k.key, k.repo, workspace, more, k.values)
	k.ids = append(k.ids, id)
	return id
}

// deploySealed deploys with values sealed to a key, and with more in the
// snapshot.
func deploySealed(s *site.Site, key seal.Identities, repo, workspace string, more, values map[string]any) uuid.UUID {
	s.T.Helper()
	to, err := seal.ParseRecipient(key.Public())
	if err != nil {
		s.T.Fatal(err)
	}
	sealed := map[string]string{}
	for name, value := range values {
		encoded, err := json.Marshal(value)
		if err == nil {
			sealed[name], err = seal.Variable{Name: name, Workspace: workspace, Value: encoded}.Seal(to)
		}
		if err != nil {
			s.T.Fatal(err)
		}
	}
	asked := map[string]any{
		"template_source": map[string]any{"repo": repo, "version": "v1"}, "workspace": workspace, "sealed_vars": sealed,
	}
	maps.Copy(asked, more)
	snapshot, err := json.Marshal(asked)
	if err != nil {
		s.T.Fatal(err)
	}
	return s.DeploySnapshot(s.T, string(snapshot))
}

// forms are the texts in which the values could be found.
func (k *keeper) forms() map[string]string {
	forms := map[string]string{}
	pair, _ := k.values["key"].(map[string]any)
	pem, _ := pair["pem"].(string)
	leaves := append(strings.Fields(pem), pair["hosts"].([]string)...)
	for _, name := range []string{"password", "once", "undeclared"} {
		leaves = append(leaves, k.values[name].(string))
	}
	for _, leaf := range leaves {
		forms["raw "+leaf], forms["URL "+leaf] = leaf, url.QueryEscape(leaf)
		for shift := range 3 { // whatever stands before and after it
			encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", shift) + leaf))
			forms["base64 "+leaf+string(rune('0'+shift))] = encoded[4 : len(encoded)-4]
		}
	}
	return forms
}

// wantNowhere looks through the database, the agent's directory and its log.
func (k *keeper) wantNowhere(when string) {
	k.T.Helper()
	forms := k.forms()
	look := func(where, content string) {
		for what, form := range forms {
			if strings.Contains(content, form) {
				k.T.Errorf("%s %s holds a value: %s", when, where, what)
			}
		}
	}
	look("the database", dump(k.Site))
	look("the agent's log", k.agent.Out.String())
	looked := 0
	err := filepath.WalkDir(k.agent.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		looked++
		look(path, string(content))
		if strings.HasPrefix(string(content), "PK") { // a saved plan is a zip, in which no text is found
			k.T.Errorf("%s %s is a plan in clear", when, path)
		}
		return err
	})
	if err != nil || looked == 0 {
		k.T.Errorf("looked through %d files of the agent, %v", looked, err)
	}
	if left, _ := filepath.Glob(filepath.Join(k.agent.Dir, "work", "*", "secrets")); len(left) > 0 {
		k.T.Errorf("%s there is still %v", when, left)
	}
}

// What is sealed is in the live run's files and nowhere else, whatever becomes
// of the run: a success, a failed plan, a failed apply, a kill -9 of the agent
// and of the run's process together.
func TestSealedValuesAppearNowhere(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	for _, c := range []struct{ fate, want string }{{"well", "SUCCESS"}, {"plan", "FAILED/plan_failed"}, {"apply", "FAILED/apply_failed"}} {
		id := k.deploy("acme/"+c.fate, c.fate)
		if got := k.AwaitEnd(id); got != c.want {
			t.Fatalf("provision %s = %s: %s, want %s", c.fate, got, k.Message(id), c.want)
		}
	}
	if log := k.Log(t, k.ids[0]); !strings.Contains(log, "password is ***") || !strings.Contains(log, "sealed_vars.undeclared: the template does not declare") {
		t.Errorf("the log lacks the masked line or the warning:\n%s", log)
	}
	k.wantNowhere("after runs that ended")

	// What waits for approval is kept, but by nobody who could read it, and what
	// is ephemeral is given to the apply anew.
	id := k.deploy("acme/approval", "well")
	k.Await("approval to be asked for", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", id)
	k.wantNowhere("while a plan waits for approval")
	k.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", id)
	if got := k.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("the approved provision = %s: %s", got, k.Message(id))
	}
	k.wantNowhere("after an approved run")

	id = k.deploy("acme/wait", "wait")
	k.AwaitLine(id, "waiting")
	files, err := filepath.Glob(filepath.Join(k.agent.Dir, "work", "*", "secrets", "sealed.tfvars.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the live run has %v, %v, want its file of sealed variables", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v, want 0600", info.Mode(), err)
	}
	children, err := process.Descendants(k.agent.Cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	agent := k.agent.Cmd.Process.Pid
	_ = syscall.Kill(agent, syscall.SIGKILL)
	killed := 0
	for _, child := range children {
		if child.Parent == agent && syscall.Kill(child.PID, syscall.SIGKILL) == nil {
			killed++
		}
	}
	<-k.agent.Done
	if _, err := os.Stat(files[0]); killed != 1 || err != nil {
		t.Errorf("killed %d children; the file they left: %v, want one, and it to be there", killed, err)
	}
	said := k.agent.Out.String()
	k.agent.Start()
	if got := k.AwaitEnd(id); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s: %s, want FAILED/agent_restarted", got, k.Message(id))
	}
	k.wantNowhere("after the kill")
	for what, form := range k.forms() {
		if strings.Contains(said, form) {
			t.Errorf("the killed agent's log holds a value: %s", what)
		}
	}
}

// What Terraform itself shows, because its template does not call it sensitive,
// is hidden all the same in what the database gets of it.
func TestSealedValuesThatTheTemplateShows(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	k.values = map[string]any{"undeclared": canary()}
	k.repo = k.Template("open", map[string]string{"main.tf": `
variable "undeclared" { type = string }
variable "fate" { type = string }
resource "terraform_data" "a" { input = { "text" = "with ${var.undeclared}" } }
output "shown" { value = "shown: ${var.undeclared}" }
output "alone" { value = [var.undeclared] }
`})
	for range 2 { // the second time there is nothing to do
		id := k.deploy("acme/open", "well")
		if got := k.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, k.Message(id))
		}
	}
	all := dump(k.Site)
	if at := strings.Index(all, "canary-"); at >= 0 {
		t.Errorf("the database holds the value: …%s…", all[max(0, at-200):min(len(all), at+60)])
	}
	if !strings.Contains(all, "with ***") {
		t.Error("the database lacks what is made of the value, masked")
	}
}

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
