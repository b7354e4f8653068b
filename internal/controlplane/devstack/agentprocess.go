package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// An agent that dies is started again after restartMin, put off up to
	// restartMax while it keeps dying.
	restartMin = time.Second
	restartMax = 30 * time.Second
	// healthyAfter is how long it must live to count as recovered.
	healthyAfter = time.Minute
	// endLimit is how long an agent that was told to end its runs at once may
	// take: the engine's grace (run.cancel_grace) and its last deliveries.
	endLimit = 90 * time.Second
	// signalsApart is the least time between two signals: the kernel makes one
	// of two that come at once.
	signalsApart = 300 * time.Millisecond
)

// agentProcess keeps one agent running as a child process.
type agentProcess struct {
	command []string
	env     []string
	logFile string
	report  Reporter

	stopping chan struct{} // closed by the first stop
	stopOnce sync.Once
	done     chan struct{} // closed when nothing runs and nothing will
	firstEnd chan struct{} // closed when the first process has ended
	endOnce  sync.Once

	mu      sync.Mutex
	process *os.Process // nil while none runs
}

func startAgentProcess(command, env []string, logFile string, report Reporter) *agentProcess {
	a := &agentProcess{
		command: command, env: env, logFile: logFile, report: report,
		stopping: make(chan struct{}), done: make(chan struct{}), firstEnd: make(chan struct{}),
	}
	go func() {
		defer close(a.done)
		// Pdeathsig goes by the thread, which must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		a.keepRunning()
	}()
	return a
}

func (a *agentProcess) keepRunning() {
	for wait := restartMin; ; {
		began := time.Now()
		err := a.runOnce()
		a.endOnce.Do(func() { close(a.firstEnd) })
		if a.isStopping() {
			return
		}
		if time.Since(began) > healthyAfter {
			wait = restartMin
		}
		a.report.Note(fmt.Sprintf("The agent ended (%s); starting it again in %s. Its log is %s", exitText(err), wait, a.logFile))
		select {
		case <-a.stopping:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMax)
	}
}

// runOnce starts the agent and waits for its end. It writes to the log by
// itself: through us it would lose its voice, and its life, with us.
func (a *agentProcess) runOnce() error {
	log, err := os.OpenFile(a.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(a.command[0], a.command[1:]...) //nolint:noctx // stop ends it
	cmd.Env = a.env
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C in the terminal is for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	a.mu.Lock()
	if a.isStopping() { // between the look and the start
		a.mu.Unlock()
		return nil
	}
	err = cmd.Start()
	a.process = cmd.Process
	a.mu.Unlock()
	if err != nil {
		return err
	}
	err = cmd.Wait()
	a.mu.Lock()
	a.process = nil
	a.mu.Unlock()
	return err
}

func (a *agentProcess) isStopping() bool {
	select {
	case <-a.stopping:
		return true
	default:
		return false
	}
}

// stop tells the agent to claim nothing more and to let its runs finish. When
// the context ends before they have, it tells it to end them at once. The
// error says that the agent had to be killed.
func (a *agentProcess) stop(ctx context.Context) error {
	a.stopOnce.Do(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(a.stopping)
	})
	a.signal(syscall.SIGTERM)
	apart := time.NewTimer(signalsApart)
	defer apart.Stop()
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-a.done:
		return nil
	case <-apart.C:
	}
	a.signal(syscall.SIGTERM) // a second one ends the drain
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case <-a.done:
		return nil
	case <-limit.C:
	}
	a.signal(syscall.SIGKILL)
	<-a.done
	return fmt.Errorf("the agent did not end within %s of being told to end at once, and was killed; its log is %s", endLimit, a.logFile)
}

func (a *agentProcess) signal(s syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process != nil {
		_ = a.process.Signal(s) // an error means that it has ended
	}
}

// exitText is how a process ended, without os/exec's own prefixes.
func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.String()
	}
	return err.Error()
}
