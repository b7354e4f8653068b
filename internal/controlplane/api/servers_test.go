package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// metal is an agent that has reported servers.
type metal struct {
	*world
	agent queue.Agent
	hash  string
	conn  *pgx.Conn
}

func newMetal(t *testing.T) *metal {
	t.Helper()
	m := &metal{world: newWorld(t), agent: queuetest.NewAgent("metal")}
	digest := sha256.Sum256([]byte(m.Token))
	m.hash = hex.EncodeToString(digest[:])
	about, _ := json.Marshal(map[string]any{"instance_id": m.agent.Instance, "boot_id": m.agent.Boot, "name": m.agent.Name, "host": m.agent.Host, "version": "test", "contract": queue.Contract, "slots": 2})
	m.Exec(t, "SELECT public.register_agent($1, $2)", m.hash, string(about))
	m.report(t, servers)
	m.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'bare-metal', 'https://git.example/acme/bare-metal', 'v1')", m.Org)
	m.as(t, "admin", "PUT", "/pools/metal/template", `{"template": "bare-metal"}`).want(t, "choosing the template", 204, "")
	var err error
	if m.conn, err = pgx.Connect(t.Context(), m.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close(t.Context()) })
	return m
}

func (m *metal) report(t *testing.T, pools string) {
	t.Helper()
	m.Exec(t, "SELECT public.report_pools($1, $2, $3, $4)", m.hash, m.agent.Instance, m.agent.Boot, pools)
}

const (
	serverA, serverB, serverC = "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "2be26c0b-03f2-4d2e-ae87-c02d7f33c123", "3be26c0b-03f2-4d2e-ae87-c02d7f33c123"

	servers = `[{"name": "metal", "kind": "ironic", "nodes": [
		{"name": "bm-1", "online": true, "cores": 8, "memory_mib": 8192, "images": ["debian-13"], "labels": {"resource_class": "gold"}, "server": {"id": "` + serverA + `", "provision_state": "available", "reason": "It is free.", "available": true}},
		{"name": "bm-2", "online": false, "cores": 8, "memory_mib": 8192, "images": ["debian-13"], "labels": {"resource_class": "gold"}, "server": {"id": "` + serverB + `", "provision_state": "active", "reason": "It is in use.", "available": false}},
		{"name": "bm-3", "online": false, "cores": 8, "memory_mib": 8192, "images": ["debian-13"], "labels": {"resource_class": "silver"}, "server": {"id": "` + serverC + `", "provision_state": "deploy failed", "reason": "Its deployment has failed.", "available": false}}]}]`
)

// act claims the newest run and reports, as an agent would, without the test's own connection.
func (m *metal) act(t *testing.T, reports ...string) {
	t.Helper()
	claim := uuid.New()
	limit := patience.Begin(20 * time.Second)
	for got := 0; got == 0; limit.Pause() {
		if limit.Over() {
			t.Error("nothing was queued")
			return
		}
		if err := m.conn.QueryRow(t.Context(), "SELECT count(*) FROM public.fetch_next_provision($1, $2, $3, $4)", m.hash, m.agent.Instance, m.agent.Boot, claim).Scan(&got); err != nil {
			t.Errorf("claim: %v", err)
			return
		}
	}
	for _, report := range reports {
		status, detail, _ := strings.Cut(report, " ")
		if status == "RESERVE" {
			var name string
			if err := m.conn.QueryRow(t.Context(), "SELECT config_snapshot -> 'terraform_vars' ->> 'name' FROM public.provisions p JOIN tendril.claims c ON c.provision_id = p.id WHERE c.id = $1", claim).Scan(&name); err != nil {
				t.Errorf("name: %v", err)
			}
			if _, err := m.conn.Exec(t.Context(), "SELECT public.reserve_machines($1, $2, $3)", m.hash, claim, fmt.Sprintf(detail, name)); err != nil {
				t.Errorf("reserve: %v", err)
			}
			continue
		}
		if _, err := m.conn.Exec(t.Context(), "SELECT public.update_provision_status($1, $2, $3, $4)", m.hash, claim, status, detail); err != nil {
			t.Errorf("report %s: %v", report, err)
		}
	}
}

// during runs an agent's part while the test asks.
func (m *metal) during(t *testing.T, reports ...string) (done func()) {
	t.Helper()
	over := make(chan struct{})
	go func() { defer close(over); m.act(t, reports...) }()
	return func() { <-over }
}

