package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// What a run needs to be told is the same whatever makes its machines.
const provisionedVariables = `
variable "names" {
  type        = set(string)
  description = "The machines, by name."
}
variable "memory" {
  type    = number
  default = 1024
  validation {
    condition     = var.memory >= 512
    error_message = "A machine needs 512 MiB."
  }
}
variable "cloud" { type = string }
variable "secret" {
  type      = string
  sensitive = true
  default   = "a-default-s3cret"
}
`

// makeScript is what each machine of Terraform and of a script is made by. It can be told to
// wait, and to fail.
const makeScript = `#!/bin/sh
echo "making $NAME with $SECRET"
[ ! -e "$CLOUD/fail" ] || { echo "there is no room" >&2; exit 1; }
[ ! -e "$CLOUD/hold" ] || : >"$CLOUD/held"
while [ -e "$CLOUD/hold" ]; do sleep 0.1; done
`

const machineBlock = `
  machine {
    for_each = var.names
    name     = each.key
    memory   = var.memory
  }
}
`

// provisioned is a site whose templates are all of one kind.
type provisioned struct {
	*site.Site
	t        *testing.T
	kind     string
	agent    *site.Agent
	identity string
	repo     string
	// drifting is a template of which something changes outside, as does what is in its cloud.
	drifting string
	cloud    string // the case's own, and so is the workspace of its name
}

func (p *provisioned) workspace() string { return filepath.Base(p.cloud) }

// kinds are the columns of the table: how a template of each kind is written.
var kinds = map[string]func(t *testing.T) gittest.Files{
	"terraform": func(*testing.T) gittest.Files {
		return gittest.Files{"make.sh": gittest.Executable(makeScript), "main.tf": gittest.File(`
resource "terraform_data" "machine" {
  for_each = var.names
  input    = { memory = var.memory, cloud = var.cloud, name = each.key }
  provisioner "local-exec" {
    command     = "umask 0; ./make.sh && echo > $CLOUD/vm-$NAME"
    environment = { NAME = each.key, CLOUD = var.cloud, SECRET = nonsensitive(var.secret) }
  }
  provisioner "local-exec" {
    when    = destroy
    command = "rm ${self.input.cloud}/vm-${self.input.name}"
  }
}
output "machines" {
  value = { for name, m in terraform_data.machine : name => { external_id = "vm-${name}", memory = m.output.memory } }
}
output "pin" {
  value     = "out-${var.secret}"
  sensitive = true
}
`)}
	},
	"script, lines": func(t *testing.T) gittest.Files {
		return scripted(t, "bash/fake-cloud", "\ntype=$(", "\ncloud=$(get .variables.cloud)\n", "\nmake_machine() {\n",
			"  NAME=$(jq -r . <<<\"$3\") SECRET=$(get .variables.secret) CLOUD=$cloud ./make.sh >&2 &\n"+
				"  while kill -0 $! 2>/dev/null; do stop_if_asked; sleep 0.1; done\n  wait $!\n", `speak = "lines"
  command = ["./fake-cloud"]`)
	},
	"script, once": func(t *testing.T) gittest.Files {
		return scripted(t, "once/fake-cloud", "\naction=$(", "\ncloud=$(jq -r .instance_config.cloud <<<\"$request\")\n", "\nprovision)\n",
			"  NAME=$TENDRIL_MACHINE SECRET=$(jq -r .instance_config.secret <<<\"$request\") CLOUD=$cloud ./make.sh >&2\n", `speak = "once"
  provision  = ["./fake-cloud"]
  terminate  = ["./fake-cloud"]
  idempotent = true`)
	},
	"manual": func(*testing.T) gittest.Files {
		return gittest.Files{
			"INSTRUCTIONS.md": gittest.File("# Mount ${length(var.names)} servers\n"),
			"tendril.hcl": gittest.File(`title = "A machine"
provisioner "manual" {
  instructions = "INSTRUCTIONS.md"
  output "pin" { sensitive = true }
` + machineBlock),
		}
	},
}

