package tools_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostAnswer is how many bytes an answer may have.
const mostAnswer = 64 << 10

// bounded fails the test when an answer is too large, or its text is no JSON of its structure.
func bounded(t *testing.T, tool string, a answer) {
	t.Helper()
	whole, err := json.Marshal(a.CallToolResult)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole) > mostAnswer {
		t.Errorf("%s answers %d bytes, want at most %d", tool, len(whole), mostAnswer)
	}
}

// Every line of a log is read in order by cursors, and each answer is bounded.
func TestLogInParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var text strings.Builder
	for i := range 6000 {
		fmt.Fprintf(&text, "line %04d %s\n", i+1, strings.Repeat("é", i%120))
	}
	text.WriteString("\x1b[31mError:\x1b[0m the end is near\n" + strings.Repeat("x", 200_000) + "\nlast")
	w.startAgent(t).does("lab/l", outcome{log: text.String()})
	s := w.overHTTP(t, w.token, "", nil)
	made := ok(t, s, "plan", map[string]any{"template": "hello", "workspace": "lab/l", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 120})
	number := made.number("run")
	if made.word("status") != "SUCCESS" {
		t.Fatalf("plan = %s", made.text)
	}
	var read strings.Builder
	lines, cursor := 0, ""
	for {
		arguments := map[string]any{"run": number, "from": "start", "lines": 1000}
		if cursor != "" {
			arguments["cursor"] = cursor
		}
		a := ok(t, s, "log", arguments)
		bounded(t, "log", a)
		if got := a.number("first_line"); got != int64(lines+1) {
			t.Fatalf("a part begins with line %d, want %d", got, lines+1)
		}
		lines += int(a.number("lines"))
		_, data, _ := strings.Cut(a.word("log_data"), "]")
		read.WriteString(data[:strings.LastIndex(data, "[/data:")])
		if cursor = a.word("next_cursor"); cursor == "" {
			break
		}
	}
	if lines != 6003 || !strings.HasPrefix(read.String(), "line 0001 \nline 0002 é\n") || !strings.Contains(read.String(), "line 6000") || !strings.HasSuffix(read.String(), "\nlast\n") {
		t.Errorf("%d lines were read, want all 6003 in order; they end with %q", lines, read.String()[max(0, read.Len()-100):])
	}
	tail := ok(t, s, "log", map[string]any{"run": number, "lines": 3})
	bounded(t, "log", tail)
	if tail.number("lines") != 3 || !strings.Contains(tail.word("log_data"), "Error: the end is near") || !strings.Contains(tail.word("log_data"), "last") || strings.Contains(tail.text, "\\u001b") {
		t.Errorf("the tail = %.300s, want the last three lines without escape sequences", tail.text)
	}
	found := ok(t, s, "log", map[string]any{"run": number, "search": "LINE 0042"})
	if found.number("lines") != 1 || found.number("first_line") != 42 || !strings.Contains(found.word("log_data"), "42: line 0042") {
		t.Errorf("a search = %s, want line 42 with its number", found.text)
	}
	if none := ok(t, s, "log", map[string]any{"run": number, "search": "nowhere to be found"}); none.fields["found"] != false {
		t.Errorf("a search in vain = %s, want it said", none.text)
	}
	first := ok(t, s, "log", map[string]any{"run": number, "from": "first_error"})
	bounded(t, "log", first)
	if first.number("first_line") != 5996 || !strings.Contains(first.word("log_data"), "line 6000") {
		t.Errorf("from the first error = %.300s, want it with the five lines before", first.text)
	}
}