// The answers of the error table, word for word, before anything is queued.
func TestServerRefusals(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	for _, test := range []struct {
		body   string
		status int
		detail string
	}{
		{`{"image_id": "debian-13", "server_id": "nine"}`, 404, "Server nine not found"},
		{`{"image_id": "debian-13", "server_id": "` + serverB + `"}`, 409, "Server " + serverB + " is not available for provisioning"},
		{`{"image_id": "debian-13", "server_id": "bm-2"}`, 409, "Server bm-2 is not available for provisioning"},
		{`{"image_id": "debian-13", "server_id": "bm-1", "resource_class": "silver"}`, 409, "Server bm-1 is not available for provisioning"},
		{`{"image_id": "debian-13", "resource_class": "silver"}`, 404, "No available servers matching criteria"},
		{`{"image_id": "debian-13", "resource_class": "lead"}`, 404, "No available servers matching criteria"},
		{`{"image_id": "plan9", "server_id": "` + serverA + `"}`, 400, "Image plan9 not found"},
		{`{"image_id": "plan9"}`, 400, "Image plan9 not found"},
		{`{"image_id": "debian-13", "config_drive": {"meta_data": "text"}}`, 422, "body.config_drive: meta_data: must be an object"},
		{`{"image_id": "debian-13", "config_drive": {"user_data": 7}}`, 422, "body.config_drive: user_data: must be a text or an object"},
		{`{"image_id": "debian-13", "config_drive": {"hostname": "a"}}`, 409, "cluster prod has no key to seal the config drive to"},
	} {
		if got := m.as(t, "operator", "POST", "/provision", test.body); got.status != test.status || got.text("detail") != test.detail {
			t.Errorf("POST %s = %d %q, want %d %q", test.body, got.status, got.text("detail"), test.status, test.detail)
		}
	}
	m.as(t, "operator", "POST", "/provision", `{"server_id": "bm-1"}`).want(t, "no image", 422, "")
	m.as(t, "stranger", "POST", "/provision", `{"image_id": "debian-13", "server_id": "`+serverA+`"}`).want(t, "a stranger's", 404, "server_not_found")
	m.as(t, "viewer", "POST", "/provision", `{"image_id": "debian-13", "server_id": "`+serverA+`"}`).want(t, "a viewer's", 404, "cluster_not_found")
	m.as(t, "admin", "DELETE", "/pools/metal/template", "").want(t, "choosing none", 204, "")
	m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13", "server_id": "bm-1"}`).want(t, "without a template", 409, "pool_without_template")
	m.as(t, "admin", "PUT", "/pools/metal/template", `{"template": "nine"}`).want(t, "choosing what there is not", 404, "template_not_found")
	m.report(t, `[{"name": "metal", "kind": "ironic", "problem": "connect to 192.0.2.7: connection refused"}]`)
	for _, body := range []string{`{"image_id": "debian-13", "server_id": "bm-1"}`, `{"image_id": "debian-13", "server_id": "nine"}`, `{"image_id": "debian-13"}`} {
		if got := m.as(t, "operator", "POST", "/provision", body); got.status != 502 || got.text("detail") != "Failed to communicate with Ironic" || !strings.Contains(got.text("hint"), "connection refused") {
			t.Errorf("POST %s while Ironic is away = %d %s", body, got.status, got.body)
		}
	}
	if n := m.Text(t, "SELECT count(*)::text FROM public.provisions"); n != "0" {
		t.Errorf("%s runs were queued, want none", n)
	}
}

// What the agent finds out within the wait is answered in the same words.
func TestServerEnds(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	for code, test := range map[string]struct {
		body   string
		status int
		detail string
	}{
		"server_not_found":     {`{"image_id": "debian-13", "server_id": "bm-1"}`, 404, "Server bm-1 not found"},
		"server_not_available": {`{"image_id": "debian-13", "server_id": "bm-1"}`, 409, "Server bm-1 is not available for provisioning"},
		"no_server":            {`{"image_id": "debian-13"}`, 404, "No available servers matching criteria"},
		"image_not_found":      {`{"image_id": "debian-13"}`, 400, "Image debian-13 not found"},
		"pool_unreachable":     {`{"image_id": "debian-13"}`, 502, "Failed to communicate with Ironic"},
		"placement_refused":    {`{"image_id": "debian-13"}`, 404, "No available servers matching criteria"},
	} {
		done := m.during(t, `FAILED {"error_code": "`+code+`", "error_message": "why"}`)
		if got := m.as(t, "operator", "POST", "/provision", test.body); got.status != test.status || got.text("detail") != test.detail {
			t.Errorf("a run that ends with %s = %d %s, want %d %q", code, got.status, got.body, test.status, test.detail)
		}
		done()
	}
	// Another end is the operation's.
	done := m.during(t, `FAILED {"error_code": "checkout_failed", "error_message": "no such host"}`)
	if got := m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13"}`); got.status != 202 || got.text("status") != "failed" || got.text("message") != "no such host" {
		t.Errorf("a run that ends otherwise = %d %s", got.status, got.body)
	}
	done()
}

