package executor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/once"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/timelimit"
	messages "github.com/tendril-run/tendril/provisioner"
)

// healthCheck asks how one machine is by a command of the template: the one of its health
// block, or its script. It has no state, no variables and no credentials.
type healthCheck struct {
	*machineRun
	job.Check
}

// check is all that a child does that is to ask how a machine is.
func (r *provisionRun) check(ctx context.Context, c job.Check) error {
	dir, err := r.template(ctx)
	if err == nil {
		err = r.checkout.settle()
	}
	if err != nil {
		return stopOr(ctx, err)
	}
	file, err := templatefile.Read(dir)
	if err != nil {
		return err
	}
	if file.Health == nil || !file.Health.ByCommand() {
		return errors.New("the template has no command to ask how its machines are")
	}
	if file.Script != nil {
		file.Script.Timeout = c.Check.Limit()
	}
	h := &healthCheck{&machineRun{
		given: given{task: r.task, dir: dir, files: r.files, id: r.id, checkout: r.checkout},
		file:  file, state: &machines.State{}, values: map[string]json.RawMessage{},
	}, c}
	if err := h.locate(); err != nil {
		return err
	}
	health, why, err := h.ask(ctx)
	_, late := errors.AsType[*timelimit.ReachedError](err)
	why = r.log.MaskString(oneLine(why))
	switch {
	case late:
		return provision.Fail(job.CodeUnhealthy, fmt.Sprintf("%s did not answer within %s", h.command()[0], c.Check.Limit()), err)
	case err != nil:
		return stopOr(ctx, errors.New(r.log.MaskString(oneLine(reason(err)))))
	case health == messages.Healthy:
		return nil
	case health == messages.Unhealthy:
		return provision.Fail(job.CodeUnhealthy, cmp.Or(why, h.command()[0]+" says that it is unhealthy"), nil)
	}
	return errors.New(cmp.Or(why, h.command()[0]+" says that it does not know"))
}

// command is what asks.
func (h *healthCheck) command() []string {
	switch s := h.file.Script; {
	case len(h.file.Health.Command) > 0:
		return h.file.Health.Command
	case s.Lines:
		return s.Command
	default:
		return s.HealthCheck
	}
}

func (h *healthCheck) wanted() messages.Wanted {
	c := h.Check.Check
	return messages.Wanted{ID: c.Command.ID, Name: h.Machine, ExternalID: c.Command.ExternalID, Pool: c.Command.Pool, Address: c.Target}
}

// ask asks. An error is why nobody can say.
func (h *healthCheck) ask(ctx context.Context) (health messages.HealthStatus, why string, err error) {
	switch {
	case len(h.file.Health.Command) > 0:
		return h.byCommand(ctx)
	case h.file.Script.Lines:
		return h.byLines(ctx)
	}
	c := h.Check.Check
	answer, err := h.machineRun.ask(ctx, h.command(), once.Request{
		Action: once.HealthCheck, ContractID: c.Command.ID, ExternalID: c.Command.ExternalID, IPAddress: c.Target, SSHPort: c.Port,
	}, environmentOf(h.wanted()))
	return answer.Response.HealthOf(), answer.Response.Error, err
}

// Exit statuses of a shell that did not find, or could not start, what it was to run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// byCommand runs the command of the health block: its exit status says how the machine is,
// and its last line why.
func (h *healthCheck) byCommand(ctx context.Context) (messages.HealthStatus, string, error) {
	said := &lastLines{}
	h.programs.said = said
	c := h.Check.Check
	environment := append(environmentOf(h.wanted()), "TENDRIL_EXTERNAL_ID="+c.Command.ExternalID, fmt.Sprintf("TENDRIL_SSH_PORT=%d", c.Port))
	limited, cancel := timelimit.Context(ctx, c.Limit())
	defer cancel()
	err := h.programs.run(ctx, limited, h.command(), environment...)
	ended, did := errors.AsType[*exitError](err)
	if !did {
		return messages.Healthy, "", err
	}
	why := h.command()[0] + ": " + ended.text
	if last := said.String(); last != "" {
		why += ": " + last
	}
	if ended.status == exitNotExecutable || ended.status == exitNotFound {
		return messages.HealthUnknown, why, nil
	}
	return messages.Unhealthy, why, nil
}

// actionHealth is how a program says that it can be asked.
const actionHealth = "health"

func (h *healthCheck) byLines(ctx context.Context) (messages.HealthStatus, string, error) {
	l := newLinesRun(h.machineRun)
	if err := l.describe(ctx); err != nil {
		return "", "", err
	}
	if !slices.Contains(l.describes.Actions, actionHealth) {
		return "", "", errors.New("the template's provisioner does not describe the action health")
	}
	l.plan = &machines.Plan{Wanted: []messages.Wanted{h.wanted()}}
	result, err := l.talk(ctx, &messages.Health{Work: l.work(), Machine: h.Check.Check.Command.ID}, protocol.Handlers{})
	return result.Health, result.Message, err
}

// lastLines are those of a command. Which came last nobody can tell, so that of stderr counts.
type lastLines struct{ stdout, stderr lastLine }

func (l *lastLines) String() string { return cmp.Or(l.stderr.String(), l.stdout.String()) }

// lastLine keeps the last line that is written to it and not empty.
type lastLine struct {
	mu   sync.Mutex
	text string
}

// Write takes whole lines.
func (l *lastLine) Write(lines []byte) (int, error) {
	trimmed := bytes.TrimSpace(lines)
	if last := trimmed[bytes.LastIndexByte(trimmed, '\n')+1:]; len(last) > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = strings.ToValidUTF8(string(last[:min(len(last), maxOneLine)]), "")
	}
	return len(lines), nil
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}
