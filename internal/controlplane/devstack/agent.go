package devstack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/pelletier/go-toml/v2"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	// registerLimit is how long a new agent may take to register.
	registerLimit = 30 * time.Second
	// lookEvery is how often a starting agent is looked for.
	lookEvery = 50 * time.Millisecond
)

// startAgent starts the agent and returns when it has registered.
func (s *Stack) startAgent(ctx context.Context, queueURL string) (err error) {
	done := s.report.Step("Agent")
	config, err := writeAgentConfig(s.options, s.name, queueURL, s.pools)
	if err != nil {
		return err
	}
	logFile := s.options.path("agent.log")
	if err := rotateLog(logFile); err != nil {
		return err
	}
	if err := s.awaitEarlierAgent(ctx); err != nil {
		return err
	}
	before, err := s.boot(ctx)
	if err != nil {
		return err
	}
	var offset int64
	if info, err := os.Stat(logFile); err == nil {
		offset = info.Size()
	}
	command := append(append([]string{}, s.options.AgentCommand...), "--config", config)
	s.agent = startAgentProcess(command, agentEnv(os.Environ()), logFile, s.report)
	if err := s.awaitBoot(ctx, before); err != nil {
		s.agentLog = followLog(logFile, func(string) {}) // the error says it all
		if words := lastWords(logFile, offset); words != "" && ctx.Err() == nil {
			err = fmt.Errorf("%w: %s", err, words)
		}
		return err
	}
	s.agentLog = followLog(logFile, func(text string) { s.report.Note("agent: " + text) })
	done(fmt.Sprintf("%s, %d slots", s.name, s.options.Slots))
	return nil
}

// boot returns the boot id that the agent registered last with, nil for none.
func (s *Stack) boot(ctx context.Context) (id uuid.UUID, err error) {
	err = s.db.QueryRow(ctx, "SELECT boot_id FROM public.agents WHERE cluster_id = $1 AND name = $2 ORDER BY registered_at DESC LIMIT 1",
		s.home.cluster, s.name).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, fmt.Errorf("look for the agent: %w", err)
	}
	return id, nil
}

func (s *Stack) awaitBoot(ctx context.Context, before uuid.UUID) error {
	limit := time.NewTimer(registerLimit)
	defer limit.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now, err := s.boot(ctx)
		if err != nil || now != before {
			return err
		}
		select {
		case <-tick.C:
		case <-s.agent.firstEnd:
			return errors.New("the agent could not start")
		case <-limit.C:
			return fmt.Errorf("the agent has not registered within %s; its log is %s", registerLimit, s.agent.logFile)
		case <-ctx.Done():
			return fmt.Errorf("start the agent: %w", context.Cause(ctx))
		}
	}
}

// awaitEarlierAgent waits for the agent of a Stack that was killed: it goes on
// with what it had in hand, and has the agent's data directory until then.
func (s *Stack) awaitEarlierAgent(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for told := false; ; {
		holder, inUse := dirlock.InUse(s.options.path("agent"))
		if !inUse {
			return nil // other trouble the agent itself explains
		}
		if !told {
			told = true
			s.report.Note(fmt.Sprintf("An agent of an earlier start (%s) is still finishing what it runs: waiting for it", holder))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for an earlier agent: %w", context.Cause(ctx))
		}
	}
}

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
		a.report.Note(fmt.Sprintf("The agent ended (%s); starting it again in %s. Its log is %s", postgres.ExitText(err), wait, a.logFile))
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
	postgres.DieWithParent(cmd.SysProcAttr, syscall.SIGTERM)

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

// agentName is what the local agent calls itself. It ends in something of this
// data directory's own: two on one machine may share a database, and a name is
// taken until half a minute after its agent has gone.
func agentName(l login) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w", err)
	}
	plain := regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(host, "-")
	return "up-" + plain[:min(len(plain), 80)] + "-" + l.Role[max(0, len(l.Role)-4):], nil
}

// hostName is this instance's for browsers, the same at each start.
func hostName(l login) string {
	sum := sha256.Sum256([]byte(l.Role))
	return "trellis-" + hex.EncodeToString(sum[:5]) + ".localhost"
}

// agentConfig is tendril.toml: what this Stack decides about its agent. The
// rest is the agent's defaults and the environment.
type agentConfig struct {
	Name    string `toml:"name"`
	DataDir string `toml:"data_dir"`
	Slots   int    `toml:"slots"`
	// The format that errors are picked out of.
	LogFormat string `toml:"log_format"`
	Queue     struct {
		URL       string `toml:"url"`
		TokenFile string `toml:"token_file"`
	} `toml:"queue"`
	State struct {
		Default string `toml:"default"`
	} `toml:"state"`
	Policy struct {
		Repos         []string `toml:"repos"`
		Operations    []string `toml:"operations"`
		RequesterKeys []string `toml:"requester_keys,omitempty"`
		AllowFile     bool     `toml:"allow_file"`
	} `toml:"policy"`
	Pools []agentPool `toml:"pools,omitempty"`
}

