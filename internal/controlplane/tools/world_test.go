package tools_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a control plane with a catalogue, an operator who has a token, and an agent.
type world struct {
	*queuetest.World
	site     *site.Site
	server   *httptest.Server
	logged   *outputtest.Buffer
	operator uuid.UUID
	token    string
	agent    *agent
}

const (
	helloRepo   = "https://git.example/hello"
	networkRepo = "https://git.example/network"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t), logged: &outputtest.Buffer{}}
	var err error
	w.site, err = site.Start(t.Context(), site.Options{DatabaseURL: w.URL, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(w.logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewServer(w.site)
	t.Cleanup(func() {
		w.site.EndStreams()
		w.server.Close()
		w.site.Close()
	})
	w.operator = w.member(t, "operator")
	w.token = w.newToken(t, w.operator, nil)
	w.template(t, "hello", helloRepo, "Says hello.", `[
		{"name":"name","type":"string","type_json":"string","description":"Who to greet.","required":true,"sensitive":false,"nullable":false,"ephemeral":false},
		{"name":"times","type":"number","type_json":"number","default":1,"required":false,"sensitive":false,"nullable":false,"ephemeral":false}]`)
	w.template(t, "network", networkRepo, "A network.", `[
		{"name":"zones","type":"list(string)","type_json":["list","string"],"description":"Where.","required":true,"sensitive":false,"nullable":false,"ephemeral":false},
		{"name":"db_password","type":"string","type_json":"string","required":true,"sensitive":true,"nullable":false,"ephemeral":false}]`)
	return w
}

// template puts one into the catalogue whose variables are known.
func (w *world) template(t *testing.T, name, repo, description, variables string) {
	t.Helper()
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version, description) VALUES ($1, $2, $3, 'v1', $4)", w.Org, name, repo, description)
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, commit) VALUES ($1, $2, 'v1', '', $2, 'done', $3, repeat('ab', 20))
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET variables = EXCLUDED.variables, status = 'done', commit = EXCLUDED.commit, lease = NULL, lease_until = NULL`, w.Org, repo, variables)
}

// member is a new person with that role.
func (w *world) member(t *testing.T, role string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, id, role)
	return id
}

// newToken is a person's new API token.
func (w *world) newToken(t *testing.T, user uuid.UUID, powers *person.Powers) string {
	t.Helper()
	made, err := w.site.Database().As(user).CreateAPIToken(t.Context(), "model", time.Hour, powers)
	if err != nil {
		t.Fatal(err)
	}
	return made.Token
}

// withToken sends a Bearer with each request.
type withToken struct {
	token string
	http  *http.Transport
}

func (b withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.http.RoundTrip(r)
}

func (w *world) transport(t *testing.T, token string) *mcp.StreamableClientTransport {
	t.Helper()
	bearer := withToken{token, &http.Transport{}}
	t.Cleanup(bearer.http.CloseIdleConnections)
	return &mcp.StreamableClientTransport{Endpoint: w.server.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer}, MaxRetries: -1}
}

// overHTTP is a session of the SDK's own client at /mcp; protocol "" is the newest.
func (w *world) overHTTP(t *testing.T, token, protocol string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "scripted", Version: "9"}, o).Connect(t.Context(), w.transport(t, token), &mcp.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil {
		t.Fatalf("connect to /mcp: %v", err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// overStdio is a session with a server of trellis mcp, which asks the site over the network.
func (w *world) overStdio(t *testing.T, token, protocol string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	w.serveStdio(t, token, fromClient, toClient)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "scripted", Version: "9"}, o).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, &mcp.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil {
		t.Fatalf("connect by stdio: %v", err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// serveStdio has a server answer on a pair of streams until the test ends.
func (w *world) serveStdio(t *testing.T, token string, in io.ReadCloser, out io.WriteCloser) {
	t.Helper()
	api, err := client.New(client.Options{URL: w.server.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	server := tools.New(tools.Options{Version: "1.2.3"}, tools.For(api))
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, in, out); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
		_ = out.Close()
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		server.Close()
		api.Close()
	})
}

// connection begins a session of a token by a version of the protocol.
type connection = func(t *testing.T, token, protocol string, o *mcp.ClientOptions) *mcp.ClientSession

// transports are the two ways to a server.
func (w *world) transports() map[string]connection {
	return map[string]connection{"stdio": w.overStdio, "http": w.overHTTP}
}

// answer is what a tool has answered.
type answer struct {
	*mcp.CallToolResult
	fields map[string]any
	text   string
}

// call calls a tool.
func call(t *testing.T, s *mcp.ClientSession, tool string, arguments any) answer {
	t.Helper()
	a, err := tryCall(t.Context(), s, tool, arguments)
	if err != nil {
		t.Fatalf("%s(%v): %v", tool, arguments, err)
	}
	return a
}

func tryCall(ctx context.Context, s *mcp.ClientSession, tool string, arguments any) (a answer, err error) {
	if a.CallToolResult, err = s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments}); err != nil {
		return a, err
	}
	for _, content := range a.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			a.text += text.Text
		}
	}
	a.fields, _ = a.StructuredContent.(map[string]any)
	return a, nil
}

// ok is call for what must not be refused.
func ok(t *testing.T, s *mcp.ClientSession, tool string, arguments any) answer {
	t.Helper()
	a := call(t, s, tool, arguments)
	if a.IsError {
		t.Fatalf("%s(%v) is refused: %s", tool, arguments, a.text)
	}
	return a
}

// refused is call for what must be.
func refused(t *testing.T, s *mcp.ClientSession, tool string, arguments any, wants ...string) string {
	t.Helper()
	a := call(t, s, tool, arguments)
	if !a.IsError {
		t.Fatalf("%s(%v) = %s, want it refused", tool, arguments, a.text)
	}
	for _, want := range wants {
		if !strings.Contains(a.text, want) {
			t.Errorf("%s(%v) is refused with %q, want %q in it", tool, arguments, a.text, want)
		}
	}
	return a.text
}

// number is a field of an answer as a whole number.
func (a answer) number(name string) int64 {
	n, _ := a.fields[name].(float64)
	return int64(n)
}

// word is a field of an answer as text.
func (a answer) word(name string) string {
	text, _ := a.fields[name].(string)
	return text
}

// agent carries out runs as a real one would, without an engine.
type agent struct {
	q   queue.Queue
	mu  sync.Mutex
	act map[string]outcome // by workspace
	// applied are the workspaces in which something was applied or destroyed, in order.
	applied []string
}

// outcome is what comes of the runs of a workspace.
type outcome struct {
	log     string
	fails   bool
	hold    chan struct{} // the run ends once it is closed; nil: at once
	changes []provision.PlannedChange
	outputs map[string]provision.Output
	machine []provision.Machine
	problem string // of a failed run
}

// startAgent has an agent carry out what is queued until the test ends.
func (w *world) startAgent(t *testing.T) *agent {
	t.Helper()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.agent = &agent{q: q, act: map[string]outcome{}}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() { w.agent.work(ctx, t) })
	t.Cleanup(func() {
		cancel()
		working.Wait()
		q.Close()
	})
	return w.agent
}

// does says what comes of the runs of a workspace.
func (a *agent) does(workspace string, d outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.act[workspace] = d
}

// sinceApplied are the workspaces of what was applied after the first so many.
func (a *agent) sinceApplied(first int) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.applied[first:])
}

func (a *agent) work(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		assigned, err := a.q.Claim(ctx, uuid.New())
		if err == nil && assigned != nil {
			err = a.carryOut(ctx, assigned)
		}
		if err != nil && ctx.Err() == nil {
			t.Errorf("the agent: %v", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *agent) carryOut(ctx context.Context, job *provision.Assignment) error {
	a.mu.Lock()
	d := a.act[job.Workspace]
	a.mu.Unlock()
	if d.changes == nil {
		d.changes = []provision.PlannedChange{{Address: "terraform_data.hello", Action: "create", Attributes: []provision.AttributeChange{{Path: "input", After: json.RawMessage(`"Ada"`)}, {Path: "secret", Sensitive: true}}}}
	}
	if d.log == "" {
		d.log = "Initializing\nhello, Ada\n"
	}
	sum := sha256.Sum256(job.ProvisionID[:])
	digest := hex.EncodeToString(sum[:])
	summary := &provision.PlanSummary{Add: len(d.changes), Resources: d.changes}
	base := provision.Detail{Commit: strings.Repeat("ab", 20), Engine: "terraform", EngineVersion: "1.11.4", Plan: summary}
	report := func(status provision.Status, change func(*provision.Detail)) error {
		detail := base
		change(&detail)
		return a.q.Report(ctx, job.ClaimID, provision.Report{Status: status, Detail: detail})
	}
	if err := report(provision.Processing, func(d *provision.Detail) { d.Stage = provision.StagePlan }); err != nil {
		return err
	}
	var chunks []provision.LogChunk
	for text := d.log; text != ""; {
		n := min(len(text), provision.ChunkTarget)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		chunks = append(chunks, provision.LogChunk{Stream: provision.Stdout, Text: text[:n], EmittedAt: time.Now()})
		text = text[n:]
	}
	for first := int64(1); len(chunks) > 0; {
		n := min(len(chunks), 32)
		next, err := a.q.AppendLog(ctx, job.ClaimID, first, chunks[:n])
		if err != nil {
			return err
		}
		first, chunks = next, chunks[next-first:]
	}
	if d.hold != nil {
		select {
		case <-d.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case d.fails:
		problem := d.problem
		return report(provision.Failed, func(d *provision.Detail) {
			d.ErrorCode, d.ErrorMessage = provision.CodeApplyFailed, "Error: no such host"
			if problem != "" {
				d.ErrorMessage = problem
			}
		})
	case job.Operation == provision.OperationPlan:
		return report(provision.Success, func(*provision.Detail) {})
	case job.Approval == provision.ApprovalAlways && job.ApprovedPlan == "":
		if err := a.q.PutBlob(ctx, job.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, []byte("a plan")); err != nil {
			return err
		}
		return report(provision.AwaitingApproval, func(d *provision.Detail) { d.PlanDigest = digest })
	}
	a.mu.Lock()
	a.applied = append(a.applied, job.Workspace)
	a.mu.Unlock()
	if err := report(provision.Processing, func(d *provision.Detail) { d.Stage, d.PlanDigest = provision.StageApply, job.ApprovedPlan }); err != nil {
		return err
	}
	return report(provision.Success, func(detail *provision.Detail) {
		detail.Outputs, detail.Machines = d.outputs, d.machine
		detail.Resources = []provision.Resource{{Address: "terraform_data.hello", Type: "terraform_data"}}
	})
}

// statusOf is how a run stands.
func (w *world) statusOf(t *testing.T, number int64) string {
	t.Helper()
	return w.Text(t, "SELECT status FROM public.provisions WHERE number = $1", number)
}

// awaitStatus waits until a run stands so.
func (w *world) awaitStatus(t *testing.T, number int64, status string) {
	t.Helper()
	patience.Await(t, "run to be "+status, func() bool { return w.statusOf(t, number) == status })
}
