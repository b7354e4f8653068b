package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// came is what came back, but for its body.
type came struct {
	StatusCode int
	Header     http.Header
	cookies    []string
}

// raw makes a request of /mcp as it is; header is pairs of name and value.
func (w *world) raw(t *testing.T, method, path string, body io.Reader, header ...string) (came, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	back := came{StatusCode: response.StatusCode, Header: response.Header}
	for _, c := range response.Cookies() {
		back.cookies = append(back.cookies, c.Name+"="+c.Value)
	}
	return back, string(text)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// Nobody is answered but by an API token, and who has none is told how to get one.
func TestWhoMayCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link, err := signin.NewLink(t.Context(), w.site.Database(), "", w.operator)
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(link, "/signin/link?code=")
	signedIn, _ := w.raw(t, http.MethodPost, "/signin/link", strings.NewReader("code="+code), "Content-Type", "application/x-www-form-urlencoded")
	if len(signedIn.cookies) == 0 {
		t.Fatal("the link has signed nobody in")
	}
	for name, header := range map[string][]string{
		"nobody":       nil,
		"wrong token":  {"Authorization", "Bearer " + w.token + "x"},
		"a cookie":     {"Cookie", strings.Join(signedIn.cookies, "; ")},
		"wrong scheme": {"Authorization", "Basic " + w.token},
	} {
		response, _ := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), header...)
		want := fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, w.server.URL)
		if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") != want {
			t.Errorf("%s = %d %q, want 401 and %q", name, response.StatusCode, response.Header.Get("WWW-Authenticate"), want)
		}
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		response, body := w.raw(t, http.MethodGet, path, nil)
		var told struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
		}
		if err := json.Unmarshal([]byte(body), &told); err != nil || response.StatusCode != http.StatusOK || told.Resource != w.server.URL+"/mcp" || len(told.Servers) != 1 || told.Servers[0] != w.server.URL {
			t.Errorf("GET %s = %d %s, want the resource and where to sign in", path, response.StatusCode, body)
		}
	}
	bearer := "Bearer " + w.token
	for name, c := range map[string]struct {
		status int
		header []string
	}{
		"no origin":       {http.StatusOK, nil},
		"own origin":      {http.StatusOK, []string{"Origin", w.server.URL}},
		"foreign origin":  {http.StatusForbidden, []string{"Origin", "https://evil.example"}},
		"null origin":     {http.StatusForbidden, []string{"Origin", "null"}},
		"rebound host":    {http.StatusForbidden, []string{"Host", "evil.example", "Origin", "http://evil.example"}},
		"foreign host":    {http.StatusForbidden, []string{"Host", "evil.example"}},
		"cross-site page": {http.StatusForbidden, []string{"Sec-Fetch-Site", "cross-site"}},
	} {
		if response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), append([]string{"Authorization", bearer}, c.header...)...); response.StatusCode != c.status {
			t.Errorf("%s = %d %s, want %d", name, response.StatusCode, body, c.status)
		}
	}
	if response, _ := w.raw(t, http.MethodGet, "/mcp", nil, "Authorization", bearer, "Origin", "https://evil.example"); response.StatusCode != http.StatusForbidden {
		t.Errorf("GET by a foreign page = %d, want 403", response.StatusCode)
	}
}

