package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/provision"
)

var (
	errTimeout     = errors.New("the time for one exchange with the git server ran out")
	errSilence     = errors.New("the git server does not answer to what is here")
	errTooManyRefs = errors.New("the server lists too many references")
)

// statusError is an HTTP status that is no success.
type statusError struct{ code int }

func (e *statusError) Error() string {
	return fmt.Sprintf("HTTP status %d (%s)", e.code, http.StatusText(e.code))
}

// notGitError is an answer that is not of git's smart HTTP protocol.
type notGitError struct{ contentType string }

func (e *notGitError) Error() string { return fmt.Sprintf("the answer is %q", e.contentType) }

// redirectError is a redirect to where the policy does not let us go.
type redirectError struct {
	to      string
	refusal error
}

func (e *redirectError) Error() string { return "redirected to " + e.to + ": " + e.refusal.Error() }

// remoteError is what git said on the far side before it gave up.
type remoteError struct{ said string }

func (e *remoteError) Error() string {
	return "the server says: " + printable(strings.TrimSpace(e.said), 300)
}

// localError is a fault on this side, such as a full disk; the server is not to
// blame.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// corruptError is a mirror that does not hold what it says it holds.
type corruptError struct{ err error }

func (e *corruptError) Error() string { return "the cached mirror is damaged: " + e.err.Error() }
func (e *corruptError) Unwrap() error { return e.err }

// unreachableError marks a server that could not be talked to, as opposed to
// one that refused: with a pinned commit in the mirror the run can go on.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func isEmptyRepository(err error) bool { return errors.Is(err, transport.ErrEmptyRemoteRepository) }

// explain says what went wrong in an exchange to whoever asked for the
// provision. It leaves errors that are explained already, and the end of the
// caller's own context, as they are.
func (s *Source) explain(ctx, limited context.Context, a address, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("checkout of %s was interrupted: %w", a, context.Cause(ctx))
	}
	if _, ok := errors.AsType[*provision.Failure](err); ok {
		return err
	}
	if _, ok := errors.AsType[*localError](err); ok {
		return err
	}
	cause := exposeCause(err)
	failed := func(format string, args ...any) error {
		return provision.Fail(provision.CodeCheckoutFailed,
			fmt.Sprintf("template_source.repo: %s: ", a)+fmt.Sprintf(format, args...), err)
	}
	if limited.Err() != nil {
		err = errors.Join(context.Cause(limited), err)
		return &unreachableError{failed("no answer within %v; the git server hangs or the repository is too large for that time (timeout under [git] in the agent's configuration)", s.timeout)}
	}
	if e, ok := errors.AsType[*statusError](cause); ok {
		switch {
		case e.code == http.StatusUnauthorized, e.code == http.StatusForbidden, e.code == http.StatusNotFound, e.code == http.StatusGone:
			return failed("%s", s.refusedStatus(a, e))
		case e.code >= 500:
			return &unreachableError{failed("the server is out of order (%v); try again later", e)}
		}
		return failed("the server answered with %v", e)
	}
	if e, ok := errors.AsType[*notGitError](cause); ok {
		return failed("the server answered, but not as a git server: %v, not git's smart HTTP protocol; check that the URL is a repository's and that no login page or proxy stands before it", e)
	}
	if e, ok := errors.AsType[*redirectError](cause); ok {
		return provision.Fail(provision.CodeRepoRefused,
			fmt.Sprintf("template_source.repo: %s redirects to %s, which this agent refuses ([policy] repos in the agent's configuration); use a URL that needs no such redirect, or allow that one", a, e.to), err)
	}
	if e, ok := errors.AsType[*hostKeyError](cause); ok {
		return failed("%s", e.advice(s.hosts.of(a)))
	}
	if e, ok := errors.AsType[*remoteError](cause); ok {
		return failed("%v", e)
	}
	if e, ok := errors.AsType[*noKeyError](cause); ok {
		return failed("no key to identify this agent by: %v", e)
	}
	if isTLS(cause) {
		return failed("the secure connection failed: %s; if its certificate comes from a CA of your own, name that in ca_file under [git] in the agent's configuration", printable(tlsReason(cause), 200))
	}
	switch {
	case errors.Is(cause, errNoSSHKey):
		return failed("no key to identify this agent by: %v; set ssh_key_file under %s in the agent's configuration", cause, table(a.hostPort()))
	case errors.Is(cause, transport.ErrRepositoryNotFound):
		return failed("not found: there is no git repository")
	case strings.Contains(cause.Error(), "ssh: unable to authenticate"):
		return failed("%s", s.refusedKey(a))
	case errors.Is(cause, errTooManyRefs):
		return failed("%v: more than %d MB", errTooManyRefs, s.limits.refs>>20)
	case errors.Is(cause, errPackTooLarge):
		return failed("%v", cause)
	case errors.Is(cause, errBadPack):
		return failed("%s; it may have been damaged on its way: try again, and if it stays so, have the repository checked (git fsck)", printable(cause.Error(), 200))
	case isNetwork(cause):
		return &unreachableError{failed("cannot reach the server: %s", printable(networkReason(cause), 200))}
	}
	return failed("the server's answer could not be used: %s", printable(cause.Error(), 200))
}

// exposeCause looks through go-git's wrappers that errors.As cannot.
func exposeCause(err error) error {
	for {
		if e, ok := errors.AsType[*plumbing.UnexpectedError](err); ok {
			err = e.Err
		} else if e, ok := errors.AsType[*plumbing.PermanentError](err); ok {
			err = e.Err
		} else {
			return err
		}
	}
}

func isNetwork(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// networkReason leaves out the request that net/http puts before it.
func networkReason(err error) string {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Error()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return "the connection broke"
	}
	return err.Error()
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.SystemRootsError](err)
	return ok
}

func tlsReason(err error) string {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e.Err.Error()
	}
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return e.Msg
	}
	if e, ok := errors.AsType[tls.AlertError](err); ok {
		return e.Error()
	}
	return err.Error()
}

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
