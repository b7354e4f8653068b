package protocol

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func work(names ...string) provisioner.Work {
	w := provisioner.Work{Protocol: provisioner.Protocol, Run: "r1", Workspace: provisioner.Workspace{ID: "w1", Name: "acme/prod"}, Mode: provisioner.ModeApply}
	for _, name := range names {
		w.Machines = append(w.Machines, provisioner.Wanted{ID: "id-" + name, Name: name})
	}
	return w
}

// apply is a request to create machine a, change b and leave c as it is.
func apply() *provisioner.Apply {
	return &provisioner.Apply{Work: work("a", "b", "c"), Changes: []provisioner.Change{
		{Machine: "id-a", Action: provisioner.ActionCreate}, {Machine: "id-b", Action: provisioner.ActionChange}, {Machine: "id-c", Action: provisioner.ActionNone},
	}}
}

// program plays a provisioner: it reads the request and then does what say does.
func program(t *testing.T, say func(in *bufio.Reader, out io.Writer)) Program {
	t.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		in := bufio.NewReader(inRead)
		_, _ = in.ReadString('\n')
		say(in, outWrite)
		_ = outWrite.Close()
	}()
	t.Cleanup(func() {
		_ = inRead.Close()
		_ = outRead.Close()
		select {
		case <-done:
		case <-time.After(patience.For(10 * time.Second)):
			t.Error("the program of the test hangs")
		}
	})
	return Program{In: inWrite, Out: outRead, CancelTime: patience.For(time.Second), ExitTime: patience.For(time.Second)}
}

// prints is a program that only writes.
func prints(t *testing.T, text string) Program {
	t.Helper()
	in, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return Program{In: in, Out: io.NopCloser(strings.NewReader(text))}
}

// accept handles everything and records what it gets.
func accept(got *[]string) Handlers {
	add := func(format string, args ...any) { *got = append(*got, fmt.Sprintf(format, args...)) }
	return Handlers{
		Mask:   func(secrets []string) { add("mask %v", secrets) },
		Log:    func(l provisioner.Log) { add("log %s %q", l.Level, l.Message) },
		Step:   func(s provisioner.Step) { add("step %s %q %v", s.ID, s.Label, s.Percent) },
		Change: func(c provisioner.Change) { add("change %s %s %s", c.Machine, c.Action, raw(c.Attributes)) },
		Intent: func(_ context.Context, i provisioner.Intent) error {
			add("intent %s %s", i.Action, i.Machine)
			return nil
		},
		Machine: func(m provisioner.Machine) error { add("machine %s %s %s", m.ID, m.Status, m.Address); return nil },
		Output:  func(o provisioner.Output) error { add("output %s %s", o.Name, o.Value); return nil },
		State:   func(s json.RawMessage) error { add("state %s", s); return nil },
	}
}