// A repeat with the same key is answered as the first request was, whatever has become of the servers
// and of the run.
func TestServerAnswersAreKept(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	keys := 0
	ask := func(body string) (first, again func() answer) {
		keys++
		key := fmt.Sprintf("Idempotency-Key: k%d", keys)
		one := func() answer { return m.as(t, "operator", "POST", "/provision", body, key) }
		return one, one
	}
	wantSame := func(what string, first, again answer, status int) {
		t.Helper()
		if first.status != status || first.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s = %d %s, replayed %q, want %d, for the first time", what, first.status, first.body, first.header.Get("Idempotency-Replayed"), status)
		}
		if again.status != first.status || string(again.body) != string(first.body) || again.header.Get("Content-Type") != first.header.Get("Content-Type") || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s again = %d %s %v, want %d %s", what, again.status, again.body, again.header, first.status, first.body)
		}
	}

	// Before anything is queued.
	refusals := map[string]int{
		`{"image_id": "debian-13", "server_id": "nine"}`: 404, `{"image_id": "debian-13", "server_id": "bm-2"}`: 409,
		`{"image_id": "debian-13", "resource_class": "lead"}`: 404, `{"image_id": "plan9"}`: 400,
	}
	var repeats []func()
	for body, status := range refusals {
		one, again := ask(body)
		first := one()
		repeats = append(repeats, func() { wantSame(body, first, again(), status) })
	}
	m.report(t, `[{"name": "metal", "kind": "ironic", "problem": "connect to 192.0.2.7: connection refused"}]`)
	one, again := ask(`{"image_id": "debian-13"}`)
	away := one()
	repeats = append(repeats, func() { wantSame("Ironic away", away, again(), 502) })
	for _, repeat := range repeats {
		repeat()
	}
	m.report(t, strings.NewReplacer(`"bm-2", "online": false`, `"bm-2", "online": true`, `"active"`, `"available"`, `"available": false`, `"available": true`, "debian-13", "plan9").Replace(servers))
	for _, repeat := range repeats {
		repeat()
	}
	m.report(t, servers)

	// What the agent finds out.
	for code, status := range map[string]int{"server_not_available": 409, "pool_unreachable": 502, "image_not_found": 400} {
		one, again := ask(`{"image_id": "debian-13", "server_id": "bm-1"}`)
		done := m.during(t, `FAILED {"error_code": "`+code+`", "error_message": "why"}`)
		first := one()
		done()
		wantSame(code, first, again(), status)
	}

	// No server fits: the run is cancelled, which a repeat does not show.
	one, again = ask(`{"image_id": "debian-13", "resource_class": "gold"}`)
	full := make(chan struct{})
	go func() {
		defer close(full)
		limit := patience.Begin(20 * time.Second)
		for !limit.Over() {
			waits, err := m.conn.Exec(t.Context(), "UPDATE public.provisions SET waits_for = 'no server is free', waits_since = now(), not_before = now() + interval '1 hour' WHERE status = 'QUEUED' AND NOT EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = id)")
			if err != nil || waits.RowsAffected() == 1 {
				if err != nil {
					t.Errorf("the run that waits: %v", err)
				}
				return
			}
			limit.Pause()
		}
		t.Error("nothing was queued")
	}()
	first := one()
	<-full
	wantSame("no server fits", first, again(), 404)
	if got := m.Text(t, "SELECT status FROM public.provisions ORDER BY number DESC LIMIT 1"); got != "CANCELLED" {
		t.Errorf("the run that no server fits is %s, want CANCELLED", got)
	}

	// What was accepted stays so, though its run fails later.
	m.serve(t, api.Config{ServerWait: time.Nanosecond})
	one, again = ask(`{"image_id": "debian-13", "server_id": "bm-1"}`)
	first = one()
	m.act(t, `FAILED {"error_code": "server_not_available", "error_message": "why"}`)
	wantSame("a run that fails later", first, again(), 202)

	// Whose wait was broken off waits again.
	m.Exec(t, "UPDATE tendril.requests SET settled = false WHERE key = $1", fmt.Sprintf("k%d", keys))
	if got := again(); got.status != 409 {
		t.Errorf("a repeat after a broken wait = %d %s, want what the agent has found out", got.status, got.body)
	}
	if got := again(); got.status != 409 || got.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("a repeat of that = %d %s %v", got.status, got.body, got.header)
	}

	// What is not one of the errors of servers may be tried again.
	m.as(t, "admin", "DELETE", "/pools/metal/template", "").want(t, "choosing none", 204, "")
	one, again = ask(`{"image_id": "debian-13", "server_id": "bm-1"}`)
	one().want(t, "without a template", 409, "pool_without_template")
	m.as(t, "admin", "PUT", "/pools/metal/template", `{"template": "bare-metal"}`).want(t, "choosing the template", 204, "")
	again().want(t, "with a template", 202, "")
}

