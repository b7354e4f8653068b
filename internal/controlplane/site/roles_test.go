package site_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
)

// operation is one of the API as the test calls it.
type operation struct {
	// least is the role from which on it may be called; "" for what is about the
	// caller's own, which everybody may.
	least string
	// at is its address, where the path's parameters have values of the scene.
	at   string
	body string
	want int // from that role on
}

// operations are all that the API has, by their method and path. {done}, {waits},
// {other} and {queued} are provisions, {cluster}, {member}, {invitation}, {token}
// and {upload} ids.
var operations = map[string]operation{
	"GET /me":               {"", "/me", "", 200},
	"GET /orgs":             {"", "/orgs", "", 200},
	"GET /api-tokens":       {"", "/api-tokens", "", 200},
	"POST /api-tokens":      {"", "/api-tokens", `{"name": "x"}`, 403}, // by a token: see TestTokensMakeNoTokens
	"DELETE /api-tokens/{}": {"", "/api-tokens/{none}", "", 404},       // theirs alone: see TestTokenEndsAtOnce

	"GET /members":            {"viewer", "/members?org={org}", "", 200},
	"PUT /members/{}":         {"admin", "/members/{member}?org={org}", `{"role": "viewer"}`, 204},
	"DELETE /members/{}":      {"admin", "/members/{member}?org={org}", "", 204},
	"GET /invitations":        {"admin", "/invitations?org={org}", "", 200},
	"POST /invitations":       {"admin", "/invitations?org={org}", `{"email": "eve@example.com", "role": "admin"}`, 201},
	"DELETE /invitations/{}":  {"admin", "/invitations/{invitation}?org={org}", "", 204},
	"GET /audit":              {"admin", "/audit?org={org}", "", 200},
	"GET /clusters":           {"viewer", "/clusters?org={org}", "", 200},
	"POST /clusters":          {"admin", "/clusters?org={org}", `{"name": "new"}`, 201},
	"GET /clusters/{}":        {"viewer", "/clusters/{cluster}", "", 200},
	"POST /clusters/{}/pause": {"admin", "/clusters/{cluster}/pause", `{"reason": "x"}`, 204}, "POST /clusters/{}/resume": {"admin", "/clusters/{cluster}/resume", "", 204},
	"GET /clusters/{}/policy": {"viewer", "/clusters/{cluster}/policy", "", 200}, "PUT /clusters/{}/policy": {"admin", "/clusters/{cluster}/policy", `{"approval": "always"}`, 200},
	"GET /clusters/{}/tokens": {"admin", "/clusters/{cluster}/tokens", "", 200}, "POST /clusters/{}/tokens": {"admin", "/clusters/{cluster}/tokens", `{}`, 201},
	"DELETE /clusters/{}/tokens/{}": {"admin", "/clusters/{cluster}/tokens/{token}", "", 204},
	"POST /uploads":                 {"admin", "/uploads?cluster={cluster}&id={upload}", "sealed", 201},

	"GET /templates":              {"viewer", "/templates?org={org}", "", 200},
	"POST /templates":             {"admin", "/templates?org={org}", `{"name": "new", "repo": "https://git.example/a/b", "version": "v1"}`, 201},
	"GET /templates/{}":           {"viewer", "/templates/{template}", "", 200},
	"GET /templates/{}/variables": {"viewer", "/templates/{template}/variables", "", 200}, "POST /templates/{}/inspect": {"operator", "/templates/{template}/inspect", "", 202},
	"DELETE /templates/{}": {"admin", "/templates/{template}", "", 204},

	"GET /workspaces":    {"viewer", "/workspaces?org={org}", "", 200},
	"GET /workspaces/{}": {"viewer", "/workspaces/{workspace}", "", 200}, "GET /workspaces/{}/resources": {"viewer", "/workspaces/{workspace}/resources", "", 200},
	"GET /workspaces/{}/outputs": {"viewer", "/workspaces/{workspace}/outputs", "", 200}, "GET /workspaces/{}/drift": {"viewer", "/workspaces/{workspace}/drift", "", 200},
	"GET /workspaces/{}/provisions": {"viewer", "/workspaces/{workspace}/provisions", "", 200}, "GET /workspaces/{}/states": {"viewer", "/workspaces/{workspace}/states", "", 200},
	"GET /workspaces/{}/applied": {"viewer", "/workspaces/{workspace}/applied", "", 200},
	"PUT /workspaces/{}/drift":   {"operator", "/workspaces/{workspace}/drift", `{"every_seconds": 86400}`, 200},
	"POST /workspaces/{}/lock":   {"operator", "/workspaces/{workspace}/lock", `{"reason": "x"}`, 204}, "POST /workspaces/{}/unlock": {"operator", "/workspaces/{workspace}/unlock", "", 204},
	"POST /workspaces/{}/release": {"admin", "/workspaces/{workspace}/release", "", 409}, // nothing holds it
	"POST /workspaces/{}/rebind":  {"admin", "/workspaces/{workspace}/rebind", `{"repo": "https://git.example/acme/other", "reason": "x"}`, 204},
	"GET /drift":                  {"viewer", "/drift?org={org}", "", 200},

	"GET /webhooks": {"viewer", "/webhooks?org={org}", "", 200}, "GET /webhooks/{}": {"viewer", "/webhooks/{webhook}", "", 200},
	"POST /webhooks":                            {"admin", "/webhooks?org={org}", `{"name": "new", "url": "https://hooks.example/x", "events": ["drift"]}`, 201},
	"PATCH /webhooks/{}":                        {"admin", "/webhooks/{webhook}", `{"name": "another"}`, 200},
	"DELETE /webhooks/{}":                       {"admin", "/webhooks/{webhook}", "", 204},
	"POST /webhooks/{}/rotate":                  {"admin", "/webhooks/{webhook}/rotate", "", 200},
	"GET /webhooks/{}/deliveries":               {"admin", "/webhooks/{webhook}/deliveries", "", 200},
	"POST /webhooks/{}/test":                    {"admin", "/webhooks/{webhook}/test", "", 202},
	"POST /webhooks/{}/deliveries/{}/redeliver": {"admin", "/webhooks/{webhook}/deliveries/{delivery}/redeliver", "", 202},

	"GET /provisions":    {"viewer", "/provisions?org={org}", "", 200},
	"POST /provisions":   {"operator", "/provisions", `{"cluster": "{cluster}", "config_snapshot": {"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "new"}}`, 202},
	"GET /provisions/{}": {"viewer", "/provisions/{done}", "", 200}, "GET /provisions/{}/resources": {"viewer", "/provisions/{done}/resources", "", 200},
	"GET /provisions/{}/stages": {"viewer", "/provisions/{done}/stages", "", 200}, "GET /provisions/{}/plan": {"viewer", "/provisions/{done}/plan", "", 200},
	"GET /provisions/{}/logs": {"viewer", "/provisions/{done}/logs", "", 200}, "GET /provisions/{}/logs/stream": {"viewer", "/provisions/{done}/logs/stream", "", 200},
	"GET /provisions/{}/events": {"viewer", "/provisions/{done}/events", "", 200}, "GET /provisions/{}/events/stream": {"viewer", "/provisions/{done}/events/stream", "", 200},
	"GET /provisions/{}/result":   {"admin", "/provisions/{done}/result", "", 200}, // or who asked for it
	"POST /provisions/{}/approve": {"operator", "/provisions/{waits}/approve", `{"plan_digest": "` + strings.Repeat("d", 64) + `"}`, 200},
	"POST /provisions/{}/reject":  {"operator", "/provisions/{other}/reject", `{"reason": "x"}`, 200},
	"POST /provisions/{}/cancel":  {"operator", "/provisions/{queued}/cancel", "", 200},
	"POST /provisions/{}/retry":   {"operator", "/provisions/{done}/retry", "", 202},
}

