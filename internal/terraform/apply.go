package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tendril-run/tendril/internal/provision"
)

// ApplyOptions belong to Apply.
type ApplyOptions struct {
	// PlanFile is what Plan saved, from the same directory.
	PlanFile string
	// VarFile gives ephemeral variables again, which a saved plan does not
	// hold; "" for none.
	VarFile string
	// Steps is how many steps the plan has, see Steps. 0 lets the engine say.
	Steps int
	// On hears of events, in order, before their lines are printed. It runs
	// while the engine's output waits, so it must be quick. May be nil.
	On func(Event)
}

// Event is a step forward in an apply.
type Event struct {
	// Resource is what happened to a resource or to a provisioner of one; nil if
	// nothing did.
	Resource *provision.Event
	// Done of Total steps are over, well or not.
	Done, Total int
	// Secrets are values that must never be shown and that were unknown
	// before: mask them in everything printed after this event.
	Secrets []string
}

// Percent is how much of the apply is done, 0…100; 100 only when all is.
func (e Event) Percent() int {
	if e.Total <= 0 {
		return 0
	}
	return min(100, e.Done*100/e.Total)
}

// Applied is what an apply did, as far as the engine said before it ended.
type Applied struct {
	// Outputs of the root module, but for the values of sensitive ones; nil if
	// the apply did not get that far.
	Outputs map[string]OutputValue
	// Add, Change, Destroy and Import are the engine's own count; all 0 if it
	// did not get that far.
	Add, Change, Destroy, Import int
	// Done of Total steps are over.
	Done, Total int
	// Changed maps the addresses of what was created or updated to their
	// ids ("" if the engine did not say), Destroyed lists what is gone.
	Changed   map[string]string
	Destroyed []string
	// Tainted are the addresses of what was created and not made ready: a
	// provisioner of it had begun when it failed.
	Tainted []string
	// State is what the engine printed because it could store its state nowhere,
	// neither where it belongs nor in a file; nil if it did not. It holds
	// secrets. At most MaxState bytes.
	State []byte
	// StateBytes is how much of a state the engine printed. Without a State it is
	// lost: it was larger than MaxState, or the engine ended while it printed.
	StateBytes int
}

// MaxState is the largest printed state that is held, in bytes. An engine has
// many times a state's size in memory by itself, and few backends take that
// much. While the event is decoded it is in memory twice.
const MaxState = 64 << 20

// Apply carries out a saved plan. What it returns is valid with an error, too.
// Fails with CodeApplyFailed or CodeStateLocked.
func (r *Runner) Apply(ctx context.Context, opts ApplyOptions) (Applied, error) {
	run := r.command("apply", provision.CodeApplyFailed)
	run.use = WritesState
	progress := &progress{command: run, on: opts.On, applied: Applied{Total: opts.Steps}, counted: opts.Steps > 0}
	var refused error
	progress.refuse = func(err error) {
		refused = err
		run.interrupt(err)
	}
	args := []string{"-input=false", "-auto-approve", "-json"}
	if opts.VarFile != "" {
		args = append(args, "-var-file="+opts.VarFile)
	}
	run.onLine = progress.line
	err := run.do(ctx, append(args, opts.PlanFile)...)
	progress.endPieces()
	if refused != nil && (err == nil || errors.Is(err, refused)) {
		err = provision.Fail(provision.CodeEngineMissing, fmt.Sprintf("%s apply was stopped: %s", r.engine.Kind, refused), refused)
	}
	return progress.applied, err
}

// progress follows an apply by its events. One goroutine writes to it, that
// which reads the engine's stdout, and Apply reads it when that has ended.
type progress struct {
	command *command
	on      func(Event)
	refuse  func(error)
	applied Applied
	counted bool // the number of steps was given
	// provisioned are the resources whose provisioners have begun.
	provisioned map[string]bool
	// pieces are what provisioners print, by the name before their lines.
	pieces map[string]Pieces
}

// line takes one line of the engine's stdout.
func (p *progress) line(raw []byte) {
	out := p.command.out
	m, err := parse(raw)
	switch {
	case errors.Is(err, errNotEvent):
		text, event := splitEvent(raw)
		out.write(toStdout, text)
		if event != nil {
			p.line(event)
		}
		return
	case err != nil:
		if mayBeDump(raw) && p.applied.State == nil {
			p.applied.StateBytes = len(raw)
		}
		out.write(toStderr, fmt.Appendf(nil, "(%d bytes of the engine's output are damaged and not shown)\n", len(raw)))
		return
	}
	p.follow(m)
	if m.dump != nil {
		p.dumped(m.dump)
	}
	if p.joined(m) {
		return
	}
	sink, text := m.render()
	out.write(sink, []byte(text))
}

// maxPieces bounds the provisioners that are followed at once: an engine runs
// ten, but what a template prints may look like an event of any other.
const maxPieces = 256

