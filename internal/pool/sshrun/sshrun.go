// Package sshrun runs shell commands in a machine over SSH, for machines whose hypervisor has no
// way of its own.
//
//	Dial ── an address ── host key is a known one? ── our key ──► Client ── Run, one after another
//	  ▲ │ no answer yet: the next address, until the time is over
//	  └─┘
//
// A machine is known by its host key, and never trusted at first sight: addresses are told by
// guests and leases, and another machine there would get the commands with what is secret in
// them. Where the key comes from is the pool's to know. A machine whose first start reads our
// cloud-init document is given one by it (libvirt); one whose hypervisor reads a guest's files
// over its own authenticated API is asked for it (Proxmox, which passes on no host key); for one
// that exists already, its operator writes it down (static).
//
// What is sent is one command at a time: no terminal, no environment, no agent and no port is
// forwarded, and whatever channel the server asks for is refused. Once a command may have begun
// it is not sent again: a connection that ends before the command's status is an error, and the
// caller must not believe that nothing was done.
//
// It must not know pools, machines' records or runs; which addresses may be called is decided
// by its caller.
package sshrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// Target is a machine, and who signs in there.
type Target struct {
	// Addresses are tried in order, again and again until one answers.
	Addresses []netip.AddrPort
	User      string
	// Key is a private key in PEM. It has no passphrase.
	Key string
	// HostKeys returns the machine's host keys, as lines of authorized_keys. It is called for
	// each round: a machine at its first start may change them once. Fixed says that they are
	// the ones, so that another key at every address ends the tries.
	HostKeys func(context.Context) ([]string, error)
	Fixed    bool
}

// Limits bound the time of each part. Zero ones are the usual.
type Limits struct {
	// Dial is how long one address may take until we are signed in, Answer how long all tries.
	Dial, Answer time.Duration
	// Refused is how long it may refuse our key: at its first start a machine answers before it
	// has the key. Zero: the first refusal is final.
	Refused time.Duration
	// Command is how long one command may take.
	Command time.Duration
	// Alive is how often the machine is asked whether it is there while a command runs, and
	// how long it may take to answer.
	Alive time.Duration
}

func (l Limits) orUsual() Limits {
	for _, one := range []struct {
		is    *time.Duration
		usual time.Duration
	}{{&l.Dial, 30 * time.Second}, {&l.Answer, 10 * time.Minute}, {&l.Command, time.Hour}, {&l.Alive, 30 * time.Second}} {
		if *one.is == 0 {
			*one.is = one.usual
		}
	}
	return l
}

// mostCommand bounds a command, in bytes.
const mostCommand = 64 << 10

// HostKeyError says that another host key was shown than the machine's.
type HostKeyError struct {
	Shown string // its fingerprint
	Known []string
}

func (e *HostKeyError) Error() string {
	return fmt.Sprintf("the host key shown there is %s, and the machine's is %s: another machine answers, or somebody stands between", e.Shown, strings.Join(e.Known, " or "))
}

// refusedError says that the machine lets our key not in.
type refusedError struct{ user, key string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("it refuses the user %q with the key %s", e.user, e.key)
}

// Client is a connection to a machine.
type Client struct {
	client *ssh.Client
	limits Limits
	at     netip.AddrPort
}

// At is the address that answered.
func (c *Client) At() netip.AddrPort { return c.at }

// Close ends the connection.
func (c *Client) Close() { _ = c.client.Close() } // nothing was to be written