// Each operation as each role, by tokens that they have: who may not is refused,
// and nothing comes of it; who may does it. An operation that is not listed above
// fails this.
func TestEveryOperationAsEveryRole(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, notify.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := notify.ReadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *site.Options) { o.Notify.Key = key })
	scene := w.scene(t)
	bearer := map[string]string{}
	for _, role := range []string{"viewer", "operator", "admin", "stranger"} {
		user := uuid.New()
		if role == "stranger" {
			w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", user)
		} else {
			w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, user, role)
		}
		token, err := signin.NewToken(t.Context(), w.site.Database(), user, "a test")
		if err != nil {
			t.Fatal(err)
		}
		bearer[role] = "Bearer " + token
	}
	call := func(role, name string) (int, string) {
		t.Helper()
		o := operations[name]
		method, _, _ := strings.Cut(name, " ")
		return w.call(t, method, scene.Replace(o.at), scene.Replace(o.body), bearer[role])
	}
	names := slices.Sorted(maps.Keys(operations))
	if documented := w.documented(t, bearer["viewer"]); !slices.Equal(names, documented) {
		t.Errorf("operations of the API = %q, want an entry for each: %q", documented, names)
	}
	before := w.Text(t, did)
	ranks := []string{"stranger", "viewer", "operator", "admin"}
	for _, name := range names {
		o := operations[name]
		if status, body := call("nobody", name); status != http.StatusUnauthorized {
			t.Errorf("%s as nobody = %d %s, want 401", name, status, body)
		}
		for _, role := range ranks {
			if role == o.least {
				break
			}
			status, body := call(role, name)
			switch {
			case o.least == "": // one's own
				if status != o.want || role == "stranger" && strings.Contains(body, w.Org.String()) {
					t.Errorf("%s as %s = %d %s, want %d and nothing of another's", name, role, status, body, o.want)
				}
			case status != http.StatusNotFound && (status != http.StatusForbidden || role == "stranger"):
				t.Errorf("%s as %s = %d %s, want 404, or 403 for a member", name, role, status, body)
			}
		}
	}
	if after := w.Text(t, did); after != before {
		t.Errorf("what was done: %s, before that %s, want nothing by who may not", after, before)
	}
	// What ends a thing comes last.
	slices.SortStableFunc(names, func(a, b string) int { return strings.Count(a, "DELETE") - strings.Count(b, "DELETE") })
	for _, name := range names {
		o := operations[name]
		if o.least == "" {
			continue
		}
		if status, body := call(o.least, name); status != o.want {
			t.Errorf("%s as %s = %d %s, want %d", name, o.least, status, body, o.want)
		}
	}
}

