// Package sshd is an SSH server for tests, over real TCP. It lets in those whose keys are in its
// user's ~/.ssh/authorized_keys, as OpenSSH does, and runs what they ask for by a shell whose home
// is a directory of the test's.
//
//	s := sshd.New(t, sshd.Options{Authorized: []string{key}})
//	... s.Addr, s.HostKey ... s.Commands()
//
// Like OpenSSH it has several host keys, so that a client which asks for another kind than it
// knows is noticed. It must not know who signs in.
package sshd

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Options say how a server is.
type Options struct {
	// Authorized are the lines of authorized_keys.
	Authorized []string
	// HostKey is a private key in PEM; "": one of its own.
	HostKey string
	// Command is run in place of a shell.
	Command func(ctx context.Context, s *Session) (status uint32)
	// Mute says that it answers no question whether it is there. Alive gets each that is asked, as
	// far as it has room.
	Mute  bool
	Alive chan<- struct{}
}

// Session is a command that somebody runs.
type Session struct {
	Command string
	Out     ssh.Channel
	// Cut ends the connection as a machine that dies does.
	Cut func()
	// Server is the connection, by which a server can ask for channels of its own.
	Server ssh.Conn
}

// Server is an SSH server.
type Server struct {
	Addr netip.AddrPort
	// HostKey is its public host key, as a line of authorized_keys.
	HostKey string
	// Home is its user's.
	Home string

	t        testing.TB
	options  Options
	listener net.Listener
	config   *ssh.ServerConfig
	serving  sync.WaitGroup
	ctx      context.Context

	mu       sync.Mutex
	conns    map[net.Conn]bool
	commands []string
	asked    []string
	users    []string
}

// New starts a server that ends with the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, options: o, Home: t.TempDir(), conns: map[net.Conn]bool{}}
	var host ssh.Signer
	var err error
	if o.HostKey != "" {
		host, err = ssh.ParsePrivateKey([]byte(o.HostKey))
	} else {
		var private ed25519.PrivateKey
		if _, private, err = ed25519.GenerateKey(rand.Reader); err == nil {
			host, err = ssh.NewSignerFromKey(private)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	second, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ssh.NewSignerFromKey(second)
	if err != nil {
		t.Fatal(err)
	}
	s.HostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))
	s.config = &ssh.ServerConfig{PublicKeyCallback: s.lets}
	s.config.AddHostKey(other)
	s.config.AddHostKey(host)
	if err := os.Mkdir(filepath.Join(s.Home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.authorized(), []byte(strings.Join(o.Authorized, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.Addr = netip.MustParseAddrPort(s.listener.Addr().String())
	var end context.CancelFunc
	s.ctx, end = context.WithCancel(context.WithoutCancel(t.Context()))
	s.serving.Go(s.accept)
	t.Cleanup(func() {
		end()
		_ = s.listener.Close()
		s.mu.Lock()
		for conn := range s.conns {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.serving.Wait()
	})
	return s
}

func (s *Server) authorized() string { return filepath.Join(s.Home, ".ssh", "authorized_keys") }

// Authorized are the lines of authorized_keys as they are now.
func (s *Server) Authorized() []string {
	text, err := os.ReadFile(s.authorized())
	if err != nil {
		s.t.Error(err)
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" })
}

// Authorize lets one more key in.
func (s *Server) Authorize(line string) {
	if err := os.WriteFile(s.authorized(), []byte(strings.Join(append(s.Authorized(), line), "\n")+"\n"), 0o600); err != nil {
		s.t.Error(err)
	}
}

// Commands are those that were run, in order.
func (s *Server) Commands() []string { return s.read(&s.commands) }

// Users are those who have signed in, in order.
func (s *Server) Users() []string { return s.read(&s.users) }

// Asked is what clients have asked for but commands: a terminal, an environment, forwarding.
func (s *Server) Asked() []string { return s.read(&s.asked) }

func (s *Server) read(of *[]string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(*of)
}

func (s *Server) note(to *[]string, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to = append(*to, what)
}

func (s *Server) lets(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	for _, line := range s.Authorized() {
		if known, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line)); err == nil && string(known.Marshal()) == string(key.Marshal()) {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errors.New("unknown key")
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.serving.Go(func() { s.serve(conn) })
	}
}

func (s *Server) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	server, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	s.note(&s.users, server.User())
	var serving sync.WaitGroup
	serving.Go(func() {
		for request := range requests {
			if request.Type != "keepalive@openssh.com" {
				s.note(&s.asked, request.Type)
			} else {
				select {
				case s.options.Alive <- struct{}{}:
				default:
				}
			}
			if request.WantReply && !s.options.Mute {
				_ = request.Reply(false, nil) // the client may be gone
			}
		}
	})
	for offered := range channels {
		if offered.ChannelType() != "session" {
			s.note(&s.asked, offered.ChannelType())
			_ = offered.Reject(ssh.Prohibited, "no")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			continue
		}
		serving.Go(func() { s.session(server, conn, channel, requests) })
	}
	serving.Wait()
}

func (s *Server) session(server ssh.Conn, conn net.Conn, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }()
	for request := range requests {
		var command struct{ Text string }
		if request.Type != "exec" || ssh.Unmarshal(request.Payload, &command) != nil {
			s.note(&s.asked, request.Type)
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		s.note(&s.commands, command.Text)
		run := s.options.Command
		if run == nil {
			run = s.shell
		}
		// As with OpenSSH, a command goes on when its client leaves. It ends with the server.
		status := run(s.ctx, &Session{Command: command.Text, Out: channel, Cut: func() { _ = conn.Close() }, Server: server})
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
		return
	}
}

// Shell runs a command as a server without Options.Command does.
func (s *Server) shell(ctx context.Context, session *Session) uint32 {
	command := exec.CommandContext(ctx, "/bin/sh", "-c", session.Command)
	command.Env = []string{"HOME=" + s.Home, "PATH=" + os.Getenv("PATH")}
	command.Dir, command.Stdout, command.Stderr = s.Home, session.Out, session.Out.Stderr()
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return uint32(exit.ExitCode())
	case errors.Is(err, io.EOF): // the client is gone
		return 255
	}
	return 254
}