// scripted is an example, which makes each machine by the script.
func scripted(t *testing.T, example, beforeCloud, cloud, beforeMake, make, speaks string) gittest.Files {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "examples", "provisioners", example))
	if err != nil {
		t.Fatal(err)
	}
	program := strings.Replace(string(text), beforeCloud, cloud+beforeCloud[1:], 1)
	program = strings.Replace(program, beforeMake, beforeMake+make, 1)
	if strings.Count(program, cloud[1:])*strings.Count(program, make) != 1 {
		t.Fatalf("the example %s has no %q or no %q any more", example, beforeCloud, beforeMake)
	}
	program = strings.Replace(program, "\nset -euo pipefail\n", "\nset -euo pipefail\numask 0\n", 1) // a run may have a uid of its own
	return gittest.Files{
		"make.sh": gittest.Executable(makeScript), "fake-cloud": gittest.Executable(program),
		"tendril.hcl": gittest.File("title = \"A machine\"\nprovisioner \"script\" {\n  " + speaks + machineBlock),
	}
}

// newProvisioned has an agent that keeps states in the database and asks a policy hook, which
// refuses machines with a forbidden name.
func newProvisioned(t *testing.T, kind string) *provisioned {
	t.Helper()
	s := site.New(t)
	p := &provisioned{Site: s, t: t, kind: kind, identity: s.IdentityFile()}
	files := kinds[kind](t)
	files["variables.tf"] = gittest.File(provisionedVariables)
	repo, _ := s.Git.Repo("machines", files, "v1")
	p.repo, p.drifting = repo.URL, repo.URL
	p.agent = s.NewAgent("one", 1, "")
	if kind == "terraform" {
		files["drift.tf"] = gittest.File(`
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_rotating" "gone" {
  rfc3339       = "2020-01-01T00:00:00Z"
  rotation_days = 1
}
`)
		repo, _ = s.Git.Repo("drifting", files, "v1")
		p.drifting = repo.URL
		mirror := providertest.NewMirror(t)
		if err := os.Chmod(filepath.Dir(filepath.Dir(mirror.ConfigFile())), 0o711); err != nil {
			t.Fatal(err)
		}
		p.agent.Set("TENDRIL_RUN_PASS_ENV", "GORACE,TF_CLI_CONFIG_FILE,SSL_CERT_FILE")
		p.agent.Env = append(p.agent.Env, mirror.Env()...)
	}
	hook := filepath.Join(pgtest.Dir(t), "hook")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\nif grep -q forbidden; then echo 'that name is forbidden'; exit 1; fi\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.agent.ManageState(p.identity)
	p.agent.Set("TENDRIL_POLICY_HOOK", hook)
	p.agent.Start()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	s.Exec(t, `INSERT INTO public.webhooks (id, org_id, name, kind, host, events)
		VALUES (gen_random_uuid(), $1, 'hook', 'generic', 'example.com', '{awaiting_approval,awaiting_input,success,failure,cancelled,drift}')`, s.Org)
	return p
}

// ask queues a run of a case, with more in its snapshot.
func (p *provisioned) ask(operation string, vars, more map[string]any) uuid.UUID {
	p.t.Helper()
	all := map[string]any{"cloud": p.cloud, "names": []string{"ada", "bob"}}
	for name, value := range vars {
		all[name] = value
	}
	snapshot := map[string]any{}
	if err := json.Unmarshal([]byte(site.SnapshotOf(p.repo, p.workspace(), all)), &snapshot); err != nil {
		p.t.Fatal(err)
	}
	for name, value := range more {
		snapshot[name] = value
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		p.t.Fatal(err)
	}
	id := uuid.New()
	p.Exec(p.t, "INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4)", id, p.Cluster, operation, string(text))
	return id
}