// Dial signs in to a machine. The error says what was tried, where, and what was wrong.
func Dial(ctx context.Context, t Target, l Limits) (*Client, error) {
	l = l.orUsual()
	key, err := ssh.ParsePrivateKey([]byte(t.Key))
	if err != nil {
		return nil, errors.New("the key to sign in with is no private key that OpenSSH writes (ssh-keygen -t ed25519), or has a passphrase") // not the parser's words
	}
	if len(t.Addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	limited, cancel := timelimit.Context(ctx, l.Answer)
	defer cancel()
	waits := retry.Between(500*time.Millisecond, 10*time.Second)
	for began := time.Now(); ; {
		client, others, err := dialOnce(limited, t, key, l)
		if err == nil {
			return client, nil
		}
		_, refused := errors.AsType[*refusedError](err)
		switch {
		case refused && time.Since(began) >= l.Refused, others && t.Fixed:
			return nil, err
		case retry.Sleep(limited, waits.NextBackOff()):
			continue
		case timelimit.Reached(limited):
			return nil, fmt.Errorf("not within %s: %w", l.Answer, err)
		}
		return nil, context.Cause(limited)
	}
}

// dialOnce tries each address; others says that another machine answers at all of them.
func dialOnce(ctx context.Context, t Target, key ssh.Signer, l Limits) (_ *Client, others bool, _ error) {
	limited, cancel := timelimit.Context(ctx, l.Dial)
	lines, err := t.HostKeys(limited)
	cancel()
	if err != nil {
		return nil, false, fmt.Errorf("asking for its host key: %w", err)
	}
	known, err := parseHostKeys(lines)
	if err != nil {
		return nil, false, err
	}
	var tried error
	others = true
	for _, address := range t.Addresses {
		client, err := connect(ctx, address, t, key, known, l)
		if err == nil {
			return &Client{client: client, limits: l, at: address}, false, nil
		}
		_, other := errors.AsType[*HostKeyError](err)
		others = others && other
		tried = errors.Join(tried, fmt.Errorf("%s: %w", address, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, others, tried
}

func parseHostKeys(lines []string) (known []ssh.PublicKey, err error) {
	for _, line := range lines {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, errors.New("its host key is no line such as \"ssh-ed25519 AAAA…\"")
		}
		known = append(known, key)
	}
	if len(known) == 0 {
		return nil, errors.New("no host key of it is known")
	}
	return known, nil
}

// algorithms are those by which a server shows one of the known keys, not another that it has.
func algorithms(known []ssh.PublicKey) (all []string) {
	for _, key := range known {
		names := []string{key.Type()}
		if key.Type() == ssh.KeyAlgoRSA {
			names = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
		}
		for _, name := range names {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// connect signs in at one address.
func connect(ctx context.Context, address netip.AddrPort, t Target, key ssh.Signer, known []ssh.PublicKey, l Limits) (_ *ssh.Client, err error) {
	limited, cancel := timelimit.Context(ctx, l.Dial)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(limited, "tcp", address.String())
	if err != nil {
		return nil, said(limited, err)
	}
	hook := context.AfterFunc(limited, func() { _ = conn.Close() })
	defer hook()
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	var shown *HostKeyError
	inner, channels, requests, err := ssh.NewClientConn(conn, address.String(), &ssh.ClientConfig{
		User:              t.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyAlgorithms: algorithms(known),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if slices.ContainsFunc(known, func(k ssh.PublicKey) bool { return string(k.Marshal()) == string(key.Marshal()) }) {
				return nil
			}
			shown = &HostKeyError{Shown: ssh.FingerprintSHA256(key)}
			for _, k := range known {
				shown.Known = append(shown.Known, ssh.FingerprintSHA256(k))
			}
			return shown
		},
	})
	switch {
	case shown != nil:
		return nil, shown
	case err != nil && limited.Err() != nil:
		return nil, said(limited, err)
	case err != nil && strings.Contains(err.Error(), "unable to authenticate"):
		return nil, &refusedError{t.User, ssh.FingerprintSHA256(key.PublicKey())}
	case err != nil:
		return nil, said(limited, err)
	case !hook(): // the time was over at this very moment
		return nil, said(limited, context.Cause(limited))
	}
	return ssh.NewClient(inner, channels, requests), nil
}

// said is an error in few words: a server's own are cut, and made fit to be printed.
func said(ctx context.Context, err error) error {
	if limit, reached := errors.AsType[*timelimit.ReachedError](context.Cause(ctx)); reached {
		return fmt.Errorf("no answer within %s", limit.Limit)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if op, is := errors.AsType[*net.OpError](err); is && op.Err != nil {
		err = op.Err
	}
	text := strings.TrimPrefix(strings.Join(strings.Fields(printable.Text(err.Error())), " "), "connect: ")
	if runes := []rune(text); len(runes) > 300 {
		text = string(runes[:300]) + "…"
	}
	return errors.New(text)
}

// errNotThere is the cause of a connection that was ended because nobody answers at its other end.
var errNotThere = errors.New("the machine does not answer any more")

// Run runs a shell command and writes what it prints to out, one piece at a time. It returns the
// command's exit status; one that a signal ended has 128 and more. With an error nobody knows
// whether the command has ended, nor how.
func (c *Client) Run(ctx context.Context, command string, out io.Writer) (status int, err error) {
	if len(command) > mostCommand {
		return 0, fmt.Errorf("it has %d bytes, and at most %d are possible", len(command), mostCommand)
	}
	limited, cancel := timelimit.Context(ctx, c.limits.Command)
	defer cancel()
	running, lost := context.WithCancelCause(limited)
	defer lost(nil)
	// The connection's end ends everything that waits for the other side.
	defer context.AfterFunc(limited, c.Close)()
	session, err := c.client.NewSession()
	if err != nil {
		return 0, c.ended(running, err)
	}
	defer func() { _ = session.Close() }() // it has ended mostly
	both := &oneAtATime{out: out}
	session.Stdout, session.Stderr = both, both
	if err := session.Start("exec /bin/sh -c " + quote(command)); err != nil {
		return 0, c.ended(running, err)
	}
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		c.stayAlive(running, lost)
	}()
	err = session.Wait()
	failed := c.ended(running, err)
	lost(nil)
	<-asking
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return exit.ExitStatus(), nil
	}
	return 0, failed
}

// stayAlive asks the machine whether it is there, until the context ends; it ends the connection
// if there is no answer.
func (c *Client) stayAlive(ctx context.Context, lost context.CancelCauseFunc) {
	for retry.Sleep(ctx, c.limits.Alive) {
		late := time.AfterFunc(c.limits.Alive, func() {
			lost(fmt.Errorf("%w (for %s)", errNotThere, c.limits.Alive))
			c.Close()
		})
		_, _, _ = c.client.SendRequest("keepalive@openssh.com", true, nil) // an error is the connection's end, which others see
		late.Stop()
	}
}

// ended says why a command's end is not known.
func (c *Client) ended(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case timelimit.Reached(ctx):
		return fmt.Errorf("it %w and was left running", cause)
	case errors.Is(cause, errNotThere):
		return fmt.Errorf("the connection to %s was ended: %w. Nobody knows whether the command still runs", c.at, cause)
	case ctx.Err() != nil:
		return fmt.Errorf("it was left running: %w", cause)
	}
	if _, missing := errors.AsType[*ssh.ExitMissingError](err); missing {
		return fmt.Errorf("the connection to %s ended before the command did. Nobody knows whether it still runs", c.at)
	}
	return fmt.Errorf("on %s: %w", c.at, said(ctx, err))
}

// quote makes one word of a text, for a POSIX shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// oneAtATime is a writer for a command's two outputs.
type oneAtATime struct {
	mu  sync.Mutex
	out io.Writer
}

func (o *oneAtATime) Write(piece []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Write(piece)
}
