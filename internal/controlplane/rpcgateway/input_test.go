package rpcgateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// story serves the world of the recorded agent.
func story(t testing.TB, o rpcgateway.Options) (url string, db *pgtest.DB) {
	t.Helper()
	_, world := recorded.Agent(t)
	db = pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), world)
	if o.DatabaseURL == "" {
		o.DatabaseURL = db.URL
	}
	return serve(t, o), db
}

const heartbeat = `{"p_token_hash":"` + tokenHash + `","p_instance":"a6000000-0000-4000-8000-000000000001","p_boot":"b0000000-0000-4000-8000-000000000001","p_claims":[]}`

// unregistered is what the function itself says to heartbeat here: the call got through.
const unregistered = `"agent_unregistered"`

func TestOddRequests(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{MaxBody: 4096})
	at := postgrest.RPCPath("agent_heartbeat")
	for name, c := range map[string]struct {
		request recorded.Request
		status  int
		says    string
	}{
		"good":               {recorded.Request{Path: at, Text: heartbeat}, 409, unregistered},
		"white space":        {recorded.Request{Path: at, Text: " \n" + heartbeat + "\t"}, 409, unregistered},
		"a later key counts": {recorded.Request{Path: at, Text: `{"p_token_hash":"x",` + heartbeat[1:]}, 409, unregistered},
		"escaped key":        {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "p_boot", `p_\u0062oot`, 1)}, 409, unregistered},
		"escaped path":       {recorded.Request{Path: "/rest/v1/rpc/agent%5Fheartbeat", Text: heartbeat}, 409, unregistered},
		"array":              {recorded.Request{Path: at, Text: "[" + heartbeat + "]"}, 400, "PGRST102"},
		"empty array":        {recorded.Request{Path: at, Text: "[ ]"}, 404, "without parameters"},
		"null":               {recorded.Request{Path: at, Text: "null"}, 404, "without parameters"},
		"no body":            {recorded.Request{Path: at}, 404, "without parameters"},
		"two values":         {recorded.Request{Path: at, Text: heartbeat + "{}"}, 400, "PGRST102"},
		"invalid UTF-8":      {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "[]", "[\"\xff\"]", 1)}, 400, "PGRST102"},
		"nested too deep":    {recorded.Request{Path: at, Text: strings.Repeat("[", 2000) + strings.Repeat("]", 2000)}, 400, "PGRST102"},
		"NUL":                {recorded.Request{Path: at, Text: strings.Replace(heartbeat, tokenHash, `\u0000`, 1)}, 400, "22P05"},
		"NUL in an array":    {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "[]", `["\u0000"]`, 1)}, 400, "22P05"},
		"no array":           {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "[]", "5", 1)}, 400, "expected JSON array"},
		"array of arrays":    {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "[]", `"{{{{{{{1}}}}}}}"`, 1)}, 400, "malformed array literal"},
		"quotes in an array": {recorded.Request{Path: at, Text: strings.Replace(heartbeat, "[]", `["\"},{\\"]`, 1)}, 400, `invalid input syntax for type uuid: \"\"},{\\\"`},
		"huge number":        {recorded.Request{Path: at, Text: strings.Replace(heartbeat, `"a6000000-0000-4000-8000-000000000001"`, "1e99999", 1)}, 400, "22P02"},
		"too large":          {recorded.Request{Path: at, Text: `{"p_token_hash":"` + strings.Repeat("x", 4096) + `"}`}, 413, "the 4096 bytes allowed"},
		"query":              {recorded.Request{Path: at + "?columns=p_boot", Text: heartbeat}, 400, "PGRST100"},
		"other path":         {recorded.Request{Path: "/rest/v1/rpc/../rpc/agent_heartbeat", Text: heartbeat}, 404, "PGRST125"},
		"double slash":       {recorded.Request{Path: "/rest/v1/rpc//agent_heartbeat", Text: heartbeat}, 404, "PGRST125"},
		"slash at the end":   {recorded.Request{Path: at + "/", Text: heartbeat}, 404, "PGRST125"},
		"people's function":  {recorded.Request{Path: postgrest.RPCPath("create_cluster"), Text: `{"p_name":"x"}`}, 404, "PGRST202"},
		"internal function":  {recorded.Request{Path: postgrest.RPCPath("tendril.reap"), Text: `{}`}, 404, "PGRST202"},
		"GET":                {recorded.Request{Method: "GET", Path: at + "?p_token_hash=" + tokenHash}, 405, "read-only transaction"},
		"HEAD":               {recorded.Request{Method: "HEAD", Path: at}, 405, ""},
		"OPTIONS of nothing": {recorded.Request{Method: "OPTIONS", Path: postgrest.RPCPath("x")}, 404, "PGRST202"},
		"form":               {recorded.Request{Path: at, Header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, Text: "p_claims=x"}, 400, "Content-Type not acceptable"},
		"Accept":             {recorded.Request{Path: at, Header: map[string]string{"Accept": "text/html, application/json;q=0.9"}, Text: heartbeat}, 409, unregistered},
		"single object":      {recorded.Request{Path: at, Header: map[string]string{"Accept": "application/vnd.pgrst.object+json"}, Text: heartbeat}, 406, "PGRST107"},
		"many names":         {recorded.Request{Path: at, Text: `{"` + strings.Repeat(`a":1,"`, 1) + strings.Repeat("ü", 100) + `":1}`}, 404, "ü…"},
	} {
		got := send(t, url, c.request)
		if got.status != c.status || !strings.Contains(string(got.body), c.says) {
			t.Errorf("%s = %d %.300s, want %d with %q", name, got.status, got.body, c.status, c.says)
		}
	}
}

