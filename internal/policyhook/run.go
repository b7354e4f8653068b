package policyhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// Hook is the program and what it gets.
type Hook struct {
	// Command is an absolute path and arguments. There is no shell.
	Command []string
	Timeout time.Duration
	Dir     string
	Env     []string // all of it except PATH, which is SearchPath
	// Confine, if set, is called on the thread that starts the program, and that
	// ends with it.
	Confine func() error
	// Hide, if set, hides secrets in a text; see Refused.Said.
	Hide func(string) string
	// Stdout and Stderr get what it prints, never two calls at once.
	Stdout, Stderr io.Writer
}

// Refused is a hook's no, its silence included.
type Refused struct { //nolint:errname // policyhook.Refused reads as what it is
	// Why completes a sentence that begins with the hook.
	Why string
	// Said is the end of what it printed, hidden before it was cut.
	Said string
}

func (r *Refused) Error() string { return "the policy hook " + r.Why }

// pipesLinger is how long after the program's end a process that it left may
// hold its output.
const pipesLinger = time.Second

// Judge runs the hook. Nil is its consent; a *Refused comes of everything else
// but the end of ctx, of which the error has the cause.
func (h Hook) Judge(ctx context.Context, plan []byte) error {
	if err := errors.Join(Executable(h.Command[0]), Guarded(h.Command, Self())); err != nil {
		return &Refused{Why: "cannot be asked: " + err.Error()}
	}
	limited, cancel := timelimit.Context(ctx, h.Timeout)
	defer cancel()
	said := tail{hide: h.Hide}
	// The kernel kills it with the thread that started it, which is ours till
	// then.
	over := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		over <- h.run(limited, plan, &said)
	}()
	err := <-over
	switch exit := new(exec.ExitError); {
	case ctx.Err() != nil:
		return fmt.Errorf("the policy hook was interrupted: %w", context.Cause(ctx))
	case limited.Err() != nil:
		return &Refused{Why: fmt.Sprintf("did not answer within %s", h.Timeout), Said: said.String()}
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &Refused{Why: "says no (" + exit.String() + ")", Said: said.String()}
	default:
		return &Refused{Why: "cannot be asked: " + err.Error(), Said: said.String()}
	}
}

func (h Hook) run(ctx context.Context, plan []byte, said *tail) error {
	if h.Confine != nil {
		if err := h.Confine(); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, h.Command[0], h.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.Dir, append(slices.Clone(h.Env), "PATH="+SearchPath), pipesLinger // stdin is a pipe as well
	cmd.Stdin = bytes.NewReader(plan)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// It holds nothing that a sudden end could damage.
	group, err := process.StartGroup(cmd, said.also(h.Stdout), said.also(h.Stderr))
	if err != nil {
		return err
	}
	if err := group.Wait(pipesLinger); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil // it has said yes; what it left held its input
}

// maxSaid is how much of the end of its output a refusal has, in bytes.
const maxSaid = 2 << 10

// maxKept is how much of that end is looked at for secrets, in bytes.
const maxKept = 64 << 10

// tail keeps the end of what is written, by two streams.
type tail struct {
	hide func(string) string
	mu   sync.Mutex
	text []byte
}

// also writes to w and keeps the end.
func (t *tail) also(w io.Writer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.text = append(t.text, p...)
		if over := len(t.text) - maxKept; over > 0 {
			t.text = append(t.text[:0], t.text[over:]...)
		}
		if w == nil {
			return len(p), nil
		}
		return w.Write(p)
	})
}

// String is whole lines, if there is more than one.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	if t.hide != nil {
		text = t.hide(text)
	}
	if over := len(text) - maxSaid; over > 0 {
		text = text[over:]
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
		text = "… " + text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