// joined hands what a provisioner printed to its Pieces, and reports whether it
// did. These end with the provisioner.
func (p *progress) joined(m message) bool {
	if p.command.runner.pieces == nil {
		return false
	}
	name := m.hook.provisioner()
	switch m.Type {
	case "provision_complete", "provision_errored":
		if pieces, ok := p.pieces[name]; ok {
			pieces.Close()
			delete(p.pieces, name)
		}
	case "provision_progress":
		pieces, ok := p.pieces[name]
		if !ok {
			if len(p.pieces) >= maxPieces {
				p.endPieces()
			}
			if p.pieces == nil {
				p.pieces = make(map[string]Pieces)
			}
			pieces = p.command.runner.pieces(name, p.command.out.stdout())
			p.pieces[name] = pieces
		}
		pieces.Piece(m.hook.Output)
		return true
	}
	return false
}

func (p *progress) endPieces() {
	for _, pieces := range p.pieces {
		pieces.Close()
	}
	clear(p.pieces)
}

// follow notes what the event means and tells the caller.
func (p *progress) follow(m message) {
	event := Event{}
	switch m.Type {
	case "version":
		if err := checkUI(m.UI); err != nil {
			p.refuse(err)
		}
	case "planned_change":
		if !p.counted {
			p.applied.Total += stepsOf(m.change.Action)
		}
	case "diagnostic":
		p.command.diags.add(m.diag)
	case "change_summary":
		p.summarised(m.changes)
	case "outputs":
		p.applied.Outputs, event.Secrets = withoutSecrets(m.outputs)
	case "apply_start", "apply_complete", "apply_errored":
		event.Resource = p.resource(m)
	case "provision_start", "provision_complete", "provision_errored":
		event.Resource = p.provisioner(m)
	}
	if p.on == nil || event.Resource == nil && event.Secrets == nil {
		return
	}
	event.Done, event.Total = p.applied.Done, p.applied.Total
	p.on(event)
}

// dumped keeps a state that the engine printed: the last one, for the engine
// prints it at its end.
func (p *progress) dumped(state json.RawMessage) {
	p.applied.State, p.applied.StateBytes = nil, len(state)
	if len(state) <= MaxState {
		p.applied.State = state
	}
}

func (p *progress) summarised(s summary) {
	if s.Operation == "plan" {
		return
	}
	p.applied.Add, p.applied.Change, p.applied.Destroy, p.applied.Import = s.Add, s.Change, s.Remove, s.Import
}

// resource notes a resource's step. Reads of data sources are no steps: the
// plan does not count them either.
func (p *progress) resource(m message) *provision.Event {
	if stepsOf(m.hook.Action) == 0 {
		return nil
	}
	event := p.happened(m, m.hook.Action)
	switch m.Type {
	case "apply_start":
		event.Kind = "resource_started"
		return event
	case "apply_complete":
		event.Kind = "resource_finished"
		p.finished(m.hook)
	default:
		event.Kind = "resource_failed"
		if m.hook.Action == "create" && p.provisioned[m.hook.Resource.Addr] {
			p.applied.Tainted = append(p.applied.Tainted, m.hook.Resource.Addr)
		}
	}
	p.applied.Done++
	return event
}

// provisioner is a step within a resource's, and counts as none.
func (p *progress) provisioner(m message) *provision.Event {
	event := p.happened(m, m.hook.Provisioner)
	switch m.Type {
	case "provision_start":
		event.Kind = "provisioner_started"
		if p.provisioned == nil {
			p.provisioned = make(map[string]bool)
		}
		p.provisioned[m.hook.Resource.Addr] = true
	case "provision_complete":
		event.Kind = "provisioner_finished"
	default:
		event.Kind = "provisioner_failed"
	}
	return event
}

func (p *progress) happened(m message, action string) *provision.Event {
	return &provision.Event{
		Address: truncate(m.hook.Resource.Addr, maxEventText), Action: truncate(action, maxEventText),
		Message: truncate(p.command.runner.hide.in(m.Text), maxEventText), Seconds: m.hook.Elapsed, At: m.time(),
	}
}

// maxEventText bounds each text of one event, in bytes: a report has many.
const maxEventText = 1 << 10

func (p *progress) finished(h hook) {
	if h.Action == "delete" {
		p.applied.Destroyed = append(p.applied.Destroyed, h.Resource.Addr)
		return
	}
	if p.applied.Changed == nil {
		p.applied.Changed = make(map[string]string)
	}
	p.applied.Changed[h.Resource.Addr] = h.IDValue
}

// stepsOf is how many steps an action takes: how many apply_complete events
// follow from it.
func stepsOf(action string) int {
	switch action {
	case "create", "update", "delete":
		return 1
	case "replace":
		return 2
	default: // noop, read, move, import, forget, open, renew, close
		return 0
	}
}