// goes follows a run to its end, and answers what it came to on the way. Whom it waits for
// approves its plan, and does its work, or says why that can't be done.
func (p *provisioned) goes(id uuid.UUID, cannot string) string {
	p.t.Helper()
	var came []string
	for {
		p.Await("the run to end, or to wait for a person", "SELECT status NOT IN ('QUEUED', 'PROCESSING') FROM public.provisions WHERE id = $1", id)
		status := p.Status(p.t, id)
		came = append(came, status)
		switch status {
		case "AWAITING_APPROVAL":
			p.Exec(p.t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", id)
		case "AWAITING_INPUT":
			p.Exec(p.t, "SELECT public.give_input($1, $2)", id, p.answer(id, cannot))
		default:
			return strings.Join(came, " ")
		}
	}
}

// answer is what a person says of the work that is asked for: it is done, or why not.
func (p *provisioned) answer(id uuid.UUID, cannot string) string {
	p.t.Helper()
	if cannot != "" {
		return fmt.Sprintf(`{"done": false, "reason": %q}`, cannot)
	}
	return p.Text(p.t, `SELECT jsonb_build_object('done', true) || CASE WHEN request ->> 'destroys' = 'true' THEN '{}' ELSE jsonb_build_object('sealed', jsonb_build_object('output.pin', $2::text)) END
		|| jsonb_build_object('machines', coalesce((SELECT jsonb_object_agg(m ->> 'name', jsonb_build_object('external_id', 'vm-' || (m ->> 'name')))
			FROM jsonb_array_elements(request -> 'machines') m WHERE m ->> 'action' <> 'destroy'), '{}')) FROM public.provision_inputs WHERE provision_id = $1`, id, p.sealed("output.pin", "a-pin-s3cret"))
}

// sealed is a value that the agents of the cluster alone can read, for the case's workspace.
func (p *provisioned) sealed(name, value string) string {
	p.t.Helper()
	text, err := os.ReadFile(p.identity)
	if err != nil {
		p.t.Fatal(err)
	}
	key, err := seal.ParseIdentities(p.identity, string(text))
	if err != nil {
		p.t.Fatal(err)
	}
	to, err := seal.ParseRecipient(key.Public())
	if err != nil {
		p.t.Fatal(err)
	}
	use := seal.Use{Cluster: "prod", Workspace: p.workspace(), Repo: p.repo, Name: name}
	message, err := seal.Variable{Use: use, Value: json.RawMessage(fmt.Sprintf("%q", value))}.Seal(to)
	if err != nil {
		p.t.Fatal(err)
	}
	return message
}

// does has the case's cloud do something odd until the returned function is called.
func (p *provisioned) does(what string) (no func()) {
	p.t.Helper()
	path := filepath.Join(p.cloud, what)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			p.t.Fatal(err)
		}
	}
}

// exist are how many machines the case's cloud has; a person's are where nobody can count.
func (p *provisioned) exist() string {
	p.t.Helper()
	found, err := filepath.Glob(filepath.Join(p.cloud, "vm-*"))
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprint(len(found))
}

// planned is a run's plan in numbers.
func (p *provisioned) planned(id uuid.UUID) string {
	p.t.Helper()
	return p.Text(p.t, `SELECT format('+%s ~%s ±%s -%s', plan_summary ->> 'add', plan_summary ->> 'change', plan_summary ->> 'replace', plan_summary ->> 'destroy') FROM public.provisions WHERE id = $1`, id)
}

// listed are the machines of the case's workspace.
func (p *provisioned) listed() string {
	p.t.Helper()
	return p.Text(p.t, `SELECT coalesce(string_agg(concat_ws(' ', m.name, m.status, m.memory_mib), ', ' ORDER BY m.name), 'none')
		FROM public.machines m JOIN public.workspaces w ON w.id = m.workspace_id WHERE w.name = $1 AND m.status <> 'gone'`, p.workspace())
}

// told are the events that webhooks are told of a run, in order.
func (p *provisioned) told(id uuid.UUID) string {
	p.t.Helper()
	return p.Text(p.t, "SELECT coalesce(string_agg(event, ' ' ORDER BY created_at), 'nothing') FROM public.webhook_deliveries WHERE provision_id = $1", id)
}