// A server from the request to the end, asked for by the operation and by the server's own id.
func TestServerOperation(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	m.Exec(t, "UPDATE public.clusters SET age_public_key = $1 WHERE id = $2", identity.Recipient().String(), m.Cluster)
	done := m.during(t,
		`RESERVE [{"name": %q, "pool": "metal", "cores": 1, "memory_mib": 1, "image": "debian-13", "labels": {"resource_class": "gold"}}]`,
		`PROCESSING {"stage": "plan", "engine": "machine", "engine_version": "1", "commit": "`+strings.Repeat("a", 40)+`"}`,
		`PROCESSING {"stage": "apply", "machines": [{"name": "a", "status": "creating", "pool": "metal", "node": "bm-1", "external_id": "`+serverA+`"}], "events": [{"kind": "step_started", "action": "deploying", "address": "machine.a", "message": "Ironic writes the image"}]}`)
	made := m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13", "resource_class": "gold", "config_drive": {"hostname": "db-1", "chpasswd": "hunter2hunter2"}}`, "Idempotency-Key: once").want(t, "POST", 202, "")
	done()
	operation := made.text("operation_id")
	if made.text("server_id") != serverA || made.text("server_name") != "bm-1" || made.text("status") != "accepted" || made.header.Get("Location") != "/api/v1/provision/"+operation || made.text("started_at") == "" {
		t.Errorf("POST = %s, Location %q", made.body, made.header.Get("Location"))
	}
	again := m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13", "resource_class": "gold", "config_drive": {"hostname": "db-1", "chpasswd": "hunter2hunter2"}}`, "Idempotency-Key: once").want(t, "a repeat", 202, "")
	if again.text("operation_id") != operation || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("a repeat = %s", again.body)
	}
	// What the config drive holds is in no row, and the agent alone opens it.
	snapshot := m.Text(t, "SELECT config_snapshot::text FROM public.provisions WHERE id = $1", operation)
	if strings.Contains(snapshot, "hunter2") || strings.Contains(m.Text(t, "SELECT coalesce(string_agg(answer::text, ''), '') FROM tendril.requests"), "hunter2") {
		t.Errorf("the snapshot = %s, want no secret in it", snapshot)
	}
	var sealed struct {
		Sealed    map[string]string `json:"sealed_vars"`
		Workspace string            `json:"workspace"`
	}
	if err := json.Unmarshal([]byte(snapshot), &sealed); err != nil {
		t.Fatal(err)
	}
	use := seal.Use{Cluster: "prod", Workspace: sealed.Workspace, Repo: "https://git.example/acme/bare-metal", Name: "user_data"}
	if value, err := (seal.Identities{identity}).OpenVariable(sealed.Sealed["user_data"], use); err != nil || string(value) != `"#cloud-config\n{\"chpasswd\":\"hunter2hunter2\",\"hostname\":\"db-1\"}\n"` {
		t.Errorf("the user data = %s, %v", value, err)
	}
	for _, by := range []string{operation, serverA, "bm-1"} {
		got := m.as(t, "viewer", "GET", "/provision/"+by, "").want(t, "the status by "+by, 200, "")
		if got.text("operation_id") != operation || got.text("server_id") != serverA || got.text("status") != "in_progress" || got.text("provision_state") != "deploying" || got.text("message") != "Ironic writes the image." || got.text("completed_at") != "" {
			t.Errorf("the status by %s = %s", by, got.body)
		}
	}
	m.as(t, "stranger", "GET", "/provision/"+operation, "").want(t, "a stranger's question", 404, "server_not_found")
	m.as(t, "stranger", "GET", "/provision/"+serverA, "").want(t, "a stranger's question", 404, "server_not_found")
	// The server is taken now, though its report is older.
	m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13", "server_id": "bm-1"}`).want(t, "a server that is taken", 409, "server_not_available")

	claim := m.Text(t, "SELECT id::text FROM tendril.claims WHERE provision_id = $1", operation)
	m.Exec(t, "SELECT public.update_provision_status($1, $2, 'SUCCESS', '{}')", m.hash, claim)
	got := m.as(t, "viewer", "GET", "/provision/"+operation, "").want(t, "the end", 200, "")
	if got.text("status") != "completed" || got.text("provision_state") != "active" || got.text("progress_percent") != "100" || got.text("completed_at") == "" {
		t.Errorf("the end = %s", got.body)
	}
}

