package protocol

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/provisioner"
)

// Program is a provisioner that was started for one request.
type Program struct {
	// In and Out are its stdin and stdout. Both are closed when Talk returns, so pipes of the
	// system and io.Pipe will do. Its stderr is the caller's.
	In  io.WriteCloser
	Out io.ReadCloser

	// CancelTime, DetachTime and ExitTime are other limits than those of package provisioner.
	CancelTime, DetachTime, ExitTime time.Duration
}

// Handlers get the messages of an answer, one at a time, in order. Those that are nil do
// nothing, but for Intent. After an error of one the program is cancelled, and Talk returns
// that error; messages that come until the result are handed on.
type Handlers struct {
	// Mask gets every secret of a message before any other handler gets the message.
	Mask func(secrets []string)

	Log    func(provisioner.Log)
	Step   func(provisioner.Step)
	Change func(provisioner.Change)
	// Intent records what is about to be done, and returns once that outlives a crash. Its
	// error is sent to the program as the reason why the intent is refused. If it is nil,
	// every intent is refused.
	Intent  func(context.Context, provisioner.Intent) error
	Machine func(provisioner.Machine) error
	Output  func(provisioner.Output) error
	State   func(json.RawMessage) error

	// Detach is closed when the program is to leave its work going on; from then on intents are
	// refused, also one that is being recorded. It is nil for a program that is not detachable.
	Detach <-chan struct{}
}

// Outcome is what a conversation came to.
type Outcome struct {
	// Result is the program's; it is zero where Answered is false.
	Result   provisioner.Result
	Answered bool
	// Unsettled are the acknowledged intents, in order, after which no message said how the
	// machine is. The machine may exist, or be gone.
	Unsettled []provisioner.Intent
	// Messages and Bytes are how much the program wrote.
	Messages int
	Bytes    int64

	request string
	err     error
}

// Check returns the error of the whole: that of Talk, told with the exit status, or that of
// an exit status which contradicts the result. The status is as [os.ProcessState.ExitCode]
// has it, -1 for a program that was ended by a signal. A result that isn't ok is no error
// here.
func (o Outcome) Check(exit int) error {
	if exit == 0 || exit < 0 && o.Answered {
		// The caller ends by a signal what is left of the program after its result.
		return o.err
	}
	status := fmt.Sprintf("exit status %d", exit)
	if exit < 0 {
		status = "it was ended by a signal"
	}
	var v *ViolationError
	switch {
	case errors.As(o.err, &v) && (v.Kind == NoResult || v.Kind == HalfLine):
		told := *v
		told.Problem += " (" + status + ")"
		return &told
	case o.err == nil && o.Result.OK:
		return &ViolationError{ExitStatus, o.request, 0, "the result is ok, and the program ended with " + status, "exit with status 0 after a result that is ok"}
	}
	return o.err
}

// Describe asks what a program can do. It takes at most [provisioner.DescribeTime].
func Describe(ctx context.Context, p Program) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, provisioner.DescribeTime)
	defer cancel()
	return Talk(ctx, p, &provisioner.Describe{Protocols: []string{provisioner.Protocol}}, Handlers{})
}

// Talk sends a request and hands on the messages of its answer until the result and the end
// of the output. When ctx ends it sends cancel, and a result is still awaited for a while;
// the error is nil if one comes. It sends detach in the same way. Call Outcome.Check once the program has ended.
//
// An error that is no [ViolationError] is a handler's, the context's, or that of a request that
// can't be sent. The caller ends the program then, as after every Talk.
func Talk(ctx context.Context, p Program, request provisioner.Request, h Handlers) (Outcome, error) {
	c := newConversation(ctx, p, request, h)
	outcome, err := c.run()
	outcome.request, outcome.err = request.Type(), err
	return outcome, err
}

// conversation is one Talk.
type conversation struct {
	ctx     context.Context
	p       Program
	request provisioner.Request
	rules   *rules
	h       Handlers

	send    chan []byte
	lines   chan line
	stop    chan struct{} // closed when Talk returns
	outcome Outcome
	failed  error // of a handler
	// asked is the message by which the program was asked to end: "", detach or cancel.
	asked    string
	limit    <-chan time.Time // of what it was asked, or of its exit
	detach   <-chan struct{}  // Handlers.Detach until it was asked for, or something else was
	detached bool             // it was asked to detach
}

// line is one of the program's output, or why there is none.
type line struct {
	text []byte
	err  error
}

func newConversation(ctx context.Context, p Program, request provisioner.Request, h Handlers) *conversation {
	p.CancelTime = cmp.Or(p.CancelTime, provisioner.CancelTime)
	p.DetachTime = cmp.Or(p.DetachTime, provisioner.DetachTime)
	p.ExitTime = cmp.Or(p.ExitTime, provisioner.ExitTime)
	if request.Job() == nil {
		p.CancelTime = 0 // describe does nothing that may be left half done
	}
	r := newRules(request)
	return &conversation{
		ctx: ctx, p: p, request: request, rules: r, h: h,
		send:  make(chan []byte, 3+r.maxIntents()), // the request, detach, cancel and an ack each: sending never waits
		lines: make(chan line), stop: make(chan struct{}), detach: h.Detach,
	}
}

