package sshrun

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/sshd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKey answers a private key in PEM, and its public half as a line of authorized_keys.
func newKey(t *testing.T) (private, public string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// machine is a server that lets our key in, and the target that it is.
func machine(t *testing.T, o sshd.Options) (*sshd.Server, Target) {
	t.Helper()
	private, public := newKey(t)
	o.Authorized = append(o.Authorized, public)
	s := sshd.New(t, o)
	return s, Target{Addresses: []netip.AddrPort{s.Addr}, User: "ops", Key: private, Fixed: true, HostKeys: keys(s.HostKey)}
}

func keys(lines ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return lines, nil }
}

func limited(t *testing.T) context.Context {
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func dialed(t *testing.T, target Target, l Limits) *Client {
	t.Helper()
	c, err := Dial(limited(t), target, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Commands run one after another, with what they print and how they end, and nothing else is
// asked of the machine.
func TestRun(t *testing.T) {
	t.Parallel()
	s, target := machine(t, sshd.Options{})
	c := dialed(t, target, Limits{})
	for _, each := range []struct {
		command, out string
		status       int
	}{
		{"echo it\\'s \"$HOME\" | sed s,$HOME,home,; echo 'two  words'", "it's home\ntwo  words\n", 0},
		{"echo wrong >&2; exit 3", "wrong\n", 3},
		{"kill -TERM $$", "", 254},
		{"printf 'a\nb'", "a\nb", 0},
	} {
		var out bytes.Buffer
		if status, err := c.Run(limited(t), each.command, &out); err != nil || status != each.status || out.String() != each.out {
			t.Errorf("Run(%q) = %d, %v and printed %q, want %d and %q", each.command, status, err, out.String(), each.status, each.out)
		}
	}
	if asked := s.Asked(); len(asked) > 0 || len(s.Commands()) != 4 || s.Users()[0] != "ops" {
		t.Errorf("it was asked for %q and ran %q for %q, want four commands alone", asked, s.Commands(), s.Users())
	}
	if _, err := c.Run(limited(t), strings.Repeat("x", mostCommand+1), io.Discard); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("Run() of a long command = %v", err)
	}
}

// A machine is known by its host key or not at all, and nothing is sent to another one.
func TestHostKey(t *testing.T) {
	t.Parallel()
	_, other := newKey(t)
	s, target := machine(t, sshd.Options{})
	target.HostKeys = keys(other)
	_, err := Dial(limited(t), target, Limits{})
	var wrong *HostKeyError
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), s.Addr.String()+": the host key shown there is SHA256:") || !strings.Contains(err.Error(), "somebody stands between") {
		t.Errorf("Dial() of another host = %v", err)
	}
	if len(s.Users()) > 0 {
		t.Errorf("%q signed in to another host", s.Users())
	}
	for want, lines := range map[string][]string{"no host key of it is known": {}, "is no line such as": {"rubbish"}} {
		target.HostKeys = keys(lines...)
		if _, err := Dial(limited(t), target, Limits{Answer: time.Nanosecond}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial() with the host keys %q = %v, want %q", lines, err, want)
		}
	}

	// One that settles is asked again.
	var asked atomic.Int32
	target.Fixed = false
	target.HostKeys = func(context.Context) ([]string, error) {
		if asked.Add(1) == 1 {
			return []string{other}, nil
		}
		return []string{other, s.HostKey}, nil
	}
	c := dialed(t, target, Limits{})
	if asked.Load() != 2 || c.At() != s.Addr {
		t.Errorf("asked %d times for its host key and signed in at %s, want 2 and %s", asked.Load(), c.At(), s.Addr)
	}
}

// Who can't sign in is told why, and at which address.
func TestDialFails(t *testing.T) {
	t.Parallel()
	s, target := machine(t, sshd.Options{})
	private, _ := newKey(t)
	refused := target
	refused.Key = private
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	hung := target
	hung.Addresses = []netip.AddrPort{netip.MustParseAddrPort(silent.Addr().String())}
	nobody := target
	nobody.Addresses = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1)}
	rubbish := target
	rubbish.Key = "hunter2"
	without := target
	without.Addresses = nil
	short := Limits{Dial: 50 * time.Millisecond, Answer: 400 * time.Millisecond}
	for want, c := range map[string]Target{
		s.Addr.String() + `: it refuses the user "ops" with the key SHA256:`:  refused,
		"not within 400ms: " + silent.Addr().String() + ": no answer within ": hung,
		"not within 400ms: 127.0.0.1:1: ":                                     nobody,
		"is no private key that OpenSSH writes":                               rubbish,
		"it has no address":                                                   without,
	} {
		limits := short
		if c.Key == refused.Key {
			limits = Limits{}
		}
		_, err := Dial(limited(t), c, limits)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Dial() = %v, want %q", err, want)
		}
	}
	// Another machine at one address says nothing of the other address.
	stranger, _ := machine(t, sshd.Options{})
	elsewhere := target
	elsewhere.Addresses, elsewhere.Fixed = []netip.AddrPort{stranger.Addr, nobody.Addresses[0]}, true
	if _, err := Dial(limited(t), elsewhere, short); err == nil || !strings.HasPrefix(err.Error(), "not within 400ms: ") {
		t.Errorf("Dial() where another machine has one of its addresses = %v, want that both were tried to the end", err)
	}
	// At its first start a machine answers before it has our key.
	later, public := newKey(t)
	young, rounds := target, 0
	young.Key = later
	young.HostKeys = func(context.Context) ([]string, error) {
		if rounds++; rounds == 2 {
			s.Authorize(public)
		}
		return []string{s.HostKey}, nil
	}
	if dialed(t, young, Limits{Refused: time.Hour}); rounds != 2 {
		t.Errorf("signed in after %d rounds, want 2", rounds)
	}
	// An address after one that does not answer.
	both := target
	both.Addresses = append(nobody.Addresses, target.Addresses...)
	dialed(t, both, Limits{})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("the run is over")
	cancel(ended)
	if _, err := Dial(ctx, nobody, Limits{}); !errors.Is(err, ended) {
		t.Errorf("Dial() of a run that is over = %v", err)
	}
}