// The template form, plan, approval, policy hook, drift, retry, cancel, notifications, log,
// masking and managed state work for each kind of provisioner. Where something can't be said
// of one kind, the table says what is to be expected instead.
func TestProvisioners(t *testing.T) {
	t.Parallel()
	const all = "" // the kinds that are not named
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := newProvisioned(t, kind)
			for _, row := range []struct {
				name string
				does func(*provisioned) string
				want map[string]string
			}{
				{"form", form, map[string]string{
					all:         "done script | cloud string required, memory number, names set(string) required, secret string sensitive",
					"terraform": "done terraform | cloud string required, memory number, names set(string) required, secret string sensitive",
					"manual":    "done manual | cloud string required, memory number, names set(string) required, secret string sensitive",
				}},
				{"a value that the template refuses", refusedValue, map[string]string{
					all:         "FAILED/variables_invalid; true; none; failure",
					"terraform": "FAILED/plan_failed; true; none; failure", // Terraform's own word
				}},
				{"plan", plan, map[string]string{
					all:      "SUCCESS; +2 ~0 ±0 -0; 0; none; success",
					"manual": "SUCCESS; +3 ~0 ±0 -0; 0; none; success", // the work beside the machines is one
				}},
				{"approval", approval, map[string]string{
					all: "CANCELLED/rejected; awaiting_approval cancelled; AWAITING_APPROVAL SUCCESS; +2 ~0 ±0 -0; 2; ada running 1024, bob running 1024; awaiting_approval success",
					"manual": "CANCELLED/rejected; awaiting_approval cancelled; AWAITING_APPROVAL AWAITING_INPUT SUCCESS; +3 ~0 ±0 -0; 0; ada running 1024, bob running 1024; " +
						"awaiting_approval awaiting_input success",
				}},
				{"policy hook", policyHook, map[string]string{all: "FAILED/policy_refused; true; 0; none; failure"}},
				{"drift", drift, map[string]string{
					all:            "SUCCESS; SUCCESS; delete; success drift",
					"script, once": "SUCCESS; FAILED/operation_refused; not known; success failure", // it has no such question
					"manual":       "AWAITING_INPUT SUCCESS; FAILED/operation_refused; not known; awaiting_input success failure",
				}},
				{"retry", retry, map[string]string{
					all:      "FAILED/apply_failed; failure; SUCCESS; 1; ada running 1024; success",
					"manual": "AWAITING_INPUT FAILED/manual_failed; awaiting_input failure; AWAITING_INPUT SUCCESS; 0; ada running 1024; awaiting_input success",
				}},
				{"cancel", cancel, map[string]string{
					all:      "CANCELLED/cancelled; cancelled; SUCCESS; 1; ada running 1024",
					"manual": "CANCELLED/cancelled; awaiting_input cancelled; AWAITING_INPUT SUCCESS; 0; ada running 1024",
				}},
				{"log and masking", masking, map[string]string{
					all:         "SUCCESS; making ada with ***; true; false; none",
					"terraform": "SUCCESS; making ada with ***; true; false; pin true",
					"manual":    "AWAITING_INPUT SUCCESS; carried out by a person; true; false; pin true",
				}},
				{"managed state", keptState, map[string]string{
					all:      "SUCCESS; true; 0; SUCCESS; +0 ~0 ±0 -0; 2; ada running 1024, bob running 1024",
					"manual": "AWAITING_INPUT SUCCESS; true; 0; SUCCESS; +0 ~0 ±0 -0; 0; ada running 1024, bob running 1024",
				}},
				{"change and destroy", changeAndDestroy, map[string]string{
					all: `SUCCESS; +2 ~0 ±0 -0; 2; ada running 1024, bob running 1024
SUCCESS; +1 ~1 ±0 -1; 2; ada running 2048, eve running 2048
SUCCESS; +0 ~0 ±0 -2; 0; none`,
					"script, once": `SUCCESS; +2 ~0 ±0 -0; 2; ada running 1024, bob running 1024
SUCCESS; +1 ~0 ±1 -1; 2; ada running 2048, eve running 2048
SUCCESS; +0 ~0 ±0 -2; 0; none`,
					"manual": `AWAITING_INPUT SUCCESS; +3 ~0 ±0 -0; 0; ada running 1024, bob running 1024
AWAITING_INPUT SUCCESS; +1 ~1 ±0 -1; 0; ada running 2048, eve running 2048
AWAITING_INPUT SUCCESS; +0 ~0 ±0 -3; 0; none`,
				}},
			} {
				t.Run(row.name, func(t *testing.T) {
					p.begin(t, row.name)
					want, special := row.want[kind]
					if !special {
						want = row.want[all]
					}
					if got := row.does(p); got != want {
						t.Errorf("%s of %s =\n%s\nwant\n%s", row.name, kind, got, want)
					}
				})
			}
			if p.T = t; strings.Contains(dump(p.Site), "s3cret") {
				t.Error("the database has a secret somewhere")
			}
		})
	}
}