// What is too large or no JSON is refused in a way that a client can read, and a session is its
// token's alone.
func TestMessagesThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bearer := []string{"Authorization", "Bearer " + w.token}
	large := []byte(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"log","arguments":{"search":"` + strings.Repeat("x", 10<<20) + `"}}}`)
	for name, c := range map[string]struct {
		body   io.Reader
		status int
		says   string
	}{
		"10 MB":                     {bytes.NewReader(large), http.StatusRequestEntityTooLarge, "more than 1048576 bytes"},
		"10 MB of unknown size":     {io.MultiReader(bytes.NewReader(large)), http.StatusRequestEntityTooLarge, "more than 1048576 bytes"},
		"no JSON":                   {strings.NewReader(`{"jsonrpc":`), http.StatusBadRequest, "-32700"},
		"nothing":                   {strings.NewReader(``), http.StatusBadRequest, "-32700"},
		"a call before a handshake": {strings.NewReader(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`), http.StatusOK, "invalid during session initialization"},
	} {
		response, body := w.raw(t, http.MethodPost, "/mcp", c.body, bearer...)
		if response.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s = %d %s, want %d and %q", name, response.StatusCode, body, c.status, c.says)
		}
	}

	begun, _ := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), bearer...)
	id := begun.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("initialize begins no session")
	}
	other := []string{"Authorization", "Bearer " + w.newToken(t, w.member(t, "admin"), nil), "Mcp-Session-Id", id}
	own := append(bearer, "Mcp-Session-Id", id)
	ping := `{"jsonrpc":"2.0","id":9,"method":"ping"}`
	for _, c := range []struct {
		name   string
		method string
		header []string
		status int
	}{
		{"another's session", http.MethodPost, other, http.StatusForbidden},
		{"another's DELETE", http.MethodDelete, other, http.StatusForbidden},
		{"own session", http.MethodPost, own, http.StatusOK},
		{"unknown session", http.MethodPost, append(bearer, "Mcp-Session-Id", "unknown"), http.StatusNotFound},
		{"unknown version", http.MethodPost, append(own, "Mcp-Protocol-Version", "1999-01-01"), http.StatusBadRequest},
		{"own DELETE", http.MethodDelete, own, http.StatusNoContent},
		{"ended session", http.MethodPost, own, http.StatusNotFound},
	} {
		if response, body := w.raw(t, c.method, "/mcp", strings.NewReader(ping), c.header...); response.StatusCode != c.status {
			t.Errorf("%s = %d %s, want %d", c.name, response.StatusCode, body, c.status)
		}
	}
}

// The sessions of a token are bounded.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bearer := []string{"Authorization", "Bearer " + w.token}
	var last came
	var body string
	for range 51 {
		last, body = w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), bearer...)
	}
	if last.StatusCode != http.StatusTooManyRequests || last.Header.Get("Retry-After") == "" || !strings.Contains(body, "too many sessions") {
		t.Errorf("the 51st session = %d %s, want 429 and why", last.StatusCode, body)
	}
	if response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), "Authorization", "Bearer "+w.newToken(t, w.operator, nil)); response.StatusCode != http.StatusOK {
		t.Errorf("a session of another token = %d %s, want 200", response.StatusCode, body)
	}
}

// waiting begins to wait for a run that nobody carries out, and returns once the server has
// reported progress, with where the answer comes.
func (w *world) waiting(t *testing.T, connect connection, token, protocol string) (s *mcp.ClientSession, cancel func(), ended <-chan error) {
	t.Helper()
	told := make(chan float64, 1000)
	s = connect(t, token, protocol, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		told <- r.Params.Progress
	}})
	made := ok(t, s, "plan", map[string]any{"template": "hello", "workspace": "demo/waits", "variables": map[string]any{"name": "Ada"}})
	params := &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{"run": made.number("run"), "seconds": 300}}
	params.SetProgressToken("p")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	answered := make(chan error, 1)
	go func() { // the channel has room for what it says, and the context ends it
		a, err := s.CallTool(ctx, params)
		if err == nil && a.IsError {
			err = errors.New(a.Content[0].(*mcp.TextContent).Text)
		}
		answered <- err
	}()
	before := -1.0
	for range 2 { // one a second
		select {
		case progress := <-told:
			if progress <= before {
				t.Errorf("progress %v after %v, want it to grow", progress, before)
			}
			before = progress
		case err := <-answered:
			t.Fatalf("the wait has ended: %v", err)
		case <-patience.After(30 * time.Second):
			t.Fatal("no progress is reported")
		}
	}
	return s, cancel, answered
}

// A call that waits outlives the server's time-outs, which are for what ends.
func TestStreamsOutliveTimeouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hurried := httptest.NewUnstartedServer(w.site)
	hurried.Config.ReadTimeout, hurried.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	hurried.Start()
	defer func() {
		w.site.EndStreams()
		hurried.Close()
	}()
	w.server.Close()
	w.server = hurried
	for _, protocol := range []string{"", "2025-06-18"} {
		_, cancel, ended := w.waiting(t, w.overHTTP, w.token, protocol)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the wait = %v, want it to go on until it is cancelled", err)
		}
	}
	if got := w.Text(t, "SELECT string_agg(DISTINCT status, ',') FROM public.provisions"); got != "QUEUED" {
		t.Errorf("the runs are %s, want a cancelled call to leave them alone", got)
	}
	patience.Await(t, "cancelled calls to be audited", func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'tool_call' AND detail ->> 'result' = 'cancelled'") == "2"
	})
}