func (c *conversation) run() (Outcome, error) {
	read := make(chan struct{})
	defer func() {
		close(c.stop)
		_ = c.p.In.Close()  // what it has not read it will not
		_ = c.p.Out.Close() // ends a read that waits
		<-read
	}()
	first, err := encode(c.request)
	if err != nil {
		close(read)
		return c.outcome, err
	}
	if err := c.ctx.Err(); err != nil {
		close(read)
		return c.outcome, fmt.Errorf("%s was not sent to the provisioner: %w", c.request.Type(), err)
	}
	go c.write()
	go func() {
		defer close(read)
		c.read()
	}()
	c.send <- first
	err = c.follow()
	c.outcome.Unsettled = c.rules.unsettled
	if c.failed != nil {
		err = c.failed
	}
	return c.outcome, err
}

// encode returns a request's line, if a program may get it.
func encode(request provisioner.Request) ([]byte, error) {
	if job := request.Job(); job != nil {
		if n := len(job.Machines) + len(job.Obsolete); n > provisioner.MaxMachines {
			return nil, fmt.Errorf("%s for %d machines: a request may have %d: split the template", request.Type(), n, provisioner.MaxMachines)
		}
	}
	text, err := provisioner.Encode(request)
	if err != nil {
		return nil, err
	}
	if len(text) > provisioner.MaxRequest {
		return nil, fmt.Errorf("%s has %d bytes as a request; %d are possible: make the variables or the state smaller", request.Type(), len(text), provisioner.MaxRequest)
	}
	return text, nil
}

// write sends lines until Talk returns. A program that reads no more is no error: what it
// says, or doesn't, decides.
func (c *conversation) write() {
	for {
		select {
		case text := <-c.send:
			if text == nil {
				_ = c.p.In.Close()
				return
			}
			if _, err := c.p.In.Write(text); err != nil {
				return
			}
		case <-c.stop:
			return
		}
	}
}

// read hands on the program's lines until there is none, or Talk returns.
func (c *conversation) read() {
	in := newLineReader(c.p.Out)
	for {
		text, err := in.next()
		select {
		case c.lines <- line{text, err}:
			if err != nil {
				return
			}
		case <-c.stop:
			return
		}
	}
}

// follow reads until the end of the output.
func (c *conversation) follow() error {
	cancelled := c.ctx.Done()
	cancel := func() {
		if cancelled == nil {
			return
		}
		cancelled, c.detach = nil, nil
		c.ask(&provisioner.Cancel{}, c.p.CancelTime)
	}
	for {
		select {
		case l := <-c.lines:
			if l.err != nil {
				return c.end(l.err)
			}
			c.outcome.Messages++
			c.outcome.Bytes += int64(len(l.text)) + 1
			if err := c.take(l.text); err != nil {
				return err
			}
			if c.outcome.Answered {
				cancelled, c.detach, c.limit = nil, nil, time.After(c.p.ExitTime)
				c.closeInput()
			} else if c.failed != nil {
				cancel()
			}
		case <-cancelled:
			cancel()
		case <-c.detach:
			c.askToDetach()
		case <-c.limit:
			return c.late()
		}
	}
}

// ask sends a message that asks the program to end.
func (c *conversation) ask(m provisioner.Message, within time.Duration) {
	text, _ := provisioner.Encode(m) // has nothing that can't be encoded
	c.send <- text
	c.asked, c.limit = m.Type(), time.After(within)
}

func (c *conversation) askToDetach() {
	if c.detach != nil {
		c.detach, c.detached = nil, true
		c.ask(&provisioner.Detach{}, c.p.DetachTime)
	}
}

// closeInput lets a program see that nothing more comes.
func (c *conversation) closeInput() {
	select {
	case c.send <- nil:
	default: // it is closed when Talk returns
	}
}

// late is the error of a limit that has passed.
func (c *conversation) late() error {
	if c.outcome.Answered {
		return c.violation(NoExit, fmt.Sprintf("it didn't exit within %s after its result", c.p.ExitTime), "close stdout and exit after the result, and leave no process behind that has stdout open")
	}
	if c.asked == "detach" {
		return c.violation(NoAnswer, fmt.Sprintf("it gave no result within %s after detach", c.p.DetachTime), "read stdin while you work, and send a result with the code detached soon after detach")
	}
	if c.failed != nil || c.request.Job() != nil {
		return c.violation(NoAnswer, fmt.Sprintf("it gave no result within %s after cancel", c.p.CancelTime), "read stdin while you work, stop at the next safe point after cancel, and send a result")
	}
	if errors.Is(c.ctx.Err(), context.DeadlineExceeded) {
		return c.violation(NoAnswer, fmt.Sprintf("it gave no result within %s", provisioner.DescribeTime), "answer describe without asking other systems")
	}
	return fmt.Errorf("describe was sent to the provisioner: %w", c.ctx.Err())
}

