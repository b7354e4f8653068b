//go:build metal

package metal

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestMain(m *testing.M) { site.Main(m) }

const image = "debian-13"

// lab is a site whose agents have a pool of a real Ironic's servers, and a person who asks REST.
type lab struct {
	*site.Site
	ironic   *ironic.Ironic
	config   string
	identity string
	url      string
	token    string
	http     *http.Client
	people   []string // the environment of a person's command line
}

func newLab(t *testing.T, nodes int, options ironic.Options) *lab {
	t.Helper()
	l := &lab{Site: site.New(t), ironic: ironic.Start(t, options)}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("bm-%02d", i+1)
	}
	ctx, cancel := patience.Context(t.Context(), 3*time.Minute)
	defer cancel()
	if err := l.ironic.Enroll(ctx, names...); err != nil {
		t.Fatal(err)
	}
	l.Serve()
	l.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", l.Org, instance.LocalUser)
	l.people = l.People()
	for _, each := range l.people {
		switch key, value, _ := strings.Cut(each, "="); key {
		case "TRELLIS_URL":
			l.url = value
		case "TRELLIS_TOKEN":
			l.token = value
		case "TRELLIS_CA_FILE":
			pem, err := os.ReadFile(value)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(pem)
			l.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: patience.For(time.Minute)}
			t.Cleanup(l.http.CloseIdleConnections)
		}
	}
	l.config = fmt.Sprintf("[state]\ndefault = \"managed\"\n[[pools]]\nname = \"metal\"\nkind = \"ironic\"\nurl = %q\n[[pools.images]]\nname = %q\nsource = \"http://127.0.0.1/image.raw\"\nchecksum = \"d41d8cd98f00b204e9800998ecf8427e\"\n", l.ironic.URL, image)
	l.identity = l.IdentityFile()
	files := map[string]string{}
	for _, name := range []string{"tendril.hcl", "variables.tf"} {
		text, err := os.ReadFile(filepath.Join("../../examples/templates/bare-metal", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	l.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'bare-metal', $2, 'v1')", l.Org, l.Template("bare-metal", files))
	return l
}

// agent is one that reaches the pool.
func (l *lab) agent(name string, slots int) *site.Agent {
	l.T.Helper()
	a := l.NewAgent(name, slots, l.config)
	a.Set("TENDRIL_IDENTITY_FILE", l.identity)
	a.Start()
	return a
}

// ready waits for the pool's report, and chooses the template of its servers.
func (l *lab) ready(nodes int) {
	l.T.Helper()
	l.Await("the servers", "SELECT count(*) = $1 FROM public.pool_nodes WHERE (server ->> 'available')::boolean", nodes)
	if status, answer := l.ask(http.MethodPut, "/pools/metal/template", `{"template": "bare-metal"}`); status != http.StatusNoContent {
		l.T.Fatalf("choosing the template = %d %v", status, answer)
	}
}

// ask makes a request of a person's. The status is 0 where no answer came.
func (l *lab) ask(method, path, body string) (status int, answer map[string]any) {
	l.T.Helper()
	request, err := http.NewRequestWithContext(l.T.Context(), method, l.url+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		l.T.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+l.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := l.http.Do(request)
	if err != nil {
		return 0, map[string]any{"error": err.Error()}
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	_ = json.NewDecoder(bytes.NewReader(text)).Decode(&answer) // an answer without a body has none
	return response.StatusCode, answer
}

// wants asks for a server and wants that answer.
func (l *lab) wants(body string, status int, detail string) {
	l.T.Helper()
	if got, answer := l.ask(http.MethodPost, "/provision", body); got != status || answer["detail"] != detail {
		l.T.Errorf("POST %s = %d %v, want %d %q", body, got, answer, status, detail)
	}
}

// completed waits for an operation's end, and checks what is told on the way.
func (l *lab) completed(operation string) map[string]any {
	l.T.Helper()
	limit := patience.Begin(2 * time.Minute)
	var last map[string]any
	percent := -1.0
	for {
		status, answer := l.ask(http.MethodGet, "/provision/"+operation, "")
		if status != http.StatusOK {
			l.T.Fatalf("GET /provision/%s = %d %v", operation, status, answer)
		}
		if p, ok := answer["progress_percent"].(float64); ok {
			if p < percent && answer["status"] == "in_progress" {
				l.T.Errorf("the progress went from %v to %v: %v", percent, p, answer)
			}
			percent = p
		}
		if last = answer; answer["status"] != "in_progress" {
			return last
		}
		if limit.Over() {
			l.T.Fatalf("the operation does not end: %v\n%s", last, l.Log(l.T, uuid.MustParse(operation)))
		}
		limit.Pause()
	}
}

// node is a server as Ironic has it.
func (l *lab) node(id string) ironic.Node {
	l.T.Helper()
	node, err := l.ironic.Node(l.T.Context(), id)
	if err != nil {
		l.T.Fatal(err)
	}
	return node
}

// Document 002 on a real Ironic: a server by name and by class, its errors, how it goes, and what
// the server itself is asked for by, also after the control plane was restarted.
func TestServersByTheAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, ironic.Options{Fake: "deploy_delay = 1"})
	l.agent("one", 2)
	l.ready(3)

	status, made := l.ask(http.MethodPost, "/provision", `{"image_id": "`+image+`", "server_id": "bm-02", "config_drive": {"user_data": "#cloud-config\nhostname: db-1\n", "meta_data": {"role": "database"}}}`)
	if status != http.StatusAccepted || made["server_name"] != "bm-02" || made["status"] != "accepted" {
		t.Fatalf("POST = %d %v, want 202 for bm-02", status, made)
	}
	operation, server := made["operation_id"].(string), made["server_id"].(string)
	// From now on every other request for this server is refused.
	l.wants(`{"image_id": "`+image+`", "server_id": "`+server+`"}`, http.StatusConflict, "Server "+server+" is not available for provisioning")
	l.Gateway.Kill()
	l.Gateway.Start()
	end := l.completed(operation)
	if end["status"] != "completed" || end["provision_state"] != "active" || end["progress_percent"] != 100.0 || end["server_id"] != server {
		t.Fatalf("the end = %v\n%s", end, l.Log(t, uuid.MustParse(operation)))
	}
	if node := l.node(server); node.ProvisionState != "active" || node.InstanceUUID == "" {
		t.Errorf("Ironic has the server as %+v, want it active", node)
	}
	if status, by := l.ask(http.MethodGet, "/provision/"+server, ""); status != http.StatusOK || by["operation_id"] != operation {
		t.Errorf("GET by the server's id = %d %v, want the operation %s", status, by, operation)
	}

	l.wants(`{"image_id": "`+image+`", "server_id": "nine"}`, http.StatusNotFound, "Server nine not found")
	l.wants(`{"image_id": "plan9"}`, http.StatusBadRequest, "Image plan9 not found")
	l.wants(`{"image_id": "`+image+`", "resource_class": "lead"}`, http.StatusNotFound, "No available servers matching criteria")

	// Any server of a class; then one that somebody else has taken since the agent looked.
	class := l.Text(t, "SELECT min(labels ->> 'resource_class') FROM public.pool_nodes")
	status, made = l.ask(http.MethodPost, "/provision", `{"image_id": "`+image+`", "resource_class": "`+class+`"}`)
	if status != http.StatusAccepted || made["server_id"] == nil || made["server_id"] == server {
		t.Fatalf("POST by class = %d %v, want another server", status, made)
	}
	other := made["server_id"].(string)
	if end := l.completed(made["operation_id"].(string)); end["status"] != "completed" {
		t.Fatalf("the end by class = %v", end)
	}
	third := l.Text(t, "SELECT server ->> 'id' FROM public.pool_nodes WHERE server ->> 'id' NOT IN ($1, $2)", server, other)
	if err := l.ironic.Patch(t.Context(), third, map[string]any{"op": "add", "path": "/instance_uuid", "value": uuid.NewString()}); err != nil {
		t.Fatal(err)
	}
	status, answer := l.ask(http.MethodPost, "/provision", `{"image_id": "`+image+`"}`)
	if status != http.StatusNotFound || answer["detail"] != "No available servers matching criteria" {
		t.Errorf("POST for a server that another has taken = %d %v", status, answer)
	}
	if got := l.node(third); got.ProvisionState != "available" {
		t.Errorf("another's server was touched: %+v", got)
	}

	// While Ironic is away nothing is begun, and what has ended stays so.
	l.ironic.Kill()
	l.Await("that Ironic is away", "SELECT problem IS NOT NULL FROM public.pools")
	l.wants(`{"image_id": "`+image+`"}`, http.StatusBadGateway, "Failed to communicate with Ironic")
	if status, by := l.ask(http.MethodGet, "/provision/"+operation, ""); status != http.StatusOK || by["status"] != "completed" {
		t.Errorf("the status while Ironic is away = %d %v", status, by)
	}
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	defer cancel()
	if err := l.ironic.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	l.Await("that Ironic is back", "SELECT problem IS NULL FROM public.pools")

	// A destroy gives the server back.
	workspace := l.Text(t, "SELECT w.name FROM public.workspaces w JOIN public.provisions p ON p.workspace_id = w.id WHERE p.id = $1", operation)
	destroy := uuid.New()
	l.Exec(t, "INSERT INTO public.provisions (id, cluster_id, config_snapshot, operation) SELECT $1, cluster_id, config_snapshot, 'destroy' FROM public.provisions WHERE id = $2", destroy, operation)
	if got := l.AwaitEnd(destroy); got != "SUCCESS" {
		t.Fatalf("destroy of %s = %s\n%s", workspace, got, l.Log(t, destroy))
	}
	if node := l.node(server); node.ProvisionState != "available" || node.InstanceUUID != "" {
		t.Errorf("after the destroy Ironic has the server as %+v, want it free", node)
	}
}

// Thirty servers at once by two agents of eight slots together, while agents and Ironic are killed
// at random moments: each machine gets its own server, no server is left without an owner, and the API
// reports each operation as it ended.
func TestServersWhileAllIsKilled(t *testing.T) {
	t.Parallel()
	const servers, faults = 30, 6
	l := newLab(t, servers, ironic.Options{Fake: "deploy_delay = 1"})
	agents := []*site.Agent{l.agent("one", 4), l.agent("two", 4)}
	l.ready(servers)
	repo := l.Text(t, "SELECT repo FROM public.templates")
	deploy := func(i int) uuid.UUID {
		return l.DeployTemplate(repo, fmt.Sprintf("servers/%02d", i), map[string]any{"name": fmt.Sprintf("server-%02d", i), "pool": "metal", "image": image})
	}
	runs := map[int]uuid.UUID{}
	for i := range servers {
		runs[i] = deploy(i)
	}
	done := func() string {
		return l.Text(t, "SELECT count(*) FILTER (WHERE status = 'SUCCESS') || ' ' || count(*) FILTER (WHERE status = 'PROCESSING') FROM public.provisions")
	}
	for fault := range faults {
		// Some have ended since, and some go on.
		l.Await("work that goes on", "SELECT count(*) FILTER (WHERE status = 'SUCCESS') >= $1 AND count(*) FILTER (WHERE status = 'PROCESSING') > 0 OR count(*) FILTER (WHERE status IN ('QUEUED', 'PROCESSING')) = 0 FROM public.provisions", fault*2)
		switch kind := rand.IntN(3); kind {
		case 0, 1:
			t.Logf("at %s (ended well, going on) agent %d is killed", done(), kind)
			agents[kind].Kill()
			agents[kind].Start()
		default:
			t.Logf("at %s (ended well, going on) Ironic is killed", done())
			l.ironic.Kill()
			ctx, cancel := patience.Context(t.Context(), time.Minute)
			err := l.ironic.Restart(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
		}
		// What is told is what is.
		id := runs[rand.IntN(servers)].String()
		before := l.Status(t, uuid.MustParse(id))
		status, answer := l.ask(http.MethodGet, "/provision/"+id, "")
		after := l.Status(t, uuid.MustParse(id))
		told := map[string]string{"SUCCESS": "completed", "FAILED": "failed", "CANCELLED": "failed"}
		ended, _, _ := strings.Cut(after, "/")
		if want := told[ended]; status != http.StatusOK || before == after && answer["status"] != cmp.Or(want, "in_progress") {
			t.Errorf("an operation that is %s is told as %d %v", after, status, answer)
		}
	}
	// A person asks once more for what a killed agent had not begun.
	for try := 0; ; try++ {
		failed := 0
		for i, id := range runs {
			if got := l.AwaitEnd(id); got != "SUCCESS" {
				// What a killed agent had not begun, and what an absent Ironic could not begin.
				excused := slices.Contains([]string{"FAILED/agent_restarted", "FAILED/agent_lost", "FAILED/pool_unreachable"}, got)
				if try == 5 || !excused {
					t.Fatalf("machine %d = %s: %s\n%s", i, got, l.Message(id), l.Log(t, id))
				}
				failed++
				runs[i] = deploy(i)
			}
		}
		if failed == 0 {
			break
		}
		t.Logf("%d are asked for once more", failed)
	}
	nodes, err := l.ironic.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, n := range nodes {
		if n.ProvisionState != "active" || n.InstanceUUID == "" {
			t.Errorf("server %s is %s for %q, want it active and owned", n.Name, n.ProvisionState, n.InstanceUUID)
		}
		if other, twice := owners[n.InstanceUUID]; twice {
			t.Errorf("%s and %s have one owner", n.Name, other)
		}
		owners[n.InstanceUUID] = n.Name
	}
	if got := l.Text(t, "SELECT count(*) || ' ' || count(DISTINCT node) || ' ' || count(DISTINCT external_id) FROM public.machines WHERE status = 'running'"); got != "30 30 30" {
		t.Errorf("machines, their servers and ids = %s, want 30 of each", got)
	}
	if got := l.Text(t, "SELECT count(*)::text FROM public.machines m WHERE NOT EXISTS (SELECT FROM public.reservations r JOIN public.pools p ON p.id = r.pool_id WHERE r.workspace_id = m.workspace_id AND r.name = m.name AND r.node = m.node)"); got != "0" {
		t.Errorf("%s machines are elsewhere than their places", got)
	}
}