// cutter cuts the streams of a client, as a network does.
type cutter struct {
	http.RoundTripper
	mu      sync.Mutex
	streams []io.Closer
}

func (c *cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.streams = append(c.streams, response.Body)
	}
	return response, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stream := range c.streams {
		_ = stream.Close()
	}
}

// A call whose stream is cut ends with it and is not resumed; its run and its session go on, and the
// same call is answered.
func TestCutStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, protocol := range []string{"", "2025-11-25", "2025-06-18"} {
		var cuts *cutter
		s, _, ended := w.waiting(t, func(t *testing.T, token, protocol string, o *mcp.ClientOptions) *mcp.ClientSession {
			transport := w.transport(t, token)
			cuts = &cutter{RoundTripper: transport.HTTPClient.Transport}
			transport.HTTPClient.Transport = cuts
			session, err := mcp.NewClient(&mcp.Implementation{Name: "scripted", Version: "9"}, o).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: protocol})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = session.Close() })
			return session
		}, w.token, protocol)
		cuts.cut()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%q: a call whose stream is cut is answered, want an error", protocol)
			}
		case <-patience.After(time.Minute):
			t.Fatalf("%q: a call whose stream is cut does not end", protocol)
		}
		patience.Await(t, "the cut call to end at the server", func() bool {
			return w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'tool_call' AND detail ->> 'tool' = 'wait' AND detail ->> 'result' = 'cancelled'") == strconv.Itoa(i+1)
		})
		if got := ok(t, s, "wait", map[string]any{"run": i + 1, "seconds": 1}); got.word("status") != "QUEUED" {
			t.Errorf("%q: the run after the cut = %s, want it to go on", protocol, got.text)
		}
	}
}

// The end of the site does not wait for calls that wait.
func TestEndOfTheSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _, ended := w.waiting(t, w.overHTTP, w.token, "2025-06-18")
	_, _, endedToo := w.waiting(t, w.overHTTP, w.token, "")
	limit := patience.Begin(5 * time.Second)
	w.site.EndStreams()
	if limit.Over() {
		t.Error("the site waits for calls that wait, want them ended")
	}
	for _, answer := range []<-chan error{ended, endedToo} {
		if err := <-answer; err == nil {
			t.Error("a call that waited is answered, want it to have ended with the site")
		}
	}
	if _, err := s.ListTools(t.Context(), nil); err == nil {
		t.Error("tools are listed after the end")
	}
}

// A token that is revoked ends its calls.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.newToken(t, w.operator, nil)
	s, _, ended := w.waiting(t, w.overHTTP, token, "2025-06-18")
	w.Exec(t, "DELETE FROM tendril.credentials WHERE digest = sha256(convert_to($1, 'UTF8'))", token)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the call is answered, want it ended")
		}
	case <-patience.After(time.Minute):
		t.Error("the call goes on after its token was revoked")
	}
	if _, err := s.ListTools(t.Context(), nil); err == nil {
		t.Error("a revoked token lists tools")
	}
}

// Who belongs to several organisations says which one by the address.
func TestOrganisation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'operator' FROM o", w.operator)
	refused(t, w.overHTTP(t, w.token, "", nil), "templates", nil, "acme", "elsewhere")
	transport := w.transport(t, w.token)
	transport.Endpoint += "?org=acme"
	s, err := mcp.NewClient(&mcp.Implementation{Name: "scripted"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if got := ok(t, s, "templates", nil); !strings.Contains(got.text, `"hello"`) {
		t.Errorf("templates of acme = %s, want hello", got.text)
	}
}

// Behind a proxy the server's name there does not matter, but pages of other sites do.
func TestBehindAProxy(t *testing.T) {
	t.Parallel()
	s := tools.NewSite(tools.SiteOptions{API: http.NotFoundHandler(), PublicURL: "https://trellis.example"})
	t.Cleanup(s.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(person.With(r.Context(), person.Person{Token: true})))
	}))
	t.Cleanup(server.Close)
	w := &world{server: server}
	for name, c := range map[string]struct {
		status int
		header []string
	}{
		"a program":          {http.StatusOK, []string{"Host", "upstream"}},
		"our own page":       {http.StatusOK, []string{"Host", "upstream", "Origin", "https://trellis.example"}},
		"another site":       {http.StatusForbidden, []string{"Host", "upstream", "Origin", "https://evil.example"}},
		"the upstream's own": {http.StatusForbidden, []string{"Host", "upstream", "Origin", "http://upstream"}},
	} {
		if response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), append([]string{"Authorization", "Bearer x"}, c.header...)...); response.StatusCode != c.status {
			t.Errorf("%s = %d %s, want %d", name, response.StatusCode, body, c.status)
		}
	}
}

