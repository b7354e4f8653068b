package provisioner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// served starts Serve and returns its stdin, its lines, and what it returns.
func served(t *testing.T, h Handler, request string) (in io.WriteCloser, lines *bufio.Scanner, end <-chan error) {
	t.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- ServeOn(t.Context(), inRead, outWrite, h)
		_ = outWrite.Close()
	}()
	t.Cleanup(func() { _ = inWrite.Close() })
	go func() { _, _ = io.WriteString(inWrite, request+"\n") }()
	return inWrite, bufio.NewScanner(outRead), ended
}

// answer is all that Serve writes for a request.
func answer(t *testing.T, h Handler, request string) string {
	t.Helper()
	_, lines, ended := served(t, h, request)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	if err := <-ended; err != nil {
		t.Errorf("ServeOn(%s) = %v", request, err)
	}
	return strings.Join(all, "\n")
}

const applyRequest = `{"type":"apply","protocol":"tendril-provisioner/1","run":"r","workspace":{"id":"w","name":"a/b"},"mode":"apply","variables":{},"machines":[{"id":"m","name":"web"}],"state":null,"changes":[{"machine":"m","action":"create"}]}`

func TestServeAnswers(t *testing.T) {
	t.Parallel()
	h := Handler{
		Name: "mine", Version: "2", Idempotent: true,
		Plan: func(_ context.Context, r *Plan, s *Session) (any, error) {
			if r.Workspace.Name == "none" {
				return nil, nil
			}
			return map[string]int{"a": 1}, errors.Join(s.Change(Change{Machine: "m", Action: ActionCreate}), s.Logf("<%s>", r.Mode))
		},
		Apply: func(context.Context, *Apply, *Session) error { return errors.New("no space left") },
		Destroy: func(context.Context, *Destroy, *Session) error {
			return &ResultError{Code: CodeUnreachable, Message: "the cloud is away", Retry: true}
		},
		Refresh: func(ctx context.Context, _ *Refresh, s *Session) error {
			return errors.Join(s.Machine(Machine{ID: "m", Status: StatusRunning}), s.Output("o", []int{1}, true), s.State("x"), s.Step(Step{ID: "a", Percent: 50}), s.Log(Log{Level: LevelWarn, Message: "w"}))
		},
		Health: func(context.Context, *Health, *Session) (HealthStatus, error) { return Healthy, nil },
		Power:  func(context.Context, *Power, *Session) error { return context.Canceled },
	}
	work := func(kind, more string) string {
		return `{"type":"` + kind + `","protocol":"tendril-provisioner/1","workspace":{"id":"w","name":"a"},"mode":"apply","machines":[{"id":"m","name":"web"}]` + more + `}`
	}
	for request, want := range map[string]string{
		`{"type":"describe","protocols":["x/2","tendril-provisioner/1"],"new":1}`: `{"type":"result","ok":true,"protocol":"tendril-provisioner/1","name":"mine","version":"2","actions":["apply","destroy","health","plan","power","refresh"],"idempotent":true}`,
		`{"type":"describe","protocols":["x/2"]}`:                                 `"ok":false,"code":"unsupported_protocol"`,
		`{"type":"levitate"}`:                                 `"ok":false,"code":"unsupported"`,
		work("rebuild", `,"machine":"m"`):                     `"ok":false,"code":"unsupported","message":"this program has no action \"rebuild\"`,
		`{"type":"ack","id":"1","ok":true}`:                   `"ok":false,"code":"unsupported"`,
		`{"type":"plan","protocol":"x/2"}`:                    `"ok":false,"code":"unsupported_protocol"`,
		`{"type":"plan"`:                                      `"ok":false,"code":"invalid","message":"read the request: it is not JSON`,
		`{"type":"plan","machines":7}`:                        `"code":"invalid","message":"read the request: the message plan: the field \"machines\" is of the type number, want list"`,
		work("plan", ""):                                      "{\"type\":\"change\",\"machine\":\"m\",\"action\":\"create\"}\n{\"type\":\"log\",\"message\":\"<apply>\"}\n{\"type\":\"result\",\"ok\":true,\"plan\":{\"a\":1}}",
		strings.Replace(work("plan", ""), `"a"`, `"none"`, 1): `{"type":"result","ok":true}`,
		applyRequest:                                          `{"type":"result","ok":false,"code":"failed","message":"no space left"}`,
		work("destroy", `,"changes":[]`):                      `{"type":"result","ok":false,"code":"unreachable","message":"the cloud is away","retry":true}`,
		work("power", `,"machine":"m","action":"stop"`):       `{"type":"result","ok":false,"code":"cancelled"`,
		work("health", `,"machine":"m"`):                      `{"type":"result","ok":true,"health":"healthy"}`,
		work("refresh", ""): `{"type":"machine","id":"m","status":"running"}
{"type":"output","name":"o","value":[1],"sensitive":true}
{"type":"state","value":"x"}
{"type":"step","id":"a","percent":50}
{"type":"log","level":"warn","message":"w"}
{"type":"result","ok":true}`,
	} {
		if got := answer(t, h, request); !strings.Contains(got, want) {
			t.Errorf("%s is answered with\n%s\nwant\n%s", request, got, want)
		}
	}
}

