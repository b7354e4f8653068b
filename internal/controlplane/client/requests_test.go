package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

const secret = "trt_hunter2"

// asking returns a client of a server that answers so.
func asking(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := New(Options{URL: server.URL + "/", Token: secret, Org: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.timing.retry = time.Millisecond
	return c
}

// A cluster is found by its name or id, or because there is no other; else it is
// said which there are.
func TestFindCluster(t *testing.T) {
	t.Parallel()
	const prod, test = `{"name": "prod", "id": "11111111-1111-4111-8111-111111111111"}`, `{"name": "test", "id": "aaaaaaaa-2222-4222-8222-222222222222"}`
	for _, tt := range []struct{ there, ref, want string }{
		{prod, "", "prod"},
		{prod + "," + test, "test", "test"},
		{prod + "," + test, "AAAAAAAA-2222-4222-8222-222222222222", "test"},
		{prod + "," + test, "", "several clusters: prod, test"},
		{prod + "," + test, "nope", "there are: prod, test"},
		{prod + "," + prod, "prod", "give the id"},
		{"", "prod", "trellis clusters create"},
	} {
		c := asking(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"items": [%s]}`, tt.there)
		})
		found, err := c.FindCluster(t.Context(), tt.ref)
		got := found.Name
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("FindCluster(%q) = %s, want %s", tt.ref, got, tt.want)
		}
	}
}

// Each method asks what the API's documentation has.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const id = "11111111-1111-4111-8111-111111111111"
	always := "always"
	for _, tt := range []struct {
		ask    func(c *Client) (any, error)
		wants  string
		answer string
		want   any
	}{
		{func(c *Client) (any, error) { p, err := c.Provision(ctx, "#12"); return p.Number, err }, "GET /provisions/12", `{"number": 12}`, int64(12)},
		{func(c *Client) (any, error) { l, err := c.Provisions(ctx, 20); return len(l), err }, "GET /provisions?limit=20&org=acme", `{"items": [{}, {}]}`, 2},
		{func(c *Client) (any, error) {
			return c.Deploy(ctx, anID, provision.OperationPlan, json.RawMessage(`{"a":1}`))
		}, `POST /provisions {"cluster":"` + id + `","config_snapshot":{"a":1},"operation":"plan"}`, `{"id": "` + id + `", "number": 3, "workspace": "a/b", "url": "x"}`, wire.QueuedAnswer{ID: anID, Number: 3, Workspace: "a/b", URL: "x"}},
		{func(c *Client) (any, error) { return c.Cancel(ctx, anID) }, "POST /provisions/" + id + "/cancel", `{"status": "CANCELLED"}`, provision.Cancelled},
		{func(c *Client) (any, error) { return c.Approve(ctx, anID, "ab") }, "POST /provisions/" + id + `/approve {"plan_digest":"ab"}`, `{"status": "QUEUED"}`, provision.Queued},
		{func(c *Client) (any, error) { return nil, c.Reject(ctx, anID, "why") }, "POST /provisions/" + id + `/reject {"reason":"why"}`, `{"status": "CANCELLED"}`, nil},
		{func(c *Client) (any, error) { return c.GiveInput(ctx, anID, provision.Input{Reason: "why"}) }, "POST /provisions/" + id + `/input {"done":false,"reason":"why"}`, `{"status": "QUEUED"}`, provision.Queued},
		{func(c *Client) (any, error) { return nil, c.AssignInput(ctx, anID, wire.AssignInputBody{User: &anID}) }, "POST /provisions/" + id + `/assign {"user":"` + id + `"}`, "", nil},
		{func(c *Client) (any, error) { return nil, c.Comment(ctx, anID, "hello") }, "POST /provisions/" + id + `/comment {"text":"hello"}`, "", nil},
		{func(c *Client) (any, error) { d, err := c.Retry(ctx, anID, "age1x"); return d.Number, err }, "POST /provisions/" + id + `/retry {"requester_key":"age1x"}`, `{"number": 4}`, int64(4)},
		{func(c *Client) (any, error) { return c.Upload(ctx, anID, []byte("sealed")) }, "POST /uploads?cluster=" + id + " sealed", `{"id": "` + anID2.String() + `"}`, anID2},
		{func(c *Client) (any, error) { return c.Result(ctx, anID) }, "GET /provisions/" + id + "/result", "sealed bytes", []byte("sealed bytes")},
		{func(c *Client) (any, error) { l, err := c.FindCluster(ctx, "prod"); return l.ID, err }, "GET /clusters?limit=200&org=acme", `{"items": [{"name": "prod", "id": "` + id + `"}]}`, anID},
		{func(c *Client) (any, error) { return c.CreateCluster(ctx, "prod") }, `POST /clusters?org=acme {"name":"prod"}`, `{"cluster_id": "` + id + `", "token": "tnd_x"}`, wire.NewCluster{ID: anID, Token: "tnd_x"}},
		{func(c *Client) (any, error) { return nil, c.Pause(ctx, anID, true, "why") }, "POST /clusters/" + id + `/pause {"reason":"why"}`, "", nil},
		{func(c *Client) (any, error) { return nil, c.Pause(ctx, anID, false, "") }, "POST /clusters/" + id + `/resume {"reason":""}`, "", nil},
		{func(c *Client) (any, error) {
			p, err := c.SetPolicy(ctx, anID, wire.PolicyChange{Approval: &always})
			return p.Approval, err
		}, "PUT /clusters/" + id + `/policy {"approval":"always"}`, `{"approval": "always"}`, "always"},
		{func(c *Client) (any, error) { w, err := c.FindWorkspace(ctx, "acme/a b"); return w.Name, err }, "GET /workspaces/acme%2Fa%20b?org=acme", `{"name": "acme/a b"}`, "acme/a b"},
		{func(c *Client) (any, error) { return nil, c.Lock(ctx, anID, "why") }, "POST /workspaces/" + id + `/lock {"reason":"why"}`, "", nil},
		{func(c *Client) (any, error) {
			w, err := c.AddWebhook(ctx, wire.NewWebhookInputBody{Name: "w", URL: "https://x"})
			return w.Secret, err
		}, `POST /webhooks?org=acme {"name":"w","url":"https://x"}`, `{"secret": "whsec_x"}`, "whsec_x"},
		{func(c *Client) (any, error) { return c.TestWebhook(ctx, anID) }, "POST /webhooks/" + id + "/test", `{"id": "` + anID2.String() + `"}`, anID2},
		{func(c *Client) (any, error) { l, err := c.Deliveries(ctx, anID, 5); return len(l), err }, "GET /webhooks/" + id + "/deliveries?limit=5", `{"items": [{}]}`, 1},
		{func(c *Client) (any, error) { m, err := c.Me(ctx); return m.Email, err }, "GET /me", `{"name": "Ada", "email": "ada@example.com"}`, "ada@example.com"},
	} {
		var got string
		c := asking(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = strings.TrimSpace(r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), "/api/v1") + " " + string(body))
			if r.Header.Get("Authorization") != "Bearer "+secret || (r.Header.Get("Idempotency-Key") != "") != (r.Method == http.MethodPost) {
				t.Errorf("%s has the header %v, want the token, and a key for a POST", got, r.Header)
			}
			_, _ = io.WriteString(w, tt.answer)
		})
		answer, err := tt.ask(c)
		if got != tt.wants || err != nil || !reflect.DeepEqual(answer, tt.want) {
			t.Errorf("asked %s = %v, %v, want %s = %v", got, answer, err, tt.wants, tt.want)
		}
	}
}