// writeAgentConfig writes tendril.toml and returns its path. It is 0600: the
// queue's URL holds a password.
func writeAgentConfig(o Options, name, queueURL string, pools []agentPool) (string, error) {
	c := agentConfig{Name: name, DataDir: o.path("agent"), Slots: o.Slots, LogFormat: "json", Pools: pools}
	c.Queue.URL, c.Queue.TokenFile = queueURL, o.path("token")
	c.Policy.Repos = append([]string{o.templatePattern()}, o.AllowRepos...)
	for _, operation := range provision.Operations { // it is the machine of who asks
		c.Policy.Operations = append(c.Policy.Operations, string(operation))
	}
	c.Policy.RequesterKeys = o.RequesterKeys
	c.Policy.AllowFile = true
	c.State.Default = job.Managed
	var text bytes.Buffer
	text.WriteString("# Written by trellis up at each start: what you change here is lost.\n")
	encoder := toml.NewEncoder(&text)
	encoder.SetArraysMultiline(true)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("write the agent's configuration: %w", err)
	}
	file := o.path("tendril.toml")
	if err := instance.WriteSecret(file, text.Bytes()); err != nil {
		return "", fmt.Errorf("write the agent's configuration: %w", err)
	}
	return file, nil
}

// agentEnv is the environment that the agent starts with: ours, for cloud
// credentials and proxies, without what is ours alone. The environment beats
// the configuration file, so of the agent's own variables only those stay that
// the file does not decide.
func agentEnv(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "TRELLIS_"), name == "PGPASSWORD", name == "PGPASSFILE", name == "PGUSER":
		case !strings.HasPrefix(name, "TENDRIL_"), decidedElsewhere(name):
			kept = append(kept, entry)
		}
	}
	return kept
}

// decidedElsewhere reports whether a TENDRIL_ variable is a setting of the
// agent that tendril.toml leaves open.
func decidedElsewhere(name string) bool {
	for _, prefix := range []string{"TENDRIL_GIT_", "TENDRIL_ENGINE_", "TENDRIL_STATE_", "TENDRIL_RUN_", "TENDRIL_TEST_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "TENDRIL_DRAIN_TIMEOUT" || name == "TENDRIL_LOG_LEVEL"
}

const (
	// maxAgentLog is the size at which the agent's log is set aside at a start.
	maxAgentLog = 16 << 20
	// logEvery is how often the log is looked at.
	logEvery = 250 * time.Millisecond
)

// agentLog reads along in the agent's log and tells of errors.
type agentLog struct {
	path   string
	report func(string)
	stop   chan struct{}
	done   chan struct{}
}

// rotateLog sets a log that has grown large aside.
func rotateLog(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxAgentLog {
		return nil
	}
	if err == nil {
		err = os.Rename(path, path+".1")
	}
	if err != nil {
		return fmt.Errorf("set the agent's log aside: %w", err)
	}
	return nil
}

// followLog reports the errors that are written from now on.
func followLog(path string, report func(string)) *agentLog {
	l := &agentLog{path: path, report: report, stop: make(chan struct{}), done: make(chan struct{})}
	var offset int64
	if info, err := os.Stat(path); err == nil {
		offset = info.Size()
	}
	go func() {
		defer close(l.done)
		l.run(offset)
	}()
	return l
}

// close reports what is left and ends.
func (l *agentLog) close() {
	close(l.stop)
	<-l.done
}

func (l *agentLog) run(offset int64) {
	tick := time.NewTicker(logEvery)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-l.stop:
			ended = true
		}
		offset = l.read(offset)
	}
}

// read reports the errors among the whole lines from offset and returns where
// they end. A log that cannot be read now is read the next time.
func (l *agentLog) read(offset int64) int64 {
	file, err := os.Open(l.path)
	if err != nil {
		return offset
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return offset
	}
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return offset
		}
		offset += int64(len(line))
		if text := errorText(line); text != "" {
			l.report(text)
		}
	}
}

// errorText is what a line of the log says to people if it is an error, or no
// log line at all: a crash. Otherwise it is "".
func errorText(line []byte) string {
	line = bytes.TrimSpace(line)
	var entry map[string]any
	if json.Unmarshal(line, &entry) != nil {
		return string(line)
	}
	if entry["level"] != "ERROR" {
		return ""
	}
	text := fmt.Sprint(entry["msg"])
	for _, known := range []string{"time", "level", "msg"} {
		delete(entry, known)
	}
	details := make([]string, 0, len(entry))
	for _, name := range slices.Sorted(maps.Keys(entry)) {
		details = append(details, fmt.Sprintf("%s: %v", name, entry[name]))
	}
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	return text
}

// lastWords returns the end of the agent's log since offset, for an agent that
// did not come up.
func lastWords(path string, offset int64) string {
	const most = 2 << 10
	content, err := os.ReadFile(path)
	if err != nil || int64(len(content)) <= offset {
		return ""
	}
	content = bytes.TrimSpace(content[offset:])
	if len(content) > most {
		content = content[len(content)-most:]
	}
	var words []string
	for line := range bytes.Lines(content) {
		if text := errorText(line); text != "" {
			words = append(words, text)
		}
	}
	return strings.Join(words, "\n")
}
