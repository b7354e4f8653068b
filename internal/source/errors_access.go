package source

import (
	"fmt"
	"net/http"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// hostKeyError is an SSH host that cannot be recognised.
type hostKeyError struct {
	hostPort string
	key      ssh.PublicKey // what it offers; nil if it was not asked
	err      error
}

func (e *hostKeyError) Error() string { return "host key: " + e.err.Error() }
func (e *hostKeyError) Unwrap() error { return e.err }

// advice says what is wrong and what to do about it.
func (e *hostKeyError) advice(c *credential) string {
	file := c.KnownHostsFile
	if file == "" {
		file = "the agent's known_hosts (known_hosts_file under " + table(c.Host) + ")"
	}
	switch {
	case e.key == nil:
		return fmt.Sprintf("its host key cannot be checked, for known_hosts cannot be read: %s; set known_hosts_file under %s in the agent's configuration",
			printable(e.err.Error(), 200), table(c.Host))
	case knownhosts.IsHostUnknown(e.err):
		return fmt.Sprintf("its host key is not trusted: nothing in %s is about this host, which offers the %s key %s; "+
			"if that is the fingerprint its operator publishes, add this line there: %s",
			file, e.key.Type(), ssh.FingerprintSHA256(e.key), knownhosts.Line([]string{knownhosts.Normalize(e.hostPort)}, e.key))
	case knownhosts.IsHostKeyChanged(e.err):
		return fmt.Sprintf("its host key is not trusted: it offers the %s key %s, and %s has another; "+
			"either the server has a new key or somebody stands between: ask its operator before you replace the entry",
			e.key.Type(), ssh.FingerprintSHA256(e.key), file)
	default:
		return fmt.Sprintf("its host key is not trusted: %s; see %s", printable(e.err.Error(), 200), file)
	}
}

// refusedStatus explains the statuses that have to do with who asks.
func (s *Source) refusedStatus(a address, e *statusError) string {
	a = s.hosts.overHTTPS(a)
	c := s.hosts.of(a)
	_, token := s.basic(a)
	missing := e.code == http.StatusNotFound || e.code == http.StatusGone
	switch {
	case c.TokenProblem != "":
		return fmt.Sprintf("%v, asked without credentials, for they are missing: %s", e, c.TokenProblem)
	case token == "" && missing:
		return fmt.Sprintf("not found (%v): check the URL; a private repository looks like this as well, and %s in the agent's configuration has no credentials for it", e, table(c.Host))
	case token == "":
		return fmt.Sprintf("the server asks for credentials (%v): the repository is private or does not exist; if it is private, set token_file under %s in the agent's configuration", e, table(c.Host))
	case missing:
		return fmt.Sprintf("not found (%v): check the URL; if the repository is there, the credentials of %s may not see it, and need the right to read its contents", e, table(c.Host))
	case e.code == http.StatusForbidden:
		return fmt.Sprintf("the server knows the credentials of %s, but they may not read this repository (%v): give them the right to read its contents, and authorise them where the organisation asks for single sign-on", table(c.Host), e)
	default:
		return fmt.Sprintf("the server refused the credentials of %s (%v): the token is wrong, expired or revoked, or belongs to another username; put a valid one in its file", table(c.Host), e)
	}
}

// refusedKey explains an SSH server that takes none of our keys.
func (s *Source) refusedKey(a address) string {
	c := s.hosts.of(a)
	key, err := parseKey(c)
	if c.Key == "" || err != nil {
		return "the server refused our credentials: none of the ssh-agent's keys is accepted; or set ssh_key_file under " + table(c.Host) + " in the agent's configuration"
	}
	return fmt.Sprintf("the server refused the credentials of %s: it does not accept the key %s; add its public half there, as a deploy key that may read",
		table(c.Host), ssh.FingerprintSHA256(key.PublicKey()))
}
