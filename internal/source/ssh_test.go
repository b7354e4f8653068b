package source

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// sshSource has the key that host accepts, and host in its known_hosts.
func sshSource(t *testing.T, host *gittest.SSHServer) *Source {
	t.Helper()
	return sshSourceWith(t, host, job.GitHost{Key: host.ClientPEM, KnownHosts: host.KnownHosts, KnownHostsFile: "/etc/tendril/known_hosts"})
}

func sshSourceWith(t *testing.T, host *gittest.SSHServer, auth job.GitHost) *Source {
	t.Helper()
	auth.Host = host.Addr
	return newSource(t, Options{
		Policy:   job.Policy{Repos: []string{"ssh://git@" + host.Addr + "/**"}},
		Git:      job.Git{Timeout: time.Minute, Hosts: []job.GitHost{auth}},
		ReposDir: t.TempDir(),
	})
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

// A host is recognised by its key or not at all, and the message says which key
// it offers and what to write down.
func TestSSHTrustsNoUnknownHost(t *testing.T) {
	t.Parallel()
	host, other := gittest.NewSSHServer(t), gittest.NewSSHServer(t)
	repo, _ := host.Repo("acme/app", hello(), "v1.0.0")
	offered := ssh.FingerprintSHA256(host.HostKey)
	for name, c := range map[string]struct {
		hosts string
		want  []string
	}{
		"unknown": {other.KnownHosts, []string{"nothing in /etc/tendril/known_hosts", "ssh-ed25519 key " + offered, "add this line there: " + strings.TrimSpace(host.KnownHosts)}},
		"none":    {"", []string{"nothing in /etc/tendril/known_hosts", offered}},
		"changed": {knownhosts.Line([]string{knownhosts.Normalize(host.Addr)}, other.HostKey), []string{offered, "has another", "somebody stands between"}},
		"rubbish": {"not a line", []string{"known_hosts cannot be read", "/etc/tendril/known_hosts", "(line 1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sshSourceWith(t, host, job.GitHost{Key: host.ClientPEM, KnownHosts: c.hosts, KnownHostsFile: "/etc/tendril/known_hosts"})
			_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
			wantFailure(t, err, provision.CodeCheckoutFailed, append(c.want, "host key")...)
		})
	}
	if got := host.Sessions(); got != 0 {
		t.Errorf("sessions = %d, want none", got)
	}
}

// What can be told of keys and known_hosts before anybody connects.
func TestCheckSSH(t *testing.T) {
	t.Parallel()
	host := gittest.NewSSHServer(t)
	line := func(names ...string) string { return knownhosts.Line(names, host.HostKey) + "\n" }
	for name, c := range map[string]struct {
		host string
		auth job.GitHost
		want string // "" for nothing
	}{
		"plain":           {"git.example", job.GitHost{KnownHosts: line("git.example")}, ""},
		"hashed":          {"git.example", job.GitHost{KnownHosts: line(knownhosts.HashHostname("git.example"))}, ""},
		"with a port":     {"git.example:2222", job.GitHost{KnownHosts: line("[git.example]:2222")}, ""},
		"other port":      {"git.example:2222", job.GitHost{KnownHosts: line("git.example")}, "nothing in /kh is about this host"},
		"IPv6":            {"[::1]", job.GitHost{KnownHosts: line("::1")}, ""},
		"an authority's":  {"git.example", job.GitHost{KnownHosts: "# ours\n@cert-authority *.example " + line("x")[2:]}, ""},
		"revoked beside":  {"git.example", job.GitHost{KnownHosts: "@revoked * " + line("x")[2:] + line("git.example")}, ""},
		"a line is wrong": {"git.example", job.GitHost{KnownHosts: line("git.example") + "\ngit.example hunter2\n"}, "none of known_hosts (line 3)"},
		"no key":          {"git.example", job.GitHost{Key: "hunter2", KnownHosts: line("git.example")}, "holds no private key"},
	} {
		if c.auth.Key == "" {
			c.auth.Key = host.ClientPEM
		}
		c.auth.Host, c.auth.KnownHostsFile = c.host, "/kh"
		s := newSource(t, Options{Git: job.Git{Hosts: []job.GitHost{c.auth}}, ReposDir: t.TempDir()})
		got := strings.Join(s.CheckSSH(), "; ")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Contains(got, "hunter2") {
			t.Errorf("%s: CheckSSH() = %q, want %q in it", name, got, c.want)
		}
	}
}

func TestSSHKeyRefused(t *testing.T) {
	t.Parallel()
	host, other := gittest.NewSSHServer(t), gittest.NewSSHServer(t)
	repo, _ := host.Repo("acme/app", hello(), "v1.0.0")
	block, err := ssh.MarshalPrivateKeyWithPassphrase(host.ClientPrivate, "", []byte("hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		auth job.GitHost
		want []string
	}{
		"another's":  {job.GitHost{Key: other.ClientPEM}, []string{"refused the credentials", ssh.FingerprintSHA256(other.ClientKey.PublicKey()), "deploy key"}},
		"passphrase": {job.GitHost{Key: string(pem.EncodeToMemory(block))}, []string{"ssh_key_file of", "has a passphrase"}},
		"no key":     {job.GitHost{Key: "hunter2"}, []string{"ssh_key_file of", "holds no private key"}},
		"missing":    {job.GitHost{KeyProblem: "ssh_key_file of [git.hosts.\"h\"]: /k cannot be read"}, []string{"/k cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.auth.KnownHosts, c.auth.KnownHostsFile = host.KnownHosts, "/etc/tendril/known_hosts"
			s := sshSourceWith(t, host, c.auth)
			_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
			wantFailure(t, err, provision.CodeCheckoutFailed, c.want...)
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "PRIVATE KEY") {
				t.Errorf("message = %q, with the key in it", err)
			}
		})
	}
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
	s.hosts[addr] = s.hosts[host.Addr]
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
	s := sshSourceWith(t, host, job.GitHost{})
	req := Request{Repo: repo.URL, Version: "v1.0.0"}

	t.Setenv("SSH_AUTH_SOCK", "")
	t.Setenv("SSH_KNOWN_HOSTS", filepath.Join(t.TempDir(), "none"))
	_, err := s.Resolve(t.Context(), req)
	wantFailure(t, err, provision.CodeCheckoutFailed, "known_hosts")

	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(host.KnownHosts), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSH_KNOWN_HOSTS", file)
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
