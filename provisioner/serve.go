package provisioner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Handler is what a program can do. A function that is nil is not offered. What a function
// returns as an error becomes the result: see [ResultError].
//
// The context of a function ends when the agent sends cancel: stop at the next safe point
// and return the context's error. A function of a program that is detachable returns
// [ErrDetached] after [Session.Detach].
type Handler struct {
	// Name and Version are the program's own.
	Name, Version string
	// Idempotent and Detachable are as [Result] has them.
	Idempotent, Detachable bool

	// Plan sends changes. What it returns comes back with apply; nil is no plan.
	Plan    func(ctx context.Context, request *Plan, s *Session) (plan any, err error)
	Apply   func(ctx context.Context, request *Apply, s *Session) error
	Destroy func(ctx context.Context, request *Destroy, s *Session) error
	Refresh func(ctx context.Context, request *Refresh, s *Session) error
	Power   func(ctx context.Context, request *Power, s *Session) error
	// Rescues says that Power takes rescue and unrescue as well.
	Rescues bool
	Rebuild func(ctx context.Context, request *Rebuild, s *Session) error
	Health  func(ctx context.Context, request *Health, s *Session) (HealthStatus, error)
}

// ResultError is an error with the fields of a result. Other errors have the code failed, and
// that of a context the code cancelled.
type ResultError struct {
	Code    string
	Message string
	Retry   bool
}

func (f *ResultError) Error() string { return f.Message }

// ErrDetached says that the work was left going on, as the agent asked.
var ErrDetached = errors.New("the work continues without this program")

// RefusedError is the error of an intent that was not acknowledged. Don't do what it was for.
type RefusedError struct {
	Intent  Intent
	Message string
}

func (r *RefusedError) Error() string {
	return fmt.Sprintf("the intent to %s machine %s was refused: %s", r.Intent.Action, r.Intent.Machine, r.Message)
}

// Session sends the messages of one request. Its methods may be called by several
// goroutines at once.
type Session struct {
	mu  sync.Mutex // for out, err, waiting, last and closed
	out io.Writer
	err error // the first that a write had

	waiting map[string]chan Ack // by the intent's id
	last    int                 // the last id that Intent has given
	closed  bool                // stdin has ended: nobody acknowledges any more

	detach chan struct{} // closed when the agent asks for that
}

// Serve reads one request from stdin, has the handler carry it out and writes its result to
// stdout. It returns once that is written, also for a result that is a failure: exit with
// status 0 then. An error says that the agent is gone or sent no request.
func Serve(ctx context.Context, h Handler) error { return ServeOn(ctx, os.Stdin, os.Stdout, h) }

// ServeOn is [Serve] for other streams than stdin and stdout. It leaves a goroutine behind
// that reads from in until its end.
func ServeOn(ctx context.Context, in io.Reader, out io.Writer, h Handler) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	line, err := lines.ReadBytes('\n')
	if len(bytes.TrimSpace(line)) == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("stdin has no line with a request; Tendril's agent starts this program and writes one")
		}
		return fmt.Errorf("read the request: %w", err)
	}
	s := &Session{out: out, waiting: map[string]chan Ack{}, detach: make(chan struct{})}
	request, err := DecodeRequest(line)
	if err != nil {
		code := CodeInvalid
		if unknown := (*UnknownTypeError)(nil); errors.As(err, &unknown) {
			code = CodeUnsupported
		}
		return s.send(&Result{Code: code, Message: "read the request: " + err.Error()})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.read(lines, cancel)
	result := h.answer(ctx, request, s)
	if result.Code == CodeRefused && h.Detachable && s.detaching() {
		result.Code = CodeDetached // nothing more is begun
	}
	if err := s.failed(); err != nil {
		return err
	}
	return s.send(&result)
}

