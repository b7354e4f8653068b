package e2e

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/trust"
)

// rows is a database that does what it likes, before an agent whose policy trusts ada:
// every row may be written, by somebody who has keys of their own.
type rows struct {
	*site.Site
	agent        *site.Agent
	key          seal.Identities // the cluster's
	ada, mallory trust.Person
	repo         string
}

// handedOut shows its secret nowhere but in a sensitive output and in the state.
const handedOut = `
variable "word" { default = "a" }
variable "password" {
  type      = string
  sensitive = true
}
resource "terraform_data" "kept" { input = [var.word, var.password] }
output "password" {
  value     = var.password
  sensitive = true
}
`

func newRows(t *testing.T, configure func(*rows, *site.Agent)) *rows {
	t.Helper()
	r := &rows{Site: site.New(t)}
	identity := r.IdentityFile()
	text, err := os.ReadFile(identity)
	if err == nil {
		r.key, err = seal.ParseIdentities(identity, string(text))
	}
	if err == nil {
		r.ada, err = trust.NewPerson()
	}
	if err == nil {
		r.mallory, err = trust.NewPerson()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", r.Org, instance.LocalUser)
	r.repo = r.Template("handed-out", map[string]string{"main.tf": handedOut})
	r.agent = r.NewAgent("one", 4, "")
	r.agent.ManageState(identity)
	if configure != nil {
		configure(r, r.agent)
	}
	r.agent.Start()
	r.agent.AwaitOutput("registered")
	return r
}

func trustsAda(r *rows, a *site.Agent) { a.AllowState(r.ada) }

// deploy deploys with a sealed password, and with more in the snapshot.
func (r *rows) deploy(workspace, word string, more map[string]any) uuid.UUID {
	r.T.Helper()
	all := map[string]any{"terraform_vars": map[string]any{"word": word}}
	maps.Copy(all, more)
	return deploySealed(r.Site, r.key, r.repo, workspace, all, map[string]any{"password": "correct-horse"})
}

// insert writes a row: a copy of a provision's, for an operation, with another thing or
// two in its snapshot.
func (r *rows) insert(of uuid.UUID, operation string, change map[string]any) (id uuid.UUID) {
	r.T.Helper()
	text, err := json.Marshal(change)
	if err == nil {
		err = r.Conn.QueryRow(r.T.Context(), `INSERT INTO public.provisions (cluster_id, operation, config_snapshot)
			SELECT cluster_id, $2, config_snapshot || $3::jsonb FROM public.provisions WHERE id = $1 RETURNING id`, of, operation, text).Scan(&id)
	}
	if err != nil {
		r.T.Fatal(err)
	}
	return id
}

func (r *rows) wantEnd(what string, id uuid.UUID, want string, words ...string) {
	r.T.Helper()
	got := r.AwaitEnd(id)
	if got != want {
		r.T.Errorf("%s: %s: %s, want %s", what, got, r.Message(id), want)
	}
	for _, word := range words {
		if !strings.Contains(r.Message(id), word) {
			r.T.Errorf("%s: the message %q lacks %q", what, r.Message(id), word)
		}
	}
}

// sealedOutput is what a run has recorded of its sensitive output, "" for nothing.
func (r *rows) sealedOutput(id uuid.UUID) string {
	r.T.Helper()
	return r.Text(r.T, "SELECT coalesce(outputs -> 'password' ->> 'sealed', '') FROM public.provisions WHERE id = $1", id)
}

// results counts what state operations have left for whom asked.
func (r *rows) results() string {
	r.T.Helper()
	return r.Text(r.T, "SELECT count(*)::text FROM tendril.blobs WHERE kind = 'result'")
}

func (r *rows) version(workspace string) string {
	r.T.Helper()
	return r.Text(r.T, "SELECT coalesce(state_version, 0)::text FROM public.workspaces WHERE name = $1", workspace)
}

// Whoever can write any row has nothing handed out: to whom an agent seals is said by its
// own configuration.
func TestTheDatabaseHasNothingHandedOut(t *testing.T) {
	t.Parallel()
	t.Run("with people in the policy", func(t *testing.T) {
		t.Parallel()
		r := newRows(t, trustsAda)
		adas := r.deploy("acme/prod", "a", map[string]any{"requester_key": r.ada.Recipient()})
		r.wantEnd("ada's deploy", adas, "SUCCESS")
		opened, err := r.ada.Open([]byte(r.sealedOutput(adas)), 1<<10)
		if err != nil || string(opened) != `"correct-horse"` {
			t.Errorf("ada opens %q, %v, want her output", opened, err)
		}
		certificate, err := r.mallory.Certify(trust.Certificate{
			Name: "ada", Recipient: r.mallory.Recipient(), Signer: r.mallory.SignerKey(), Workspaces: []string{"**"},
			From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		for what, key := range map[string]string{"another key": r.mallory.Recipient(), "a certificate of nobody": certificate} {
			applied := r.insert(adas, "apply", map[string]any{"requester_key": key})
			r.wantEnd("ada's snapshot with "+what, applied, "SUCCESS")
			if sealed := r.sealedOutput(applied); sealed != "" {
				t.Errorf("ada's snapshot with %s: the sensitive output is handed out: %s", what, sealed)
			}
			if log := r.Log(t, applied); !strings.Contains(log, "sensitive outputs of this run are not recorded") || !strings.Contains(log, "policy.requester_keys") {
				t.Errorf("ada's snapshot with %s: the log does not say why nothing is handed out:\n%s", what, log)
			}
			pulled := r.insert(adas, "state", map[string]any{"requester_key": key, "state": map[string]any{"command": "pull"}})
			r.wantEnd("a pull for "+what, pulled, "FAILED/operation_refused", "policy.requester_keys")
		}
		if got := r.results(); got != "0" {
			t.Errorf("states handed out = %s, want none", got)
		}
		// And what it may do goes on.
		r.wantEnd("ada's pull", r.insert(adas, "state", map[string]any{"requester_key": r.ada.Recipient(), "state": map[string]any{"command": "pull"}}), "SUCCESS")
		if got := r.results(); got != "1" {
			t.Errorf("states handed out = %s, want ada's", got)
		}
	})
	t.Run("as configured by nobody", func(t *testing.T) {
		t.Parallel()
		r := newRows(t, nil)
		deployed := r.deploy("acme/prod", "a", map[string]any{"requester_key": r.ada.Recipient()})
		r.wantEnd("a deploy", deployed, "SUCCESS")
		if sealed := r.sealedOutput(deployed); sealed != "" {
			t.Errorf("an agent that trusts nobody hands out %s", sealed)
		}
		// The row that says what the agent's policy grants is not the policy.
		r.Exec(t, "UPDATE public.agents SET operations = NULL")
		for what, id := range map[string]uuid.UUID{
			"pull":   r.insert(deployed, "state", map[string]any{"requester_key": r.ada.Recipient(), "state": map[string]any{"command": "pull"}}),
			"unlock": r.insert(deployed, "unlock", map[string]any{"lock_id": uuid.NewString()}),
		} {
			r.wantEnd(what, id, "FAILED/operation_refused", "[policy] operations")
		}
		if got := r.results(); got != "0" {
			t.Errorf("states handed out = %s, want none", got)
		}
	})
}

// upload leaves a state of mallory's for a push, sealed to the cluster's key, which
// everybody may know.
func (r *rows) upload(state []byte) string {
	r.T.Helper()
	to, err := seal.ParseRecipient(r.key.Public())
	if err != nil {
		r.T.Fatal(err)
	}
	sealed, err := seal.To(to, state)
	if err != nil {
		r.T.Fatal(err)
	}
	return r.Text(r.T, "SELECT public.upload_blob($1, 1, 1, $2)::text", r.Cluster, base64.StdEncoding.EncodeToString(sealed))
}

// Whoever can write any row puts no other state in the place of a workspace's: neither
// one of their own nor an earlier one, neither by an operation nor by the rows.
func TestTheDatabaseReplacesNoState(t *testing.T) {
	t.Parallel()
	r := newRows(t, trustsAda)
	first := r.deploy("acme/prod", "a", nil)
	r.wantEnd("the first deploy", first, "SUCCESS")
	r.wantEnd("the second deploy", r.deploy("acme/prod", "b", nil), "SUCCESS")
	before := r.version("acme/prod")
	id := uuid.MustParse(r.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/prod'"))

	var sealed []byte
	var newest, earliest int64
	if err := r.Conn.QueryRow(t.Context(), `SELECT string_agg(p.data, '' ORDER BY p.part), b.number, (SELECT min(number) FROM tendril.blobs WHERE workspace_id = $1)
		FROM tendril.blobs b JOIN tendril.blob_parts p ON p.blob_id = b.id WHERE b.workspace_id = $1 GROUP BY b.number ORDER BY b.number DESC LIMIT 1`, id).Scan(&sealed, &newest, &earliest); err != nil {
		t.Fatal(err)
	}
	state, err := r.key.Open(sealed, managedstate.MaxState)
	if err != nil {
		t.Fatal(err)
	}
	var altered map[string]any
	if err := json.Unmarshal(state, &altered); err != nil {
		t.Fatal(err)
	}
	altered["serial"], altered["resources"] = 1000, []any{}
	forged, err := json.Marshal(altered)
	if err != nil {
		t.Fatal(err)
	}
	order := func(by trust.Person, o trust.Order) string {
		t.Helper()
		o.Workspace, o.Name, o.Until = id, "acme/prod", time.Now().Add(time.Hour)
		text, err := by.Order(o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	push := trust.Order{Command: "push", Over: newest, Digest: planbundle.Digest(forged)}
	back := trust.Order{Command: "rollback", Over: newest, Version: earliest}
	adasPush := order(r.ada, trust.Order{Command: "push", Over: newest, Digest: planbundle.Digest(state)})
	for what, command := range map[string]map[string]any{
		"a push":                            {"command": "push", "upload": r.upload(forged)},
		"a push, signed by nobody we know":  {"command": "push", "upload": r.upload(forged), "order": order(r.mallory, push)},
		"a push of what ada did not sign":   {"command": "push", "upload": r.upload(forged), "order": adasPush},
		"a rollback":                        {"command": "rollback", "version": earliest},
		"a rollback, signed by a stranger":  {"command": "rollback", "version": earliest, "order": order(r.mallory, back)},
		"a rollback by the order of a push": {"command": "rollback", "version": earliest, "order": adasPush},
	} {
		r.wantEnd(what, r.insert(first, "state", map[string]any{"state": command}), "FAILED/operation_refused")
	}
	if got := r.version("acme/prod"); got != before {
		t.Fatalf("the state has version %s, want %s as before", got, before)
	}

	// What ada orders is done once, and waits for approval where an apply does.
	command := map[string]any{"command": "rollback", "version": earliest, "order": order(r.ada, back)}
	asked := r.insert(first, "state", map[string]any{"state": command, "approval": "destructive"})
	r.Await("the rollback to wait for approval", "SELECT status <> 'QUEUED' AND status <> 'CLAIMED' AND status <> 'PROCESSING' FROM public.provisions WHERE id = $1", asked)
	if got := r.Status(t, asked); got != "AWAITING_APPROVAL" || r.version("acme/prod") != before {
		t.Fatalf("ada's rollback = %s: %s, want that it awaits approval", got, r.Message(asked))
	}
	r.copyState("kept") // for later
	r.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", asked)
	r.wantEnd("ada's rollback", asked, "SUCCESS")
	if r.version("acme/prod") == before {
		t.Error("ada's rollback has stored no state")
	}
	r.wantEnd("the same order again", r.insert(first, "state", map[string]any{"state": command}), "FAILED/operation_refused", "is to replace version")
	r.wantEnd("a deploy", r.deploy("acme/prod", "c", nil), "SUCCESS")

	// Rows of before are a step back, which the agent's operator may accept: that one
	// state, once.
	r.copyState("later")
	r.restoreState("kept", id)
	refused := r.deploy("acme/prod", "d", nil)
	r.wantEnd("a deploy on rows of before", refused, "FAILED/state_invalid", "step back", "version "+before, "tendril workspaces accept "+id.String())
	if log := r.Log(t, refused); strings.Contains(log, "Creating") {
		t.Errorf("the refused run made something:\n%s", log)
	}
	r.accept(r.Message(refused))
	r.wantEnd("once it is accepted", r.deploy("acme/prod", "d", nil), "SUCCESS")
	r.restoreState("later", id)
	r.wantEnd("the rows that were given up", r.deploy("acme/prod", "e", nil), "FAILED/state_invalid")
}

// copyState keeps the rows of all states in tables of that name.
func (r *rows) copyState(name string) {
	r.T.Helper()
	for _, table := range []string{"blobs", "blob_parts"} {
		r.Exec(r.T, "CREATE TABLE "+name+"_"+table+" AS TABLE tendril."+table)
	}
	r.Exec(r.T, "CREATE TABLE "+name+"_workspaces AS TABLE public.workspaces")
}

// restoreState puts those of a workspace back.
func (r *rows) restoreState(name string, workspace uuid.UUID) {
	r.T.Helper()
	r.Exec(r.T, "DELETE FROM tendril.blobs WHERE workspace_id = $1", workspace)
	r.Exec(r.T, "INSERT INTO tendril.blobs OVERRIDING SYSTEM VALUE SELECT * FROM "+name+"_blobs WHERE workspace_id = $1", workspace)
	r.Exec(r.T, "INSERT INTO tendril.blob_parts OVERRIDING SYSTEM VALUE SELECT * FROM "+name+"_blob_parts p WHERE blob_id IN (SELECT id FROM "+name+"_blobs WHERE workspace_id = $1)", workspace)
	r.Exec(r.T, "UPDATE public.workspaces w SET state_version = k.state_version FROM "+name+"_workspaces k WHERE k.id = w.id AND w.id = $1", workspace)
}

// accept is what an operator does who has read a refusal: the command that it ends with.
func (r *rows) accept(message string) {
	r.T.Helper()
	_, command, found := strings.Cut(message, "tendril workspaces accept ")
	if !found {
		r.T.Fatalf("the message %q names no command", message)
	}
	args := append([]string{"workspaces", "accept"}, strings.Fields(command)...)
	cmd := exec.Command(site.Program("tendril"), append(args, "--data-dir", r.agent.Dir)...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Accepted for the next run") {
		r.T.Fatalf("tendril %q = %v:\n%s", args, err, out)
	}
}

// A plan that was made for one workspace is not applied as another's, with its
// credentials: not by an agent that remembers, not after its restart, and not by one that
// remembers nothing.
func TestAWorkspaceThatIsRenamedInSQL(t *testing.T) {
	t.Parallel()
	witness := filepath.Join(pgtest.Dir(t), "witness")
	err := os.WriteFile(witness, nil, 0o600)
	if err == nil {
		err = os.Chmod(witness, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := newRows(t, func(r *rows, a *site.Agent) {
		file := filepath.Join(filepath.Dir(a.Dir), "prod.env")
		if err := os.WriteFile(file, []byte("TEST_CLOUD=of-prod\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a.Configure("\n[[credentials]]\nworkspace = \"prod/**\"\nenv_file = \"" + file + "\"\n")
	})
	repo := r.Template("cloud", map[string]string{"main.tf": `
variable "witness" { type = string }
variable "word" { type = string }
resource "terraform_data" "a" {
  triggers_replace = [var.word]
  provisioner "local-exec" {
    command     = "echo \"$WORD: $TEST_CLOUD\" >> $WITNESS"
    environment = { WITNESS = var.witness, WORD = var.word }
  }
}`})
	deploy := func(workspace, word string, more map[string]any) uuid.UUID {
		t.Helper()
		snapshot := map[string]any{
			"template_source": map[string]any{"repo": repo, "version": "v1"}, "workspace": workspace, "terraform_vars": map[string]any{"witness": witness, "word": word},
		}
		maps.Copy(snapshot, more)
		text, err := json.Marshal(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		return r.DeploySnapshot(t, string(text))
	}
	wantWitness := func(want string) {
		t.Helper()
		got, err := os.ReadFile(witness)
		if err != nil || string(got) != want {
			t.Errorf("what was applied: %q, %v, want %q", got, err, want)
		}
	}
	// rename writes rows past all triggers, as only a superuser can.
	rename := func(from, to string, snapshots bool) {
		t.Helper()
		r.Exec(t, "SET session_replication_role = replica")
		if r.Exec(t, "UPDATE public.workspaces SET name = $2 WHERE name = $1", from, to); snapshots {
			r.Exec(t, `UPDATE public.provisions SET config_snapshot = jsonb_set(config_snapshot, '{workspace}', to_jsonb($2::text)) WHERE config_snapshot ->> 'workspace' = $1`, from, to)
		}
		r.Exec(t, "SET session_replication_role = origin")
	}
	r.wantEnd("dev", deploy("dev/x", "one", nil), "SUCCESS")
	wantWitness("one: \n")

	for what, snapshots := range map[string]bool{"the workspace alone": false, "the workspace and its snapshots": true} {
		planned := deploy("dev/x", "two", map[string]any{"approval": "always"})
		r.Await("the plan to wait for approval", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", planned)
		rename("dev/x", "prod/x", snapshots)
		r.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", planned)
		r.wantEnd("renamed: "+what, planned, "FAILED/workspace_changed", "dev/x", "prod/x", "Nothing was run")
		rename("prod/x", "dev/x", snapshots)
	}
	rename("dev/x", "prod/x", true)
	r.agent.Terminate()
	r.agent.Start()
	refused := deploy("prod/x", "three", nil)
	r.wantEnd("after a restart", refused, "FAILED/workspace_changed", "tendril workspaces accept")

	// An agent without notes believes the state's name.
	notes, err := filepath.Glob(filepath.Join(r.agent.Dir, "states", "*"))
	if err != nil || len(notes) == 0 {
		t.Fatalf("notes of the agent = %q, %v", notes, err)
	}
	r.agent.Terminate()
	for _, path := range notes {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	r.agent.Start()
	refused = deploy("prod/x", "three", nil)
	r.wantEnd("without notes", refused, "FAILED/workspace_changed", "is that of workspace dev/x", "tendril workspaces accept")
	wantWitness("one: \n")

	r.accept(r.Message(refused))
	r.wantEnd("once it is accepted", deploy("prod/x", "three", nil), "SUCCESS")
	wantWitness("one: \nthree: of-prod\n")
}