// begin gives a case a cloud and a workspace of its own.
func (p *provisioned) begin(t *testing.T, name string) {
	t.Helper()
	p.t, p.T = t, t
	p.cloud = filepath.Join(p.Keep, strings.ReplaceAll(name, " ", "-"))
	if err := errors.Join(os.Mkdir(p.cloud, 0o700), os.Chmod(p.cloud, 0o777)); err != nil { // runs may have a uid of their own
		t.Fatal(err)
	}
}

// form adds a template to the catalogue, whose form an agent reads.
func form(p *provisioned) string {
	p.agent.AwaitOutput("registered")
	p.Exec(p.t, "SELECT public.inspect_template($1, $2, 'v1')", p.Org, p.repo)
	p.Exec(p.t, "UPDATE public.template_inspections SET status = 'handed'") // by a trellis that can't reach the repository
	p.Exec(p.t, "SELECT tendril.hand_inspections()")
	p.Await("the inspection", "SELECT status IN ('done', 'failed') FROM public.template_inspections")
	return p.Text(p.t, `SELECT concat_ws(' ', status, problem, about ->> 'provisioner', '|', (SELECT string_agg(concat_ws(' ', v ->> 'name', v ->> 'type',
		CASE WHEN v ->> 'required' = 'true' THEN 'required' END, CASE WHEN v ->> 'sensitive' = 'true' THEN 'sensitive' END), ', ' ORDER BY v ->> 'name') FROM jsonb_array_elements(variables) v)) FROM public.template_inspections`)
}

func refusedValue(p *provisioned) string {
	id := p.ask("apply", map[string]any{"memory": 100}, nil)
	return strings.Join([]string{p.goes(id, ""), fmt.Sprint(strings.Contains(p.Message(id), "A machine needs 512 MiB.")), p.listed(), p.told(id)}, "; ")
}

func plan(p *provisioned) string {
	id := p.ask("plan", nil, nil)
	return strings.Join([]string{p.goes(id, ""), p.planned(id), p.exist(), p.listed(), p.told(id)}, "; ")
}

func approval(p *provisioned) string {
	rejected := p.ask("apply", nil, map[string]any{"approval": "always"})
	p.Await("the plan", "SELECT status NOT IN ('QUEUED', 'PROCESSING') FROM public.provisions WHERE id = $1", rejected)
	p.Exec(p.t, "SELECT public.reject_provision($1, 'not now')", rejected)
	id := p.ask("apply", nil, map[string]any{"approval": "always"})
	return strings.Join([]string{p.goes(rejected, ""), p.told(rejected), p.goes(id, ""), p.planned(id), p.exist(), p.listed(), p.told(id)}, "; ")
}

func policyHook(p *provisioned) string {
	id := p.ask("apply", map[string]any{"names": []string{"forbidden"}}, nil)
	return strings.Join([]string{p.goes(id, ""), fmt.Sprint(strings.Contains(p.Message(id), "that name is forbidden")), p.exist(), p.listed(), p.told(id)}, "; ")
}

