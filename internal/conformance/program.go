package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/provisioner"
)

// resolve makes a command independent of the directory that it is started in: its program is
// looked up, and arguments that name a file here become absolute.
func resolve(command []string) ([]string, error) {
	if len(command) == 0 {
		return nil, errors.New("no command was given")
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, fmt.Errorf("find the provisioner %q: %w", command[0], err)
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the provisioner %q: %w", command[0], err)
	}
	resolved := []string{path}
	for _, arg := range command[1:] {
		if _, err := os.Stat(arg); err == nil && !strings.HasPrefix(arg, "-") {
			if absolute, err := filepath.Abs(arg); err == nil {
				arg = absolute
			}
		}
		resolved = append(resolved, arg)
	}
	return resolved, nil
}

// process is a provisioner that was started.
type process struct {
	cmd    *exec.Cmd
	in     *input
	out    *tap
	stderr *tail

	mu    sync.Mutex
	ended bool // its process id may belong to another by now
}

// begin starts a command in a directory, in a process group of its own.
func begin(command []string, dir string) (*process, error) {
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...) // ended by end
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // for a stderr that something left behind keeps open
	p := &process{cmd: cmd, stderr: &tail{}}
	cmd.Stderr = p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	p.in, p.out = &input{WriteCloser: in}, &tap{from: out}
	return p, nil
}

// kill ends the program and all that it started, at once.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// end ends the program after a conversation and returns its exit status. A program that has
// closed its stdout is given time to exit, so that its status can be told.
func (p *process) end(talked error) int {
	var v *protocol.ViolationError
	ended := errors.As(talked, &v) && (v.Kind == protocol.NoResult || v.Kind == protocol.HalfLine)
	if talked != nil && !ended {
		p.kill()
	}
	late := time.AfterFunc(provisioner.ExitTime, p.kill)
	_ = p.cmd.Wait() // the status has it
	late.Stop()
	p.kill() // what it left behind
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	return p.cmd.ProcessState.ExitCode()
}

// streams are the program's stdin and stdout.
func (p *process) streams() protocol.Program {
	return protocol.Program{In: p.in, Out: p.out}
}

// input is a program's stdin. It may replace the first line, or be closed after it.
type input struct {
	io.WriteCloser
	replace []byte
	closes  bool
	began   bool
}

func (i *input) Write(text []byte) (int, error) {
	n := len(text)
	if !i.began && i.replace != nil {
		text = i.replace
	}
	first := !i.began
	i.began = true
	if _, err := i.WriteCloser.Write(text); err != nil {
		return 0, err
	}
	if first && i.closes {
		_ = i.Close()
	}
	return n, nil
}

// tap is a program's stdout, of which it keeps the beginning. after is called once a
// number of lines have come.
type tap struct {
	from io.ReadCloser

	mu    sync.Mutex
	kept  strings.Builder
	lines int
	at    int // call after at this line
	after func()
}

// keptBytes is how much of an output is kept to be shown.
const keptBytes = 256 << 10

func (t *tap) Read(into []byte) (int, error) {
	n, err := t.from.Read(into)
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := keptBytes - t.kept.Len(); left > 0 {
		t.kept.Write(into[:min(n, left)])
	}
	t.lines += strings.Count(string(into[:n]), "\n")
	if t.after != nil && t.lines >= t.at {
		t.after()
		t.after = nil
	}
	return n, err
}

func (t *tap) Close() error { return t.from.Close() }

func (t *tap) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.String()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(text []byte) (int, error) {
	const most = 2000
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text[max(0, len(text)-most):]...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
