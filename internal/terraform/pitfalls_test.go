package terraform

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/cgroup"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

func wantCode(t *testing.T, err error, code provision.Code) *provision.Failure {
	t.Helper()
	failure, ok := errors.AsType[*provision.Failure](err)
	if !ok {
		t.Fatalf("error = %v, want a *provision.Failure with code %s", err, code)
	}
	if failure.Code != code {
		t.Errorf("code = %s (%s), want %s", failure.Code, failure.Message, code)
	}
	return failure
}

// wantContains looks for words: the engine's colours and frames do not count.
func wantContains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	var words strings.Builder
	for l := range strings.Lines(runlog.Plain(got)) {
		if !strings.HasPrefix(l, "╷") && !strings.HasPrefix(l, "╵") {
			words.WriteString(plain(l) + l[len(strings.TrimRight(l, "\r\n")):])
		}
	}
	got = words.String()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%s = %q, want it to contain %q", what, got, part)
		}
	}
}

func TestNothingIsInherited(t *testing.T) {
	t.Setenv("TENDRIL_API_TOKEN", "tnd_secret")
	t.Setenv("TF_VAR_from_agent", "x")
	f, r := newFake(t, "environment", Options{Env: []string{
		"KEEP=1", "TF_VAR_a=1", "TF_CLI_ARGS=-x", "TF_CLI_ARGS_plan=-x", "TF_LOG=TRACE", "TF_LOG_PATH=/tmp/x", "TF_INPUT=1",
		"TF_WORKSPACE=other", "TF_IN_AUTOMATION=0", "TF_REATTACH_PROVIDERS={}", "TF_CLI_CONFIG_FILE=/does/not/exist", "broken",
	}})
	if err := r.Init(t.Context(), InitOptions{}); err != nil {
		t.Fatal(err)
	}
	got := "\n" + f.read("environ")
	wantContains(t, "environment", got, "\nKEEP=1\n", "\nTF_IN_AUTOMATION=1\n", "\nCHECKPOINT_DISABLE=1\n")
	for _, unwanted := range []string{"tnd_secret", "\nPATH=", "TF_VAR_", "TF_CLI_", "TRACE", "\nTF_INPUT=", "\nTF_WORKSPACE=", "REATTACH", "\nTF_LOG"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("environment = %q, want it without %q", got, unwanted)
		}
	}
}

func TestNilEnvironmentIsEmpty(t *testing.T) {
	t.Parallel()
	if got := engineEnv(nil); got == nil || len(got) != 2 || got["CHECKPOINT_DISABLE"] != "1" || got["TF_IN_AUTOMATION"] != "1" {
		t.Errorf("engineEnv(nil) = %v, want only CHECKPOINT_DISABLE=1 and TF_IN_AUTOMATION=1", got)
	}
	file := filepath.Join(t.TempDir(), "rc")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := engineEnv([]string{"TF_CLI_CONFIG_FILE=" + file}); got["TF_CLI_CONFIG_FILE"] != file {
		t.Errorf("engineEnv(existing TF_CLI_CONFIG_FILE) = %v, want it kept", got)
	}
}

func TestVersionIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "environment", Options{})
	_ = r.Init(t.Context(), InitOptions{})
	_, _ = r.Plan(t.Context(), PlanOptions{Out: "p", RefreshOnly: true})
	_, _ = r.ShowPlan(t.Context(), "p")
	_, _ = r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
	var commands []string
	for call := range strings.Lines(f.read("calls")) {
		commands = append(commands, strings.Fields(call)[0])
	}
	if got, want := strings.Join(commands, " "), "init plan show apply"; got != want {
		t.Errorf("engine calls = %q, want %q", got, want)
	}
}

func TestBackendConfigStaysOutOfArguments(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "environment", Options{})
	if err := r.Init(t.Context(), InitOptions{BackendConfig: map[string]string{"password": "hunter2"}}); err != nil {
		t.Fatal(err)
	}
	_, file, found := strings.Cut(f.read("calls"), "-backend-config=")
	if !found || strings.Contains(f.read("calls"), "hunter2") {
		t.Fatalf("init call = %q, want a -backend-config file and no value", f.read("calls"))
	}
	if _, err := os.Stat(strings.Fields(file)[0]); !os.IsNotExist(err) {
		t.Errorf("Stat(%s) error = %v, want the file gone after init", file, err)
	}
}