// drift asks what has changed since an apply, when somebody has removed a machine by hand.
func drift(p *provisioned) string {
	repo := p.repo
	p.repo = p.drifting
	defer func() { p.repo = repo }()
	came := p.goes(p.ask("apply", nil, nil), "")
	found, err := filepath.Glob(filepath.Join(p.cloud, "vm-*"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range found[:min(1, len(found))] {
		if err := os.Remove(path); err != nil {
			p.t.Fatal(err)
		}
	}
	id := p.ask("refresh", nil, nil)
	return strings.Join([]string{came, p.goes(id, ""), p.Text(p.t, `SELECT coalesce((SELECT string_agg(d ->> 'action', ', ') FROM jsonb_array_elements(drift) d), 'not known')
		FROM public.workspaces WHERE name = $1`, p.workspace()),
		p.Text(p.t, "SELECT string_agg(event, ' ' ORDER BY created_at) FROM public.webhook_deliveries WHERE payload -> 'data' -> 'workspace' ->> 'name' = $1", p.workspace())}, "; ")
}

func retry(p *provisioned) string {
	works := p.does("fail")
	id := p.ask("apply", map[string]any{"names": []string{"ada"}}, nil)
	came := p.goes(id, "no room")
	works()
	again := uuid.MustParse(p.Text(p.t, "SELECT public.retry_provision($1)::text", id))
	return strings.Join([]string{came, p.told(id), p.goes(again, ""), p.exist(), p.listed(), p.told(again)}, "; ")
}

// cancel cancels a run in the middle of its work, and has the next one finish it.
func cancel(p *provisioned) string {
	goOn := p.does("hold")
	id := p.ask("apply", map[string]any{"names": []string{"ada"}}, nil)
	p.agent.Await("the work to begin", func() bool { // of which a script's log says nothing yet
		_, err := os.Stat(filepath.Join(p.cloud, "held"))
		return err == nil || p.Text(p.t, "SELECT status FROM public.provisions WHERE id = $1", id) == "AWAITING_INPUT"
	})
	p.Exec(p.t, "SELECT public.cancel_provision($1)", id)
	came := p.goes(id, "")
	goOn()
	again := p.ask("apply", map[string]any{"names": []string{"ada"}}, nil)
	return strings.Join([]string{came, p.told(id), p.goes(again, ""), p.exist(), p.listed()}, "; ")
}

// masking has a run print a secret, and keep another one.
func masking(p *provisioned) string {
	id := p.ask("apply", map[string]any{"names": []string{"ada"}}, map[string]any{"sealed_vars": map[string]any{"secret": p.sealed("secret", "another-s3cret")}})
	came, log := p.goes(id, ""), p.Log(p.t, id) // which also checks that its rows are numbered 1…n
	made := "the log does not say that it is made"
	for _, says := range []string{"making ada with ***", "carried out by a person"} {
		if strings.Contains(log, says) {
			made = says
		}
	}
	return strings.Join([]string{came, made, fmt.Sprint(strings.HasSuffix(log, "Done.\n")), fmt.Sprint(strings.Contains(log, "s3cret")),
		p.Text(p.t, "SELECT coalesce(string_agg(concat_ws(' ', key, value ->> 'sensitive', value ->> 'value'), ', ' ORDER BY key), 'none') FROM public.provisions, jsonb_each(outputs) WHERE id = $1 AND key <> 'machines'", id)}, "; ")
}

// keptState looks at what is recorded of a deploy, and that the next has nothing to do.
func keptState(p *provisioned) string {
	came := p.goes(p.ask("apply", nil, nil), "")
	state := string(p.OpenState(p.t, p.workspace(), 0, p.identity))
	again := p.ask("apply", nil, nil)
	files, err := filepath.Glob(filepath.Join(p.agent.Dir, "state", "*", "*.tfstate"))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Join([]string{came, fmt.Sprint(strings.Contains(state, `"ada"`) && strings.Contains(state, `"bob"`)), fmt.Sprint(len(files)),
		p.goes(again, ""), p.planned(again), p.exist(), p.listed()}, "; ")
}

func changeAndDestroy(p *provisioned) string {
	var all []string
	for _, run := range []struct {
		operation string
		names     []string
		memory    int
	}{{"apply", []string{"ada", "bob"}, 1024}, {"apply", []string{"ada", "eve"}, 2048}, {"destroy", []string{"ada", "eve"}, 2048}} {
		id := p.ask(run.operation, map[string]any{"names": run.names, "memory": run.memory}, nil)
		all = append(all, strings.Join([]string{p.goes(id, ""), p.planned(id), p.exist(), p.listed()}, "; "))
	}
	return strings.Join(all, "\n")
}
