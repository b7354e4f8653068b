// Package static hands out machines that exist already. Which workspace has which one is the
// database's to say, by a reservation: here a machine is checked before it is handed out, and
// made as new by the pool's own command when it is taken back.
//
// It must not know what a run does with a machine, nor keep anything itself.
package static

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/timelimit"
	"github.com/tendril-run/tendril/provisioner"
)

// Driver is a pool of machines that exist.
type Driver struct{ config pool.Config }

var _ pool.Driver = (*Driver)(nil)

// Open returns the driver of a static pool.
func Open(c pool.Config) (*Driver, error) {
	if len(c.Machines) == 0 {
		return nil, errors.New("it has no machines")
	}
	return &Driver{config: c}, nil
}

const (
	// dialTime bounds one try to reach a machine.
	dialTime = 5 * time.Second
	// defaultCores and defaultMemory (MiB) are those of a machine that is listed without.
	defaultCores, defaultMemory = 1024, 16 << 20
	// cleanTime is how long the clean-up command may take.
	cleanTime = time.Hour
	// maxLine is how many bytes of a line of the clean-up command are shown.
	maxLine = 4 << 10
)

// List implements pool.Driver. A machine is a node of its own. None is asked: that one can't be
// reached now is found out when it is handed out.
func (d *Driver) List(context.Context) (found pool.Inventory, err error) {
	for _, m := range d.config.Machines {
		n := pool.Node{Name: m.Name, Online: true, Cores: m.Cores, Memory: m.Memory, Labels: m.Labels}
		if n.Cores == 0 {
			n.Cores = defaultCores
		}
		if n.Memory == 0 {
			n.Memory = defaultMemory
		}
		found.Nodes = append(found.Nodes, n)
	}
	return found, nil
}

func (d *Driver) machine(name string) (pool.StaticMachine, error) {
	for _, m := range d.config.Machines {
		if m.Name == name {
			return m, nil
		}
	}
	return pool.StaticMachine{}, fmt.Errorf("the pool %s has no machine %q any more: put it back into the agent's configuration", d.config.Name, name)
}

// Look implements pool.Driver: a machine that was handed out is there.
func (d *Driver) Look(_ context.Context, ref pool.Ref) (pool.Found, error) {
	if ref.Node == "" {
		return pool.Found{}, fmt.Errorf("the machine %s: %w", ref.Name, pool.ErrGone)
	}
	m, err := d.machine(ref.Node)
	if err != nil {
		return pool.Found{}, fmt.Errorf("%w: %w", pool.ErrUnreachable, err)
	}
	return found(ref.ID, m), nil
}

func found(mark string, m pool.StaticMachine) pool.Found {
	return pool.Found{Mark: mark, ExternalID: m.Name, Name: m.Name, Node: m.Name, Status: provisioner.StatusRunning, Addresses: []netip.Addr{m.Address}, Ready: true}
}

// Create implements pool.Driver: it waits until the machine answers on its SSH port.
func (d *Driver) Create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	m, err := d.machine(spec.Node)
	if err != nil {
		return pool.Found{}, err
	}
	if spec.Init.Wait != "none" {
		progress.Step("reach", "Waiting until the machine answers", 0)
		if err := d.reach(ctx, m); err != nil {
			return pool.Found{}, err
		}
		progress.Step("reach", "Waiting until the machine answers", 100)
	}
	return found(spec.ID, m), nil
}

// port is where a machine's SSH server listens.
func port(m pool.StaticMachine) int {
	if m.SSHPort == 0 {
		return 22
	}
	return m.SSHPort
}

// reach tries for the pool's time limit.
func (d *Driver) reach(ctx context.Context, m pool.StaticMachine) error {
	limited, cancel := timelimit.Context(ctx, d.config.Timeout)
	defer cancel()
	address := net.JoinHostPort(m.Address.String(), strconv.Itoa(port(m)))
	for {
		connection, err := (&net.Dialer{Timeout: dialTime}).DialContext(limited, "tcp", address)
		if err == nil {
			return connection.Close()
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("the machine %s of the pool %s did not answer at %s within %s: %w. Start it, or take it out of the agent's configuration", m.Name, d.config.Name, address, d.config.Timeout, err)
		case <-time.After(time.Second):
		}
	}
}

