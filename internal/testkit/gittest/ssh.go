package gittest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// SSHServer serves repositories by git-upload-pack over SSH to whoever has
// ClientKey.
type SSHServer struct {
	// Addr is host:port.
	Addr string
	// HostKey is what a client should have in its known hosts.
	HostKey ssh.PublicKey
	// ClientKey is the one key accepted.
	ClientKey ssh.Signer
	// ClientPrivate is the same key, for an ssh-agent, and ClientPEM as it stands
	// in a file.
	ClientPrivate ed25519.PrivateKey
	ClientPEM     string
	// KnownHosts is a file of known hosts with this one in it.
	KnownHosts string
	// Root holds the bare repositories.
	Root string

	t        testing.TB
	program  string
	listener net.Listener
	config   *ssh.ServerConfig
	serving  sync.WaitGroup

	mu       sync.Mutex
	sessions int
	conns    map[net.Conn]bool
}

// NewSSHServer starts a server that ends with the test; of the options Listen
// counts.
func NewSSHServer(t testing.TB, opts ...Option) *SSHServer {
	t.Helper()
	_, host := newKey(t)
	private, client := newKey(t)
	s := &SSHServer{
		t: t, Root: t.TempDir(), HostKey: host.PublicKey(), ClientKey: client, ClientPrivate: private,
		program: filepath.Join(execPath(t), "git-upload-pack"), conns: map[net.Conn]bool{},
	}
	s.config = &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(client.PublicKey().Marshal()) {
				return nil, errors.New("unknown key")
			}
			return &ssh.Permissions{}, nil
		},
	}
	s.config.AddHostKey(host)
	s.listener = collect(opts).listen(t)
	s.Addr = s.listener.Addr().String()
	s.KnownHosts = knownhosts.Line([]string{knownhosts.Normalize(s.Addr)}, s.HostKey) + "\n"
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	s.ClientPEM = string(pem.EncodeToMemory(block))
	s.serving.Go(s.accept)
	t.Cleanup(s.close)
	return s
}

// Repo makes a bare repository, as Server.Repo does.
func (s *SSHServer) Repo(name string, files Files, tag string) (*Repo, string) {
	s.t.Helper()
	r := initRepo(s.t, filepath.Join(s.Root, filepath.FromSlash(name)+".git"))
	r.URL = "ssh://git@" + s.Addr + "/" + name + ".git"
	commit := r.Commit(files)
	if tag != "" {
		r.Tag(tag, commit)
	}
	return r, commit
}

// Sessions counts the times git-upload-pack was started.
func (s *SSHServer) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions
}

func (s *SSHServer) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

func (s *SSHServer) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.serving.Go(func() {
			s.serve(conn)
			_ = conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		})
	}
}

func (s *SSHServer) serve(conn net.Conn) {
	server, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	var serving sync.WaitGroup
	serving.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			continue
		}
		serving.Go(func() { s.session(channel, requests) })
	}
	_ = server.Close()
	serving.Wait()
}

func (s *SSHServer) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	for request := range requests {
		ok := request.Type == "exec"
		_ = request.Reply(ok, nil)
		if !ok {
			continue
		}
		var payload struct{ Command string }
		_ = ssh.Unmarshal(request.Payload, &payload)
		s.uploadPack(channel, payload.Command)
		_ = channel.Close()
	}
}

// exit tells how the command ended.
func exit(channel ssh.Channel, status uint32) {
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{status}))
}

func (s *SSHServer) uploadPack(channel ssh.Channel, command string) {
	path, ok := strings.CutPrefix(command, "git-upload-pack '")
	if !ok {
		_, _ = fmt.Fprintf(channel.Stderr(), "unknown command %q\n", command)
		exit(channel, 127)
		return
	}
	s.mu.Lock()
	s.sessions++
	s.mu.Unlock()
	cmd := exec.Command(s.program, filepath.Join(s.Root, strings.TrimSuffix(path, "'")))
	cmd.Env = environment(s.Root)
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		exit(channel, 1)
		return
	}
	var feeding sync.WaitGroup
	feeding.Go(func() {
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	})
	if cmd.Wait() != nil {
		exit(channel, 128)
	} else {
		exit(channel, 0)
	}
	_ = channel.CloseWrite()
	_ = channel.Close() // which ends what feeds it
	feeding.Wait()
}

func newKey(t testing.TB) (ed25519.PrivateKey, ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return private, signer
}
