package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// authorizer says how this agent identifies itself to a repository's host.
// Credentials for private repositories come in here and nowhere else.
type authorizer interface {
	// https returns nil for none.
	https(address) (githttp.AuthMethod, error)
	// ssh returns the configuration for hostPort and a function that releases
	// what it holds, to be called after the handshake.
	ssh(ctx context.Context, a address, hostPort string) (*ssh.ClientConfig, func(), error)
}

// ambient is what the machine offers: nothing over HTTPS; over SSH the keys of
// a running ssh-agent, and the hosts that known_hosts lists. A host that is
// not listed there is never accepted.
type ambient struct{}

func (ambient) https(address) (githttp.AuthMethod, error) { return nil, nil }

func (ambient) ssh(ctx context.Context, a address, hostPort string) (*ssh.ClientConfig, func(), error) {
	hosts, err := gitssh.NewKnownHostsDb() // SSH_KNOWN_HOSTS, else the user's and the machine's
	if err != nil {
		return nil, nil, &hostKeyError{host: a.host, err: err}
	}
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, nil, errNoSSHKey
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNoSSHKey, err)
	}
	keys := ssh.PublicKeysCallback(agent.NewClient(conn).Signers)
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return sshConfig(a, hostPort, hosts, keys), func() {
		unhook()
		_ = conn.Close()
	}, nil
}

// sshConfig accepts the keys that hosts lists for a host, and no other.
func sshConfig(a address, hostPort string, hosts *knownhosts.HostKeyDB, keys ssh.AuthMethod) *ssh.ClientConfig {
	check := hosts.HostKeyCallback()
	user := a.user
	if user == "" {
		user = "git"
	}
	return &ssh.ClientConfig{
		User: user,
		Auth: []ssh.AuthMethod{keys},
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			if err := check(name, remote, key); err != nil {
				return &hostKeyError{host: a.host, err: err}
			}
			return nil
		},
		HostKeyAlgorithms: hosts.HostKeyAlgorithms(hostPort),
	}
}

var errNoSSHKey = errors.New("no ssh-agent offers a key (SSH_AUTH_SOCK)")
