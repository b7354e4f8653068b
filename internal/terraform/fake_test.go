package terraform

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// What a fake engine is told through its environment.
const (
	fakeMode = "FAKE_ENGINE" // which fake to play
	fakeDir  = "FAKE_DIR"    // where it keeps notes, and looks for "release"
)

// playEngine is a fake engine's main.
func playEngine() int {
	note("calls", strings.Join(os.Args[1:], " "))
	if os.Args[1] == "version" {
		return playVersion()
	}
	play, ok := fakes[os.Getenv(fakeMode)]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such fake:", os.Getenv(fakeMode))
		return 99
	}
	return play()
}

// playVersion answers from a file beside the binary, which also counts the
// questions, because the environment is empty then.
func playVersion() int {
	self, _ := os.Executable()
	version, err := os.ReadFile(filepath.Join(filepath.Dir(self), "fake-version"))
	if err != nil {
		version = []byte("1.2.3")
	}
	// What a test cannot write to, it does not count.
	_ = appendLine(filepath.Join(filepath.Dir(self), "asked"), "version")
	if _, err := os.Stat(filepath.Join(filepath.Dir(self), "fake-hang")); err == nil {
		return sleepLong()
	}
	fmt.Printf(`{"terraform_version":%q,"provider_selections":{}}`+"\n", version)
	return 0
}

const (
	uiVersion = `{"@level":"info","@message":"Terraform 1.11.4","@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05Z","terraform":"1.11.4","type":"version","ui":"1.2"}`
	uiDone    = `{"@level":"info","@message":"Apply complete! Resources: 1 added, 0 changed, 0 destroyed.","@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05Z","changes":{"add":1,"change":0,"import":0,"remove":0,"operation":"apply"},"type":"change_summary"}`
)

const (
	floodLine  = 1000                             // bytes of a flood's line
	floodBytes = 60 << 20 / floodLine * floodLine // of a flood
)

var fakes = map[string]func() int{
	// ends a while after its first interrupt, and counts them all
	"counts-interrupts": func() int {
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, os.Interrupt)
		fmt.Println(uiVersion)
		note("pid", strconv.Itoa(os.Getpid()))
		for {
			select {
			case <-signals:
				note("interrupts", "INT")
			case <-time.After(5 * time.Millisecond):
				if released() {
					return 1
				}
			}
		}
	},
	// finishes its work although it was interrupted
	"finishes": func() int {
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, os.Interrupt)
		fmt.Println(uiVersion)
		note("pid", strconv.Itoa(os.Getpid()))
		<-signals
		fmt.Println(uiDone)
		return 0
	},
	// ignores the interrupt, and has a grandchild that holds its stdout
	"stubborn": func() int {
		signal.Ignore(os.Interrupt)
		leaveGrandchild()
		fmt.Println(uiVersion)
		note("pid", strconv.Itoa(os.Getpid()))
		return sleepLong()
	},
	// ends, and leaves a grandchild that holds its stdout
	"leaves": func() int {
		fmt.Println(uiDone)
		leaveGrandchild()
		return 0
	},
	"sleeps": func() int { return sleepLong() },
	"waits": func() int {
		fmt.Println(uiVersion)
		note("pid", strconv.Itoa(os.Getpid()))
		for !released() {
			time.Sleep(5 * time.Millisecond)
		}
		fmt.Println(uiDone)
		return 0
	},
	"floods-stdout": func() int { return flood(os.Stdout) },
	"floods-stderr": func() int { return flood(os.Stderr) },
	"long-line": func() int {
		fmt.Println(uiVersion)
		fmt.Printf(`{"@level":"info","@message":"x","@timestamp":"2026-01-02T03:04:05Z","hook":{"resource":{"addr":"terraform_data.a"},"provisioner":"local-exec","output":"%s"},"type":"provision_progress"}`+"\n", strings.Repeat("x", 1<<20))
		fmt.Println(uiDone)
		return 0
	},
	"garbage": func() int {
		fmt.Println("this is no JSON")
		fmt.Println(`{"some":"other program"}`)
		fmt.Println(`[1,2`)
		fmt.Println(uiDone)
		fmt.Print(`{"@level":"info","@message":"Outputs: 1","outputs":{"password":{"sensitive":true,"value":"hunter2-torn`)
		return 0
	},
	"tofu": func() int {
		fmt.Println(`{"@level":"info","@message":"OpenTofu 1.9.0","@module":"tofu.ui","@timestamp":"2026-01-02T03:04:05.000000+01:00","tofu":"1.9.0","type":"version","ui":"1.7"}`)
		fmt.Println(`{"@level":"info","@message":"a: Creation complete after 2s [id=i-1]","@module":"tofu.ui","@timestamp":"2026-01-02T03:04:05.000000+01:00","hook":{"resource":{"addr":"terraform_data.a"},"action":"create","id_key":"id","id_value":"i-1","elapsed_seconds":2},"type":"apply_complete"}`)
		fmt.Println(`{"@level":"info","@message":"Outputs: 2","@module":"tofu.ui","outputs":{"password":{"sensitive":true,"type":"string","value":"hunter2"},"name":{"sensitive":false,"type":"string","value":"acme"}},"type":"outputs"}`)
		return 0
	},
	"ui-2": func() int {
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, os.Interrupt)
		fmt.Println(strings.Replace(uiVersion, `"ui":"1.2"`, `"ui":"2.0"`, 1))
		<-signals
		note("interrupts", "INT")
		return 1
	},
	"locked": func() int {
		fmt.Println(`{"@level":"error","@message":"Error: Error acquiring the state lock","@module":"terraform.ui","diagnostic":{"severity":"error","summary":"Error acquiring the state lock","detail":"Error message: conflict\nLock Info:\n  ID:        4c8f-77\n  Path:      bucket/key\n  Operation: OperationTypePlan\n  Who:       ann@laptop\n  Version:   1.11.4\n  Created:   2026-01-02 03:04:05.678 +0000 UTC\n  Info:      \n"},"type":"diagnostic"}`)
		return 1
	},
	"crashes": func() int {
		fmt.Fprintln(os.Stderr, "panic: runtime error: index out of range")
		return 11
	},
	"is-killed": func() int {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return sleepLong()
	},
	"out-of-memory": func() int {
		_ = os.WriteFile(filepath.Join(os.Getenv(fakeDir), "memory.events"), []byte("oom_kill 5\n"), 0o600)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return sleepLong()
	},
	"provider-out-of-memory": func() int {
		_ = os.WriteFile(filepath.Join(os.Getenv(fakeDir), "memory.events"), []byte("oom_kill 5\n"), 0o600)
		fmt.Fprintf(os.Stderr, "\nError: Plugin did not respond\n\nThe plugin encountered an error, and failed to respond.\n")
		return 1
	},
	"fails-long": func() int {
		fmt.Fprintf(os.Stderr, "\nError: Too much\n\n  on main.tf line 3, in resource \"a\" \"b\":\n   3: resource \"a\" \"b\" {\n\n%s\n\nError: Another\n\nMore.\n", strings.Repeat("é", 40<<10))
		return 1
	},
	// leaves the lock file that the test has put beside the notes, if any
	"locks": func() int {
		content, err := os.ReadFile(filepath.Join(os.Getenv(fakeDir), "lock"))
		if err == nil {
			err = os.WriteFile(providers.LockFileName, content, 0o600)
		} else {
			err = os.Remove(providers.LockFileName)
		}
		if err != nil {
			panic(err)
		}
		fmt.Println("done")
		return 0
	},
	"environment": func() int {
		env := os.Environ()
		slices.Sort(env)
		note("environ", strings.Join(env, "\n"))
		return 0
	},
}

