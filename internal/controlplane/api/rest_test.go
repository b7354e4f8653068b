package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// agent is a registered agent that has claimed what is next.
func (w *world) agent(t *testing.T) (queue.Queue, *provision.Assignment) {
	t.Helper()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want what is queued", a, err)
	}
	return q, a
}

// What an agent reports is read by whoever may, piece by piece.
func TestWhatARunLeavesBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.deploy(t)
	q, assignment := w.agent(t)
	report := func(status provision.Status, d provision.Detail) {
		t.Helper()
		if err := q.Report(t.Context(), assignment.ClaimID, provision.Report{Status: status, Detail: d}); err != nil {
			t.Fatal(err)
		}
	}
	report(provision.Processing, provision.Detail{Stage: provision.StagePlan, Commit: strings.Repeat("a", 40), Engine: "terraform", EngineVersion: "1.11.4",
		Plan: &provision.PlanSummary{Add: 1, Resources: []provision.PlannedChange{{Address: "a.b", Action: "create",
			Attributes: []provision.AttributeChange{{Path: "size", After: json.RawMessage("3")}}}}}})
	report(provision.Processing, provision.Detail{Stage: provision.StageApply})
	report(provision.Success, provision.Detail{Resources: []provision.Resource{{Address: "a.b", Type: "a"}, {Address: "a.c", Type: "a", IPAddresses: []string{"10.0.0.1"}}},
		Outputs: map[string]provision.Output{"url": {Value: json.RawMessage(`"http://x"`)}},
		Machines: []provision.Machine{
			{Name: "ada", Status: provision.MachineRunning, Address: "machine.ada", IPAddresses: []string{"10.0.0.1"}, SSHPort: 2222, Pool: "lab", Labels: map[string]string{"class": "a"}},
			{Name: "grace", Status: provision.MachineStopped, Labels: map[string]string{"class": "b", "odd": "1,2"}},
		}})

	number := made.text("number")
	for path, want := range map[string]map[string]string{
		"/provisions/" + number + "/plan":              {"plan.add": "1", "plan.resources.0.address": "a.b", "status": "SUCCESS"},
		"/provisions/" + number + "/stages":            {"items.0.stage": "queued"},
		"/provisions/" + number + "/resources":         {"items.0.address": "a.b", "items.1.ip_addresses.0": "10.0.0.1", "next_cursor": ""},
		"/provisions/" + number + "/resources?limit=1": {"items.0.address": "a.b", "items.1.address": "", "next_cursor": "WyJyZXNvdXJjZXMiLCJhLmIiXQ"},
		"/workspaces/a": {"name": "a", "resources": "2", "status": "SUCCESS", "cluster": "prod"},
		"/workspaces/a/resources?cursor=WyJyZXNvdXJjZXMiLCJhLmIiXQ": {"items.0.address": "a.c", "items.1.address": ""},
		"/workspaces/a/outputs":            {"number": number, "outputs.url.value": "http://x"},
		"/workspaces/a/applied":            {"cluster_id": w.Cluster.String(), "config_snapshot.workspace": "a"},
		"/workspaces/a/provisions":         {"items.0.number": number, "items.1.number": ""},
		"/workspaces/a/states":             {"items": "[]"},
		"/workspaces/a/drift":              {"workspace": "a", "count": "0"},
		"/workspaces?cluster=prod":         {"items.0.name": "a", "next_cursor": ""},
		"/drift":                           {"items": "[]"},
		"/machines":                        {"items.0.name": "ada", "items.0.workspace": "a", "items.0.cluster": "prod", "items.0.number": number, "items.0.ssh_port": "2222", "items.1.name": "grace", "next_cursor": ""},
		"/machines?limit=1&status=running": {"items.0.name": "ada", "items.1.name": ""},
		"/machines?workspace=a&q=race":     {"items.0.name": "grace", "items.1.name": ""},
		"/machines?q=10.0.0":               {"items.0.name": "ada", "items.1.name": ""},
		"/machines?pool=lab&label=class=a": {"items.0.name": "ada", "items.1.name": ""},
		"/machines?label=class=a,odd=1":    {"items": "[]"},
		"/machines?status=gone":            {"items": "[]"},
		"/machines/ada":                    {"name": "ada", "address": "machine.ada", "labels.class": "a"},
		"/machines/ada?workspace=a":        {"name": "ada"},
		"/machines/ada/history":            {"items.0.status": "running", "items.0.number": number, "items.1.status": ""},
		"/clusters/prod":                   {"connectivity": "ONLINE", "agents.0.name": "one"},
		"/audit":                           {},
	} {
		who := "viewer"
		if path == "/audit" {
			who = "admin"
		}
		got := w.as(t, who, "GET", path, "").want(t, "GET "+path, http.StatusOK, "")
		for field, value := range want {
			if got.text(field) != value {
				t.Errorf("GET %s: %s = %q, want %q; all of it: %s", path, field, got.text(field), value, got.body)
			}
		}
	}
	plan := func(name string) string {
		return `{"cluster": "prod", "config_snapshot": ` + snapshot + `, "machines": [{"name": "` + name + `", "cores": 2, "labels": {"class": "a"}}]}`
	}
	w.as(t, "operator", "POST", "/machines", plan("planned")).want(t, "a plan", 201, "")
	w.as(t, "operator", "POST", "/machines", plan("ada")).want(t, "a plan of a machine that is there", 409, "machine_exists")
	w.as(t, "operator", "POST", "/machines", plan("")).want(t, "a plan without a name", 422, "")
	if got := w.as(t, "viewer", "GET", "/machines/planned", "").want(t, "a planned machine", 200, ""); got.text("status")+got.text("cores")+got.text("plan.workspace")+got.text("plan.template_source.version") != "planned2av1" {
		t.Errorf("a planned machine is %s", got.body)
	}
	w.as(t, "operator", "POST", "/machines/provision", `{"workspace": "a"}`).want(t, "a deploy of planned machines of a template that nobody has scanned", 409, "plan_incomplete")
	w.as(t, "operator", "POST", "/machines/provision", `{"workspace": "a", "machines": ["ada"]}`).want(t, "a deploy of a machine that is there", 404, "machine_not_found")
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables) VALUES ($1, 'https://git.example/acme/envtempl', 'v1', '', 'https://git.example/acme/envtempl', 'done',
		'[{"name": "names", "type_json": ["set", "string"], "default": ["ada", "grace"]}, {"name": "size", "type_json": "number"}]') ON CONFLICT (org_id, repo, version, path) DO UPDATE SET status = 'done', variables = EXCLUDED.variables`, w.Org)
	w.as(t, "viewer", "POST", "/machines/provision", `{"workspace": "a"}`).want(t, "a viewer's deploy of planned machines", 404, "cluster_not_found")
	queued := w.as(t, "operator", "POST", "/machines/provision", `{"workspace": "a", "approval": "always"}`).want(t, "a deploy of planned machines", 202, "")
	if got := w.Text(t, "SELECT (config_snapshot -> 'terraform_vars')::text || (config_snapshot ->> 'approval') FROM public.provisions WHERE number = $1", queued.text("number")); got != `{"size": 3, "names": ["ada", "grace", "planned"]}always` {
		t.Errorf("it asks for %s", got)
	}
	w.as(t, "operator", "POST", "/machines/provision", `{"workspace": "a"}`).want(t, "another one while that has not ended", 409, "plan_incomplete")
	w.as(t, "viewer", "DELETE", "/machines/planned", "").want(t, "a viewer's deletion", 404, "machine_not_found")
	w.as(t, "operator", "DELETE", "/machines/ada", "").want(t, "the deletion of a machine that is there", 409, "machine_exists")
	w.as(t, "operator", "DELETE", "/machines/planned", "").want(t, "a deletion", 204, "")
	w.as(t, "operator", "POST", "/machines/provision", `{"workspace": "a"}`).want(t, "a deploy of nothing", 404, "machine_not_found")
	w.as(t, "viewer", "GET", "/machines?label=class", "").want(t, "a label without a value", 422, "bad_label")
	w.as(t, "viewer", "GET", "/machines?label=a=1,a=2", "").want(t, "a label given twice", 422, "bad_label")
	w.as(t, "viewer", "GET", "/machines?workspace=none", "").want(t, "machines of no workspace", 404, "workspace_not_found")
	w.as(t, "viewer", "GET", "/machines/none", "").want(t, "no machine", 404, "machine_not_found")
	w.as(t, "viewer", "GET", "/provisions/"+number+"/result", "").want(t, "a viewer's GET …/result", 404, "provision_not_found")
	w.as(t, "operator", "GET", "/provisions/"+number+"/result", "").want(t, "GET …/result of what left none", 404, "result_not_found")
}

// What is decided about workspaces, clusters, templates and members.
func TestKeepersOfAnOrganisation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	new := uuid.NewString()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'operator')", w.Org, new)
	for _, c := range []struct {
		who, method, path, body string
		status                  int
		field, value            string // of the answer
	}{
		{"operator", "POST", "/workspaces/a/lock", `{"reason": "moving"}`, 204, "", ""},
		{"viewer", "GET", "/workspaces/a", "", 200, "lock_reason", "moving"},
		{"operator", "POST", "/workspaces/a/lock", `{}`, 422, "errors.0.location", "body.reason"},
		{"admin", "POST", "/workspaces/a/unlock", "", 204, "", ""},
		{"admin", "POST", "/workspaces/a/release", "", 409, "reason", "workspace_not_held"},
		{"admin", "POST", "/workspaces/a/rebind", `{"repo": "ftp://x", "reason": "moved"}`, 422, "errors.0.location", "body.repo"},
		{"admin", "POST", "/workspaces/a/rebind", `{"repo": "https://git.example/acme/other", "reason": "moved"}`, 204, "", ""},
		{"operator", "PUT", "/workspaces/a/drift", `{"every_seconds": 86400}`, 200, "every_seconds", "86400"},
		{"operator", "PUT", "/workspaces/a/drift", `{"every_seconds": 3}`, 422, "errors.0.location", "body.every_seconds"},
		{"viewer", "GET", "/drift", "", 200, "items.0.workspace", "a"},

		{"admin", "POST", "/clusters/prod/pause", `{"reason": "night"}`, 204, "", ""},
		{"admin", "POST", "/clusters/prod/resume", "", 204, "", ""},
		{"viewer", "GET", "/clusters/prod/policy", "", 200, "approval", "never"},
		{"admin", "PUT", "/clusters/prod/policy", `{"approval": "always"}`, 200, "approval", "always"},
		{"admin", "PUT", "/clusters/prod/policy", `{"approval_expiry": "soon"}`, 422, "errors.0.location", "body.approval_expiry"},
		{"admin", "POST", "/clusters/prod/tokens", `{"overlap_seconds": 3600}`, 201, "", ""},
		{"admin", "GET", "/clusters/prod/tokens", "", 200, "items.2", ""},
		{"admin", "DELETE", "/clusters/prod/tokens/" + new, "", 404, "reason", "token_not_found"},
		{"admin", "POST", "/clusters", `{"name": "no space"}`, 422, "errors.0.location", "body.name"},

		{"admin", "POST", "/templates", `{"name": "t/1", "repo": "https://git.example/acme/envtempl", "version": "v1"}`, 201, "approval", "never"},
		{"admin", "POST", "/templates", `{"name": "t/1", "repo": "https://me:secret@git.example/x", "version": "v1"}`, 422, "errors.0.location", "body.repo"},
		{"viewer", "GET", "/templates/t%2F1", "", 200, "version", "v1"},
		{"viewer", "GET", "/templates", "", 200, "items.0.name", "t/1"},
		{"admin", "DELETE", "/templates/t%2F1", "", 204, "", ""},
		{"viewer", "GET", "/templates/t%2F1", "", 404, "reason", "template_not_found"},

		{"admin", "PUT", "/members/" + new, `{"role": "viewer"}`, 204, "", ""},
		{"admin", "PUT", "/members/" + w.people["admin"].String(), `{"role": "viewer"}`, 409, "reason", "last_admin"},
		{"admin", "DELETE", "/members/" + new, "", 204, "", ""},
		{"admin", "DELETE", "/members/" + new, "", 404, "reason", "member_not_found"},
		{"viewer", "GET", "/orgs", "", 200, "items.0.role", "viewer"},
		{"viewer", "GET", "/members?limit=2", "", 200, "items.2", ""},
		{"admin", "PUT", "/members/" + new, `{"role": "viewer"}`, 404, "reason", "member_not_found"},
		{"admin", "GET", "/audit?limit=1", "", 200, "items.0.action", "remove_member"},
		{"operator", "GET", "/audit", "", 403, "reason", "not_admin"},
	} {
		got := w.as(t, c.who, c.method, c.path, c.body)
		if got.status != c.status || c.field != "" && got.text(c.field) != c.value {
			t.Errorf("%s: %s %s %s = %d %s, want %d, %s %q", c.who, c.method, c.path, c.body, got.status, got.body, c.status, c.field, c.value)
		}
	}
}

// Sealed bytes pass through in parts, and come out as they went in.
func TestUploadAndResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sealed := bytes.Repeat([]byte("sealed "), queue.BlobPart/4) // nearly two parts
	id := uuid.NewString()
	for range 2 { // the second time after a lost reply
		got := w.as(t, "admin", "POST", "/uploads?cluster=prod&id="+id, string(sealed), "Content-Type: application/octet-stream").want(t, "POST /uploads", 201, "")
		if got.text("id") != id {
			t.Errorf("POST /uploads = %s, want the id given", got.body)
		}
	}
	w.as(t, "operator", "POST", "/uploads?cluster=prod", "x").want(t, "an operator's POST /uploads", 404, "cluster_not_found")
	w.as(t, "admin", "POST", "/uploads?cluster=prod", "").want(t, "an empty POST /uploads", 400, "malformed_request")

	body := `{"cluster": "prod", "operation": "state", "config_snapshot": {"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "s",
		"requester_key": "age1` + strings.Repeat("q", 58) + `", "state": {"command": "pull"}}}`
	made := w.as(t, "admin", "POST", "/provisions", body).want(t, "POST /provisions", 202, "")
	q, a := w.agent(t)
	digest := digestOf(sealed)
	if err := q.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobResult, Digest: digest, Meta: json.RawMessage(`{}`)}, sealed); err != nil {
		t.Fatal(err)
	}
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success, Detail: provision.Detail{ResultDigest: digest}}); err != nil {
		t.Fatal(err)
	}
	got := w.as(t, "admin", "GET", "/provisions/"+made.text("number")+"/result", "")
	if got.status != 200 || !bytes.Equal(got.body, sealed) || got.header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(got.header.Get("Repr-Digest"), "sha-256=:") {
		t.Errorf("GET …/result = %d, %d bytes, %v, want the %d that the run left", got.status, len(got.body), got.header, len(sealed))
	}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