// What is made to weigh much makes an answer short, and none too large: quotes and angle brackets,
// which JSON escapes, in all that others write.
func TestHeavyTexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heavy := strings.Repeat(`"<\`, 30_000)
	var changes []provision.PlannedChange
	for i := range 50 {
		changes = append(changes, provision.PlannedChange{Address: fmt.Sprintf("a.b[%d]", i), Action: "create", Attributes: []provision.AttributeChange{{Path: heavy[:1500], After: raw(heavy[:3000])}}})
	}
	outputs := map[string]provision.Output{}
	for i := range 20 {
		outputs[fmt.Sprint("o", i)] = provision.Output{Value: raw(heavy[:20_000])}
	}
	w.startAgent(t).does("lab/heavy", outcome{log: strings.Repeat(heavy[:60_000]+"\n", 5) + "Error: " + heavy[:60_000], changes: changes, outputs: outputs})
	w.agent.does("lab/fails", outcome{fails: true, problem: heavy[:9000], log: "Error: " + heavy})
	w.template(t, "heavy", "https://git.example/heavy", heavy[:4000], fmt.Sprintf(`[{"name":"x","type":"string","type_json":"string","description":%s,"default":%s,"required":false,"sensitive":false,"nullable":false,"ephemeral":false}]`, raw(heavy[:3000]), raw(heavy[:9000])))
	s := w.overHTTP(t, w.newToken(t, w.operator, &person.Powers{MayApply: []string{"lab/*"}}), "", nil)
	deploy := map[string]any{"template": "hello", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 120}
	deploy["workspace"] = "lab/heavy"
	made := ok(t, s, "deploy", deploy)
	bounded(t, "deploy", made)
	deploy["workspace"] = "lab/fails"
	failed := ok(t, s, "deploy", deploy)
	bounded(t, "deploy that fails", failed)
	if made.word("status") != "SUCCESS" || failed.word("status") != "FAILED" {
		t.Fatalf("deploys = %.300s and %.300s", made.text, failed.text)
	}
	for _, run := range []int64{made.number("run"), failed.number("run")} {
		for _, arguments := range []map[string]any{{}, {"from": "start"}, {"from": "first_error"}, {"search": "<"}} {
			arguments["run"] = run
			a := ok(t, s, "log", arguments)
			bounded(t, "log", a)
			if a.number("lines") == 0 {
				t.Errorf("log %v shows no line", arguments)
			}
		}
		bounded(t, "show_plan", ok(t, s, "show_plan", map[string]any{"run": run}))
		bounded(t, "run", ok(t, s, "run", map[string]any{"run": run}))
	}
	bounded(t, "outputs", ok(t, s, "outputs", map[string]any{"workspace": "lab/heavy"}))
	bounded(t, "template", ok(t, s, "template", map[string]any{"name": "heavy"}))
	bounded(t, "templates", ok(t, s, "templates", nil))
	many := map[string]any{}
	for i := range 5000 {
		many[fmt.Sprint("unknown ", i)] = "x"
	}
	a := call(t, s, "plan", map[string]any{"template": "hello", "workspace": "a", "variables": many})
	bounded(t, "plan with many unknown variables", a)
	if !a.IsError || !strings.Contains(a.text, "and 4990 more problems") {
		t.Errorf("plan with many unknown variables = %.600s, want the first few", a.text)
	}
}

// Lists go on where an answer has ended, whatever the size of their entries, and all answers are
// bounded.
func TestListsInParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 120 {
		w.template(t, fmt.Sprintf("template-%03d", i), fmt.Sprintf("https://git.example/t%d", i), strings.Repeat("long ", 700), "[]")
		w.DeploySnapshot(t, fmt.Sprintf(`{"template_source": {"repo": "https://git.example/hello", "version": "v1"}, "workspace": "lab/w%03d"}`, i))
	}
	s := w.overHTTP(t, w.token, "", nil)
	for tool, c := range map[string]struct {
		list, key string
		want      int
	}{
		"templates":  {"templates", "name", 122},
		"workspaces": {"workspaces", "name", 120},
		"runs":       {"runs", "run", 120},
	} {
		for _, limit := range []int{0, 1, 7, 100} {
			if limit == 1 && tool != "runs" {
				continue // many calls, and the same code
			}
			seen := map[any]bool{}
			cursor := ""
			for range 200 {
				arguments := map[string]any{"limit": limit}
				if cursor != "" {
					arguments["cursor"] = cursor
				}
				if limit == 1 && len(seen) == 10 {
					break
				}
				a := ok(t, s, tool, arguments)
				bounded(t, tool, a)
				entries, _ := a.fields[c.list].([]any)
				for _, one := range entries {
					entry, _ := one.(map[string]any)
					if seen[entry[c.key]] {
						t.Fatalf("%s by %d lists %v twice", tool, limit, entry[c.key])
					}
					seen[entry[c.key]] = true
				}
				if cursor = a.word("next_cursor"); cursor == "" {
					break
				}
			}
			if limit != 1 && len(seen) != c.want {
				t.Errorf("%s by %d lists %d, want %d", tool, limit, len(seen), c.want)
			}
		}
	}
	bounded(t, "health", ok(t, s, "health", nil))
	bounded(t, "pools", ok(t, s, "pools", nil))
}

// A plan of many resources is shown in parts, each bounded.
func TestPlanInParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var changes []provision.PlannedChange
	for i := range 900 {
		changes = append(changes, provision.PlannedChange{Address: fmt.Sprintf("terraform_data.n[%d]", i), Action: "create", Attributes: []provision.AttributeChange{{Path: "input", After: json.RawMessage(fmt.Sprintf("%q", strings.Repeat("a", 150)))}}})
	}
	w.startAgent(t).does("lab/p", outcome{changes: changes})
	s := w.overHTTP(t, w.token, "", nil)
	made := ok(t, s, "plan", map[string]any{"template": "hello", "workspace": "lab/p", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 120})
	shown := int64(0)
	for offset := int64(0); ; {
		a := ok(t, s, "show_plan", map[string]any{"run": made.number("run"), "offset": offset})
		bounded(t, "show_plan", a)
		shown += a.number("listed")
		if offset = a.number("next_offset"); offset == 0 {
			break
		}
	}
	if shown != 900 {
		t.Errorf("%d changes are shown, want 900", shown)
	}
}

// Resources and prompts are there, and what they name is read.
func TestResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	w.Exec(t, "UPDATE public.template_inspections SET readme = E'# Hello\\nIt greets 100% of people.' WHERE repo = (SELECT repo FROM public.templates WHERE name = 'hello')")
	for way, connect := range w.transports() {
		s := connect(t, w.token, "", nil)
		for _, want := range []string{"It greets 100% of people.[/data:", "- name (required)"} {
			read, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "tendril://templates/hello/readme"})
			if err != nil || !strings.Contains(read.Contents[0].Text, want) {
				t.Errorf("%s: the template's README = %+v, %v, want %q", way, read, err, want)
			}
		}
		made := ok(t, s, "deploy", map[string]any{"template": "hello", "workspace": "lab/" + way, "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60})
		number := made.number("run")
		for uri, want := range map[string]string{
			fmt.Sprintf("tendril://runs/%d", number):      "AWAITING_APPROVAL",
			fmt.Sprintf("tendril://runs/%d/log", number):  "hello, Ada",
			fmt.Sprintf("tendril://runs/%d/plan", number): "create terraform_data.hello",
			"tendril://templates":                         "network v1",
			"tendril://workspaces/lab/" + way:             "Workspace lab/" + way,
		} {
			read, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || len(read.Contents) != 1 || !strings.Contains(read.Contents[0].Text, want) {
				t.Errorf("%s: %s = %+v, %v, want %q", way, uri, read, err, want)
			}
		}
		for _, uri := range []string{"tendril://runs/9999/log", "tendril://runs/x/log", "tendril://templates/none/readme", "tendril://other"} {
			if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
				t.Errorf("%s: %s is read, want an error", way, uri)
			}
		}
		prompt, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "deploy_a_template", Arguments: map[string]string{"template": "hello"}})
		if err != nil || !strings.Contains(prompt.Messages[0].Content.(*mcp.TextContent).Text, `the template "hello"`) {
			t.Errorf("%s: the prompt = %+v, %v", way, prompt, err)
		}
		if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "find_out_why_a_run_failed"}); err == nil || !strings.Contains(err.Error(), "run is missing") {
			t.Errorf("%s: a prompt without its run = %v, want it named", way, err)
		}
		completed, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "deploy_a_template"}, Argument: mcp.CompleteParamsArgument{Name: "template", Value: "he"}})
		if err != nil || len(completed.Completion.Values) != 1 || completed.Completion.Values[0] != "hello" {
			t.Errorf("%s: completion = %+v, %v, want hello", way, completed, err)
		}
	}
}

// What is no JSON or too large on standard input is answered, and the session goes on; its end
// comes after the last answer.
func TestMessagesOnStdio(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in, write := io.Pipe()
	read, out := io.Pipe()
	w.serveStdio(t, w.token, in, out)
	go func() { // the pipe's reader ends it
		for _, line := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"log","arguments":{"search":"` + strings.Repeat("x", 10<<20) + `"}}}`,
			``,
			`{"jsonrpc":"2.0","id":3,"method":"no/such/method"}`,
			`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"templates","arguments":{}}}`,
		} {
			_, _ = io.WriteString(write, line+"\n")
		}
		_ = write.Close()
	}()
	answers := map[string]string{}
	lines := bufio.NewScanner(read)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var a struct {
			ID    *int `json:"id"`
			Error *struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"error"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatalf("%s is no answer: %v", lines.Text(), err)
		}
		id := "none"
		if a.ID != nil {
			id = fmt.Sprint(*a.ID)
		}
		if a.Error != nil {
			answers[fmt.Sprint(id, " ", a.Error.Code)] = a.Error.Message
		} else {
			answers[id] = string(a.Result)
		}
	}
	for id, want := range map[string]string{"1": "2025-06-18", "none -32700": "not JSON", "none -32600": "more than 1048576 bytes", "3 -32601": "no/such/method", "4": "hello"} {
		if !strings.Contains(answers[id], want) {
			t.Errorf("answer %s = %q, want %q in it; all are %v", id, answers[id], want, answers)
		}
	}
}

