package tools

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Options are what a Server needs of the process it runs in.
type Options struct {
	Version string       // of this program
	Log     *slog.Logger // nil: nothing is logged
	// CallsPerMinute is how often one token may ask; 0: DefaultCallsPerMinute.
	CallsPerMinute int
}

// DefaultCallsPerMinute is how often one token may ask unless it says otherwise.
const DefaultCallsPerMinute = 120

// Caller is who has a tool called.
type Caller struct {
	// Client asks the control plane with the caller's own token.
	Client *client.Client
	// Key tells tokens apart, and is no secret.
	Key string
	// CallsPerMinute is how often the token may ask; 0: as the server has it.
	CallsPerMinute int
	// Record writes a call into the audit, and Refused counts one there that was too many; nil: what
	// the control plane sees of this program is all that its audit has.
	Record  func(context.Context, ToolCall) error
	Refused func()
	// Until ends when the request does that came over HTTP, such as when its token is
	// revoked; nil: it lasts.
	Until context.Context //nolint:containedctx // of another request than the one that is answered
}

// ToolCall is a call of a tool, as the audit has it.
type ToolCall struct {
	Client    string `json:"client"` // NAME/VERSION
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"` // their SHA-256, in hexadecimal
	Result    string `json:"result"`    // ok, or why not
}

// Server answers language models. Close ends what it does.
type Server struct {
	mcp       *mcp.Server
	log       *slog.Logger
	caller    func(*mcp.RequestExtra) (Caller, error)
	limits    *limits
	perMinute int
	alive     context.Context //nolint:containedctx // the life of the server, which ends calls that wait
	end       context.CancelFunc
	acting    map[string]condition // by the names of tools that are not for everybody
}

// New returns a server whose callers are found by a function, from the HTTP header of a
// request where it has one. Its error is shown to the model.
func New(o Options, caller func(*mcp.RequestExtra) (Caller, error)) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CallsPerMinute == 0 {
		o.CallsPerMinute = DefaultCallsPerMinute
	}
	s := &Server{log: o.Log, caller: caller, limits: newLimits(), perMinute: o.CallsPerMinute, acting: map[string]condition{}}
	s.alive, s.end = context.WithCancel(context.Background())
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "tendril", Title: "Tendril", Version: o.Version}, &mcp.ServerOptions{
		Instructions:      instructions,
		Capabilities:      &mcp.ServerCapabilities{}, // none of logging
		PageSize:          50,
		CompletionHandler: s.complete,
		SetCacheable:      func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.TTLMs, c.CacheScope = 0, "private" },
	})
	s.mcp.AddReceivingMiddleware(s.guard)
	s.readTools()
	s.runTools()
	s.actingTools()
	s.serverTools()
	s.resources()
	s.prompts()
	return s
}

// instructions are what a client tells its model of this server.
const instructions = `Tendril deploys infrastructure from templates into workspaces. Each change is a run, with a number, a plan and a log.

Begin with "whoami" and "templates". To change something: "template" for its variables, "plan" to see what would change, then "deploy". A run that answers AWAITING_APPROVAL waits for a person: give them the link and say what the plan changes. Do not try to get around that.

` + aboutMarks + `

Never ask a person for a password or another secret: sensitive variables are filled in at the link that the tools give. Each answer ends with "next", the step that makes sense now.`

// Close ends calls that wait, and the sessions.
func (s *Server) Close() {
	s.end()
	for session := range s.mcp.Sessions() {
		_ = session.Close() // it is over either way
	}
}

// guard is around each request: it ends with the server, is limited, answers a panic, and
// a call of a tool is audited.
func (s *Server) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (result mcp.Result, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.alive, cancel)()
		defer func() {
			if failed := recover(); failed != nil {
				s.log.Error("a request of a tool failed", "method", method, "error", failed, "stack", string(debug.Stack()))
				result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "something went wrong that is not the request's fault; try again, or tell a person"}
			}
		}()
		called, isCall := request.(*mcp.CallToolRequest)
		if limited(method) {
			caller, err := s.caller(request.GetExtra())
			if err != nil {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
			}
			if caller.Until != nil {
				defer context.AfterFunc(caller.Until, cancel)()
			}
			most := cmp.Or(caller.CallsPerMinute, s.perMinute)
			if wait := s.limits.take(caller.Key, most, time.Now()); wait > 0 {
				if caller.Refused != nil {
					caller.Refused()
				}
				message := fmt.Sprintf("This token has made %d calls within a minute, which is its limit. Wait %d s and call again; ask for more at once, with filters, instead of often.", most, int(wait.Seconds())+1)
				if isCall {
					return failure(message), nil
				}
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message}
			}
		}
		if !isCall {
			result, err = next(ctx, method, request)
			if listed, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				s.leaveOut(ctx, request, listed)
			}
			return result, err
		}
		came := &outcome{}
		defer func() { s.audit(ctx, called, came.of(ctx, result, err)) }() // what panics, too
		return next(context.WithValue(ctx, outcomeKey{}, came), method, request)
	}
}