// countingWriter counts bytes and, now and then, what is alive on the heap.
type countingWriter struct {
	bytes, measured int
	heap            uint64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.bytes += len(p); w.bytes-w.measured > 8<<20 {
		w.measured = w.bytes
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		w.heap = max(w.heap, stats.HeapAlloc)
	}
	return len(p), nil
}

// Not parallel: it measures the heap.
func TestFloodCostsNoMemory(t *testing.T) {
	const limit = 24 << 20
	for _, mode := range []string{"floods-stdout", "floods-stderr"} {
		for _, command := range []string{"plan", "apply"} {
			t.Run(mode+" in "+command, func(t *testing.T) {
				var w countingWriter
				_, r := newFake(t, mode, Options{Stdout: &w, Stderr: &w})
				var err error
				if command == "plan" {
					_, err = r.Plan(t.Context(), PlanOptions{Out: "p"})
				} else {
					_, err = r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
				}
				if err != nil {
					t.Errorf("error = %v, want nil", err)
				}
				if w.bytes != floodBytes {
					t.Errorf("%d bytes came through, want %d", w.bytes, floodBytes)
				}
				if w.heap > limit {
					t.Errorf("heap = %d bytes during the flood, want at most %d", w.heap, limit)
				}
			})
		}
	}
}

func TestMegabyteLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	_, r := newFake(t, "long-line", Options{Stdout: &out})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"}); err != nil {
		t.Fatal(err)
	}
	if want := "terraform_data.a (local-exec): " + strings.Repeat("x", 1<<20) + "\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("output has %d bytes and begins %.60q, want the whole line of %d", out.Len(), out.String(), len(want))
	}
}

func TestGarbageIsShownAndTornEventsAreNot(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	_, r := newFake(t, "garbage", Options{Stdout: &stdout, Stderr: &stderr})
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
	if err != nil || applied.Add != 1 {
		t.Errorf("Apply() = %+v, %v, want 1 added and no error", applied, err)
	}
	wantContains(t, "stdout", stdout.String(), "this is no JSON\n{\"some\":\"other program\"}\n[1,2\n\nApply complete!")
	wantContains(t, "stderr", stderr.String(), "damaged and not shown")
	if strings.Contains(stdout.String()+stderr.String(), "hunter2") {
		t.Error("a torn outputs event was shown with its secret")
	}
}

func TestOpenTofuEvents(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	_, r := newFake(t, "tofu", Options{Stdout: &out})
	var events []Event
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p", Steps: 1, On: func(e Event) {
		if e.Secrets != nil && strings.Contains(out.String(), "Outputs:") {
			t.Error("the outputs were printed before their secrets were handed over")
		}
		events = append(events, e)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || events[0].Percent() != 100 || events[0].Resource.Seconds != 2 || fmt.Sprint(events[1].Secrets) != "[hunter2]" {
		t.Errorf("events = %+v, want a finished resource at 100 %% and the secret hunter2", events)
	}
	if got := applied.Outputs["password"]; !got.Sensitive || got.Value != nil {
		t.Errorf("output password = %+v, want a marker without a value", got)
	}
	if got := string(applied.Outputs["name"].Value); got != `"acme"` {
		t.Errorf("output name = %s, want \"acme\"", got)
	}
	if applied.Changed["terraform_data.a"] != "i-1" {
		t.Errorf("changed = %v, want terraform_data.a with id i-1", applied.Changed)
	}
	r.PrintOutputs(applied)
	wantContains(t, "stdout", out.String(), "\nOutputs:\n\nname = \"acme\"\npassword = <sensitive>\n")
}

func TestUnknownMajorOfTheUIIsRefused(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "ui-2", Options{})
	_, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
	failure := wantCode(t, err, provision.CodeEngineMissing)
	wantContains(t, "message", failure.Message, `version "2.0"`, "older engine")
	if got := f.lines("interrupts"); got != 1 {
		t.Errorf("the engine got %d interrupts, want 1", got)
	}
}

