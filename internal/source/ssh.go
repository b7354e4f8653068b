package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/tendril-run/tendril/internal/timelimit"
)

// sshSession runs git-upload-pack on the other side. It replaces go-git's SSH
// transport, which reads the user's ssh_config and cannot be cancelled while
// it connects.
type sshSession struct {
	client  *ssh.Client
	run     *ssh.Session
	unhook  func() bool
	maxRefs int64

	stdin  io.WriteCloser
	stdout *countdown
	stderr *timelimit.Head
	asked  bool
}

// openSSH connects, checks the host's key and starts git-upload-pack. When ctx
// ends the connection is closed, which ends whatever waits for it.
func (s *Source) openSSH(ctx context.Context, a address) (session, error) {
	client, unhook, err := s.dialSSH(ctx, a)
	if err != nil {
		return nil, err
	}
	session := &sshSession{client: client, unhook: unhook, maxRefs: s.limits.refs}
	if err := session.start(a.DialPath); err != nil {
		unhook()
		_ = client.Close()
		return nil, err
	}
	return session, nil
}

// dialSSH connects, checks the host's key and identifies this agent. Until
// unhook is called the connection ends with ctx.
func (s *Source) dialSSH(ctx context.Context, a address) (_ *ssh.Client, unhook func() bool, err error) {
	host := net.JoinHostPort(strings.Trim(a.Host, "[]"), cmp.Or(a.Port, "22"))
	config, done, err := s.sshConfig(ctx, a, host)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, nil, err
	}
	unhook = context.AfterFunc(ctx, func() { _ = conn.Close() })
	inner, channels, requests, err := ssh.NewClientConn(conn, host, config)
	if err != nil {
		unhook()
		_ = conn.Close()
		return nil, nil, fmt.Errorf("ssh: %w", err)
	}
	return ssh.NewClient(inner, channels, requests), unhook, nil
}

func (s *sshSession) start(path string) error {
	run, err := s.client.NewSession()
	if err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	s.run = run
	if s.stdin, err = run.StdinPipe(); err != nil {
		return err
	}
	stdout, err := run.StdoutPipe()
	if err != nil {
		return err
	}
	s.stdout = &countdown{r: stdout, left: s.maxRefs, err: errTooManyRefs}
	s.stderr = &timelimit.Head{Limit: 4 << 10}
	run.Stderr = s.stderr
	// Paths hold no quote (see address), so that this quoting is complete.
	path = strings.ReplaceAll(path, "%20", " ")
	if err := run.Start("git-upload-pack '" + path + "'"); err != nil {
		return fmt.Errorf("ssh: start git-upload-pack: %w", err)
	}
	return nil
}

// lastWords is how long a server that has ended its answer may take to say why.
const lastWords = 5 * time.Second

func (s *sshSession) AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	err := refs.Decode(s.stdout)
	switch {
	case errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case errors.Is(err, packp.ErrEmptyInput):
		// The far side says why on stderr, which may come after the end of its
		// stdout: its end is waited for, but not for ever.
		late := time.AfterFunc(lastWords, func() { _ = s.client.Close() })
		_ = s.run.Wait()
		late.Stop()
		_ = s.client.Close()
		_ = s.client.Wait()
		return nil, &remoteError{said: s.stderr.String()}
	case err != nil:
		return nil, err
	case refs.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	s.stdout.left = math.MaxInt64
	return refs, nil
}

func (s *sshSession) UploadPack(_ context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	s.asked = true
	unsent := s.ask(req)
	res := packp.NewUploadPackResponse(req)
	err := res.Decode(io.NopCloser(s.stdout))
	// A server that refuses may be gone before it has heard all; why it does
	// tells more than that.
	if err != nil && unsent != nil && isNetwork(err) {
		err = unsent
	}
	return res, err
}

func (s *sshSession) ask(req *packp.UploadPackRequest) error {
	if err := req.UploadRequest.Encode(s.stdin); err != nil {
		return err
	}
	if err := req.UploadHaves.Encode(s.stdin, false); err != nil {
		return err
	}
	return pktline.NewEncoder(s.stdin).EncodeString("done\n")
}

func (s *sshSession) Close() error {
	if !s.asked {
		_ = pktline.NewEncoder(s.stdin).Flush() // the polite way to want nothing
	}
	s.unhook()
	err := s.client.Close()
	_ = s.client.Wait()
	return err
}

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
