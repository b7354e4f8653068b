package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"

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
	sealed map[string]any     // variables
	others []string           // what else is secret
	plain  string             // the variable that is given in plain
	asks   age.Identity       // to whom outputs are sealed
	rpc    *outputtest.Buffer // what was asked of the gateway, and answered; nil without one
	logged int                // how long the database's log was in the beginning
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

	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	// What the agents ask of the database is in its log, as on a server that is
	// told to write down everything.
	for _, set := range []string{"log_min_duration_statement = 0", "log_parameter_max_length = -1", "log_parameter_max_length_on_error = -1"} {
		s.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+set+"', current_database()); END $$")
		s.Exec(t, "SET "+set)
	}
	k.logged = len(databaseLog(s))
	if managed { // and by way of a gateway
		k.rpc = &outputtest.Buffer{}
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
		a.Set("TENDRIL_POLICY_REQUESTER_KEYS", "acme/**: "+asks.Recipient().String())
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
	use := seal.Use{Cluster: s.Text(s.T, "SELECT name FROM public.clusters WHERE id = $1", s.Cluster), Workspace: workspace, Repo: repo}
	sealed := map[string]string{}
	for name, value := range values {
		encoded, err := json.Marshal(value)
		if err == nil {
			use.Name = name
			sealed[name], err = seal.Variable{Use: use, Value: encoded}.Seal(to)
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