// end is the error of an output that has ended.
func (c *conversation) end(err error) error {
	var broken *ViolationError
	if errors.As(err, &broken) {
		return c.violation(broken.Kind, broken.Problem, broken.Action)
	}
	if c.outcome.Answered {
		return nil
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the provisioner's answer to %s: %w", c.request.Type(), err)
	}
	return c.violation(NoResult, "stdout ended without a result", "send a result before you exit, also after an error; stderr has what the program said")
}

// violation is about the line that was read last.
func (c *conversation) violation(kind Kind, problem, action string) error {
	number := c.outcome.Messages
	switch kind {
	case NoResult, NoAnswer, NoExit:
		number = 0
	case HalfLine, LineTooLong, TooMuch, TooManyMessages:
		number++ // it was not counted
	}
	return &ViolationError{kind, c.request.Type(), number, problem, action}
}

// take handles one line.
func (c *conversation) take(text []byte) error {
	if c.outcome.Answered {
		return c.violation(AfterResult, "there is a line after the result", "send the result last")
	}
	if !utf8.Valid(text) {
		return c.violation(NotUTF8, "the line is not UTF-8", "write UTF-8 to stdout")
	}
	m, err := provisioner.DecodeMessage(text)
	var unknown *provisioner.UnknownTypeError
	switch {
	case errors.As(err, &unknown):
		return c.violation(UnknownType, printable.Text(err.Error()), "send messages of the specification only, and write to stderr what is for people")
	case err != nil && json.Valid(text):
		return c.violation(BadValue, printable.Text(err.Error()), "send what the specification says")
	case err != nil:
		return c.violation(NotJSON, "the line "+quoted(text)+"is not JSON", "write nothing but messages to stdout, and to stderr what is for people")
	}
	if broken := c.rules.check(m); broken != nil {
		return c.violation(broken.Kind, broken.Problem, broken.Action)
	}
	if result, is := m.(*provisioner.Result); is && result.Code == provisioner.CodeDetached && (result.OK || !c.detached) {
		return c.violation(BadValue, "the result has the code detached, and the program was not asked to detach or says that all is done", "send it after detach only, with ok false")
	}
	c.handle(m)
	return nil
}

// quoted shows the beginning of a line that is no message. What looks like JSON may have
// credentials.
func quoted(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || bytes.ContainsAny(text[:1], "{[\"") {
		return ""
	}
	return fmt.Sprintf("%.40q ", printable.Text(string(text)))
}

// handle hands on a message that keeps the rules.
func (c *conversation) handle(m provisioner.Message) {
	if secrets := secretsOf(m); len(secrets) > 0 && c.h.Mask != nil {
		c.h.Mask(secrets)
	}
	switch m := m.(type) {
	case *provisioner.Log:
		call(c.h.Log, *m)
	case *provisioner.Step:
		call(c.h.Step, *m)
	case *provisioner.Change:
		call(c.h.Change, withoutSecrets(*m))
	case *provisioner.Intent:
		c.acknowledge(*m)
	case *provisioner.Machine:
		c.try("machine", tryTo(c.h.Machine, *m))
	case *provisioner.Output:
		c.try("output", tryTo(c.h.Output, *m))
	case *provisioner.State:
		c.try("state", tryTo(c.h.State, m.Value))
	case *provisioner.Result:
		c.outcome.Result, c.outcome.Answered = *m, true
	}
}

func call[T any](handler func(T), value T) {
	if handler != nil {
		handler(value)
	}
}

func tryTo[T any](handler func(T) error, value T) error {
	if handler == nil {
		return nil
	}
	return handler(value)
}

// try keeps the first error of a handler.
func (c *conversation) try(what string, err error) {
	if err != nil && c.failed == nil {
		c.failed = fmt.Errorf("keep the %s that the provisioner sent: %w", what, err)
	}
}

// errDetaching is why an intent is refused when the program is to detach.
var errDetaching = errors.New("the work is left going on, and nothing more is begun")

// record has an intent recorded. That may wait for a database which can't be reached, while the
// program is to detach: it hears of that before the intent is refused.
func (c *conversation) record(intent provisioner.Intent) error {
	select {
	case <-c.h.Detach:
		c.askToDetach()
		return errDetaching
	default:
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	recorded := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-c.h.Detach:
			cancel(errDetaching)
		case <-recorded:
		}
	})
	err := c.h.Intent(ctx, intent)
	close(recorded)
	watching.Wait()
	if err != nil && errors.Is(context.Cause(ctx), errDetaching) {
		c.askToDetach()
	}
	return err
}

// acknowledge has an intent recorded and answers it.
func (c *conversation) acknowledge(intent provisioner.Intent) {
	err := c.failed
	switch {
	case err != nil:
	case c.ctx.Err() != nil:
		err = errors.New("the run was cancelled")
	case c.h.Intent == nil:
		err = errors.New("nobody records intents here")
	default:
		err = c.record(intent)
	}
	ack := &provisioner.Ack{ID: intent.ID, OK: err == nil}
	if err != nil {
		ack.Message = cut(err.Error())
	} else {
		c.rules.acknowledged(intent)
	}
	text, _ := provisioner.Encode(ack) // has nothing that can't be encoded
	c.send <- text
}