// sleepLong outlasts any test, yet not for ever, should a test fail to end it.
func sleepLong() int {
	time.Sleep(5 * time.Minute)
	return 0
}

func flood(to *os.File) int {
	w := bufio.NewWriterSize(to, 1<<16)
	line := append([]byte(strings.Repeat("f", floodLine-1)), '\n')
	for range floodBytes / floodLine {
		_, _ = w.Write(line)
	}
	_ = w.Flush()
	return 0
}

// leaveGrandchild starts a process in a session of its own that inherits
// stdout and stderr.
func leaveGrandchild() {
	self, _ := os.Executable()
	child := exec.Command(self, "apply")
	child.Env = append(os.Environ(), fakeMode+"=sleeps")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		panic(err)
	}
	note("grandchild", strconv.Itoa(child.Process.Pid))
}

// note adds a line to a file that the test reads.
func note(name, text string) {
	dir := os.Getenv(fakeDir)
	if dir == "" {
		return
	}
	if err := appendLine(filepath.Join(dir, name), text); err != nil {
		panic(err)
	}
}

func appendLine(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}

func released() bool {
	_, err := os.Stat(filepath.Join(os.Getenv(fakeDir), "release"))
	return err == nil
}

// fake is a fake engine's side of a test.
type fake struct {
	t   *testing.T
	dir string
}

// newFake returns a Runner whose engine plays mode. Options may be changed.
func newFake(t *testing.T, mode string, opts Options) (fake, *Runner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := fake{t: t, dir: t.TempDir()}
	opts.Dir = t.TempDir()
	opts.Env = append(opts.Env, fakeMode+"="+mode, fakeDir+"="+f.dir)
	r, err := New(Engine{Kind: Terraform, Path: self, Version: "1.11.4"}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return f, r
}

func (f fake) read(name string) string {
	content, _ := os.ReadFile(filepath.Join(f.dir, name))
	return string(content)
}

// lines counts what the fake noted under a name.
func (f fake) lines(name string) int { return strings.Count(f.read(name), "\n") }

// await waits for the fake to note something and returns the first line.
func (f fake) await(name string) string {
	f.t.Helper()
	var first string
	patience.Await(f.t, "the fake notes "+name, func() bool {
		var ok bool
		first, _, ok = strings.Cut(f.read(name), "\n")
		return ok
	})
	return first
}

func (f fake) awaitPID(name string) int {
	f.t.Helper()
	pid, err := strconv.Atoi(f.await(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return pid
}

func (f fake) release() {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "release"), nil, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}
