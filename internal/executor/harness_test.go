package executor_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/delivery"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/githelper"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

// childEnv makes the test binary a child: tendril exec, and nothing else.
const childEnv = "TENDRIL_TEST_EXECUTOR_CHILD"

// patienceEnv is how long the child tries to store a state, and triesEnv how often.
const (
	patienceEnv = "TENDRIL_TEST_PATIENCE"
	triesEnv    = "TENDRIL_TEST_TRIES"
)

// deadline bounds waits for what must happen, on a machine that is busy or stands
// still for a while.
const deadline = 3 * time.Minute

// gitHelperArg makes the test binary what git starts.
const gitHelperArg = "git-helper"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == gitHelperArg {
		syscall.Exit(githelper.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if playRole() {
		syscall.Exit(0) // os.Exit would wait a second for the race detector
	}
	if os.Getenv(childEnv) != "" {
		_ = os.Unsetenv(childEnv)
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		helper := []string{self, gitHelperArg}
		patience, _ := time.ParseDuration(os.Getenv(patienceEnv)) // 0 where there is none
		tries, _ := strconv.Atoi(os.Getenv(triesEnv))
		if err := executor.MainWithPatience(helper, patience, tries); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// site is what outlives a run: a git server, the agent's directories, a
// workspace.
type site struct {
	t    *testing.T
	git  *gittest.Server
	job  job.Job
	dirs string
	// patience is how long a run tries to store a state, and tries how often; 0: as
	// it is.
	patience time.Duration
	tries    int
	// refuse is the database's part where a report is not to be taken.
	refuse func(*child, provision.Report) *provision.Failure
	// places is the database's part where a run asks for places.
	places   func([]provision.PlaceWanted) []provision.Place
	spoolDir string   // where spools are; "": a directory for each
	env      []string // beside what every child gets
	bundle   string   // the file for a plan bundle
	managed  *managed // nil: the state is not
}

// bothEngines runs a test with each engine: what holds of one has to hold of the
// other.
func bothEngines(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{"terraform", "tofu"} {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// newSiteOf is a site of one engine.
func newSiteOf(t *testing.T, kind string) *site {
	t.Helper()
	s := newSite(t)
	s.job.Settings.Engine.Kind = kind
	return s
}

func newSite(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no process of a run")
	}
	git := gittest.NewServer(t)
	dir := t.TempDir()
	s := &site{t: t, git: git, dirs: dir}
	s.job = job.Job{
		Instance: uuid.New(), NoteKey: []byte("of the agent"),
		Assignment: provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), Number: 1, WorkspaceID: uuid.New(),
			Workspace: "acme/test", Operation: provision.OperationApply},
		Settings: job.Settings{
			Policy:      job.Policy{Repos: []string{git.URL + "/**"}},
			Git:         job.Git{CAFile: git.CAFile, Timeout: time.Minute},
			Engine:      job.Engine{Kind: "terraform"},
			CancelGrace: time.Minute,
			Timeout:     deadline,
		},
		Dirs: job.Dirs{Work: filepath.Join(dir, "work"), Secrets: filepath.Join(dir, "work", "secrets"), State: filepath.Join(dir, "state"), Repos: filepath.Join(dir, "repos"), Engines: filepath.Join(dir, "engines"), Providers: filepath.Join(dir, "providers")},
	}
	for _, d := range []string{s.job.Dirs.Work, s.job.Dirs.State, s.job.Dirs.Repos, s.job.Dirs.Engines} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// template puts files into a repository tagged v1 and asks for it.
func (s *site) template(files map[string]string, vars map[string]any) *gittest.Repo {
	s.t.Helper()
	repo, _ := s.git.Repo("envtempl", gittest.Text(files), "v1")
	s.ask(repo.URL, "v1", "", vars)
	return repo
}

func (s *site) ask(repo, version, path string, vars map[string]any) {
	s.t.Helper()
	if vars == nil {
		vars = map[string]any{}
	}
	source := map[string]any{"repo": repo, "version": version}
	if path != "" {
		source["path"] = path
	}
	snapshot, err := json.Marshal(map[string]any{"template_source": source, "terraform_vars": vars, "workspace": "acme/test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.job.Assignment.Snapshot = snapshot
}

// child is one running tendril exec with an agent's side in the test.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	control *os.File
	cancel  context.CancelFunc
	over    chan struct{}
	dead    chan struct{} // the process has ended

	mu      sync.Mutex
	log     strings.Builder
	lines   []provision.LogChunk
	reports []provision.Report
	grown   chan struct{} // gets a token when log or reports grew
	refuse  func(*child, provision.Report) *provision.Failure
	places  func([]provision.PlaceWanted) []provision.Place
	placed  []provision.Place // of the request before, by the goroutine that delivers
	freed   []string          // machines whose places were given back
	result  *provision.Report
	err     error
	stderr  strings.Builder
	pumping sync.WaitGroup
}

// start runs the job in a child.
func (s *site) start() *child {
	s.t.Helper()
	t := s.t
	spoolDir := cmp.Or(s.spoolDir, t.TempDir())
	file, err := os.OpenFile(filepath.Join(spoolDir, "spool-"+uuid.NewString()), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	var tail spool.Tail
	for i := range tail {
		if tail[i], err = os.OpenFile(filepath.Join(t.TempDir(), "tail"), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tail[i].Close() })
	}
	plan, states := s.planFile(), s.stateFiles()
	controlRead, controlWrite := pipe(t)
	bellRead, bellWrite := pipe(t)
	c := &child{t: t, refuse: s.refuse, places: s.places, control: controlWrite, over: make(chan struct{}), grown: make(chan struct{}, 1)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(self)
	// What the agent lets through, and a token that it does not.
	c.cmd.Env = append([]string{childEnv + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0"}, s.env...)
	c.cmd.Env = append(c.cmd.Env, patienceEnv+"="+s.patience.String(), triesEnv+"="+strconv.Itoa(s.tries))
	c.cmd.ExtraFiles = []*os.File{controlRead, file, lock, bellWrite, tail[0], tail[1], nil, plan, states[0], states[1], states[2]}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.cmd.Stderr = &c.stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = controlRead.Close()
	_ = bellWrite.Close()
	_ = plan.Close()
	for _, file := range states {
		_ = file.Close()
	}
	told := s.job
	if info, err := os.Stat(s.bundle); err == nil && told.Assignment.ApprovedPlan != "" && told.Approved == 0 {
		told.Approved = info.Size()
	}
	if err := job.Write(controlWrite, told); err != nil {
		t.Fatal(err)
	}

	wake, dead := make(chan struct{}, 1), make(chan struct{})
	c.dead = dead
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	pump := delivery.NewPump(c, s.job.Assignment.ClaimID, file, delivery.PumpOptions{Tail: tail, Acked: func(n int64, refused *provision.Failure) {
		_ = job.Write(controlWrite, job.Control{Ack: n, Refused: refused, Places: c.placed}) // a child that is gone needs no answer
	}})
	c.pumping.Go(func() { spool.Listen(bellRead, wake) })
	c.pumping.Go(func() {
		delivered, err := pump.Run(ctx, wake, dead)
		c.mu.Lock()
		c.result, c.err = delivered.Result, err
		c.mu.Unlock()
		close(c.over)
	})
	c.pumping.Go(func() {
		_ = c.cmd.Wait() // how it ended shows in the result
		close(dead)
	})
	t.Cleanup(func() {
		_ = c.control.Close()
		<-dead
		cancel()
		c.pumping.Wait()
		_ = file.Close()
		_ = lock.Close()
		_ = bellRead.Close()
		if t.Failed() {
			t.Logf("log of the run:\n%s\nstderr of the child: %s", c.text(), c.stderr.String())
		}
	})
	return c
}

// planFile is the file for a plan bundle, which s.bundle names, and has in it
// what is approved.
func (s *site) planFile() *os.File {
	s.t.Helper()
	if s.bundle == "" || s.job.Assignment.ApprovedPlan == "" && s.job.Assignment.Operation != provision.OperationState {
		s.bundle = filepath.Join(s.t.TempDir(), "bundle")
	}
	file, err := os.OpenFile(s.bundle, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	return file
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// AppendLog and Report are the database's part.
func (c *child) AppendLog(_ context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if want := int64(len(c.lines)) + 1; first != want {
		c.t.Errorf("AppendLog(%d), want %d", first, want)
	}
	for _, chunk := range chunks {
		c.lines = append(c.lines, chunk)
		c.log.WriteString(chunk.Text)
	}
	c.signal()
	return first + int64(len(chunks)), nil
}

func (c *child) Report(_ context.Context, _ uuid.UUID, report provision.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = append(c.reports, report)
	c.signal()
	if c.refuse != nil {
		if failure := c.refuse(c, report); failure != nil {
			return refusal(failure)
		}
	}
	if c.placed = nil; report.Detail.Places != nil {
		c.freed = append(c.freed, report.Detail.Places.Release...)
		if len(report.Detail.Places.Wants) > 0 {
			c.placed = c.places(report.Detail.Places.Wants)
		}
	}
	return nil
}

func (c *child) signal() {
	select {
	case c.grown <- struct{}{}:
	default:
	}
}

func (c *child) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

// await waits until the log contains the text.
func (c *child) await(text string) {
	c.t.Helper()
	limit := patience.After(deadline)
	for !runlog.Says(c.text(), text) {
		select {
		case <-c.grown:
		case <-c.over:
			if !runlog.Says(c.text(), text) {
				c.t.Fatalf("the run ended without printing %q", text)
			}
		case <-limit:
			c.t.Fatalf("timed out waiting for %q", text)
		}
	}
}

// end waits for the end of the run and returns its result, which must be there.
func (c *child) end() provision.Report {
	c.t.Helper()
	select {
	case <-c.over:
	case <-patience.After(deadline + time.Minute): // more than a run may take
		c.t.Fatal("the run does not end")
	}
	if c.err != nil || c.result == nil {
		c.t.Fatalf("result = %v, %v, want one", c.result, c.err)
	}
	return *c.result
}

// detail is the last value of what pick takes from the reports.
func last[T comparable](c *child, pick func(provision.Detail) T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	var none, found T
	for _, r := range c.reports {
		if v := pick(r.Detail); v != none {
			found = v
		}
	}
	return found
}

func (s *site) run() (provision.Report, *child) {
	s.t.Helper()
	c := s.start()
	return c.end(), c
}

// wantEnd fails the test unless the run ended so.
func wantEnd(t *testing.T, got provision.Report, status provision.Status, code provision.Code) {
	t.Helper()
	if got.Status != status || got.Detail.ErrorCode != code {
		t.Errorf("run ended %s/%s: %s, want %s/%s", got.Status, got.Detail.ErrorCode, got.Detail.ErrorMessage, status, code)
	}
}