// An intent waits for its own ack, and tells a refusal, cancel and the end of stdin apart.
func TestIntent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines string
		close bool
		want  string
	}{
		"acknowledged": {`{"type":"ack","id":"9","ok":false}` + "\n" + `{"type":"news"}` + "\n" + `{"type":"ack","id":"1","ok":true}` + "\n", false, `{"type":"result","ok":true}`},
		"refused":      {`{"type":"ack","id":"1","ok":false,"message":"no"}` + "\n", false, `"code":"refused","message":"the intent to create machine m was refused: no"`},
		"cancelled":    {`{"type":"cancel"}` + "\n", false, `"code":"cancelled"`},
		"stdin ended":  {"", true, `"code":"refused"`},
	} {
		in, lines, ended := served(t, Handler{Apply: func(ctx context.Context, r *Apply, s *Session) error {
			if err := s.Intent(ctx, Intent{Machine: r.Changes[0].Machine, Action: ActionCreate, Name: "web"}); err != nil {
				return fmt.Errorf("create: %w", err)
			}
			return nil
		}}, applyRequest)
		if !lines.Scan() || lines.Text() != `{"type":"intent","id":"1","machine":"m","action":"create","name":"web"}` {
			t.Fatalf("%s: the first line is %s", name, lines.Text())
		}
		_, _ = io.WriteString(in, c.lines)
		if c.close {
			_ = in.Close()
		}
		if !lines.Scan() || !strings.Contains(strings.Replace(lines.Text(), "create: ", "", 1), c.want) || lines.Scan() {
			t.Errorf("%s: the result is %s, want %s", name, lines.Text(), c.want)
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A handler learns that it is to detach. One that waits for an ack may be refused then.
func TestDetach(t *testing.T) {
	t.Parallel()
	waits := func(_ context.Context, _ *Apply, s *Session) error {
		_ = s.Logf("installing") // Serve has its error
		<-s.Detach()
		return fmt.Errorf("install: %w", ErrDetached)
	}
	asks := func(ctx context.Context, _ *Apply, s *Session) error {
		return s.Intent(ctx, Intent{Machine: "m", Action: ActionCreate})
	}
	const detach = `{"type":"detach"}` + "\n"
	for name, c := range map[string]struct {
		detachable  bool
		does        func(context.Context, *Apply, *Session) error
		lines, want string
	}{
		"detached":                 {true, waits, detach + detach, `{"type":"result","ok":false,"code":"detached","message":"install: the work continues without this program"}`},
		"refused":                  {true, asks, detach + `{"type":"ack","id":"1","ok":false}` + "\n", `"code":"detached"`},
		"refused, not detachable":  {false, asks, detach + `{"type":"ack","id":"1","ok":false}` + "\n", `"code":"refused"`},
		"acknowledged, then done":  {true, asks, detach + `{"type":"ack","id":"1","ok":true}` + "\n", `{"type":"result","ok":true}`},
		"refused, and not to stop": {true, asks, `{"type":"ack","id":"1","ok":false}` + "\n", `"code":"refused"`},
	} {
		in, lines, ended := served(t, Handler{Detachable: c.detachable, Apply: c.does}, applyRequest)
		if !lines.Scan() {
			t.Fatalf("%s: the handler has not begun", name)
		}
		_, _ = io.WriteString(in, c.lines)
		if !lines.Scan() || !strings.Contains(lines.Text(), c.want) {
			t.Errorf("%s: the result is %s, want %s", name, lines.Text(), c.want)
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServeWithoutAnAgent(t *testing.T) {
	t.Parallel()
	if err := ServeOn(t.Context(), strings.NewReader(""), io.Discard, Handler{}); err == nil || !strings.Contains(err.Error(), "Tendril's agent starts this program") {
		t.Errorf("ServeOn() without a request = %v", err)
	}
	broken, _ := io.Pipe()
	_ = broken.Close()
	_, out := io.Pipe()
	_ = out.CloseWithError(errors.New("the agent is gone"))
	if err := ServeOn(t.Context(), strings.NewReader(applyRequest), out, Handler{}); err == nil {
		t.Error("ServeOn() with nobody to answer = nil")
	}
	long := Handler{Apply: func(_ context.Context, _ *Apply, s *Session) error { return s.State(strings.Repeat("x", MaxLine)) }}
	if got := answer(t, long, applyRequest); !strings.Contains(got, `"code":"failed","message":"the message state has`) {
		t.Errorf("a state that is too long: %.300s", got)
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	w := &Work{Machines: []Wanted{{ID: "a", Name: "web"}}, Obsolete: []Wanted{{ID: "b", Name: "db"}}}
	if w.Find("a").Name != "web" || w.Find("b").Name != "db" || w.Find("c") != nil || !w.Targeted("web") {
		t.Error("Find() or Targeted() is wrong without targets")
	}
	w.Targets = []string{"db"}
	if w.Targeted("web") || !w.Targeted("db") {
		t.Error("Targeted() is wrong with targets")
	}
	line, err := Encode(&Apply{})
	if err != nil || !json.Valid(line) || !strings.Contains(string(line), `"variables":{},"machines":[],"state":null,"changes":[]`) {
		t.Errorf("Encode() = %s, %v, want lists and objects for programs", line, err)
	}
	if line, _ := Encode(&Cancel{}); string(line) != `{"type":"cancel"}`+"\n" {
		t.Errorf("Encode(cancel) = %s", line)
	}
}

func ExampleServeOn() {
	request := `{"type":"plan","protocol":"tendril-provisioner/1","machines":[{"id":"m-1","name":"web"}]}` + "\n"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out strings.Builder
	err := ServeOn(ctx, strings.NewReader(request), &out, Handler{
		Plan: func(_ context.Context, r *Plan, s *Session) (any, error) {
			for _, m := range r.Machines {
				if err := s.Change(Change{Machine: m.ID, Action: ActionCreate}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
	})
	fmt.Print(out.String(), err)
	// Output:
	// {"type":"change","machine":"m-1","action":"create"}
	// {"type":"result","ok":true}
	// <nil>
}
