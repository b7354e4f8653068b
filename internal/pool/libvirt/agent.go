package libvirt

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tendril-run/tendril/internal/pool"
)

const (
	// agentTime is how long the guest's agent may take for one answer.
	agentTime = 10 * time.Second
	// maxCommand bounds a command, in bytes.
	maxCommand = 64 << 10
	// readSize is how much of the output is asked for at once.
	readSize = 32 << 10
	// execEvery is the pause between two questions about a command.
	execEvery = 300 * time.Millisecond
)

func randomName() string { return strings.ToLower(rand.Text()[:16]) }

// agentError is what the guest's agent answers when it can't.
type agentError struct{ text string }

func (e agentError) Error() string { return e.text }

// agent asks the guest's agent, and reads what it returns into into.
func (m *machine) agent(ctx context.Context, command string, into any) error {
	answer, err := askWithin(ctx, m.host, m.host.timeout+agentTime, m.host.agents, "asking the agent of "+m.document.Name, func(l *libvirt.Libvirt) (libvirt.OptString, error) {
		return l.QEMUDomainAgentCommand(m.dom, command, int32(agentTime/time.Second), 0)
	})
	if err != nil {
		var said libvirt.Error
		if errors.As(err, &said) && (is(err, libvirt.ErrInternalError) || is(err, libvirt.ErrOperationFailed)) {
			return agentError{said.Message}
		}
		return err
	}
	if len(answer) == 0 || into == nil {
		return nil
	}
	returned := struct {
		Return any `json:"return"`
	}{into}
	if err := json.Unmarshal([]byte(answer[0]), &returned); err != nil {
		return fmt.Errorf("the agent of %s answers what can't be read: %w", m.document.Name, err)
	}
	return nil
}

// call makes a command of the agent's.
func call(name string, arguments any) string {
	text, err := json.Marshal(map[string]any{"execute": name, "arguments": arguments})
	if err != nil {
		panic(err) // of texts and numbers
	}
	return string(text)
}

// Exec implements [pool.Driver]. The agent hands out what a command printed only at its end,
// and all of it at once; so the command prints to a file that has no name any more, which the
// agent has open, and which is read meanwhile.
func (d *driver) Exec(ctx context.Context, ref pool.Ref, command string, progress pool.Progress) error {
	if len(command) > maxCommand {
		return fmt.Errorf("the command has %d bytes, and at most %d are possible", len(command), maxCommand)
	}
	m, err := d.find(ctx, ref)
	if err != nil {
		return err
	}
	if !m.hasAgent() {
		return fmt.Errorf("machine %s has no channel to a guest agent: %w", m.document.Name, pool.ErrNoExec)
	}
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	if !active(state) {
		return fmt.Errorf("machine %s does not run, so no command can", m.document.Name)
	}
	run, err := m.exec(ctx, command)
	if err != nil {
		return m.execError(err)
	}
	defer run.close(ctx)
	lines := pool.Lines{Progress: progress}
	for {
		// The state before the output: what comes after its end is nothing.
		status, err := run.status(ctx)
		if err != nil {
			return m.execError(err)
		}
		if err := run.read(ctx, &lines); err != nil {
			return m.execError(err)
		}
		if status.Exited {
			lines.End()
			return status.result()
		}
		if err := wait(ctx, execEvery); err != nil {
			return fmt.Errorf("a command in machine %s was left running: %w", m.document.Name, err)
		}
	}
}

// Login implements [pool.Driver]. The machine's host key is the one that its seed gives it.
func (d *driver) Login(_ context.Context, ref pool.Ref, init pool.Init) (pool.Login, error) {
	if init.Keys == nil {
		return pool.Login{}, fmt.Errorf("machine %s was made without keys for this: %w", ref.Name, pool.ErrNoSSH)
	}
	return pool.Login{User: init.User, Key: init.Keys.Login, HostKeys: []string{init.Keys.Public(init.Keys.Host)}}, nil
}

// execError says what an agent that does not answer, or refuses, means.
func (m *machine) execError(err error) error {
	var refused agentError
	switch {
	case is(err, libvirt.ErrAgentUnresponsive, libvirt.ErrAgentUnsynced):
		return fmt.Errorf("machine %s: its guest agent does not answer; install and start qemu-guest-agent in its image: %w", m.document.Name, err)
	case errors.As(err, &refused) && (strings.Contains(refused.text, "has not been found") || strings.Contains(refused.text, "disabled") || strings.Contains(refused.text, "has been blocked")):
		return fmt.Errorf("machine %s: its guest agent may run no commands (%s); allow guest-exec and guest-file-* in its configuration: %w", m.document.Name, refused.text, pool.ErrNoExec)
	case errors.As(err, &refused):
		return fmt.Errorf("machine %s: its guest agent: %w", m.document.Name, refused)
	}
	return err
}

// hasAgent says whether the domain has the agent's channel.
func (m *machine) hasAgent() bool {
	if m.document.Devices == nil {
		return false
	}
	for _, each := range m.document.Devices.Channels {
		if each.Target != nil && each.Target.VirtIO != nil && each.Target.VirtIO.Name == "org.qemu.guest_agent.0" {
			return true
		}
	}
	return false
}

// execution is a command that runs in a machine.
type execution struct {
	m      *machine
	handle int64
	pid    int64
}

// wrapper runs the command $1 with its output in the file $0, which it removes: the agent has
// it open, and nothing is left of it.
const wrapper = `exec >>"$0" 2>&1 </dev/null; rm -f -- "$0"; exec /bin/sh -c "$1"`

func (m *machine) exec(ctx context.Context, command string) (*execution, error) {
	run := &execution{m: m}
	file := "/run/tendril-" + randomName()
	if err := m.agent(ctx, call("guest-file-open", map[string]any{"path": file, "mode": "w+"}), &run.handle); err != nil {
		return nil, err
	}
	var started struct {
		PID int64 `json:"pid"`
	}
	err := m.agent(ctx, call("guest-exec", map[string]any{"path": "/bin/sh", "arg": []string{"-c", wrapper, file, command}}), &started)
	if err != nil {
		run.close(ctx)
		return nil, err
	}
	run.pid = started.PID
	return run, nil
}

// close gives the file back.
func (r *execution) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = r.m.agent(ctx, call("guest-file-close", map[string]any{"handle": r.handle}), nil)
}

type execStatus struct {
	Exited   bool `json:"exited"`
	ExitCode *int `json:"exitcode"`
	Signal   int  `json:"signal"`
}

func (s execStatus) result() error {
	switch {
	case s.Signal != 0:
		return &pool.ExitError{Status: 128 + s.Signal}
	case s.ExitCode != nil && *s.ExitCode != 0:
		return &pool.ExitError{Status: *s.ExitCode}
	}
	return nil
}

func (r *execution) status(ctx context.Context) (execStatus, error) {
	var status execStatus
	err := r.m.agent(ctx, call("guest-exec-status", map[string]any{"pid": r.pid}), &status)
	return status, err
}

// read takes what was printed since the last time. Beyond the limit it is not read any more.
func (r *execution) read(ctx context.Context, into *pool.Lines) error {
	for !into.Full() {
		var got struct {
			Data []byte `json:"buf-b64"`
		}
		if err := r.m.agent(ctx, call("guest-file-read", map[string]any{"handle": r.handle, "count": readSize}), &got); err != nil {
			return err
		}
		if len(got.Data) == 0 {
			return nil
		}
		_, _ = into.Write(got.Data) // it never fails
	}
	into.Cut()
	return nil
}
