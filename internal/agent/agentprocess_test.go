package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/webhook"
)

// setup is what an agent process is told, as JSON in its environment.
type setup struct {
	URL, Token, DataDir string
	Name                string
	Slots               int
	Drain, Grace        time.Duration
	// As in limits.
	EndMargin, LastDelivery time.Duration
	// LogLimit is as in job.Settings.
	LogLimit int64
	Caches   caches.Limits
	// LoseClaims is how many answers to Claim are lost on their way.
	LoseClaims int
	// LoseReports loses the answer to every report; NoReports has none get there.
	LoseReports, NoReports bool
	// Beside has the process start something of its own before it is an agent.
	Beside bool
	// Margin is not zero for an agent that serves health and metrics.
	Margin time.Duration
	// StuckBeat has the heartbeat never come back from its third call, StuckPoll
	// the poller from its first.
	StuckBeat, StuckPoll bool
	// NoChild makes the children's program one that is not there.
	NoChild bool
	// SpoolBytes is not zero for an agent whose spool is on a disk of that size.
	SpoolBytes int64
	// Webhook is told of runs that wait for a person, with messages that WebhookSecret signs.
	Webhook, WebhookSecret string
	// Groups is not "" for an agent that finds the control groups in that directory.
	Groups string
}

const setupEnv = "TENDRIL_TEST_SETUP"

// noRaceSleep keeps a process with the race detector from waiting a second
// before it ends.
const noRaceSleep = "GORACE=atexit_sleep_ms=0"