// Change implements pool.Driver: a machine that exists is as it is.
func (d *Driver) Change(ctx context.Context, ref pool.Ref, _ pool.Spec, _ pool.Progress) (pool.Found, error) {
	return d.Look(ctx, ref)
}

var errPower = errors.New("the machines of a static pool are started and stopped elsewhere")

// Power implements pool.Driver.
func (d *Driver) Power(context.Context, pool.Ref, provisioner.PowerAction, pool.Progress) (pool.Found, error) {
	return pool.Found{}, errPower
}

// Destroy implements pool.Driver: the pool's command makes the machine as new. It is the
// operator's, and runs without a shell.
func (d *Driver) Destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	if len(d.config.Clean) == 0 || ref.Node == "" {
		return nil
	}
	m, err := d.machine(ref.Node)
	if err != nil {
		return err
	}
	progress.Step("clean", "Making the machine as new", 0)
	ctx, cancel := timelimit.Context(ctx, cleanTime)
	defer cancel()
	command := exec.CommandContext(ctx, d.config.Clean[0], d.config.Clean[1:]...)
	command.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TENDRIL_MACHINE=" + ref.Name, "TENDRIL_MACHINE_ID=" + ref.ID, "TENDRIL_NODE=" + m.Name,
		"TENDRIL_ADDRESS=" + m.Address.String(), "TENDRIL_SSH_PORT=" + strconv.Itoa(port(m)),
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	out, in := io.Pipe()
	command.Stdout, command.Stderr = in, in
	told := make(chan struct{})
	go func() {
		defer close(told)
		lines := bufio.NewScanner(out)
		lines.Buffer(make([]byte, maxLine), maxLine)
		for lines.Scan() {
			progress.Log("%s", lines.Text())
		}
		_, _ = io.Copy(io.Discard, out) // after a line that is too long
	}()
	err = command.Run()
	_ = in.Close() // never fails
	<-told
	if err != nil {
		return fmt.Errorf("the command %s of the pool %s, which makes the machine %s as new, failed: %w. The machine stays this workspace's; destroy it again", d.config.Clean[0], d.config.Name, m.Name, timelimit.Why(ctx, err))
	}
	progress.Step("clean", "Making the machine as new", 100)
	return nil
}

// Exec implements pool.Driver.
func (d *Driver) Exec(context.Context, pool.Ref, string, pool.Progress) error { return pool.ErrNoExec }

// Login implements pool.Driver. Machines that exist already get no key of ours: the operator has
// given the agent one, and written down by which host key each machine is known.
func (d *Driver) Login(_ context.Context, ref pool.Ref, _ pool.Init) (pool.Login, error) {
	m, err := d.machine(ref.Node)
	switch {
	case err != nil:
		return pool.Login{}, err
	case d.config.SSHKey == "" || m.HostKey == "":
		return pool.Login{}, fmt.Errorf("the pool %s has no ssh_key_file, or its machine %s no host_key, in the agent's configuration: %w", d.config.Name, m.Name, pool.ErrNoSSH)
	}
	return pool.Login{User: d.config.SSHUser, Key: d.config.SSHKey, Port: port(m), HostKeys: []string{m.HostKey}}, nil
}

// Check implements pool.Driver.
func (d *Driver) Check(ctx context.Context) (findings []pool.Finding) {
	for _, m := range d.config.Machines {
		limited, cancel := timelimit.Context(ctx, dialTime)
		err := (&Driver{config: pool.Config{Name: d.config.Name, Timeout: dialTime}}).reach(limited, m)
		cancel()
		f := pool.Finding{What: "machine " + m.Name, Detail: m.Address.String()}
		if err != nil {
			f.Problem, f.Warning = err.Error(), true
			f.Detail = fmt.Sprintf("start %s, and see that this agent reaches %s", m.Name, m.Address)
		}
		findings = append(findings, f)
	}
	return findings
}

// Settings implements pool.Driver: there are none.
func (d *Driver) Settings(raw json.RawMessage) error {
	var settings map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &settings) == nil && len(settings) == 0 {
		return nil
	}
	return errors.New("a static pool has no settings")
}

// Close implements pool.Driver.
func (d *Driver) Close() error { return nil }