// What ends in the middle is an error that says that nobody knows, and is not run again.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context, _ *sshd.Session) uint32 {
		<-ctx.Done()
		return 0
	}
	over, end := context.WithCancelCause(limited(t))
	for name, c := range map[string]struct {
		options sshd.Options
		limits  Limits
		ctx     context.Context
		want    string
	}{
		"cut": {sshd.Options{Command: func(_ context.Context, s *sshd.Session) uint32 {
			_, _ = s.Out.Write([]byte("half a li"))
			s.Cut()
			return 0
		}}, Limits{}, limited(t), "ended before the command did. Nobody knows whether it still runs"},
		"its time is over": {sshd.Options{Command: hangs}, Limits{Command: 200 * time.Millisecond}, limited(t), "it took longer than 200ms and was left running"},
		"nobody is there":  {sshd.Options{Command: hangs, Mute: true}, Limits{Alive: 50 * time.Millisecond}, limited(t), "the machine does not answer any more (for 50ms)"},
		"the run is over": {sshd.Options{Command: func(ctx context.Context, s *sshd.Session) uint32 {
			end(errors.New("the run was cancelled"))
			return hangs(ctx, s)
		}}, Limits{}, over, "it was left running: the run was cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, target := machine(t, c.options)
			status, err := dialed(t, target, c.limits).Run(c.ctx, "make", io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || status != 0 || len(s.Commands()) != 1 {
				t.Errorf("Run() = %d, %v, want %q; it ran %q, want one command", status, err, c.want, s.Commands())
			}
		})
	}
}

// A machine that is asked whether it is there while it works is not given up.
func TestStaysAlive(t *testing.T) {
	t.Parallel()
	alive := make(chan struct{}, 10)
	_, target := machine(t, sshd.Options{Alive: alive, Command: func(ctx context.Context, _ *sshd.Session) uint32 {
		for range 2 {
			select {
			case <-alive:
			case <-ctx.Done():
			}
		}
		return 0
	}})
	c := dialed(t, target, Limits{Alive: patience.For(500 * time.Millisecond)})
	for range 2 {
		if status, err := c.Run(limited(t), "make", io.Discard); status != 0 || err != nil {
			t.Errorf("Run() = %d, %v", status, err)
		}
	}
}

// A flood is read to its end, and the Writer decides what it keeps.
func TestFlood(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	_, target := machine(t, sshd.Options{Command: func(_ context.Context, s *sshd.Session) uint32 {
		piece := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		for range size / len(piece) {
			if _, err := s.Out.Write(piece); err != nil {
				return 1
			}
		}
		return 0
	}})
	var got counter
	if status, err := dialed(t, target, Limits{}).Run(limited(t), "flood", &got); status != 0 || err != nil || got != size {
		t.Errorf("Run() = %d, %v with %d bytes, want %d", status, err, got, size)
	}
}

type counter int

func (c *counter) Write(piece []byte) (int, error) {
	*c += counter(len(piece))
	return len(piece), nil
}

// A machine gets nothing of ours: whatever channel it asks for is refused.
func TestNothingIsForwarded(t *testing.T) {
	t.Parallel()
	refused := make(chan error, 3)
	_, target := machine(t, sshd.Options{Command: func(_ context.Context, s *sshd.Session) uint32 {
		for _, kind := range []string{"auth-agent@openssh.com", "forwarded-tcpip", "x11"} {
			_, _, err := s.Server.OpenChannel(kind, nil)
			refused <- err
		}
		return 0
	}})
	if status, err := dialed(t, target, Limits{}).Run(limited(t), "true", io.Discard); status != 0 || err != nil {
		t.Errorf("Run() = %d, %v", status, err)
	}
	for range 3 {
		var open *ssh.OpenChannelError
		if err := <-refused; !errors.As(err, &open) {
			t.Errorf("a channel that the machine asked for: %v, want it refused", err)
		}
	}
}