func raw(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

const ok = `{"type":"result","ok":true}` + "\n"

func TestApply(t *testing.T) {
	t.Parallel()
	var got []string
	p := program(t, func(in *bufio.Reader, out io.Writer) {
		_, _ = io.WriteString(out, `{"type":"step","id":"clone","label":"Creating\u001b[31m VM","percent":40,"new":1}
{"type":"step","id":"clone","percent":30}
{"type":"log","message":"tab\tand \u0007"}
{"type":"intent","id":"1","machine":"id-a","action":"create","name":"a"}
`)
		ack, _ := in.ReadString('\n')
		_, _ = fmt.Fprintf(out, `{"type":"log","level":"debug","message":%s}`+"\r\n", raw(strings.TrimSpace(ack)))
		_, _ = io.WriteString(out, `{"type":"machine","id":"id-a","external_id":"vm-1","address":"192.0.2.7","status":"running","credentials":{"root_password":"hunter2"}}
{"type":"machine","id":"id-b","status":"running"}
{"type":"output","name":"url","value":{"a":["s3cret",12345678901234567890]},"sensitive":true}
{"type":"state","value":{"v":1}}
{"type":"result","ok":true,"message":"done"}
`)
	})
	outcome, err := Talk(t.Context(), p, apply(), accept(&got))
	if err != nil || !outcome.Answered || !outcome.Result.OK || outcome.Result.Message != "done" || len(outcome.Unsettled) != 0 || outcome.Messages != 10 {
		t.Errorf("Talk() = %+v, %v", outcome, err)
	}
	want := []string{
		`step clone "Creating VM" 40`, `step clone "" 40`, `log info "tab\tand ␇"`, "intent create id-a",
		`log debug "{\"type\":\"ack\",\"id\":\"1\",\"ok\":true}"`, "mask [hunter2]", "machine id-a running 192.0.2.7", "machine id-b running ",
		"mask [12345678901234567890 s3cret]", `output url {"a":["s3cret",12345678901234567890]}`, `state {"v":1}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the handlers got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := outcome.Check(0); err != nil {
		t.Errorf("Check(0) = %v", err)
	}
	if err := outcome.Check(3); !is(err, ExitStatus) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Check(3) = %v, want that it contradicts the result", err)
	}
}

func is(err error, kind Kind) bool {
	var v *ViolationError
	return errors.As(err, &v) && v.Kind == kind
}

func TestSensitiveAttributesAreHidden(t *testing.T) {
	t.Parallel()
	var got []string
	text := `{"type":"change","machine":"id-a","action":"create","attributes":[{"name":"password","after":"hunter2","sensitive":true},{"name":"cores","after":2}]}` + "\n" +
		`{"type":"result","ok":true,"plan":{"x":1}}` + "\n"
	outcome, err := Talk(t.Context(), prints(t, text), &provisioner.Plan{Work: work("a")}, accept(&got))
	if err != nil || string(outcome.Result.Plan) != `{"x":1}` {
		t.Fatalf("Talk() = %+v, %v", outcome, err)
	}
	want := []string{"mask [hunter2]", `change id-a create [{"name":"password","sensitive":true},{"name":"cores","after":2}]`}
	if !slices.Equal(got, want) {
		t.Errorf("the handlers got %q, want %q", got, want)
	}
}

// Each rule has an error of its own, which says where and what to do.
func TestViolations(t *testing.T) {
	t.Parallel()
	plan := &provisioner.Plan{Work: work("a", "b")}
	plan.Targets = []string{"a"}
	const intent = `{"type":"intent","id":"1","machine":"id-a","action":"create"}` + "\n"
	for name, c := range map[string]struct {
		request provisioner.Request
		output  string
		kind    Kind
		says    string
	}{
		"no intent":               {apply(), `{"type":"machine","id":"id-a","status":"creating"}` + "\n", NoIntent, "line 1: machine id-a was made without"},
		"unknown machine":         {apply(), `{"type":"machine","id":"id-z","status":"running"}` + "\n", UnknownMachine, `"id-z" is not one of`},
		"machine without id":      {apply(), `{"type":"machine","status":"running"}` + "\n", UnknownMachine, `"" is not one of`},
		"intent for a stranger":   {apply(), `{"type":"intent","id":"1","machine":"id-z","action":"create"}` + "\n", UnknownMachine, "id-z"},
		"intent twice":            {apply(), intent + `{"type":"intent","id":"2","machine":"id-a","action":"create"}` + "\n", DuplicateIntent, "line 2"},
		"intent not approved":     {apply(), `{"type":"intent","id":"1","machine":"id-b","action":"create"}` + "\n", NotApproved, "create of machine id-b was not approved"},
		"intent without id":       {apply(), `{"type":"intent","machine":"id-a","action":"create"}` + "\n", BadValue, "no field id"},
		"intent to change":        {apply(), `{"type":"intent","id":"1","machine":"id-b","action":"change"}` + "\n", BadValue, `"change"`},
		"change of a stranger":    {plan, `{"type":"change","machine":"id-z","action":"create"}` + "\n", UnknownMachine, "id-z"},
		"change of no target":     {plan, `{"type":"change","machine":"id-b","action":"create"}` + "\n", NotTargeted, "id-b"},
		"change twice":            {plan, strings.Repeat(`{"type":"change","machine":"id-a","action":"none"}`+"\n", 2), DuplicateChange, "line 2"},
		"change of nothing":       {plan, `{"type":"change","action":"none"}` + "\n", BadValue, "either machine or resource"},
		"unknown action":          {plan, `{"type":"change","machine":"id-a","action":"improve"}` + "\n", BadValue, `"improve"`},
		"machine in a plan":       {plan, `{"type":"machine","id":"id-a","status":"running"}` + "\n", Unexpected, "plan can't have the message machine"},
		"after result":            {plan, ok + `{"type":"log","message":"bye"}` + "\n", AfterResult, "line 2"},
		"no result":               {plan, `{"type":"log","message":"hi"}` + "\n", NoResult, "without a result"},
		"nothing":                 {plan, "", NoResult, "without a result"},
		"half a line":             {plan, `{"type":"result","ok":true}`, HalfLine, "line 1"},
		"not JSON":                {plan, "Creating…\n", NotJSON, `the line "Creating…" is not JSON`},
		"an empty line":           {plan, "\n", NotJSON, "is not JSON"},
		"not UTF-8":               {plan, "{\"type\":\"log\",\"message\":\"\xff\"}\n", NotUTF8, "not UTF-8"},
		"unknown type":            {plan, `{"type":"wish"}` + "\n", UnknownType, `"wish" is not part of tendril-provisioner/1`},
		"no type":                 {plan, `{}` + "\n", UnknownType, `no field "type"`},
		"a list":                  {plan, "[1]\n", BadValue, "of the type array, want object"},
		"a wrong type":            {plan, `{"type":"log","message":7}` + "\n", BadValue, `the message log: the field "message" is of the type number, want string`},
		"line too long":           {plan, strings.Repeat("x", provisioner.MaxLine+1), LineTooLong, "more than 1 MiB"},
		"too many messages":       {plan, strings.Repeat(`{"type":"log","message":""}`+"\n", provisioner.MaxMessages+1), TooManyMessages, "line 100001"},
		"too much":                {plan, strings.Repeat(`{"type":"log","message":"`+strings.Repeat("x", 1<<20-100)+"\"}\n", 66), TooMuch, "64 MiB"},
		"101 percent":             {plan, `{"type":"step","id":"a","percent":101}` + "\n", BadValue, "101 percent"},
		"step without id":         {plan, `{"type":"step","percent":1}` + "\n", BadValue, "no field id"},
		"step of a stranger":      {plan, `{"type":"step","id":"a","machine":"id-z","percent":1}` + "\n", UnknownMachine, "id-z"},
		"state too large":         {apply(), `{"type":"state","value":"` + strings.Repeat("x", provisioner.MaxState) + `"}` + "\n", StateTooLarge, "524290 bytes"},
		"output too large":        {apply(), `{"type":"output","name":"o","value":"` + strings.Repeat("x", provisioner.MaxOutput) + `"}` + "\n", OutputTooLarge, "65538 bytes"},
		"output without value":    {apply(), `{"type":"output","name":"o"}` + "\n", BadValue, "no field value"},
		"plan too large":          {plan, `{"type":"result","ok":true,"plan":"` + strings.Repeat("x", provisioner.MaxPlan) + `"}` + "\n", PlanTooLarge, "524290 bytes"},
		"character 0":             {apply(), `{"type":"output","name":"o","value":"\u0000"}` + "\n", BadValue, "U+0000"},
		"control characters":      {apply(), `{"type":"machine","id":"id-b","external_id":"vm\u001b[2J","status":"running"}` + "\n", BadValue, "external_id of machine has control"},
		"a long name":             {apply(), `{"type":"machine","id":"id-b","node":"` + strings.Repeat("n", 300) + `","status":"running"}` + "\n", BadValue, "300 bytes"},
		"no address":              {apply(), `{"type":"machine","id":"id-b","addresses":["host.example"],"status":"running"}` + "\n", BadValue, "no IP address"},
		"no port":                 {apply(), `{"type":"machine","id":"id-b","ssh_port":70000,"status":"running"}` + "\n", BadValue, "70000"},
		"no status":               {apply(), `{"type":"machine","id":"id-b"}` + "\n", BadValue, `status ""`},
		"no code":                 {plan, `{"type":"result","ok":false,"code":"Not good!"}` + "\n", BadValue, "Not good!"},
		"no health":               {&provisioner.Health{Work: work("a"), Machine: "id-a"}, ok, BadValue, `health ""`},
		"power of another":        {&provisioner.Power{Work: work("a", "b"), Machine: "id-a"}, `{"type":"machine","id":"id-b","status":"stopped"}` + "\n", NotTargeted, "about machine id-a"},
		"rebuild of another":      {&provisioner.Rebuild{Work: work("a", "b"), Machine: "id-a"}, `{"type":"intent","id":"1","machine":"id-b","action":"replace"}` + "\n", NotTargeted, "id-b"},
		"a protocol not offered":  {&provisioner.Describe{Protocols: []string{provisioner.Protocol}}, `{"type":"result","ok":true,"protocol":"x/2","actions":["plan","apply","destroy"]}` + "\n", BadValue, "not offered"},
		"no plan among actions":   {&provisioner.Describe{Protocols: []string{provisioner.Protocol}}, `{"type":"result","ok":true,"protocol":"tendril-provisioner/1","actions":["apply","destroy"]}` + "\n", BadValue, "don't have plan"},
		"describe makes machines": {&provisioner.Describe{}, `{"type":"machine","id":"id-a","status":"running"}` + "\n", Unexpected, "describe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			outcome, err := Talk(t.Context(), prints(t, c.output), c.request, accept(&got))
			if !is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(fmt.Sprint(err), "answer to "+c.request.Type()) {
				t.Errorf("Talk() = %+v, %v, want %s and %q", outcome, err, c.kind, c.says)
			}
			if !errors.Is(outcome.Check(0), err) {
				t.Errorf("Check(0) = %v, want %v", outcome.Check(0), err)
			}
			if len(fmt.Sprint(err)) > 600 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// What was acknowledged and not heard from again isn't forgotten, whatever comes.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	const intent = `{"type":"intent","id":"1","machine":"id-a","action":"create","name":"a"}` + "\n"
	for output, want := range map[string]int{
		intent: 1, intent + "nonsense\n": 1, intent + `{"type":"machine","id":"id-a","status":"failed"}` + "\n": 0,
		intent + `{"type":"machine","id":"id-b","status":"running"}` + "\n" + ok: 1, intent + intent: 1,
	} {
		var got []string
		outcome, _ := Talk(t.Context(), prints(t, output), apply(), accept(&got))
		if len(outcome.Unsettled) != want {
			t.Errorf("after %q there are %d unsettled intents, want %d", output, len(outcome.Unsettled), want)
		}
	}
	// An intent of an earlier attempt needs no second one.
	request := apply()
	request.Intents = []provisioner.Intent{{ID: "1", Machine: "id-a", Action: provisioner.ActionCreate}}
	if outcome, err := Talk(t.Context(), prints(t, `{"type":"machine","id":"id-a","status":"running"}`+"\n"+ok), request, Handlers{}); err != nil || !outcome.Result.OK {
		t.Errorf("a machine of an earlier intent: %+v, %v", outcome, err)
	}
}

func TestRefusedIntent(t *testing.T) {
	t.Parallel()
	for name, handlers := range map[string]Handlers{
		"refused":         {Intent: func(context.Context, provisioner.Intent) error { return errors.New("the database is down") }},
		"nobody to do it": {},
	} {
		var ack string
		p := program(t, func(in *bufio.Reader, out io.Writer) {
			_, _ = io.WriteString(out, `{"type":"intent","id":"x","machine":"id-a","action":"create"}`+"\n")
			ack, _ = in.ReadString('\n')
			_, _ = io.WriteString(out, `{"type":"result","ok":false,"code":"refused","retry":true}`+"\n")
		})
		outcome, err := Talk(t.Context(), p, apply(), handlers)
		if err != nil || outcome.Result.Code != "refused" || !outcome.Result.Retry || len(outcome.Unsettled) > 0 {
			t.Errorf("%s: Talk() = %+v, %v", name, outcome, err)
		}
		if !strings.HasPrefix(ack, `{"type":"ack","id":"x","ok":false,"message":"`) {
			t.Errorf("%s: the ack is %s", name, ack)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		want   Kind
	}{
		"answers": {`{"type":"result","ok":false,"code":"cancelled"}` + "\n", ""},
		"ignores": {"", NoAnswer},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		p := program(t, func(in *bufio.Reader, out io.Writer) {
			cancel()
			line, _ := in.ReadString('\n')
			if c.answer == "" {
				_, _ = in.ReadString('\n') // until the caller gives up
				return
			}
			if line != `{"type":"cancel"}`+"\n" {
				t.Errorf("%s: the program got %q, want cancel", name, line)
			}
			_, _ = io.WriteString(out, c.answer)
		})
		p.CancelTime = 100 * time.Millisecond
		if c.answer != "" {
			p.CancelTime = patience.For(10 * time.Second)
		}
		outcome, err := Talk(ctx, p, apply(), Handlers{})
		if c.want == "" && (err != nil || outcome.Result.Code != "cancelled") || c.want != "" && !is(err, c.want) {
			t.Errorf("%s: Talk() = %+v, %v, want %q", name, outcome, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Talk(ctx, prints(t, ok), apply(), Handlers{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Talk() after the end of the context = %v", err)
	}
}

// A handler that fails has the program cancelled; what it reports until then is kept.
func TestHandlerFails(t *testing.T) {
	t.Parallel()
	full := errors.New("the disk is full")
	var machines []string
	p := program(t, func(in *bufio.Reader, out io.Writer) {
		_, _ = io.WriteString(out, `{"type":"state","value":1}`+"\n")
		if line, _ := in.ReadString('\n'); !strings.Contains(line, "cancel") {
			t.Errorf("the program got %q, want cancel", line)
		}
		_, _ = io.WriteString(out, `{"type":"machine","id":"id-b","status":"running"}`+"\n"+`{"type":"result","ok":false,"code":"cancelled"}`+"\n")
	})
	outcome, err := Talk(t.Context(), p, apply(), Handlers{
		State:   func(json.RawMessage) error { return full },
		Machine: func(m provisioner.Machine) error { machines = append(machines, m.ID); return nil },
	})
	if !errors.Is(err, full) || !outcome.Answered || len(machines) != 1 || !errors.Is(outcome.Check(0), full) {
		t.Errorf("Talk() = %+v, %v, machines %v", outcome, err, machines)
	}
}

func TestNoExit(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	defer close(end)
	p := program(t, func(_ *bufio.Reader, out io.Writer) {
		_, _ = io.WriteString(out, ok)
		<-end
	})
	p.ExitTime = 50 * time.Millisecond
	outcome, err := Talk(t.Context(), p, apply(), Handlers{})
	if !is(err, NoExit) || !outcome.Result.OK {
		t.Errorf("Talk() = %+v, %v, want that it didn't exit", outcome, err)
	}
}

func TestCheckTellsTheStatus(t *testing.T) {
	t.Parallel()
	outcome, _ := Talk(t.Context(), prints(t, ""), apply(), Handlers{})
	for status, want := range map[int]string{127: "(exit status 127)", -1: "(it was ended by a signal)", 0: "without a result: send"} {
		if err := outcome.Check(status); !is(err, NoResult) || !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%d) = %v, want %q", status, err, want)
		}
	}
	failed, _ := Talk(t.Context(), prints(t, `{"type":"result","ok":false}`+"\n"), apply(), Handlers{})
	if err := failed.Check(1); err != nil || failed.Result.Code != provisioner.CodeFailed {
		t.Errorf("Check(1) of a failed result = %v, with the code %q", err, failed.Result.Code)
	}
}

// A request that is larger than the pipe is written while the program reads; one that reads
// nothing is no hindrance to its answer.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	request := apply()
	request.Variables = map[string]json.RawMessage{"big": json.RawMessage(`"` + strings.Repeat("x", 3<<20) + `"`)}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inRead.Close() }()
	_, _ = outWrite.WriteString(ok)
	_ = outWrite.Close()
	if outcome, err := Talk(t.Context(), Program{In: inWrite, Out: outRead}, request, Handlers{}); err != nil || !outcome.Result.OK {
		t.Errorf("Talk() = %+v, %v", outcome, err)
	}
	request.Variables["big"] = json.RawMessage(`"` + strings.Repeat("x", 4<<20) + `"`)
	if _, err := Talk(t.Context(), prints(t, ok), request, Handlers{}); err == nil || !strings.Contains(err.Error(), "4194304 are possible") {
		t.Errorf("Talk() with a request that is too large = %v", err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	outcome, err := Describe(t.Context(), prints(t, `{"type":"result","ok":true,"protocol":"tendril-provisioner/1","actions":["plan","apply","destroy","levitate"],"idempotent":true}`+"\n"))
	if err != nil || !outcome.Result.Idempotent || outcome.Result.Detachable || len(outcome.Result.Actions) != 4 {
		t.Errorf("Describe() = %+v, %v", outcome, err)
	}
}

// FuzzTake holds every line to: no panic, and nothing for a handler that the rules refuse.
func FuzzTake(f *testing.F) {
	for _, line := range []string{ok, `{"type":"machine","id":"id-a","status":"running"}`, `{"type":"change"`, "\x00", `{"type":"output","name":"a","value":"\u0000"}`} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got []string
		c := newConversation(t.Context(), Program{}, apply(), accept(&got))
		_ = c.take([]byte(text))
		for _, line := range got {
			if strings.Contains(line, "machine id-a") || strings.Contains(line, "\x1b") {
				t.Errorf("%q got as far as %q", text, line)
			}
		}
	})
}

// A program is asked to detach also while the database does not answer what it wants to begin. It
// hears of that first, so that it does not take the refusal for the end; later intents are refused
// at once.
func TestDetachWhileAnIntentWaits(t *testing.T) {
	t.Parallel()
	detach := make(chan struct{})
	var heard []string
	p := program(t, func(in *bufio.Reader, out io.Writer) {
		_, _ = io.WriteString(out, `{"type":"intent","id":"i1","machine":"id-a","action":"create","name":"a"}`+"\n"+`{"type":"intent","id":"i2","machine":"id-b","action":"create"}`+"\n")
		for range 3 { // after the request, which program has read
			line, _ := in.ReadString('\n')
			heard = append(heard, strings.TrimSpace(line))
		}
		_, _ = io.WriteString(out, `{"type":"result","ok":false,"code":"detached"}`+"\n")
	})
	p.DetachTime = patience.For(time.Minute)
	var got []string
	h := accept(&got)
	h.Detach = detach
	asked := 0
	h.Intent = func(ctx context.Context, _ provisioner.Intent) error {
		asked++
		close(detach)
		<-ctx.Done() // as long as the database is away
		return context.Cause(ctx)
	}
	request := apply()
	request.Changes[1].Action = provisioner.ActionCreate
	outcome, err := Talk(t.Context(), p, request, h)
	if err != nil || outcome.Result.Code != provisioner.CodeDetached || len(outcome.Unsettled) != 0 {
		t.Errorf("Talk() = %+v, %v, want it detached, and nothing begun", outcome, err)
	}
	const refused = `","ok":false,"message":"the work is left going on, and nothing more is begun"}`
	if want := []string{`{"type":"detach"}`, `{"type":"ack","id":"i1` + refused, `{"type":"ack","id":"i2` + refused}; !slices.Equal(heard, want) {
		t.Errorf("the program heard %q, want %q", heard, want)
	}
	if asked != 1 {
		t.Errorf("%d intents were to be recorded, want 1: the other came after detach", asked)
	}
}

// A detachable program is asked to detach, and leaves its work or not; no other may say that
// it has.
func TestDetach(t *testing.T) {
	t.Parallel()
	const detached = `{"type":"result","ok":false,"code":"detached"}` + "\n"
	closed := make(chan struct{})
	close(closed)
	reads := func(in *bufio.Reader, says string) string {
		for {
			line, err := in.ReadString('\n')
			if err != nil || strings.Contains(line, says) {
				return line
			}
		}
	}
	for name, tt := range map[string]struct {
		detach <-chan struct{}
		say    func(in *bufio.Reader, out io.Writer, cancel func())
		code   string // of the result
		says   string // of the error
	}{
		"detached": {closed, func(in *bufio.Reader, out io.Writer, _ func()) {
			if line := reads(in, "detach"); line == `{"type":"detach"}`+"\n" {
				_, _ = io.WriteString(out, detached)
			}
		}, "detached", ""},
		"done all the same": {closed, func(in *bufio.Reader, out io.Writer, _ func()) {
			reads(in, "detach")
			_, _ = io.WriteString(out, ok)
		}, "", ""},
		"cancelled after it": {closed, func(in *bufio.Reader, out io.Writer, cancel func()) {
			reads(in, "detach")
			cancel()
			reads(in, "cancel")
			_, _ = io.WriteString(out, `{"type":"result","ok":false,"code":"cancelled"}`+"\n")
		}, "cancelled", ""},
		"no answer": {closed, func(in *bufio.Reader, _ io.Writer, _ func()) {
			reads(in, "never")
		}, "", "no result within 50ms after detach"},
		"not asked": {nil, func(_ *bufio.Reader, out io.Writer, _ func()) {
			_, _ = io.WriteString(out, detached)
		}, "detached", "was not asked to detach"},
		"detached and done": {closed, func(in *bufio.Reader, out io.Writer, _ func()) {
			reads(in, "detach")
			_, _ = io.WriteString(out, strings.Replace(detached, "false", "true", 1))
		}, "detached", "was not asked to detach"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := program(t, func(in *bufio.Reader, out io.Writer) { tt.say(in, out, cancel) })
			if p.DetachTime = patience.For(10 * time.Second); strings.Contains(tt.says, "50ms") {
				p.DetachTime = 50 * time.Millisecond
			}
			var got []string
			h := accept(&got)
			h.Detach = tt.detach
			outcome, err := Talk(ctx, p, apply(), h)
			if tt.says == "" {
				if err != nil || !outcome.Answered || outcome.Result.Code != tt.code {
					t.Errorf("Talk() = %+v, %v, want the code %q", outcome, err, tt.code)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Talk() = %v, want %q", err, tt.says)
			}
		})
	}
}
