package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/timelimit"
	"github.com/tendril-run/tendril/provisioner"
)

// Form is how a provisioner speaks.
type Form string

// The forms.
const (
	Lines Form = "lines" // tendril-provisioner/1
	Once  Form = "once"  // one JSON document in, one out
)

// Options say what is tested, and how.
type Options struct {
	Form    Form
	Command []string
	// Timeout is how long one request may take.
	Timeout time.Duration
	// Machine has the fields of every machine that is asked for, but its id and name.
	Machine provisioner.Wanted
	// Variables are the template's variables in every request.
	Variables map[string]json.RawMessage
	// Idempotent has the form once tested for it. The form lines says it itself.
	Idempotent bool
	// Inventory is a shell command that lists the machines in the cloud, one a line. It is
	// run in the same directory as the provisioner. Without it, a machine that exists twice
	// may go unnoticed.
	Inventory string
	// Keep leaves machines behind, for a cloud that ends with the case's directory.
	Keep bool
	// Only are parts of names of cases. Where it isn't empty, the others are left out.
	Only []string
	// On gets each case as it ends.
	On func(CaseReport)
}

// aCase is one thing that is tested.
type aCase struct {
	name string
	// needs is an action, "idempotent" or "detachable", that the program must have declared.
	needs string
	run   func(*trial)
}

// Names are the names of all cases of a form, in order.
func Names(form Form) (names []string) {
	for _, c := range casesOf(form) {
		names = append(names, c.name)
	}
	return names
}

func casesOf(form Form) []aCase {
	if form == Once {
		return onceCases
	}
	return lineCases
}

// Run tests a provisioner. The error says that it could not be tested at all.
func Run(ctx context.Context, o Options) (Report, error) {
	report := Report{Form: o.Form, Command: o.Command}
	command, err := resolve(o.Command)
	if err != nil {
		return report, err
	}
	var able provisioner.Result
	undescribed := ""
	for i, c := range casesOf(o.Form) {
		first := i == 0 && o.Form == Lines // describe, which says what may be tested
		if !first && len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(part string) bool { return strings.Contains(c.name, part) }) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return report, fmt.Errorf("test the provisioner: %w", err)
		}
		one := CaseReport{Name: c.name, Status: Skipped}
		switch {
		case undescribed != "":
			one.Why = undescribed
		case c.needs == "detachable" && !able.Detachable:
			one.Why = "the program isn't declared detachable"
		case c.needs != "" && c.needs != "idempotent" && c.needs != "detachable" && !slices.Contains(able.Actions, c.needs):
			one.Why = "the program doesn't have the action " + c.needs
		case c.needs == "idempotent" && !able.Idempotent && !o.Idempotent:
			one.Why = "the program isn't declared idempotent"
		default:
			var t *trial
			if one, t, err = try(ctx, o, command, c, able); err != nil {
				return report, err
			}
			if first {
				able = t.able
				if one.Status == Failed {
					undescribed = "describe failed"
				}
			}
		}
		report.add(one)
		if o.On != nil {
			o.On(one)
		}
	}
	return report, nil
}

// try runs one case in a directory of its own.
func try(ctx context.Context, o Options, command []string, c aCase, able provisioner.Result) (one CaseReport, t *trial, err error) {
	dir, err := os.MkdirTemp("", "tendril-provisioner-test-")
	if err != nil {
		return one, nil, fmt.Errorf("make a directory for the provisioner: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t = &trial{ctx: ctx, o: o, command: command, dir: dir, able: able, workspace: newWorkspace("acme/test")}
	began := time.Now()
	problem := t.attempt(c.run)
	one = CaseReport{Name: c.name, Status: Passed, Milliseconds: time.Since(began).Milliseconds(), Problem: problem}
	if problem != nil {
		one.Status = Failed
	}
	if o.Form == Lines && !o.Keep {
		_ = t.attempt((*trial).cleanUp) // the case has said what is wrong
	}
	return one, t, t.err
}

// trial is one case while it runs.
type trial struct {
	ctx     context.Context
	o       Options
	command []string
	dir     string
	able    provisioner.Result
	// err is why the program could not be started.
	err error

	workspace *workspace
	others    []*workspace
	last      reply
}

// stopped ends a case early.
type stopped struct{ problem *Problem }

// attempt runs a part of a case and returns its problem.
func (t *trial) attempt(run func(*trial)) (problem *Problem) {
	defer func() {
		if reason := recover(); reason != nil {
			end, is := reason.(stopped)
			if !is {
				panic(reason)
			}
			problem = end.problem
		}
	}()
	run(t)
	return nil
}

// fail ends the case with what is wrong with the last answer.
func (t *trial) fail(wrong, want, action string) {
	panic(stopped{&Problem{
		Sent: shortened(t.last.sent), Came: shownOf(t.last.came), Stderr: t.last.stderr,
		Wrong: wrong, Want: want, Action: action,
	}})
}

// count compares the inventory, if there is one, with how many machines there must be.
func (t *trial) count(want int) {
	if t.o.Inventory == "" {
		return
	}
	got, err := t.inventory()
	if err != nil {
		t.fail(fmt.Sprintf("the inventory command failed: %v", err), "a list of the machines, one a line", "correct --inventory")
	}
	if len(got) != want {
		t.fail(fmt.Sprintf("the inventory has %d machines: %s", len(got), strings.Join(got, ", ")), fmt.Sprintf("%d machines in the cloud", want),
			"write the machine's id on what you create, look for it before you create, and remove what you destroy")
	}
}

// inventory lists the machines in the cloud, as far as a command for that was given.
func (t *trial) inventory() ([]string, error) {
	if t.o.Inventory == "" {
		return nil, nil
	}
	ctx, cancel := timelimit.Context(t.ctx, t.o.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", t.o.Inventory)
	cmd.Dir = t.dir
	out, err := cmd.Output()
	return strings.Fields(string(out)), err
}