// The names of a request are repeated in an answer, but not all of a large one.
func TestAnswersStaySmall(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{})
	var fields strings.Builder
	for i := range 9_000 {
		fmt.Fprintf(&fields, `,"%d%s":1`, i, strings.Repeat("x", 100))
	}
	got := post(t, url, "agent_heartbeat", "{"+fields.String()[1:]+"}")
	if got.status != http.StatusNotFound || len(got.body) > 16<<10 {
		t.Errorf("a call with 9,000 names = %d with %d bytes, want 404 with few", got.status, len(got.body))
	}
}

// Who has shown no token yet cannot have a large body taken apart, which takes
// a hundred times the time and ten times the memory that it took to send.
func TestTooManyValues(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{})
	fill := func(head, one, tail string) string {
		return head + strings.Repeat(one, (rpcgateway.DefaultMaxBody-len(head)-len(tail))/len(one)) + tail
	}
	for about, body := range map[string]string{
		"names":              fill("{", `"a":1,`, `"a":1}`),
		"elements of a list": fill(heartbeat[:len(heartbeat)-2], "1,", "1]}"),
		"values deep inside": fill(`{"p_token_hash":"x","p_agent":{"a":{"b":[`, "1,", "1]}}}"),
	} {
		if got := post(t, url, "agent_heartbeat", body); got.status != http.StatusRequestEntityTooLarge || !strings.Contains(string(got.body), "too_many_values") {
			t.Errorf("a body of many %s = %d %.200s, want 413", about, got.status, got.body)
		}
	}
	quoted := strings.Replace(heartbeat, tokenHash, strings.Repeat(",[{", 200_000), 1)
	if got := post(t, url, "agent_heartbeat", quoted); got.status != http.StatusUnauthorized {
		t.Errorf("as many in a string = %d %.200s, want the database asked", got.status, got.body)
	}
}

func TestAPIKey(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{APIKey: "public-key"})
	for key, want := range map[string]struct {
		status int
		says   string
	}{"": {401, `"message":"No API key found in request"`}, "other": {401, `"message":"Invalid API key"`}, "public-key": {409, unregistered}} {
		header := map[string]string{"apikey": key}
		if key == "" {
			header = nil
		}
		got := send(t, url, recorded.Request{Path: postgrest.RPCPath("agent_heartbeat"), Header: header, Text: heartbeat})
		if got.status != want.status || !strings.Contains(string(got.body), want.says) {
			t.Errorf("with the key %q = %d %s, want %d with %s", key, got.status, got.body, want.status, want.says)
		}
	}
}

// A body is given up on when it exceeds the limit, however long it says to be.
func TestEndlessBody(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{MaxBody: 1 << 16})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+postgrest.RPCPath("agent_heartbeat"), io.LimitReader(endless{}, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	got := do(t, request)
	if got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("an endless body = %d %s, want 413", got.status, got.body)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestRateByAddress(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{Rate: 0.01, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}})
	call := func(forwarded string) answer {
		t.Helper()
		return send(t, url, recorded.Request{Path: postgrest.RPCPath("agent_heartbeat"), Header: map[string]string{"X-Forwarded-For": forwarded}, Text: heartbeat})
	}
	for _, c := range []struct {
		forwarded string
		allowed   bool
		why       string
	}{
		{"192.0.2.1", true, "the first of an address"},
		{"192.0.2.1", false, "the second of it"},
		{"192.0.2.2", true, "another address"},
		{"192.0.2.3, 192.0.2.1", false, "only what a trusted proxy has seen counts"},
		{"192.0.2.1, 10.1.2.3", false, "a trusted proxy before a trusted proxy"},
		{"2001:db8::1", true, "an IPv6 address"},
		{"2001:db8::ffff", false, "another of the same /64"},
		{"2001:db8:0:1::1", true, "one of the next /64"},
		{"::ffff:192.0.2.1", false, "the same in other words"},
		{"192.0.2.1:4711", false, "the same with a port, as some proxies write it"},
		{"[2001:db8::2]:4711", false, "an IPv6 address with a port"},
		{"nonsense", true, "what cannot be read is the proxy's own address"},
		{"127.0.0.1", false, "which is this one"},
	} {
		got := call(c.forwarded)
		if want := map[bool]int{true: 409, false: 429}[c.allowed]; got.status != want {
			t.Errorf("X-Forwarded-For %q = %d, want %d: %s", c.forwarded, got.status, want, c.why)
		}
		if retry := got.header.Get("Retry-After"); !c.allowed && retry != "100" {
			t.Errorf("Retry-After = %q, want 100", retry)
		}
	}
}

// Of whom nobody trusts X-Forwarded-For says nothing.
func TestForwardedByAnybody(t *testing.T) {
	t.Parallel()
	url, _ := story(t, rpcgateway.Options{Rate: 0.01})
	for i, want := range []int{409, 429} {
		got := send(t, url, recorded.Request{Path: postgrest.RPCPath("agent_heartbeat"), Header: map[string]string{"X-Forwarded-For": fmt.Sprintf("192.0.2.%d", i)}, Text: heartbeat})
		if got.status != want {
			t.Errorf("request %d = %d, want %d", i, got.status, want)
		}
	}
}