// Two operations of one workspace each have the server that their own run used.
func TestServersOfOneWorkspace(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	reported := func(server, node string) []string {
		machines := `"machines": [{"name": "a", "status": "running", "pool": "metal", "node": "` + node + `", "external_id": "` + server + `"}]`
		return []string{
			`PROCESSING {"stage": "plan", "engine": "machine", "engine_version": "1", "commit": "` + strings.Repeat("a", 40) + `"}`,
			`PROCESSING {"stage": "apply", ` + machines + `}`, `SUCCESS {` + machines + `}`,
		}
	}
	done := m.during(t, reported(serverA, "bm-1")...)
	first := m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13", "server_id": "bm-1"}`).want(t, "POST", 202, "").text("operation_id")
	done()
	again := m.as(t, "operator", "GET", "/provisions/"+first, "")
	second := m.as(t, "operator", "POST", "/provisions", `{"cluster": "prod", "config_snapshot": `+again.text("config_snapshot")+`}`).want(t, "another run", 202, "").text("id")
	wantServers := func(what string, of map[string]string) {
		t.Helper()
		for operation, server := range of {
			if got := m.as(t, "viewer", "GET", "/provision/"+operation, ""); got.status != 200 || got.text("server_id") != server {
				t.Errorf("%s, operation %s = %d %s, want server %s", what, operation, got.status, got.body, server)
			}
		}
	}
	wantServers("before the second run", map[string]string{first: serverA, second: ""})
	m.act(t, reported(serverB, "bm-2")...)
	wantServers("after the second run", map[string]string{first: serverA, second: serverB})
	// A server of the same name that came later is another one.
	m.report(t, strings.Replace(servers, serverA, strings.Replace(serverA, "1be2", "9be2", 1), 1))
	wantServers("after the server was exchanged", map[string]string{first: serverA, second: serverB})
	m.Exec(t, "DELETE FROM public.machines")
	wantServers("after the machine is gone", map[string]string{first: serverA, second: serverB})
}

// Before an agent has it, and of servers that others provision, the answer says so.
func TestServerStatusElsewhere(t *testing.T) {
	t.Parallel()
	m := newMetal(t)
	for by, want := range map[string][2]string{serverB: {"completed", "active"}, "bm-3": {"failed", "deploy failed"}} {
		got := m.as(t, "viewer", "GET", "/provision/"+by, "").want(t, by, 200, "")
		if got.text("status") != want[0] || got.text("provision_state") != want[1] || !strings.Contains(got.text("message"), "Not begun by Tendril; seen ") {
			t.Errorf("the status of %s = %s", by, got.body)
		}
	}
	m.as(t, "viewer", "GET", "/provision/"+uuid.NewString(), "").want(t, "of nothing", 404, "server_not_found")
	m.as(t, "viewer", "GET", "/provision/"+serverA, "").want(t, "of a server that nobody deploys", 404, "operation_not_found")
	m.Exec(t, "UPDATE public.clusters SET paused_at = now() WHERE id = $1", m.Cluster)
	m.serve(t, api.Config{ServerWait: time.Nanosecond})
	made := m.as(t, "operator", "POST", "/provision", `{"image_id": "debian-13"}`).want(t, "while nobody takes it", 202, "")
	if made.text("server_id") != "" || !strings.Contains(string(made.body), `"server_id":null`) || !strings.Contains(made.text("message"), "paused") {
		t.Errorf("while nobody takes it = %s", made.body)
	}
	got := m.as(t, "viewer", "GET", "/provision/"+made.text("operation_id"), "")
	if got.text("status") != "in_progress" || got.text("provision_state") != "queued" || !strings.Contains(got.text("message"), "paused") {
		t.Errorf("what is queued = %s", got.body)
	}
	m.as(t, "operator", "POST", "/provisions/"+made.text("operation_id")+"/cancel", "").want(t, "cancel", 200, "")
	if got := m.as(t, "viewer", "GET", "/provision/"+made.text("operation_id"), ""); got.text("status") != "failed" || got.text("provision_state") != "cancelled" {
		t.Errorf("what is cancelled = %s", got.body)
	}
}
