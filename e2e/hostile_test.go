package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"

	"github.com/tendril-run/tendril/e2e/site"
)

// ordinary is a uid that no user has and nothing else of the tests runs as.
const ordinary = 59990

// haul is what the hunter found and did, see e2e/hunter.
type haul struct {
	Found  []string       `json:"found"`
	Did    []string       `json:"did"`
	Looked map[string]int `json:"looked"`
}

// hunt is an agent with a run that has secrets and, beside it, one that hunts.
type hunt struct {
	*site.Site
	agent *site.Agent
	gate  string
	// agents and others are values by name: the agent's own, and the other run's.
	agents, others map[string]string
	victim         uuid.UUID // the workspace
	// outside are the agent and what runs for the other run; exec is the
	// hunting run's own tendril exec.
	outside map[int]string
	exec    int
}

const victim = `
variable "known" {
  type      = string
  sensitive = true
}
resource "terraform_data" "state" { input = var.known }
resource "terraform_data" "wait" {
  depends_on       = [terraform_data.state]
  triggers_replace = [timestamp()]
  provisioner "local-exec" {
    command     = "echo \"waiting $$\"; while [ ! -e GATE/go ]; do sleep 0.1; done"
    environment = { IN_ENV = "ENVCANARY" }
  }
}
`

const hostile = `
resource "terraform_data" "before" {}
resource "terraform_data" "hunt" {
  depends_on = [terraform_data.before]
  provisioner "local-exec" {
    command = "echo hunting $PPID; while [ ! -e GATE/order ]; do sleep 0.1; done; GATE/hunter GATE/order GATE/haul; echo hunted"
  }
}
output "result" { value = "true" }
`