// Too many calls within a minute are refused with how long to wait, by a tool's answer.
func TestCallsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, err := client.New(client.Options{URL: w.server.URL, Token: w.token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	server := tools.New(tools.Options{Version: "1", CallsPerMinute: 3}, tools.For(api))
	t.Cleanup(server.Close)
	s := connected(t, server)
	for range 3 {
		ok(t, s, "whoami", nil)
	}
	refused(t, s, "whoami", nil, "3 calls within a minute", "Wait ")
	if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "tendril://templates"}); err == nil || !strings.Contains(err.Error(), "within a minute") {
		t.Errorf("a resource past the limit = %v, want it refused", err)
	}
}

// connected is a session with a server over pipes.
func connected(t *testing.T, server *tools.Server) *mcp.ClientSession {
	t.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- server.Serve(t.Context(), fromClient, toClient) }()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "scripted"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return s
}

// A stranger sees nothing of an organisation, whatever they ask for.
func TestStrangersSeeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	made := ok(t, w.overHTTP(t, w.token, "", nil), "deploy", map[string]any{"template": "hello", "workspace": "lab/a", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60})
	stranger := uuid.New()
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", stranger)
	s := w.overHTTP(t, w.newToken(t, stranger, nil), "", nil)
	for tool, arguments := range map[string]any{
		"templates": nil, "workspaces": nil, "machines": nil, "pools": nil, "runs": nil, "health": nil,
		"run": map[string]any{"run": made.number("run")}, "log": map[string]any{"run": made.number("run")}, "show_plan": map[string]any{"run": made.number("run")},
		"outputs": map[string]any{"workspace": "lab/a"}, "cancel": map[string]any{"run": made.number("run")}, "retry": map[string]any{"run": made.number("run")}, "destroy": map[string]any{"workspace": "lab/a"},
		"template": map[string]any{"name": "hello"},
	} {
		a := call(t, s, tool, arguments)
		for _, word := range []string{"Ada", "network", "terraform_data", "git.example", "Who to greet"} {
			if strings.Contains(a.text, word) {
				t.Errorf("%s tells a stranger %s: %s", tool, word, a.text)
			}
		}
	}
}