// agentProcess is the main function of an agent process.
func agentProcess() int {
	var s setup
	if err := json.Unmarshal([]byte(os.Getenv(setupEnv)), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := s.mount(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	command := []string{self}
	if s.NoChild {
		command = []string{"/nowhere/tendril", "exec"}
	}
	options := Options{
		DataDir: s.DataDir, Name: s.Name, Version: "test", Slots: s.Slots, DrainTimeout: s.Drain,
		Open: func(who queue.Agent) (queue.Queue, error) {
			q, err := pgqueue.New(context.Background(), pgqueue.Options{URL: s.URL, Token: s.Token, Agent: who, CallTimeout: 5 * time.Second})
			if err != nil {
				return nil, err
			}
			return &lossyQueue{Queue: q, claims: s.LoseClaims, setup: s}, nil
		},
		Command: command, Env: []string{roleEnv + "=child", noRaceSleep},
		Settings:     job.Settings{CancelGrace: s.Grace, Timeout: time.Hour, LogLimit: s.LogLimit, Engine: job.Engine{Install: true}},
		Caches:       s.Caches,
		SharedCaches: sharedCaches, EngineMark: executor.EngineMark,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if s.Webhook != "" {
		options.InputWebhook = InputWebhook{Kind: webhook.Generic, Receiver: func() (webhook.Receiver, error) {
			return webhook.Receiver{URL: s.Webhook, Secret: []byte(s.WebhookSecret), Agent: "test"}, nil
		}}
	}
	a, stopServing, err := observe(s, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a.limits.endMargin = or(s.EndMargin, a.limits.endMargin)
	a.limits.tidyPause = 10 * time.Millisecond
	a.limits.lastDelivery = or(s.LastDelivery, a.limits.lastDelivery)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	var obeying sync.WaitGroup
	obeying.Go(func() {
		for _, obey := range []func(){cancel, a.StopNow} {
			select {
			case <-over:
				return
			case <-signals:
				obey()
			}
		}
	})
	var beside *exec.Cmd
	if s.Beside {
		beside = exec.Command("/bin/sleep", "1000")
		if err := beside.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	err = a.Run(ctx)
	stopServing()
	if beside != nil {
		alive := process.Alive(beside.Process.Pid)
		_ = beside.Process.Kill()
		_ = beside.Wait()
		if !alive {
			fmt.Fprintln(os.Stderr, "what was there before the agent was ended by it")
			return 4
		}
	}
	close(over)
	obeying.Wait()
	signal.Stop(signals)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.signal_recv")); err != nil {
		fmt.Fprintln(os.Stderr, "goleak:", err)
		return 3
	}
	return 0
}

// lossyQueue loses the first answers to Claim that hold an assignment, and
// reports.
type lossyQueue struct {
	queue.Queue
	setup  setup
	mu     sync.Mutex
	claims int
	beats  int
}

func (q *lossyQueue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	if q.beats++; q.setup.StuckBeat && q.beats > 2 {
		<-ctx.Done()
	}
	return q.Queue.Heartbeat(ctx, beat)
}

func (q *lossyQueue) Claim(ctx context.Context, id uuid.UUID) (*provision.Assignment, error) {
	if q.setup.StuckPoll {
		select {} // whatever its context says
	}
	a, err := q.Queue.Claim(ctx, id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if a != nil && q.claims > 0 {
		q.claims--
		return nil, &queue.Error{Kind: queue.Unavailable, Message: "the answer was lost", Err: errors.New("reset by the test")}
	}
	return a, err
}

func (q *lossyQueue) Report(ctx context.Context, claim uuid.UUID, report provision.Report) error {
	if !q.setup.LoseReports && !q.setup.NoReports {
		return q.Queue.Report(ctx, claim, report)
	}
	if q.setup.LoseReports {
		if err := q.Queue.Report(ctx, claim, report); err != nil {
			return err
		}
	}
	return &queue.Error{Kind: queue.Unavailable, Message: "the report was lost", Err: errors.New("reset by the test")}
}

// agentUnderTest is an agent process as a test sees it.
type agentUnderTest struct {
	cmd  *exec.Cmd
	log  outputtest.Buffer
	done chan struct{}
}

// startAgent starts an agent, which the test's end kills if nothing did before.
func startAgent(t *testing.T, s setup) *agentUnderTest {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no process of an agent")
	}
	s.Name = or(s.Name, "one")
	s.Slots = or(s.Slots, 2)
	s.Drain = or(s.Drain, deadline)
	s.Grace = or(s.Grace, 30*time.Second)
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &agentUnderTest{cmd: exec.Command(self), done: make(chan struct{})}
	a.cmd.Env = append(os.Environ(), roleEnv+"=agent", setupEnv+"="+string(encoded), noRaceSleep)
	a.cmd.Stderr, a.cmd.Stdout = &a.log, &a.log
	a.cmd.WaitDelay = 5 * time.Second
	if s.mounts() {
		ownMounts(a.cmd)
	}
	if err := a.cmd.Start(); err != nil {
		if s.mounts() {
			err = fmt.Errorf("%w. The test needs a mount namespace: run it as root, or allow users to make namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)", err)
		}
		t.Fatal(err)
	}
	go func() {
		defer close(a.done)
		_ = a.cmd.Wait()
	}()
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.log.String())
		}
		if strings.Contains(a.log.String(), "DATA RACE") {
			t.Error("the agent has a data race")
		}
	})
	return a
}

// kill is kill -9.
func (a *agentUnderTest) kill() {
	_ = a.cmd.Process.Kill()
	<-a.done
}

func (a *agentUnderTest) term(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// exits waits for the end and checks the exit code.
func (a *agentUnderTest) exits(t *testing.T, want int) {
	t.Helper()
	select {
	case <-a.done:
	case <-patience.After(deadline):
		t.Fatal("the agent has not ended")
	}
	if got := a.cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit code = %d, want %d", got, want)
	}
}

// stops drains the agent and expects a clean end, in which goroutines count.
func (a *agentUnderTest) stops(t *testing.T) {
	t.Helper()
	a.term(t)
	a.exits(t, 0)
}

func (a *agentUnderTest) says(t *testing.T, text string) {
	t.Helper()
	patience.Await(t, fmt.Sprintf("the agent to log %q", text), func() bool { return strings.Contains(a.log.String(), text) })
}

// deadline bounds waits for what must happen soon, on a busy machine.
const deadline = 2 * time.Minute

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
