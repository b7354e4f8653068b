package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

var errNoSSHKey = errors.New("no ssh-agent offers one (SSH_AUTH_SOCK)")

// sshConfig says how this agent identifies itself to hostPort: by the key that
// is configured for it, else by those of a running ssh-agent. A host that
// known_hosts does not list is never accepted. The function releases what the
// configuration holds and is to be called after the handshake.
func (s *Source) sshConfig(ctx context.Context, a address, hostPort string) (*ssh.ClientConfig, func(), error) {
	c := s.hosts.of(a)
	hosts, err := knownHosts(c)
	if err != nil {
		return nil, nil, &hostKeyError{err: err}
	}
	config := &ssh.ClientConfig{
		User: cmp.Or(a.User, "git"),
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			if err := hosts.HostKeyCallback()(name, remote, key); err != nil {
				return &hostKeyError{hostPort: hostPort, key: key, err: err}
			}
			return nil
		},
		HostKeyAlgorithms: hosts.HostKeyAlgorithms(hostPort),
	}
	switch {
	case c.KeyProblem != "":
		return nil, nil, &noKeyError{c.KeyProblem}
	case c.Key != "":
		key, err := parseKey(c)
		if err != nil {
			return nil, nil, err
		}
		config.Auth = []ssh.AuthMethod{ssh.PublicKeys(key)}
		return config, func() {}, nil
	}
	agentKeys, release, err := ambientKeys(ctx)
	if err != nil {
		return nil, nil, err
	}
	config.Auth = []ssh.AuthMethod{agentKeys}
	return config, release, nil
}

// noKeyError is a key that is configured and cannot be used.
type noKeyError struct{ problem string }

func (e *noKeyError) Error() string { return e.problem }

// parseKey reads a private key. The library's words are not passed on: they might
// quote the file.
func parseKey(c *credential) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey([]byte(c.Key))
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, &noKeyError{"ssh_key_file of " + table(c.Host) + " has a passphrase, which nobody is there to type; use a key without one that is for this agent alone"}
	}
	if err != nil {
		return nil, &noKeyError{"ssh_key_file of " + table(c.Host) + " holds no private key that OpenSSH writes (ssh-keygen -t ed25519)"}
	}
	return key, nil
}

// CheckSSH returns what is wrong with the keys for SSH and with what is known of
// their hosts, as far as that shows without a connection.
func (s *Source) CheckSSH() (problems []string) {
	for _, host := range slices.Sorted(maps.Keys(s.hosts)) {
		c := s.hosts[host]
		if c.Key == "" {
			continue
		}
		if _, err := parseKey(c); err != nil {
			problems = append(problems, err.Error())
		}
		if c.KnownHostsFile == "" {
			continue // the machine's: whoever connects hears of them
		}
		hosts, err := knownHosts(c)
		address := host
		if strings.LastIndexByte(host, ':') <= strings.LastIndexByte(host, ']') {
			address += ":22"
		}
		switch {
		case err != nil:
			problems = append(problems, "known_hosts_file of "+table(host)+": "+err.Error())
		case len(hosts.HostKeys(address)) == 0:
			problems = append(problems, fmt.Sprintf("known_hosts_file of %s: nothing in %s is about this host", table(host), c.KnownHostsFile))
		}
	}
	return problems
}

// knownHosts reads those of the host's table, else the user's and the machine's
// (SSH_KNOWN_HOSTS, ~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts).
func knownHosts(c *credential) (_ *knownhosts.HostKeyDB, err error) {
	if c.KnownHostsFile == "" {
		return gitssh.NewKnownHostsDb()
	}
	// The library reads files only, and this process may not be able to read the
	// one that the agent has read.
	file, err := os.CreateTemp("", "known_hosts-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.WriteString(c.KnownHosts)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	db, err := knownhosts.NewDB(file.Name())
	if err != nil {
		// Not the library's words, which might quote the line.
		line := 0
		_, _ = fmt.Sscanf(strings.TrimPrefix(err.Error(), "knownhosts: "+file.Name()+":"), "%d", &line)
		return nil, fmt.Errorf("%s holds a line that is none of known_hosts (line %d)", c.KnownHostsFile, line)
	}
	return db, nil
}

// ambientKeys are the keys of the ssh-agent that runs beside this agent, if one does.
func ambientKeys(ctx context.Context) (ssh.AuthMethod, func(), error) {
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, nil, errNoSSHKey
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNoSSHKey, err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return ssh.PublicKeysCallback(agent.NewClient(conn).Signers), func() {
		unhook()
		_ = conn.Close()
	}, nil
}