func TestLockedStateInEvents(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	_, r := newFake(t, "locked", Options{Stderr: &stderr})
	_, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
	failure := wantCode(t, err, provision.CodeStateLocked)
	wantContains(t, "message", failure.Message, "ann@laptop", "since 2026-01-02 03:04:05 UTC", "bucket/key", "for plan", "terraform force-unlock 4c8f-77")
	wantContains(t, "stderr", stderr.String(), "Error: Error acquiring the state lock\n\nError message: conflict\nLock Info:")
}

func TestEnginesThatEndBadly(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"crashes":   "terraform plan failed (exit status 11): panic: runtime error: index out of range",
		"is-killed": "terraform plan was ended by SIGKILL",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			_, r := newFake(t, mode, Options{})
			_, err := r.Plan(t.Context(), PlanOptions{Out: "p"})
			wantContains(t, "message", wantCode(t, err, provision.CodePlanFailed).Message, want)
		})
	}
}

// An engine that was out of memory says so with the limit, and so does one whose provider
// was, which it knows only as a plugin that went away.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string][]string{
		"out-of-memory":          {"terraform plan was ended by SIGKILL", "Out of memory", "limited to 512 MiB"},
		"provider-out-of-memory": {"Plugin did not respond", "Out of memory", "limited to 512 MiB"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f, r := newFake(t, mode, Options{})
			for name, content := range map[string]string{"self": "0::/\n", "memory.events": "oom_kill 4\n", "memory.max": "536870912\n"} {
				if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r.memory = cgroup.Find(filepath.Join(f.dir, "self"), f.dir)
			_, err := r.Plan(t.Context(), PlanOptions{Out: "p"})
			wantContains(t, "message", wantCode(t, err, provision.CodePlanFailed).Message, want...)
		})
	}
}

func TestErrorTextIsBounded(t *testing.T) {
	t.Parallel()
	_, r := newFake(t, "fails-long", Options{})
	_, err := r.Plan(t.Context(), PlanOptions{Out: "p"})
	got := wantCode(t, err, provision.CodePlanFailed).Message
	wantContains(t, "message", got[:200], "terraform plan failed on main.tf line 3: Too much: éé")
	if len(got) > maxMessage+100 || !utf8.ValidString(got) {
		t.Errorf("message has %d bytes, valid UTF-8 %v, want at most %d and valid", len(got), utf8.ValidString(got), maxMessage+100)
	}
}

// Who stops reading when a writer fails has the engine block for ever.
func TestBrokenOutputDoesNotStopTheEngine(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	var mu sync.Mutex
	writes := 0
	broken := writerError(func() error {
		mu.Lock()
		defer mu.Unlock()
		writes++
		return full
	})
	_, r := newFake(t, "long-line", Options{Stdout: broken})
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"})
	if !errors.Is(err, ErrOutput) || !errors.Is(err, full) || applied.Add != 1 {
		t.Errorf("Apply() = %+v, %v, want 1 added and %q", applied, err, ErrOutput)
	}
	if writes < 2 {
		t.Errorf("%d writes, want every one tried", writes)
	}
}

type writerError func() error

func (w writerError) Write([]byte) (int, error) { return 0, w() }

var _ io.Writer = writerError(nil)

func TestEngineThatCannotStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "terraform")
	// Written by another process: what another test starts meanwhile would inherit
	// our descriptor, and the program be busy.
	if out, err := exec.Command("install", "-m", "700", "pitfalls_test.go", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := New(Engine{Kind: Terraform, Path: path, Version: "1.11.4"}, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Init(t.Context(), InitOptions{})
	wantContains(t, "message", wantCode(t, err, provision.CodeEngineMissing).Message, path, "exec format error")
}

// A program that is still open for writing, in a process that was started while
// it was written, is asked again.
func TestBusyProgramIsAskedAgain(t *testing.T) {
	t.Parallel()
	content := testBinary(t)
	path := filepath.Join(t.TempDir(), Terraform)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() { closed <- file.Close() })
	if got, err := askVersion(t.Context(), path); err != nil || got == "" {
		t.Errorf("askVersion(a program still open for writing) = %q, %v, want its version", got, err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}