// begin has the victim's run wait while it has its secrets, and the hunting one
// wait for its order.
func begin(t *testing.T, extra string, asOrdinary bool) (h *hunt, ids [2]uuid.UUID) {
	t.Helper()
	s := site.New(t)
	h = &hunt{Site: s, gate: site.Meeting(t), outside: map[int]string{}}
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(h.gate, "hunter"), "./hunter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the hunter: %v\n%s", err, out)
	}
	h.agent = s.NewAgent("one", 2, extra)
	gitToken := filepath.Join(filepath.Dir(h.agent.Dir), "git-token")
	h.agents = map[string]string{
		"token": s.Token, "token's hash": s.Text(t, "SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')", s.Token), "queue's URL": s.QueueURL,
		"unrelated variable": canary(), "PGPASSWORD": canary(), "git token": canary(),
	}
	h.others = map[string]string{"variable": canary(), "environment": canary()}
	if err := os.WriteFile(gitToken, []byte(h.agents["git token"]), 0o600); err != nil {
		t.Fatal(err)
	}
	h.agent.Set("UNRELATED", h.agents["unrelated variable"])
	h.agent.Set("PGPASSWORD", h.agents["PGPASSWORD"])
	h.agent.Configure(fmt.Sprintf("\n[git.hosts.\"git.example\"]\ntoken_file = %q\n", gitToken))
	if asOrdinary {
		// Root's tests have the database behind a socket that is root's alone.
		h.agents["queue's URL"] = wiretest.New(t, s.QueueURL).URL(s.QueueURL)
		h.agent.Set("TENDRIL_QUEUE_URL", h.agents["queue's URL"])
		h.agent.RunAs(ordinary)
	}
	h.agent.Start()

	// Once before, so that its state is on the disk for certain.
	fill := strings.NewReplacer("GATE", h.gate, "ENVCANARY", h.others["environment"]).Replace
	templates := [2]string{}
	for i, text := range []string{victim, hostile} {
		repo, _ := s.Git.Repo([]string{"victim", "hostile"}[i], gittest.Files{"main.tf": gittest.File(fill(text))}, "v1")
		templates[i] = repo.URL
	}
	vars := map[string]any{"known": h.others["variable"]}
	key := keyOf(h.agent)
	release(t, h.gate)
	if id := deploySealed(s, key, templates[0], "victim", nil, vars); s.AwaitEnd(id) != "SUCCESS" {
		t.Fatalf("the victim's first run: %s", s.Message(id))
	}
	if err := os.Remove(filepath.Join(h.gate, "go")); err != nil {
		t.Fatal(err)
	}
	identity, err := os.ReadFile(filepath.Join(h.agent.Dir, "identity"))
	_, private, found := strings.Cut(string(identity), "AGE-SECRET-KEY-1")
	if err != nil || !found {
		t.Fatalf("the agent's identity: %v", err)
	}
	h.agents["identity"] = strings.TrimSpace(private)
	ids[0] = deploySealed(s, key, templates[0], "victim", nil, vars)
	s.AwaitLine(ids[0], "waiting")
	h.note(h.agent.Cmd.Process.Pid)
	ids[1] = s.DeployTemplate(templates[1], "hostile", nil)
	s.AwaitLine(ids[1], "hunting")
	h.victim = uuid.MustParse(s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", ids[0]))
	children, err := process.Descendants(h.agent.Cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range children {
		if _, known := h.outside[child.PID]; !known && child.Parent == h.agent.Cmd.Process.Pid {
			h.exec = child.PID
		}
	}
	return h, ids
}

// note remembers a process and all below it as none of the hunter's.
func (h *hunt) note(pid int) {
	h.T.Helper()
	h.outside[pid] = "tendril run"
	children, err := process.Descendants(pid)
	if err != nil {
		h.T.Fatal(err)
	}
	for _, child := range children {
		if child.Name != "sleep" { // over in a moment, and its pid somebody else's by and by
			h.outside[child.PID] = child.Name
		}
	}
}

func canary() string { return "canary-" + uuid.NewString() }

// bring sends the hunter and returns what it brings. Both runs must succeed.
func (h *hunt) bring(ids [2]uuid.UUID) (brought haul) {
	t := h.T
	t.Helper()
	values := map[string]string{}
	for _, all := range []map[string]string{h.agents, h.others} {
		for name, value := range all {
			hidden := []byte(value)
			for i := range hidden {
				hidden[i] = ^hidden[i]
			}
			values[name] = base64.StdEncoding.EncodeToString(hidden)
		}
	}
	in := func(names ...string) string { return filepath.Join(append([]string{h.agent.Dir}, names...)...) }
	signal := []int{h.exec}
	for pid := range h.outside {
		signal = append(signal, pid)
	}
	order, err := json.Marshal(map[string]any{
		"values": values, "signal": signal, "trees": []string{filepath.Dir(h.agent.Dir), "/run", "/dev/shm", "/var/tmp", "/tmp"},
		"write": []string{
			h.agent.Dir, in("spool"), in("rejected"), in("repos"), in("engines"), in("providers"), in("checkouts"), in("work"), in("state"),
			// By name as well, which a directory that lists nothing does not keep from it.
			in("work", h.victim.String()), in("work", h.victim.String(), "secrets"), in("state", h.victim.String()),
		},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(h.gate, "order.new"), order, 0o644)
	}
	if err == nil {
		err = os.Rename(filepath.Join(h.gate, "order.new"), filepath.Join(h.gate, "order"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := h.AwaitEnd(ids[1]); got != "SUCCESS" {
		t.Fatalf("the hostile run = %s: %s\n%s", got, h.Message(ids[1]), h.Log(t, ids[1]))
	}
	release(t.(*testing.T), h.gate)
	if got := h.AwaitEnd(ids[0]); got != "SUCCESS" {
		t.Errorf("the other run = %s: %s", got, h.Message(ids[0]))
	}
	content, err := os.ReadFile(filepath.Join(h.gate, "haul"))
	if err == nil {
		err = json.Unmarshal(content, &brought)
	}
	if err != nil {
		t.Fatalf("the hunter came back without a haul: %v\n%s", err, h.Log(t, ids[1]))
	}
	t.Logf("the hunter looked at %v", brought.Looked)
	for _, kind := range []string{"env", "cmdline", "file", "directories"} {
		if brought.Looked[kind] == 0 {
			t.Errorf("the hunter looked at no %s, so the test shows nothing of it", kind)
		}
	}
	return brought
}

// found has the haul's lines about one of the values, without those from the
// hunter's own kinds of places.
func (b haul) found(values map[string]string, except ...string) (lines []string) {
	for _, line := range b.Found {
		name, where, _ := strings.Cut(line, " in ")
		kind, _, _ := strings.Cut(where, " ")
		if _, ours := values[name]; ours && !slices.Contains(except, kind) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A template of an agent that is root gets nothing that is not its own, and
// changes nothing.
func TestHostileTemplate(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the tests of CI run as root; the ordinary user's part is TestHostileTemplateOfAnOrdinaryUser")
	}
	h, ids := begin(t, "", false)
	brought := h.bring(ids)
	for _, values := range []map[string]string{h.agents, h.others} {
		if found := brought.found(values); len(found) > 0 {
			t.Errorf("the template finds %s, want nothing", strings.Join(found, "\n"))
		}
	}
	// It may end its own run, and nothing more.
	own := "may signal " + strconv.Itoa(h.exec)
	if did := slices.DeleteFunc(brought.Did, func(what string) bool { return what == own }); len(did) > 0 {
		t.Errorf("the template %s, want it to do nothing of the kind", strings.Join(did, "\n"))
	}
}

// Without uids of their own it gets all there is, so the test above can fail.
func TestHostileTemplateWithoutIsolation(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can do without")
	}
	h, ids := begin(t, `uids = "off"`, false)
	brought := h.bring(ids)
	for name := range h.others {
		if !slices.ContainsFunc(brought.Found, func(line string) bool { return strings.HasPrefix(line, name+" in ") }) {
			t.Errorf("the template does not find the other run's %s, want it to: there is nothing in its way", name)
		}
	}
	for _, want := range []string{
		"writes to " + h.agent.Dir + "/spool", "writes to " + h.agent.Dir + "/repos", "writes to " + h.agent.Dir + "/state/" + h.victim.String(),
		"may signal " + strconv.Itoa(h.agent.Cmd.Process.Pid), "traces " + strconv.Itoa(h.agent.Cmd.Process.Pid),
	} {
		if !slices.Contains(brought.Did, want) {
			t.Errorf("the template never %q, want it to: there is nothing in its way", want)
		}
	}
}

// Where agent and templates are one user, files are everybody's, but nothing
// comes from environments or from the processes of the agent.
func TestHostileTemplateOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	h, ids := begin(t, "", os.Geteuid() == 0)
	brought := h.bring(ids)
	if found := brought.found(h.agents, "file"); len(found) > 0 {
		t.Errorf("the template finds %s, want nothing of the agent's outside files", strings.Join(found, "\n"))
	}
	for _, line := range brought.Found {
		_, where, _ := strings.Cut(line, " in ")
		if strings.Contains(where, "tendril run") || strings.Contains(where, "tendril exec") {
			t.Errorf("the template finds %s, want nothing of these processes", line)
		}
	}
	for _, what := range brought.Did {
		if strings.HasPrefix(what, "traces") || strings.HasPrefix(what, "takes") {
			for pid, name := range h.outside {
				if strings.HasSuffix(what, " "+strconv.Itoa(pid)) && strings.HasPrefix(name, "tendril") {
					t.Errorf("the template %s, which is %s", what, name)
				}
			}
		}
	}
	// The other run's engine is the same user's: what shields the agent is
	// that it made itself unreadable, and not a hunter that reads nothing.
	if brought.Looked["environ"] == 0 || brought.Looked["mem"] == 0 {
		t.Errorf("the hunter read %v, want environments and memory among it", brought.Looked)
	}
}
