package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/retry"
)

// taskError is a task that ended badly.
type taskError struct {
	what, upid, exit string
}

func (e *taskError) Error() string {
	return fmt.Sprintf("%s: the task ended with: %s (%s)", e.what, e.exit, e.upid)
}

var upids = lazyregexp.New(`^UPID:([A-Za-z0-9][A-Za-z0-9-]{0,62}):[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8,9}:[0-9A-Fa-f]{8}:[A-Za-z0-9_]{1,64}:[^:/?#\s]{0,128}:[^:/?#\s]{1,256}:$`)

// most of a task's log that is passed on.
const (
	mostLines  = 5000
	mostLine   = 2000
	linesAOnce = 500
)

// emptyLog is the line that Proxmox shows of a log without any.
const emptyLog = "no content"

var progressed = lazyregexp.New(`^transferred .* \(([0-9]{1,3})\.[0-9]+%\)$`)

// step is one stage of a machine's making, as people see it.
type step struct {
	id, label string
	from, to  int // percent
	limit     time.Duration
}

// begin has a step shown.
func (s step) begin(p pool.Progress) { p.Step(s.id, s.label, s.from) }

// follow waits for a task, and has the lines of its log told.
func (d *Driver) follow(ctx context.Context, upid string, s step, progress pool.Progress) error {
	m := upids.FindStringSubmatch(upid)
	if m == nil {
		return fmt.Errorf("%s: Proxmox answers %q, which is no task", s.label, clean(upid))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errStepTime)
	defer cancel()
	base := "/nodes/" + m[1] + "/tasks/" + url.PathEscape(upid)
	waits := retry.Between(d.client.scaled(300*time.Millisecond), d.client.scaled(3*time.Second))
	seen := 0
	for {
		var st struct {
			Status string `json:"status"`
			Exit   string `json:"exitstatus"`
		}
		if err := d.client.get(ctx, base+"/status", nil, &st); err != nil {
			if status(err, http.StatusBadRequest) {
				return fmt.Errorf("%s: Proxmox does not know its own task %s any more: %w", s.label, upid, err)
			}
			return d.late(ctx, s, upid, err)
		}
		seen = d.tell(ctx, base, seen, s, progress)
		if st.Status != "running" {
			exit := clean(st.Exit)
			switch {
			case exit == "OK":
				return nil
			case strings.HasPrefix(exit, "WARNINGS"):
				progress.Log("%s: the task ended with %s", s.label, strings.ToLower(exit))
				return nil
			case exit == "":
				exit = "no result, which means that its process was killed"
			}
			return &taskError{what: s.label, upid: upid, exit: exit}
		}
		if !retry.Sleep(ctx, min(waits.NextBackOff(), d.client.scaled(3*time.Second))) {
			return d.late(ctx, s, upid, ctx.Err())
		}
	}
}

var errStepTime = errors.New("its time is over")

// late says why a step ended before its task did.
func (d *Driver) late(ctx context.Context, s step, upid string, err error) error {
	if errors.Is(context.Cause(ctx), errStepTime) {
		return fmt.Errorf("%s: it is not done after %s; task %s may still run: check it on the node, and stop it there if it hangs: %w", s.label, s.limit, upid, errStepTime)
	}
	return fmt.Errorf("%s: %w", s.label, err)
}

// tell passes on the lines of a task's log after the first seen, and returns how many there
// are. A log that can't be read is no reason to fail.
func (d *Driver) tell(ctx context.Context, base string, seen int, s step, progress pool.Progress) int {
	for seen < mostLines {
		var lines []struct {
			N number `json:"n"`
			T string `json:"t"`
		}
		params := url.Values{"start": {strconv.Itoa(seen)}, "limit": {strconv.Itoa(linesAOnce)}}
		if _, err := d.client.once(ctx, http.MethodGet, base+"/log", params, &lines); err != nil || len(lines) == 0 {
			return seen
		}
		if seen == 0 && len(lines) == 1 && lines[0].T == emptyLog {
			return seen // the first line is still to come, with the same number
		}
		for _, l := range lines {
			if seen++; seen > mostLines {
				break
			}
			text := clean(l.T)
			if m := progressed.FindStringSubmatch(text); m != nil {
				if p, err := strconv.Atoi(m[1]); err == nil && p <= 100 {
					progress.Step(s.id, s.label, s.from+(s.to-s.from)*p/100)
				}
				continue
			}
			if text != "" && text != "TASK OK" {
				progress.Log("%s", "  "+text)
			}
		}
		if seen >= mostLines {
			progress.Log("  the task's log goes on; the rest is on the node")
		}
		if len(lines) < linesAOnce {
			return seen
		}
	}
	return seen
}

// converge brings a machine to where done says that it is. ask starts a task; one that fails
// for a reason that passes is started again, and one whose answer was lost is looked for by
// done.
func (d *Driver) converge(ctx context.Context, s step, progress pool.Progress, done func(context.Context) (bool, error), ask func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errStepTime)
	defer cancel()
	waits := retry.Between(d.client.scaled(time.Second), d.client.scaled(15*time.Second))
	var last error
	for tries := 1; ; tries++ {
		ok, err := done(ctx)
		if err != nil || ok {
			return err
		}
		var upid string
		if upid, last = ask(ctx); last == nil && upid != "" {
			last = d.follow(ctx, upid, s, progress)
		}
		if last != nil && !transient(last) && !passes(last) {
			// It may have come true all the same: another one did it.
			if ok, err := done(ctx); err == nil && ok {
				return nil
			}
			return last
		}
		if tries == mostTries && last != nil {
			return last
		}
		if last == nil {
			if ok, err := done(ctx); err != nil || ok {
				return err
			}
			if tries >= mostTries {
				return fmt.Errorf("%s: the task ended well, and nothing has changed", s.label)
			}
		} else {
			progress.Log("%s: %s; trying again", s.label, clean(last.Error()))
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			if last == nil {
				last = ctx.Err()
			}
			return fmt.Errorf("%s: %w (%w)", s.label, last, context.Cause(ctx))
		}
	}
}

// passes reports whether a task failed for a reason that passes.
func passes(err error) bool {
	var task *taskError
	return errors.As(err, &task) && passing.MatchString(task.exit)
}
