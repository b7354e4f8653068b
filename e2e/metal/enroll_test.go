//go:build metal

package metal

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/ironic"
)

// trellis runs the command line as a person, who wants it to end well, and answers what it printed.
func (l *lab) trellis(args ...string) string {
	l.T.Helper()
	text, err := l.tried(args...)
	if err != nil {
		l.T.Fatalf("trellis %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return text
}

func (l *lab) tried(args ...string) (string, error) {
	l.T.Helper()
	cmd := exec.CommandContext(l.T.Context(), site.Program("trellis"), args...)
	cmd.Env = l.people
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// enrolls has the servers of a list enrolled, and answers the run that does it.
func (l *lab) enrolls(list string, flags ...string) uuid.UUID {
	l.T.Helper()
	file := filepath.Join(l.T.TempDir(), "rack.csv")
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		l.T.Fatal(err)
	}
	text := l.trellis(append([]string{"pools", "enroll", "metal", file, "-o", "json"}, flags...)...)
	var queued struct {
		ID uuid.UUID `json:"id"`
	}
	if err := json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &queued); err != nil {
		l.T.Fatalf("pools enroll printed %s: %v", text, err)
	}
	return queued.ID
}

// ends waits for a run's end, and wants it with a text in its message.
func (l *lab) ends(run uuid.UUID, status, says string) {
	l.T.Helper()
	if got := l.AwaitEnd(run); got != status && !strings.HasPrefix(got, status+"/") || !strings.Contains(l.Message(run), says) {
		l.T.Fatalf("the run = %s: %s, want %s with %q\n%s", got, l.Message(run), status, says, l.Log(l.T, run))
	}
}

// servers are the names of those that Ironic knows.
func (l *lab) servers() (names []string) {
	l.T.Helper()
	nodes, err := l.ironic.Nodes(l.T.Context())
	if err != nil {
		l.T.Fatal(err)
	}
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// From a list of BMCs to machines and back: servers are enrolled by the command line, one is given
// out by POST /provision and can't be removed until it is back, and a second list adds to the first.
// A BMC's password is in Ironic, and nowhere else in the clear.
func TestServersAreEnrolled(t *testing.T) {
	t.Parallel()
	const password = "hunter2-of-the-bmc"
	l := newLab(t, 0, ironic.Options{})
	l.config = strings.Replace(l.config, "kind = \"ironic\"\n", "kind = \"ironic\"\nenroll = [\"pools/*\"]\n", 1)
	files := map[string]string{}
	for _, name := range []string{"tendril.hcl", "variables.tf"} {
		text, err := os.ReadFile(filepath.Join("../../examples/templates/enroll", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	l.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'enroll', $2, 'v1')", l.Org, l.Template("enroll", files))
	agent := l.agent("one", 2)
	l.Await("the pool", "SELECT count(*) = 1 FROM public.pools WHERE problem IS NULL")

	const head = "name,driver,address,user,password,macs,resource_class,traits,cores,memory,disk\n"
	const first, second = "r1-n1,fake-hardware,,,,52:54:00:00:00:01,gold,CUSTOM_NVME,8,16384,100\n", "r1-n2,fake-hardware,,,,52:54:00:00:00:02,silver,,8,16384,100\n"
	approved := l.enrolls(head+first+second, "--approval", "always")
	l.Await("the plan", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", approved)
	file := filepath.Join(t.TempDir(), "other.csv")
	if err := os.WriteFile(file, []byte(head+second), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := l.tried("pools", "enroll", "metal", file); err == nil || !strings.Contains(text, "has not ended") {
		t.Errorf("a list while another waits = %s, %v", text, err)
	}
	if got := l.servers(); len(got) > 0 {
		t.Errorf("Ironic knows %v before the plan is approved", got)
	}
	l.trellis("approve", approved.String(), "--yes")
	l.ends(approved, "SUCCESS", "")
	l.ready(2)
	if text := l.trellis("machines", "list", "--workspace", "pools/metal"); !strings.Contains(text, "r1-n1") || !strings.Contains(text, "stopped") {
		t.Errorf("machines list = %s, want the servers, stopped", text)
	}
	status, made := l.ask(http.MethodPost, "/provision", `{"image_id": "`+image+`", "resource_class": "gold"}`)
	if status != http.StatusAccepted || made["server_name"] != "r1-n1" {
		t.Fatalf("POST = %d %v, want 202 for r1-n1", status, made)
	}
	operation := made["operation_id"].(string)
	if end := l.completed(operation); end["status"] != "completed" {
		t.Fatalf("the end = %v", end)
	}

	// What Ironic says is wrong with the server is said of the machine on it, and of the one that it is.
	if err := l.ironic.Call(t.Context(), http.MethodPut, "/v1/nodes/r1-n1/maintenance", map[string]string{"reason": "a fan is broken"}, nil); err != nil {
		t.Fatal(err)
	}
	l.Await("the maintenance", "SELECT (server ->> 'maintenance')::boolean FROM public.pool_nodes WHERE name = 'r1-n1'")
	for _, machine := range strings.Fields(l.Text(t, "SELECT string_agg(id::text, ' ') FROM public.machines WHERE external_id = $1", made["server_id"])) {
		if text := l.trellis("machines", "show", machine); !strings.Contains(text, "a fan is broken") {
			t.Errorf("machines show = %s, want what is wrong with its server", text)
		}
	}
	if err := l.ironic.Call(t.Context(), http.MethodDelete, "/v1/nodes/r1-n1/maintenance", nil, nil); err != nil {
		t.Fatal(err)
	}

	// A second list adds to the first. A BMC that does not answer fails its run, and no other server.
	broken := "r1-n3,redfish,http://127.0.0.1:1,root,PASSWORD,52:54:00:00:00:03,gold,,,,\n"
	failing := l.enrolls(head + strings.Replace(broken, "PASSWORD", password, 1))
	l.ends(failing, "FAILED", "r1-n3")
	if text := l.Log(t, failing); !strings.Contains(text, "http://127.0.0.1:1") || !strings.Contains(text, "1 to create, 0 to change, 0 to replace, 0 to destroy") {
		t.Errorf("the log is\n%s\nwant one server in the plan, with its BMC's address", text)
	}
	if got := l.servers(); !slices.Equal(got, []string{"r1-n1", "r1-n2", "r1-n3"}) {
		t.Fatalf("Ironic knows %v, want all three", got)
	}
	// The password that was given stays that BMC's, and goes to no other.
	l.ends(l.enrolls(head+strings.Replace(strings.Replace(broken, "PASSWORD", "", 1), "127.0.0.1:1", "127.0.0.1:2", 1)), "FAILED", "password is missing")
	l.ends(l.enrolls(head+strings.Replace(strings.Replace(broken, "PASSWORD", "", 1), "gold,,", "gold,CUSTOM_GPU,", 1)), "FAILED", "r1-n3")
	// Where the newest deploy that went well does not have a server, it is not removed without a word.
	if text, err := l.tried("pools", "enroll", "metal", file); err == nil || !strings.Contains(text, "the server r1-n3 is there") {
		t.Errorf("a list without a server that a failed run has left = %s, %v", text, err)
	}

	database, err := os.ReadFile(filepath.Join(l.ironic.Dir, "ironic.sqlite"))
	if err != nil || !strings.Contains(string(database), password) {
		t.Errorf("Ironic does not have the password (%v), so nothing was looked for", err)
	}
	dump := exec.CommandContext(t.Context(), "pg_dump", "--inserts", l.URL)
	text, err := dump.CombinedOutput()
	if err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, text)
	}
	_, plan := l.ask(http.MethodGet, "/provisions/"+failing.String(), "")
	for where, text := range map[string]string{
		"the database": string(text), "the run's log": l.Log(t, failing), "REST": toText(t, plan), "the agent's output": agent.Out.String(),
		"status": l.trellis("status", failing.String(), "-o", "json"), "the machine": l.trellis("machines", "show", "r1-n3", "-o", "json"), "the pool": l.trellis("pools", "show", "metal", "-o", "json"),
	} {
		if strings.Contains(text, password) {
			t.Errorf("the password is in %s", where)
		}
	}

	// What is in use is not removed, and all else is.
	l.ends(l.enrolls(head+second, "--replace"), "FAILED", "the server r1-n1 is in use")
	if got := l.servers(); !slices.Equal(got, []string{"r1-n1", "r1-n2"}) || l.node("r1-n1").ProvisionState != "active" {
		t.Errorf("Ironic knows %v, with r1-n1 %+v, want that it is active still, and r1-n3 removed", got, l.node("r1-n1"))
	}
	destroy := uuid.New()
	l.Exec(t, "INSERT INTO public.provisions (id, cluster_id, config_snapshot, operation) SELECT $1, cluster_id, config_snapshot, 'destroy' FROM public.provisions WHERE id = $2", destroy, operation)
	l.ends(destroy, "SUCCESS", "")
	l.ends(l.enrolls(head+second, "--replace"), "SUCCESS", "")
	if got := l.servers(); !slices.Equal(got, []string{"r1-n2"}) {
		t.Errorf("Ironic knows %v, want r1-n2 alone", got)
	}
	// Each is switched as other machines are, and all are removed with the workspace.
	l.trellis("machines", "start", "r1-n2", "--workspace", "pools/metal", "--follow")
	if n := l.node("r1-n2"); n.PowerState != "power on" {
		t.Errorf("after the start the server has %s", n.PowerState)
	}
	l.trellis("destroy", "pools/metal", "--yes", "--follow")
	if got := l.servers(); len(got) > 0 {
		t.Errorf("after the destroy Ironic knows %v", got)
	}
}

func toText(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