// Each version of the handshake is answered with itself, and an unknown one with the newest.
func TestVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for asked, want := range map[string]string{"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25", "1999-01-01": "2025-11-25", "2099-01-01": "2025-11-25"} {
		response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(strings.Replace(initialize, "2025-06-18", asked, 1)), "Authorization", "Bearer "+w.token)
		if response.StatusCode != http.StatusOK || !strings.Contains(body, `"protocolVersion":"`+want+`"`) {
			t.Errorf("initialize of %s = %d %s, want %s", asked, response.StatusCode, body, want)
		}
	}
	discover := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(discover), "Authorization", "Bearer "+w.token, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "server/discover")
	if response.StatusCode != http.StatusOK || !strings.Contains(body, "2026-07-28") || response.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("server/discover = %d %s, want the newest version and no session", response.StatusCode, body)
	}
}

// A client on standard input gets progress messages too, and can cancel the wait without ending
// the run.
func TestWaitOnStdio(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, protocol := range []string{"", "2025-06-18"} {
		s, cancel, ended := w.waiting(t, w.overStdio, w.token, protocol)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the wait = %v, want it to go on until it is cancelled", err)
		}
		ok(t, s, "whoami", nil) // the session goes on
	}
	if got := w.Text(t, "SELECT string_agg(DISTINCT status, ',') FROM public.provisions"); got != "QUEUED" {
		t.Errorf("the runs are %s, want a cancelled call to leave them alone", got)
	}
	// What a program on somebody's own machine says is no record.
	if got := w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'tool_call'"); got != "0" {
		t.Errorf("%s calls by stdio are in the audit as the server's own, want none", got)
	}
}

// Calls above a token's limit are one record with their number, however many they are.
func TestRefusedCallsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A token's own limit is that of its requests, in front of the tools.
	few := []string{"Authorization", "Bearer " + w.newToken(t, w.operator, &person.Powers{Change: "nothing", CallsPerMinute: 5})}
	answered := 0
	for range 25 {
		if response, _ := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), few...); response.StatusCode == http.StatusOK {
			answered++
		}
	}
	// The server's own is that of calls.
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	limited := 0
	for range 150 {
		response, body := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(call), "Authorization", "Bearer "+w.token, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "whoami")
		if response.StatusCode != http.StatusOK {
			t.Fatalf("whoami = %d %s", response.StatusCode, body)
		}
		if strings.Contains(body, "within a minute") {
			limited++
		}
	}
	if answered < 5 || answered > 24 || limited == 0 {
		t.Fatalf("%d of 25 requests were answered and %d of 150 calls refused, want some of each", answered, limited)
	}
	w.site.Close() // records what is counted
	if got, want := w.Text(t, "SELECT string_agg(detail ->> 'calls', ' ' ORDER BY id) || ' ' || count(DISTINCT object_id) || ' ' || count(DISTINCT actor) FROM public.audit_events WHERE action = 'calls_refused'"), fmt.Sprintf("%d %d 2 1", 25-answered, limited); got != want {
		if got != fmt.Sprintf("%d %d 2 1", limited, 25-answered) {
			t.Errorf("the audit of refused calls = %s, want %s", got, want)
		}
	}
	if got, want := w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'tool_call' AND detail ->> 'tool' = 'whoami' AND detail ->> 'result' = 'ok'"), fmt.Sprint(150-limited); got != want {
		t.Errorf("the audit has %s calls, want %s", got, want)
	}
}
