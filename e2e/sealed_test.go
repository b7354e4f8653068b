package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/seal"

	"github.com/tendril-run/tendril/e2e/site"
)

// secretive prints what it was given in each form, and has it in its state, its
// errors and its outputs. What it is to do is its fate.
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
variable "plain" {
  type      = string
  sensitive = true
}
locals {
  given = [for s in [var.password, var.key.pem, jsonencode(var.key), var.undeclared, var.plain] : nonsensitive(s)]
  token = sha256("token of ${var.password}")
  # A plan that fails never says that the output is sensitive.
  open  = var.fate == "plan" ? local.given : concat(local.given, [nonsensitive(local.token)])
  forms = join("\n", flatten([for s in local.open : [s, jsonencode(s), urlencode(s), base64encode(s), base64encode("x${s}"), base64encode("xy${s}"), base64encode(jsonencode({ in = s }))]]))
}
resource "terraform_data" "kept" { input = [var.password, var.key] }
resource "terraform_data" "shown" { input = { text = local.forms } }
resource "terraform_data" "a" {
  triggers_replace = [var.fate, timestamp()]
  provisioner "local-exec" {
    command     = <<-SH
      print() {
        printf '%s\n' "$1" >&2
        for before in '' x xy; do printf '%s' "$before$1" | base64; printf '%s' "$before$1" | base64 -w0; echo; done
        printf '%s' "$1" | od -An -v -tx1; printf '%s' "$1" | od -An -v -tx1 | tr -d ' \\n'; echo
      }
      echo "password is $P"
      printf '%s\n' "$FORMS"
      for value in "$P" "$K" "$TEST_TOKEN" "$AWS_SECRET_ACCESS_KEY" "$(cat "$GOOGLE_APPLICATION_CREDENTIALS")"; do print "$value"; done
      if [ $FATE = wait ]; then echo waiting; while sleep 0.1; do :; done; fi
      [ $FATE != apply ]
    SH
    environment = { P = nonsensitive(var.password), K = nonsensitive(var.key.pem), FORMS = local.forms, FATE = var.fate }
  }
  lifecycle {
    precondition {
      condition     = var.fate != "plan"
      error_message = "These forms are refused: ${local.forms}"
    }
  }
}
output "token" {
  value     = local.token
  sensitive = true
}
output "shown" { value = local.forms }
`

// keeper is where nobody is to see what is sealed: agents, their key, and the
// values.
type keeper struct {
	*site.Site
	agents []*site.Agent
	key    seal.Identities
	repo   string
	sealed map[string]any // variables
	others []string       // what else is secret
	plain  string         // the variable that is given in plain
	asks   age.Identity   // to whom outputs are sealed
	rpc    *site.Output   // what was asked of the gateway, and answered; nil without one
	logged int            // how long the database's log was in the beginning
	ids    []uuid.UUID
}

// judge is a policy hook that prints what it is shown.
const judge = `/bin/sh,-c,plan=$(cat); printf '%s\n' "$plan"; case $plan in *'"fate":{"value":"hook"}'*) exit 1;; esac`

// newKeeper makes a place with agents of one identity, which keep states in the
// database or where they are.
func newKeeper(t *testing.T, names []string, managed bool) *keeper {
	t.Helper()
	s := site.New(t)
	k := &keeper{Site: s, repo: s.Template("secretive", map[string]string{"main.tf": secretive}), plain: canary()}
	asks, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k.asks = asks
	lines := make([]string, 8)
	for i := range lines {
		lines[i] = base64.StdEncoding.EncodeToString([]byte(canary() + canary()[:5]))
	}
	k.sealed = map[string]any{
		"password": canary() + "<&>\"ü+/?= " + canary(), "once": canary(), "undeclared": canary(),
		"key": map[string]any{
			"pem":   "-----BEGIN EC PRIVATE KEY-----\n" + strings.Join(lines, "\n") + "\n-----END EC PRIVATE KEY-----\n",
			"hosts": []string{canary()},
		},
	}
	token := sha256.Sum256([]byte("token of " + k.sealed["password"].(string)))
	ofEnvironment, ofWorkspace, inFile := canary(), canary(), canary()
	k.others = []string{hex.EncodeToString(token[:]), ofEnvironment, ofWorkspace, inFile}

	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, devstack.LocalUser)
	// What the agents ask of the database is in its log, as on a server that is
	// told to write down everything.
	for _, set := range []string{"log_min_duration_statement = 0", "log_parameter_max_length = -1", "log_parameter_max_length_on_error = -1"} {
		s.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+set+"', current_database()); END $$")
		s.Exec(t, "SET "+set)
	}
	k.logged = len(databaseLog(s))
	if managed { // and by way of a gateway
		k.rpc = &site.Output{}
		if s.Gateway == nil {
			s.Serve()
		}
		s.QueueURL = recorded(t, s.Gateway, k.rpc)
	}
	identity := s.IdentityFile()
	for _, name := range names {
		a := s.NewAgent(name, 7, "")
		files := map[string]string{"aws.env": "AWS_SECRET_ACCESS_KEY=" + ofWorkspace + "\n", "key.json": `{"private_key": "` + inFile + `"}`}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(filepath.Dir(a.Dir), file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		home := filepath.Dir(a.Dir)
		a.Configure("\n[[credentials]]\nworkspace = \"acme/**\"\nenv_file = \"" + home + "/aws.env\"\nfiles = { GOOGLE_APPLICATION_CREDENTIALS = \"" + home + "/key.json\" }\n")
		a.Set("TEST_TOKEN", ofEnvironment)
		a.Set("TENDRIL_POLICY_PLAIN_SENSITIVE", "true")
		a.Set("TENDRIL_POLICY_HOOK", judge)
		a.Set("TENDRIL_IDENTITY_FILE", identity)
		if managed {
			a.ManageState(identity)
		}
		k.agents = append(k.agents, a)
	}
	text, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	if k.key, err = seal.ParseIdentities(identity, string(text)); err != nil {
		t.Fatal(err)
	}
	k.agents[0].Start()
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
	more := map[string]any{
		"terraform_vars": map[string]any{"fate": fate, "plain": k.plain},
		"requester_key":  k.asks.(*age.X25519Identity).Recipient().String(),
	}
	if workspace == "acme/approval" {
		more["approval"] = "always"
	}
	id := deploySealed(k.Site, k.key, k.repo, workspace, more, k.sealed)
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

// lives lets runs end in each way but for those that begin with a kill.
func (k *keeper) lives(fates map[string]string) {
	k.T.Helper()
	ids := map[string]uuid.UUID{}
	for fate := range fates { // at once
		ids[fate] = k.deploy("acme/"+fate, fate)
	}
	for fate, want := range fates {
		if got := k.AwaitEnd(ids[fate]); got != want {
			k.T.Fatalf("provision %s = %s: %s, want %s", fate, got, k.Message(ids[fate]), want)
		}
		log := k.Log(k.T, ids[fate])
		for _, want := range []string{"password is ***", "sealed_vars.undeclared: the template does not declare"} {
			if !strings.Contains(log, want) && (fate == "well" || fate == "apply") {
				k.T.Errorf("the log of %s lacks %q:\n%s", fate, want, log)
			}
		}
	}
}

// live deploys what runs until it is killed, and returns its process.
func (k *keeper) live(workspace string) (id uuid.UUID, exec int) {
	k.T.Helper()
	agent := k.agents[0].Cmd.Process.Pid
	before, err := children(agent)
	if err != nil {
		k.T.Fatal(err)
	}
	id = k.deploy(workspace, "wait")
	k.AwaitLine(id, "waiting")
	after, err := children(agent)
	if err != nil {
		k.T.Fatal(err)
	}
	for _, child := range after {
		if !slices.Contains(before, child) {
			return id, child
		}
	}
	k.T.Fatal("the live run has no process")
	return id, 0
}

// children are the processes that one has started.
func children(pid int) (pids []int, err error) {
	all, err := process.Descendants(pid)
	for _, child := range all {
		if child.Parent == pid {
			pids = append(pids, child.PID)
		}
	}
	return pids, err
}

// wantLiveFiles looks at the files that a live run has of its variables.
func (k *keeper) wantLiveFiles(workspace uuid.UUID) (secrets string) {
	k.T.Helper()
	secrets = filepath.Join(k.agents[0].Dir, "work", workspace.String(), "secrets")
	found := 0
	err := filepath.WalkDir(secrets, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			found++
		}
		if err == nil && info.Mode().Perm() != want {
			k.T.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		return err
	})
	if err != nil || found < 4 { // two of variables, the plan, the credentials
		k.T.Errorf("the live run has %d files, %v, want those of its variables and the plan", found, err)
	}
	return secrets
}

// What is sealed, and a sensitive output, are in the live run's files and in
// Terraform's state, and nowhere else, in no form and whatever becomes of the
// run. Here states are in the database, and agents reach it by a gateway.
func TestSealedValuesAppearNowhere(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, []string{"one", "two"}, true)
	// What waits for approval is kept, but by nobody who could read it, and what
	// is ephemeral is given to the apply anew.
	approved := k.deploy("acme/approval", "well")
	k.lives(map[string]string{"well": "SUCCESS", "plan": "FAILED/plan_failed", "apply": "FAILED/apply_failed", "hook": "FAILED/policy_refused"})
	k.Await("approval to be asked for", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", approved)
	k.wantNowhere("after runs that ended, and while a plan waits")

	child, exec := k.live("acme/child")
	if err := syscall.Kill(exec, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := k.AwaitEnd(child); got != "FAILED/exec_died" {
		t.Errorf("the run whose process was killed = %s: %s", got, k.Message(child))
	}
	killed, exec := k.live("acme/killed")
	secrets := k.wantLiveFiles(uuid.MustParse(k.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", killed)))
	one := k.agents[0]
	_ = syscall.Kill(one.Cmd.Process.Pid, syscall.SIGKILL)
	if err := syscall.Kill(exec, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-one.Done
	if _, err := os.Stat(filepath.Join(secrets, "sealed.tfvars.json")); err != nil {
		t.Errorf("what was killed left no file of sealed variables (%v), so the test shows nothing", err)
	}
	k.lookAt("the killed agent's log", one.Out.String())

	// Another agent applies what was approved.
	k.agents[1].Start()
	k.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", approved)
	if got := k.AwaitEnd(approved); got != "SUCCESS" {
		t.Fatalf("the approved provision = %s: %s", got, k.Message(approved))
	}
	one.Start()
	if got := k.AwaitEnd(killed); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s: %s, want FAILED/agent_restarted", got, k.Message(killed))
	}
	k.destroyAll()
	k.wantNowhere("in the end")
	k.wantSealedOutput(approved)
	k.wantTheSearchToFind()
}

// The same with states that are files of the agent's: the one place where the
// values are to be found afterwards, by root and the run's own user.
func TestSealedValuesAppearNowhereButInLocalState(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, []string{"one"}, false)
	approved := k.deploy("acme/approval", "well")
	k.lives(map[string]string{"well": "SUCCESS", "apply": "FAILED/apply_failed"})
	k.Await("approval to be asked for", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", approved)
	k.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", approved)
	if got := k.AwaitEnd(approved); got != "SUCCESS" {
		t.Fatalf("the approved provision = %s: %s", got, k.Message(approved))
	}
	k.wantNowhere("before what exists is destroyed")
	k.destroyAll()
	k.wantNowhere("in the end")
}

// destroyAll destroys what the runs that went well have made; the engine shows
// what it takes away.
func (k *keeper) destroyAll() {
	k.T.Helper()
	var ids []uuid.UUID
	for _, workspace := range []string{"acme/well", "acme/approval"} {
		var id uuid.UUID
		err := k.Conn.QueryRow(k.T.Context(), `INSERT INTO public.provisions (cluster_id, operation, config_snapshot)
			SELECT cluster_id, 'destroy', config_snapshot - 'approval' FROM public.provisions WHERE config_snapshot ->> 'workspace' = $1 LIMIT 1 RETURNING id`, workspace).Scan(&id)
		if err != nil {
			k.T.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if got := k.AwaitEnd(id); got != "SUCCESS" {
			k.T.Fatalf("the destroy = %s: %s", got, k.Message(id))
		}
	}
	k.ids = append(k.ids, ids...)
}

// wantSealedOutput opens what the requester gets.
func (k *keeper) wantSealedOutput(id uuid.UUID) {
	k.T.Helper()
	message := k.Text(k.T, "SELECT outputs -> 'token' ->> 'sealed' FROM public.provisions WHERE id = $1", id)
	opened, err := age.Decrypt(armor.NewReader(strings.NewReader(message)), k.asks)
	if err != nil {
		k.T.Fatal(err)
	}
	if got, err := io.ReadAll(opened); err != nil || string(got) != `"`+k.others[0]+`"` {
		k.T.Errorf("the requester opens %q, %v, want the sensitive output", got, err)
	}
}

// What Terraform itself shows, because its template does not call it sensitive,
// is hidden all the same in what the database gets of it.
func TestSealedValuesThatTheTemplateShows(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	agent := s.NewAgent("one", 2, "").Start()
	repo := s.Template("open", map[string]string{"main.tf": `
variable "undeclared" { type = string }
resource "terraform_data" "a" { input = { "text" = "with ${var.undeclared}" } }
output "shown" { value = "shown: ${var.undeclared}" }
output "alone" { value = [var.undeclared] }
`})
	values := map[string]any{"undeclared": canary()}
	for range 2 { // the second time there is nothing to do
		id := deploySealed(s, keyOf(agent), repo, "acme/open", nil, values)
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, s.Message(id))
		}
	}
	all := dump(s)
	if at := strings.Index(all, "canary-"); at >= 0 {
		t.Errorf("the database holds the value: …%s…", all[max(0, at-200):min(len(all), at+60)])
	}
	if !strings.Contains(all, "with ***") {
		t.Error("the database lacks what is made of the value, masked")
	}
}