// limited reports whether a method costs the control plane something.
func limited(method string) bool {
	return slices.Contains([]string{"tools/call", "tools/list", "resources/read", "resources/list", "prompts/get", "completion/complete"}, method)
}

// failure is the answer of a tool that did not do what it was called for.
func failure(message string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: message}}}
}

// condition is whether a tool is listed for a token.
type condition func(powers) bool

// leaveOut takes the tools out of a list that the caller's token is not made for. To call
// one all the same is refused by the database.
func (s *Server) leaveOut(ctx context.Context, request mcp.Request, listed *mcp.ListToolsResult) {
	may := powers{wire.Powers{Change: "nothing"}}
	if caller, err := s.caller(request.GetExtra()); err == nil {
		if me, err := caller.Client.Me(ctx); err == nil {
			may = powersOf(me)
		}
	}
	listed.Tools = slices.DeleteFunc(slices.Clone(listed.Tools), func(t *mcp.Tool) bool {
		listed, conditional := s.acting[t.Name]
		return conditional && !listed(may)
	})
}

// call is one call of a tool, or a request like it, with what is needed to answer.
type call struct {
	marks
	api      *client.Client
	session  *mcp.ServerSession
	progress any // the token to report progress by; nil: nobody asked
	can      *mcp.ClientCapabilities
	answers  mcp.InputResponseMap // to what this call has asked before
	tool     string               // NAME/VERSION of the client
}

