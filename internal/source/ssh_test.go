package source

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/tendril-run/tendril/internal/gittest"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// keyring is an authorizer with one SSH key and one file of known hosts.
type keyring struct {
	signer     ssh.Signer
	knownHosts string
}

func (keyring) https(address) (githttp.AuthMethod, error) { return nil, nil }

func (k keyring) ssh(_ context.Context, a address, hostPort string) (*ssh.ClientConfig, func(), error) {
	hosts, err := gitssh.NewKnownHostsDb(k.knownHosts)
	if err != nil {
		return nil, nil, err
	}
	return sshConfig(a, hostPort, hosts, ssh.PublicKeys(k.signer)), func() {}, nil
}

func sshSource(t *testing.T, host *gittest.SSHServer) *Source {
	t.Helper()
	s := newSource(t, Options{
		Policy:   job.Policy{Repos: []string{"ssh://git@" + host.Addr + "/**"}},
		Git:      job.Git{Timeout: time.Minute},
		ReposDir: t.TempDir(),
	})
	s.auth = keyring{host.ClientKey, knownHosts(t, host.Addr, host.HostKey)}
	return s
}

func knownHosts(t *testing.T, addr string, key ssh.PublicKey) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known_hosts")
	line := knownhosts.Line([]string{knownhosts.Normalize(addr)}, key)
	if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSSH(t *testing.T) {
	t.Parallel()
	host := gittest.NewSSHServer(t)
	files := hello()
	repo, commit := host.Repo("acme/app", files, "")
	repo.AnnotatedTag("v1.0.0", commit)
	s := sshSource(t, host)
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")

	files["main.tf"] = gittest.File("# second\n")
	repo.Tag("v1.1.0", repo.Commit(files))
	_, tree = checkout(t, s, Request{Repo: repo.URL, Version: "v1.1.0"})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# second\n")

	_, err := s.Resolve(t.Context(), Request{Repo: "ssh://git@" + host.Addr + "/acme/none", Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "does not appear to be a git repository")
}

func TestSSHTrustsNoUnknownHost(t *testing.T) {
	t.Parallel()
	host, other := gittest.NewSSHServer(t), gittest.NewSSHServer(t)
	repo, _ := host.Repo("acme/app", hello(), "v1.0.0")
	for name, file := range map[string]string{
		"unknown": knownHosts(t, other.Addr, other.HostKey),
		"changed": knownHosts(t, host.Addr, other.HostKey),
	} {
		t.Run(name, func(t *testing.T) {
			s := sshSource(t, host)
			s.auth = keyring{host.ClientKey, file}
			_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
			wantFailure(t, err, provision.CodeCheckoutFailed, "host key", "known_hosts")
		})
	}
	if got := host.Sessions(); got != 0 {
		t.Errorf("sessions = %d, want none", got)
	}
}

func TestSSHKeyRefused(t *testing.T) {
	t.Parallel()
	host, other := gittest.NewSSHServer(t), gittest.NewSSHServer(t)
	repo, _ := host.Repo("acme/app", hello(), "v1.0.0")
	s := sshSource(t, host)
	s.auth = keyring{other.ClientKey, knownHosts(t, host.Addr, host.HostKey)}
	_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "refused our credentials")
}

// A host that accepts and then says nothing must not outlive a cancel.
func TestSSHCancelDuringHandshake(t *testing.T) {
	t.Parallel()
	host := gittest.NewSSHServer(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // the client introduces itself and waits for us
		}
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
		cancel()
	}()
	s := sshSource(t, host)
	if s.allow, err = ParseAllowlist([]string{"ssh://git@127.0.0.1:*/**"}, false); err == nil {
		t.Fatal("ParseAllowlist accepts a wildcard as port")
	}
	addr := listener.Addr().String()
	if s.allow, err = ParseAllowlist([]string{"ssh://git@" + addr + "/**"}, false); err != nil {
		t.Fatal(err)
	}
	_, err = s.Resolve(ctx, Request{Repo: "ssh://git@" + addr + "/acme/app", Version: "v1.0.0"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve = %v, want %v", err, context.Canceled)
	}
	_ = (<-accepted).Close()
}

// What the machine offers: an ssh-agent and a file of known hosts.
func TestSSHAgent(t *testing.T) {
	host := gittest.NewSSHServer(t)
	repo, _ := host.Repo("acme/app", hello(), "v1.0.0")
	s := sshSource(t, host)
	s.auth = ambient{}
	req := Request{Repo: repo.URL, Version: "v1.0.0"}

	t.Setenv("SSH_AUTH_SOCK", "")
	t.Setenv("SSH_KNOWN_HOSTS", filepath.Join(t.TempDir(), "none"))
	_, err := s.Resolve(t.Context(), req)
	wantFailure(t, err, provision.CodeCheckoutFailed, "known_hosts")

	t.Setenv("SSH_KNOWN_HOSTS", knownHosts(t, host.Addr, host.HostKey))
	_, err = s.Resolve(t.Context(), req)
	wantFailure(t, err, provision.CodeCheckoutFailed, "SSH_AUTH_SOCK")

	t.Setenv("SSH_AUTH_SOCK", serveAgent(t, host.ClientPrivate))
	_, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
}

// serveAgent is an ssh-agent with one key; it returns its socket.
func serveAgent(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	keys := agent.NewKeyring()
	if err := keys.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_ = agent.ServeAgent(keys, conn) // until the client goes
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return socket
}
