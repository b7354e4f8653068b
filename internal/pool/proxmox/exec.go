package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/retry"
)

// Exec runs a shell command by the guest's agent. What it prints is known at its end only: the
// agent keeps it until then, and at most 16 MiB of it.
func (d *Driver) Exec(ctx context.Context, ref pool.Ref, command string, progress pool.Progress) error {
	g, err := d.find(ctx, ref)
	if err != nil {
		return d.advised(fmt.Errorf("machine %s: %w", ref.Name, err))
	}
	if !g.agent() {
		return fmt.Errorf("%s has no guest agent configured, by which commands run; install qemu-guest-agent in its image and set its option (qm set %d --agent 1): %w", g, g.id, pool.ErrNoExec)
	}
	if err := d.exec(ctx, g, command, progress); err != nil {
		var exit *pool.ExitError
		if errors.As(err, &exit) {
			return exit
		}
		return d.advised(fmt.Errorf("machine %s: running a command by its guest agent: %w", ref.Name, err))
	}
	return nil
}

func (d *Driver) exec(ctx context.Context, g *guest, command string, progress pool.Progress) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.limits.exec, errStepTime)
	defer cancel()
	waits := retry.Between(d.client.scaled(time.Second), d.client.scaled(5*time.Second))
	var started struct {
		PID number `json:"pid"`
	}
	// The agent may start later than the machine. An answer that was lost is no reason to run
	// the command again.
	for tries := 1; ; tries++ {
		_, err := d.client.once(ctx, http.MethodPost, g.path()+"/agent/exec", url.Values{"command": {"/bin/sh", "-c", command}}, &started)
		if err == nil {
			break
		}
		if !says(err, "QEMU guest agent is not running") && !says(err, "got timeout") || tries == 4*mostTries || !retry.Sleep(ctx, waits.NextBackOff()) {
			return err
		}
	}
	pid := url.Values{"pid": {strconv.Itoa(int(started.PID))}}
	waits.Reset()
	for {
		var st struct {
			Exited    number `json:"exited"`
			Code      number `json:"exitcode"`
			Signal    number `json:"signal"`
			Out       string `json:"out-data"`
			Err       string `json:"err-data"`
			Truncated number `json:"out-truncated"`
		}
		if err := d.client.get(ctx, g.path()+"/agent/exec-status", pid, &st); err != nil {
			return err
		}
		if st.Exited == 1 {
			told := 0
			for _, text := range []string{st.Out, st.Err} {
				for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
					if told++; line != "" && told <= mostLines {
						progress.Log("%s", cut(printable.Text(line)))
					}
				}
			}
			if st.Truncated == 1 || told > mostLines {
				progress.Log("the command printed more than is kept")
			}
			if st.Signal != 0 {
				return &pool.ExitError{Status: 128 + int(st.Signal)}
			}
			if st.Code != 0 {
				return &pool.ExitError{Status: int(st.Code)}
			}
			return nil
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			return fmt.Errorf("the command still runs after %s: %w", d.limits.exec, context.Cause(ctx))
		}
	}
}

func cut(line string) string {
	if r := []rune(line); len(r) > mostLine {
		return string(r[:mostLine]) + "…"
	}
	return line
}

// hostKeyFiles are where a guest has its host keys, the best first.
var hostKeyFiles = []string{"/etc/ssh/ssh_host_ed25519_key.pub", "/etc/ssh/ssh_host_ecdsa_key.pub", "/etc/ssh/ssh_host_rsa_key.pub"}

// Login says how to sign in to a machine. Proxmox gives a guest no host key of ours (its
// cloud-init knows user, password and keys alone), so the machine's own is read by the guest's
// agent, through the node whose certificate was checked. An agent can be let read files and run
// no commands, and a token have VM.GuestAgent.FileRead without the right to run any.
func (d *Driver) Login(ctx context.Context, ref pool.Ref, init pool.Init) (pool.Login, error) {
	if init.Keys == nil {
		return pool.Login{}, fmt.Errorf("machine %s was made without keys for this: %w", ref.Name, pool.ErrNoSSH)
	}
	g, err := d.find(ctx, ref)
	if err != nil {
		return pool.Login{}, d.advised(fmt.Errorf("machine %s: %w", ref.Name, err))
	}
	if !g.agent() {
		return pool.Login{}, fmt.Errorf("%s has no guest agent configured, which tells its host key, so that nobody could know who answers; install qemu-guest-agent in its image and set its option (qm set %d --agent 1): %w", g, g.id, pool.ErrNoSSH)
	}
	login := pool.Login{User: init.User, Key: init.Keys.Login, Settles: true}
	if login.HostKeys, err = d.hostKeys(ctx, g); err != nil {
		return pool.Login{}, d.advised(fmt.Errorf("machine %s: reading its host key by its guest agent: %w", ref.Name, err))
	}
	return login, nil
}

// mostKey bounds a public key, in bytes.
const mostKey = 4 << 10

// hostKeys reads a guest's, and waits for an agent that starts later than the machine.
func (d *Driver) hostKeys(ctx context.Context, g *guest) (keys []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.limits.agent, errStepTime)
	defer cancel()
	waits := retry.Between(d.client.scaled(time.Second), d.client.scaled(5*time.Second))
	for {
		var missing error
		for _, file := range hostKeyFiles {
			var read struct {
				Content string `json:"content"`
			}
			_, err := d.client.once(ctx, http.MethodGet, g.path()+"/agent/file-read", url.Values{"file": {file}}, &read)
			line := strings.TrimSpace(read.Content)
			switch {
			case err == nil && (len(line) > mostKey || strings.Contains(line, "\n")):
				return nil, fmt.Errorf("%s has more than a public key: %w", file, pool.ErrNoSSH)
			case err == nil && line != "":
				keys = append(keys, line)
			case err == nil: // it is being written
			case says(err, "QEMU guest agent is not running"), says(err, "got timeout"), says(err, "No such file"):
				missing = err
			default:
				return nil, err
			}
		}
		if len(keys) > 0 {
			return keys, nil
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			return nil, errors.Join(pool.ErrNoSSH, missing)
		}
	}
}