// did counts what calls leave behind.
const did = `SELECT (SELECT count(*) FROM public.audit_events) || ' ' || (SELECT count(*) FROM public.provisions) || ' ' || (SELECT count(*) FROM tendril.blobs)`

// scene is something of all that operations are called with, as a replacer of its
// names.
func (w *world) scene(t *testing.T) *strings.Replacer {
	t.Helper()
	digest := strings.Repeat("d", 64)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	_, err = q.Register(t.Context())
	claim := func(workspace string) (uuid.UUID, uuid.UUID) {
		t.Helper()
		id := w.Deploy(t, workspace)
		a, err := q.Claim(t.Context(), uuid.New())
		if err != nil || a == nil {
			t.Fatalf("Claim() = %v, %v, want what was deployed", a, err)
		}
		return id, a.ClaimID
	}
	if err != nil {
		t.Fatal(err)
	}
	done, ran := claim("done")
	sealed := []byte("sealed")
	sum := sha256.Sum256(sealed)
	result := hex.EncodeToString(sum[:])
	if err := q.PutBlob(t.Context(), ran, queue.Blob{Kind: queue.BlobResult, Digest: result, Meta: json.RawMessage(`{}`)}, sealed); err != nil {
		t.Fatal(err)
	}
	if err := q.Report(t.Context(), ran, provision.Report{Status: provision.Success, Detail: provision.Detail{ResultDigest: result, Outputs: map[string]provision.Output{"a": {Value: json.RawMessage(`1`)}}}}); err != nil {
		t.Fatal(err)
	}
	waits, one := claim("waits")
	other, two := claim("other")
	w.Exec(t, "SELECT tendril.await_approval($1, $2), tendril.await_approval($3, $2)", one, digest, two)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'template', 'https://git.example/a/b', 'v1')", w.Org)
	w.Exec(t, "SELECT public.invite_member($1, 'grace@example.com', 'viewer')", w.Org)
	w.Exec(t, `SELECT public.create_webhook($1, gen_random_uuid(), '{"name": "a webhook", "kind": "generic", "host": "https://h", "url": "c2VhbGVk", "events": ["success"]}')`, w.Org)
	w.Exec(t, "SELECT public.send_webhook(id) FROM public.webhooks")
	values := map[string]string{
		"webhook": w.Text(t, "SELECT id::text FROM public.webhooks"), "delivery": w.Text(t, "SELECT id::text FROM public.webhook_deliveries LIMIT 1"),
		"org": w.Org.String(), "cluster": w.Cluster.String(), "done": done.String(), "waits": waits.String(), "other": other.String(),
		"queued": w.Deploy(t, "queued").String(), "none": uuid.NewString(), "upload": uuid.NewString(), "member": w.member(t, "operator").String(),
		"workspace":  w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'done'"),
		"template":   w.Text(t, "SELECT id::text FROM public.templates"),
		"invitation": w.Text(t, "SELECT id::text FROM public.invitations"),
		"token":      w.Text(t, "SELECT id::text FROM tendril.cluster_tokens WHERE cluster_id = $1", w.Cluster),
	}
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...)
}

// call makes a request of the API; a stream's answer is its first line.
func (w *world) call(t *testing.T, method, path, body, bearer string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if !strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	if bearer != "" {
		r.Header.Set("Authorization", bearer)
	}
	response, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		return response.StatusCode, ""
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// documented are the operations that the API says it has.
func (w *world) documented(t *testing.T, bearer string) []string {
	t.Helper()
	_, text := w.call(t, http.MethodGet, "/openapi.json", "", bearer)
	var document struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatalf("GET /api/v1/openapi.json: %v", err)
	}
	var all []string
	for path, methods := range document.Paths {
		for method := range methods {
			parts := strings.Split(strings.TrimPrefix(path, "/api/v1"), "/")
			for i, part := range parts {
				if strings.HasPrefix(part, "{") {
					parts[i] = "{}"
				}
			}
			all = append(all, strings.ToUpper(method)+" "+strings.Join(parts, "/"))
		}
	}
	slices.Sort(all)
	return all
}
