package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// inspector is the protocol's own client, which `make deps` installs.
type inspector struct {
	t      *testing.T
	env    []string
	server []string // how it reaches the server
}

// ask makes one request and returns what came back.
func (i inspector) ask(args ...string) string {
	i.t.Helper()
	program := filepath.Join(pgtest.Tool(i.t, "mcp-inspector/node_modules"), "@modelcontextprotocol", "inspector", "cli", "build", "cli.js")
	cmd := exec.CommandContext(i.t.Context(), "node", append(append([]string{program, "--cli"}, i.server...), args...)...)
	cmd.Env = i.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		i.t.Fatalf("inspector %s: %v\n%s%s", args, err, out, &stderr)
	}
	return string(out)
}

// called is the answer of a tool.
type called struct {
	IsError    bool           `json:"isError"`
	Structured map[string]any `json:"structuredContent"`
	Content    []struct {
		Text string `json:"text"`
	} `json:"content"`
}

// call calls a tool; arguments are NAME=VALUE.
func (i inspector) call(tool string, arguments ...string) called {
	i.t.Helper()
	args := []string{"--method", "tools/call", "--tool-name", tool}
	for _, a := range arguments {
		args = append(args, "--tool-arg", a)
	}
	var answer called
	out := i.ask(args...)
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Content) == 0 {
		i.t.Fatalf("%s answers %s: %v", tool, out, err)
	}
	return answer
}

// The protocol's reference client speaks to both transports of a server with a real agent: it
// finds a template, proposes a deploy, which waits for a person, and reads what came of it.
func TestInspector(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Serve()
	repo := s.Template("hello", map[string]string{"main.tf": `
variable "name" {
  type        = string
  description = "Who to greet."
}
resource "terraform_data" "hello" {
  input = var.name
}
output "greeting" { value = "Hello, ${var.name}!" }
`})
	s.NewAgent("one", 1, "").Start()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	people := s.People()
	env := map[string]string{}
	for _, entry := range people {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	trellis := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), site.Program("trellis"), args...)
		cmd.Env = people
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("trellis %s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	trellis("templates", "add", "hello", "--repo", repo, "--version", "v1")
	s.Await("the template to be scanned", "SELECT status IN ('done') FROM public.template_inspections WHERE version = 'v1'")

	for way, server := range map[string][]string{
		"stdio": {
			site.Program("trellis"), "mcp", "-e", "TRELLIS_URL=" + env["TRELLIS_URL"], "-e", "TRELLIS_TOKEN=" + env["TRELLIS_TOKEN"],
			"-e", "TRELLIS_CA_FILE=" + env["TRELLIS_CA_FILE"], "-e", "HOME=" + env["HOME"], "-e", "GORACE=atexit_sleep_ms=0",
		},
		"http": {env["TRELLIS_URL"] + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + env["TRELLIS_TOKEN"]},
	} {
		i := inspector{t, append(people, "NODE_EXTRA_CA_CERTS="+env["TRELLIS_CA_FILE"]), server}
		for method, wants := range map[string][]string{
			"tools/list":               {`"provision_server"`, `"check_provision_status"`, `"outputSchema"`, `"readOnlyHint": true`},
			"resources/list":           {"tendril://templates"},
			"resources/templates/list": {"tendril://runs/{number}/log", "tendril://templates/{name}/readme"},
			"prompts/list":             {"deploy_a_template", "find_out_why_a_run_failed"},
		} {
			got := i.ask("--method", method)
			for _, want := range wants {
				if !strings.Contains(got, want) {
					t.Errorf("%s: %s = %s, want %s", way, method, got, want)
				}
			}
		}
		if got := i.ask("--method", "resources/read", "--uri", "tendril://templates/hello/readme"); !strings.Contains(got, "Who to greet.") {
			t.Errorf("%s: the readme = %s, want the variable's description", way, got)
		}
		if got := i.ask("--method", "prompts/get", "--prompt-name", "deploy_a_template", "--prompt-args", "template=hello"); !strings.Contains(got, `show_plan`) {
			t.Errorf("%s: the prompt = %s", way, got)
		}
		if got := i.call("deploy", "template=hello", "workspace=demo/"+way); !got.IsError || !strings.Contains(got.Content[0].Text, "variable name is missing") {
			t.Errorf("%s: a deploy without its variable = %+v, want it named", way, got)
		}
		made := i.call("deploy", "template=hello", "workspace=demo/"+way, `variables={"name":"Ada"}`, "wait_seconds=120")
		if made.IsError || made.Structured["status"] != "AWAITING_APPROVAL" {
			t.Fatalf("%s: deploy = %+v, want its plan to wait", way, made)
		}
		number := strconv.FormatFloat(made.Structured["run"].(float64), 'f', 0, 64)
		digest, _ := made.Structured["plan_digest"].(string)
		if got := i.call("show_plan", "run="+number); !strings.Contains(got.Content[0].Text, "create terraform_data.hello") || got.Structured["plan_digest"] != digest {
			t.Errorf("%s: show_plan = %+v, want what is created", way, got)
		}
		// A person says yes: with the same token and no tool in between.
		trellis("approve", number, "--digest", digest)
		if got := i.call("wait", "run="+number, "seconds=120"); got.Structured["status"] != "SUCCESS" {
			t.Errorf("%s: after the yes = %+v, want SUCCESS", way, got)
		}
		if got := i.call("outputs", "workspace=demo/"+way); !strings.Contains(got.Content[0].Text, "Hello, Ada!") {
			t.Errorf("%s: outputs = %+v, want the greeting", way, got)
		}
	}
	if got := s.Text(t, "SELECT count(DISTINCT detail ->> 'client')::text || ' ' || count(*) FILTER (WHERE detail ->> 'tool' = 'deploy')::text FROM public.audit_events WHERE action = 'tool_call'"); got != "1 2" {
		t.Errorf("the audit has clients and deploys %s, want one client's two over HTTP", got)
	}
}
