package rpcqueue_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// What each recorded failure is to an agent: its kind, how often the request was
// made, and words of the error.
var failures = map[string]struct {
	kind     queue.Kind
	requests int
	says     []string
}{
	"the database is away":                         {queue.Unavailable, 3, []string{"could not register with the database: Database connection error. Retrying the connection. (PGRST000)"}},
	"the connection broke":                         {queue.Unavailable, 3, []string{"PGRST001"}},
	"the functions could not be read":              {queue.Unavailable, 3, []string{"PGRST002"}},
	"no connection was free in time":               {queue.Unavailable, 3, []string{"PGRST003"}},
	"the statement took too long":                  {queue.Unavailable, 3, []string{"could not register with the database: canceling statement due to statement timeout (SQLSTATE 57014)"}},
	"the database shuts down":                      {queue.Unavailable, 3, []string{"57P01"}},
	"a deadlock":                                   {queue.Unavailable, 3, []string{"40P01"}},
	"the database is busy":                         {queue.Unavailable, 3, []string{"the database is busy (try again)"}},
	"no privilege":                                 {queue.Unavailable, 1, []string{"permission denied", "API key", "trellis migrate"}},
	"no such function":                             {queue.Unavailable, 1, []string{"PGRST202", "trellis migrate"}},
	"a JWT that has expired":                       {queue.Unauthorized, 1, []string{"does not accept the API key: JWT expired", "SUPABASE_ANON_KEY", "the cluster's token was not checked"}},
	"no key, for Supabase's front door":            {queue.Unauthorized, 1, []string{"does not accept the API key: No API key found in request", "queue.api_key"}},
	"a wrong key, for Supabase's front door":       {queue.Unauthorized, 1, []string{"does not accept the API key: Invalid API key", "the cluster's token was not checked"}},
	"too many requests, for Supabase's front door": {queue.Unavailable, 1, []string{"answered 429 Too Many Requests: API rate limit exceeded"}}, // a second is more than is waited for here
	"a page of a proxy":                            {queue.Unavailable, 3, []string{"answered 502 Bad Gateway: 502 Bad Gateway"}},
	"a page of a paused project":                   {queue.Unavailable, 3, []string{"answered 540: Project paused", "the Supabase project is paused"}},
}

func TestRecordedFailures(t *testing.T) {
	t.Parallel()
	for _, failure := range recorded.Failures(t) {
		t.Run(strings.ReplaceAll(failure.Name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			want, ok := failures[failure.Name]
			if !ok {
				t.Fatal("the test does not say what this comes to")
			}
			requests := 0
			_, err := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				requests++
				give(w, failure.Response)
			}).Register(t.Context())
			e := asError(t, err)
			if e.Kind != want.kind || requests != want.requests {
				t.Errorf("Register() = %v, of kind %d, after %d requests, want kind %d after %d", e, e.Kind, requests, want.kind, want.requests)
			}
			for _, words := range want.says {
				if !strings.Contains(e.Error(), words) {
					t.Errorf("Register() = %q, want it to say %q", e, words)
				}
			}
		})
	}
}

// What stands between answers in ways of its own. None of it may be taken for
// the database's word: neither that a result is stored nor that it is refused.
func TestStrangersAreNotTheDatabase(t *testing.T) {
	t.Parallel()
	page := "<!DOCTYPE html><html><head><TITLE>Sign in to\n the network &amp; pay</TITLE></head><body>…</body></html>"
	for _, tc := range []struct {
		about  string
		status int
		header string // "Name: value"
		body   string
		says   string
	}{
		{"a login page", 200, "Content-Type: text/html", page, "answered 200 OK: Sign in to the network & pay (this is not how PostgREST answers"},
		{"an empty page", 200, "", "", "answered 200 OK (this is not"},
		{"other JSON", 200, "Content-Type: application/json", `{"status":"ok"}`, `answered 200 OK: {"status":"ok"} (this is not`},
		{"null where there must be something", 200, "", "null", "answered 200 OK: null"},
		{"an ingress without a backend", 404, "", "default backend - 404", "answered 404 Not Found: default backend - 404 (this is not"},
		{"a firewall", 403, "Content-Type: text/html", page, "answered 403 Forbidden: Sign in"},
		{"basic authentication", 401, "", "Unauthorized", "answered 401 Unauthorized: Unauthorized (this is not"},
		{"a code that only looks like one of the database's", 429, "", `{"code":"42900","message":"slow down"}`, "slow down (SQLSTATE 42900)"},
		{"Cloudflare's own", 522, "", page, "answered 522: Sign in"},
		{"a redirect", 302, "Location: https://elsewhere.example/", "", "sends to another address, which is not followed with the cluster's credential (set queue.url"},
		{"a permanent redirect", 308, "Location: /elsewhere", "", "sends to another address"},
		{"control characters", 500, "", "a\x1b[31m\x00b\r\nc", "answered 500 Internal Server Error: a [31m b c"},
		{"a long page", 500, "", strings.Repeat("é", 5000), "answered 500 Internal Server Error: " + strings.Repeat("é", 200) + "…"},
		{"a huge answer", 200, "", strings.Repeat(" ", 2<<20), "is larger than 1048576 bytes"},
	} {
		t.Run(strings.ReplaceAll(tc.about, " ", "_"), func(t *testing.T) {
			t.Parallel()
			q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if name, value, ok := strings.Cut(tc.header, ": "); ok {
					w.Header().Set(name, value)
				}
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			})
			ctx, id := t.Context(), uuid.New()
			calls := map[string]error{}
			_, calls["Register"] = q.Register(ctx)
			_, calls["Heartbeat"] = q.Heartbeat(ctx, queue.Beat{})
			_, calls["Claim"] = q.Claim(ctx, id)
			_, calls["AppendLog"] = q.AppendLog(ctx, id, 1, []provision.LogChunk{{Stream: provision.Stdout, Text: "x"}})
			_, calls["FailOrphans"] = q.FailOrphans(ctx, nil)
			if tc.body != "null" { // that is what older versions of PostgREST say
				calls["Report"] = q.Report(ctx, id, provision.Report{Status: provision.Success})
			}
			for call, err := range calls {
				if e := asError(t, err); e.Kind != queue.Unavailable || !strings.Contains(e.Error(), tc.says) {
					t.Errorf("%s() = %v, of kind %d, want it unavailable and to say %q", call, e, e.Kind, tc.says)
				}
			}
		})
	}
}

// An older PostgREST answers a function without a result by 200 and null.
func TestVoidOfOlderVersions(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("null\n")) })
	if err := q.Report(t.Context(), uuid.New(), provision.Report{Status: provision.Success}); err != nil {
		t.Errorf("Report() = %v, want nil", err)
	}
}