// begin prepares a call. header and client are what came with the request.
func (s *Server) begin(extra *mcp.RequestExtra, who *mcp.Implementation) (*call, error) {
	caller, err := s.caller(extra)
	if err != nil {
		return nil, err
	}
	c := &call{marks: newMarks(), tool: clientName(who)}
	c.api = caller.Client.ForTool(c.tool)
	return c, nil
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9._+-]+`)

// clientName is the name and version of a client as a header and the audit have them.
func clientName(who *mcp.Implementation) string {
	name, version := "", ""
	if who != nil {
		name, version = who.Name, who.Version
	}
	return word(name, mostOfClient, "unknown") + "/" + word(version, mostOfClient, "0")
}

// mostOfClient is how many characters of a client's name, and of its version, are kept.
const mostOfClient = 60

// word is what a client sends as a header and the audit take it: the database stores no NUL.
func word(text string, most int, otherwise string) string {
	text = strings.Trim(unfit.ReplaceAllString(text, "-"), "-")
	if text == "" {
		return otherwise
	}
	return cut(text, most)
}

// link is the address of a page for people.
func (c *call) link(path string) string { return c.api.URL() + path }

// handler is what a tool does. An error of it is shown to the model, see explain.
type handler[In, Out any] func(context.Context, *call, In) (Out, error)

// hints say what a tool does to the world.
type hints struct {
	reads, destroys, repeatable bool
	only                        condition // nil: listed for everybody
}

// reading is what a tool does that changes nothing.
var reading = hints{reads: true, repeatable: true}

// add has the server offer a tool.
func add[In, Out any](s *Server, name, title, description string, h hints, do handler[In, Out]) {
	closed := false
	tool := &mcp.Tool{
		Name: name, Title: title, Description: description, InputSchema: schemaOf[In](), OutputSchema: schemaOf[Out](),
		Annotations: &mcp.ToolAnnotations{Title: title, ReadOnlyHint: h.reads, IdempotentHint: h.repeatable, DestructiveHint: &h.destroys, OpenWorldHint: &closed},
	}
	if h.only != nil {
		s.acting[name] = h.only
	}
	mcp.AddTool(s.mcp, tool, func(ctx context.Context, r *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		var none Out
		c, err := s.begin(r.Extra, r.ClientInfo())
		if err != nil {
			return nil, none, err
		}
		c.session, c.progress, c.can, c.answers = r.Session, r.Params.GetProgressToken(), r.ClientCapabilities(), r.Params.InputResponses
		if len(r.Params.Arguments) > 0 { // once more: the SDK has rounded large numbers
			var exact In
			if json.Unmarshal(r.Params.Arguments, &exact) == nil {
				in = exact
			}
		}
		out, err := do(ctx, c, in)
		if asked, ok := errors.AsType[*asksError](err); ok {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{asked.id: asked.form}}, none, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, none, ctx.Err()
			}
			noteReason(ctx, err)
			return nil, none, errors.New(bounded(c.explain(err)))
		}
		text, err := plainJSON(out)
		if err != nil {
			return nil, none, fmt.Errorf("encode the answer: %w", err)
		}
		answer := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
		if weight(out) > mostAnswer-mostEnvelope {
			return nil, none, sentence("The answer has more than %d bytes. Ask for less: use a filter, a smaller limit, or a search", mostAnswer)
		}
		return answer, out, nil
	})
}

// bounded is an error as it is if there is room for it.
func bounded(text string) string {
	if len(text) > mostAnswer/2 {
		return "This can't be done, and there is more wrong with it than can be shown. Call with fewer arguments to see what"
	}
	return text
}

// plainJSON is a value as JSON for a model to read: links stand in it as they are.
func plainJSON(value any) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", err
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// schemas say how types are described that JSON Schema can't be inferred for.
var schemas = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time"},
}

// schemaOf describes what a tool takes or answers.
func schemaOf[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: schemas})
	if err != nil {
		panic(fmt.Sprintf("describe %T: %v", *new(T), err)) // a type of this package
	}
	return schema
}

// digest is the SHA-256 of arguments in JSON, whatever the order of their names and the
// space between them.
func digest(arguments json.RawMessage) string {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(arguments))
	decoder.UseNumber()
	canonical := []byte(arguments)
	if decoder.Decode(&value) == nil {
		if text, err := json.Marshal(value); err == nil {
			canonical = text
		}
	}
	if len(canonical) == 0 {
		canonical = []byte("{}")
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// outcome is what comes of a call, for the audit.
type outcome struct {
	reason string // of a refusal, as a word; "": none that is known
}

type outcomeKey struct{}

func (o *outcome) of(ctx context.Context, result mcp.Result, err error) string {
	answer, ok := result.(*mcp.CallToolResult)
	switch {
	case ctx.Err() != nil:
		return "cancelled"
	case err != nil || !ok:
		return "failed"
	case answer.IsError:
		return cmp.Or(o.reason, "refused")
	case answer.InputRequests != nil:
		return "asked"
	}
	return "ok"
}

// noteReason has the audit say why a call was refused.
func noteReason(ctx context.Context, err error) {
	came, ok := ctx.Value(outcomeKey{}).(*outcome)
	if refused, is := errors.AsType[*problem.RefusedError](err); ok && is {
		came.reason = refused.Reason
	}
}

// audit keeps who called what, and what came of it, where this is the control plane's own server.
func (s *Server) audit(ctx context.Context, r *mcp.CallToolRequest, result string) {
	caller, err := s.caller(r.Extra)
	if err != nil || caller.Record == nil {
		return
	}
	made := ToolCall{Client: clientName(r.ClientInfo()), Tool: word(r.Params.Name, mostName, "unnamed"), Arguments: digest(r.Params.Arguments), Result: result}
	// Record the call even if the client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditLimit)
	defer cancel()
	if err := caller.Record(ctx, made); err != nil {
		s.log.Error("a call of a tool could not be audited", "client", made.Client, "tool", made.Tool, "result", result, "error", err)
	}
}

// auditLimit is how long the record of a call may take.
const auditLimit = 10 * time.Second

// For is who calls where a program serves one person alone, who asks by that client.
func For(api *client.Client) func(*mcp.RequestExtra) (Caller, error) {
	return func(*mcp.RequestExtra) (Caller, error) { return Caller{Client: api, Key: "one"}, nil }
}