// read takes acknowledgements, cancel and detach from the agent until it sends no more.
func (s *Session) read(lines *bufio.Reader, cancel func()) {
	detach := sync.OnceFunc(func() { close(s.detach) })
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		m, err := DecodeRequest(line)
		if err != nil {
			continue // of a newer agent, which knows that we speak this version
		}
		switch m := m.(type) {
		case *Cancel:
			cancel()
		case *Detach:
			detach()
		case *Ack:
			s.mu.Lock()
			if waiting := s.waiting[m.ID]; waiting != nil {
				waiting <- *m
				delete(s.waiting, m.ID)
			}
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for id, waiting := range s.waiting {
		close(waiting)
		delete(s.waiting, id)
	}
}

// actions are the types of requests that the handler carries out.
func (h *Handler) actions() (all []string) {
	for name, there := range map[string]bool{
		"plan": h.Plan != nil, "apply": h.Apply != nil, "destroy": h.Destroy != nil, "refresh": h.Refresh != nil,
		"power": h.Power != nil, "rescue": h.Power != nil && h.Rescues, "rebuild": h.Rebuild != nil, "health": h.Health != nil,
	} {
		if there {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// answer carries out a request.
func (h *Handler) answer(ctx context.Context, request Message, s *Session) Result {
	name := request.Type()
	if describe, is := request.(*Describe); is {
		if !slices.Contains(describe.Protocols, Protocol) {
			return Result{Code: CodeUnsupportedProtocol, Message: fmt.Sprintf("the agent offers %q; this program speaks %s", describe.Protocols, Protocol)}
		}
		return Result{OK: true, Protocol: Protocol, Name: h.Name, Version: h.Version, Actions: h.actions(), Idempotent: h.Idempotent, Detachable: h.Detachable}
	}
	if !slices.Contains(h.actions(), name) {
		return Result{Code: CodeUnsupported, Message: fmt.Sprintf("this program has no action %q; it has %q", name, h.actions())}
	}
	if version := request.(Request).Job().Protocol; version != Protocol {
		return Result{Code: CodeUnsupportedProtocol, Message: fmt.Sprintf("the request is in %q; this program speaks %s", version, Protocol)}
	}
	result := Result{OK: true}
	var err error
	switch r := request.(type) {
	case *Plan:
		var plan any
		if plan, err = h.Plan(ctx, r, s); err == nil && plan != nil {
			result.Plan, err = json.Marshal(plan)
		}
	case *Apply:
		err = h.Apply(ctx, r, s)
	case *Destroy:
		err = h.Destroy(ctx, r, s)
	case *Refresh:
		err = h.Refresh(ctx, r, s)
	case *Power:
		err = h.Power(ctx, r, s)
	case *Rebuild:
		err = h.Rebuild(ctx, r, s)
	case *Health:
		result.Health, err = h.Health(ctx, r, s)
	}
	if err != nil {
		return failed(err)
	}
	return result
}

// failed is the result that stands for an error.
func failed(err error) Result {
	result := Result{Code: CodeFailed, Message: err.Error()}
	var failure *ResultError
	var refused *RefusedError
	switch {
	case errors.As(err, &failure):
		result.Code, result.Retry = failure.Code, failure.Retry
	case errors.As(err, &refused):
		result.Code = CodeRefused
	case errors.Is(err, ErrDetached):
		result.Code = CodeDetached
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		result.Code = CodeCancelled
	}
	return result
}

// send writes one message.
func (s *Session) send(m Message) error {
	line, err := Encode(m)
	if err == nil && len(line) > MaxLine {
		err = fmt.Errorf("the message %s has %d bytes; a line may have %d", m.Type(), len(line), MaxLine)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		if _, err := s.out.Write(line); err != nil {
			s.err = fmt.Errorf("write to the agent: %w", err)
		}
	}
	return s.err
}

// failed is the error of the first write that had one.
func (s *Session) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Intent says what is about to be done to a machine, and waits until that is recorded. It
// gives the intent an id. Do it only if Intent returns nil, and send the machine afterwards,
// also if that failed. The error is a [RefusedError] if the intent was refused, and the
// context's if that ends first.
func (s *Session) Intent(ctx context.Context, intent Intent) error {
	answer := make(chan Ack, 1)
	s.mu.Lock()
	s.last++
	intent.ID = fmt.Sprint(s.last)
	closed := s.closed
	if !closed {
		s.waiting[intent.ID] = answer
	}
	s.mu.Unlock()
	gone := &RefusedError{intent, "stdin has ended, so nobody can record it"}
	if closed {
		return gone
	}
	if err := s.send(&intent); err != nil {
		return err
	}
	select {
	case ack, open := <-answer:
		switch {
		case !open:
			return gone
		case !ack.OK:
			return &RefusedError{intent, ack.Message}
		}
		return nil // also if cancelled meanwhile: what is recorded is done, and reported
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Detach is closed when the agent asks a detachable program to leave its work going on: report
// the machines as they are, and return [ErrDetached].
func (s *Session) Detach() <-chan struct{} { return s.detach }

func (s *Session) detaching() bool {
	select {
	case <-s.detach:
		return true
	default:
		return false
	}
}

// Logf writes a line to the run's log.
func (s *Session) Logf(format string, args ...any) error {
	return s.send(&Log{Message: fmt.Sprintf(format, args...)})
}

// Log writes a line of some level to the run's log.
func (s *Session) Log(line Log) error { return s.send(&line) }

// Step says how far a stage of the work is.
func (s *Session) Step(step Step) error { return s.send(&step) }

// Change says what the plan would do.
func (s *Session) Change(change Change) error { return s.send(&change) }

// Machine says what a machine is now.
func (s *Session) Machine(machine Machine) error { return s.send(&machine) }

// Output gives a value to people and to other runs.
func (s *Session) Output(name string, value any, sensitive bool) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write the output %s as JSON: %w", name, err)
	}
	return s.send(&Output{Name: name, Value: raw, Sensitive: sensitive})
}

// State keeps a value for the next request about the same workspace.
func (s *Session) State(value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write the state as JSON: %w", err)
	}
	return s.send(&State{Value: raw})
}
