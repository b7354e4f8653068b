package source

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// httpsSession is go-git's, over a client that trusts less than it does.
type httpsSession struct {
	transport.UploadPackSession
	idle func()
}

func (s *httpsSession) Close() error {
	defer s.idle()
	return s.UploadPackSession.Close()
}

func (s *Source) openHTTPS(a address) (session, error) {
	trust := newTrust(s.authorities, s.dial)
	client := &http.Client{
		Transport: &guard{next: &identify{trust, s}, maxRefs: s.limits.refs},
		// GitLab redirects to the name with .git, GitHub to a repository's new
		// name: fine, where the policy allows the target as well.
		CheckRedirect: func(req *http.Request, _ []*http.Request) error {
			target := repositoryOf(req.URL)
			if _, err := s.allow.permit(target); err != nil {
				return &redirectError{to: redact(target), refusal: err}
			}
			return nil
		},
	}
	endpoint := &transport.Endpoint{Protocol: a.Scheme, Host: a.Host, Path: a.DialPath}
	if a.Port != "" {
		port, err := strconv.Atoi(a.Port)
		if err != nil {
			return nil, fmt.Errorf("port of %s: %w", a, err)
		}
		endpoint.Port = port
	}
	inner, err := githttp.NewClientWithOptions(client, nil).NewUploadPackSession(endpoint, nil)
	if err != nil {
		return nil, err
	}
	return &httpsSession{inner, trust.closeIdle}, nil
}

// guard turns answers that are not git's into errors that say what they are,
// before go-git reads a whole error page into memory or tries to parse one.
type guard struct {
	next    http.RoundTripper
	maxRefs int64
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return res, nil
	}
	want := "application/x-git-upload-pack-result"
	if strings.HasSuffix(req.URL.Path, "/info/refs") {
		want = "application/x-git-upload-pack-advertisement"
		res.Body = struct {
			io.Reader
			io.Closer
		}{&countdown{r: res.Body, left: g.maxRefs, err: errTooManyRefs}, res.Body}
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	switch {
	case res.StatusCode != http.StatusOK:
		_ = res.Body.Close()
		return nil, &statusError{code: res.StatusCode}
	case !strings.EqualFold(strings.TrimSpace(kind), want):
		_ = res.Body.Close()
		return nil, &notGitError{contentType: printable(kind, 60)}
	}
	return res, nil
}

// identify shows each server the credentials that are for it, and no other: a
// redirect takes none along, which net/http does to another port and to a
// subdomain, and go-git to wherever a redirect has led.
type identify struct {
	next   http.RoundTripper
	source *Source
}

func (i *identify) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	if a, err := parseAddress(repositoryOf(req.URL)); err == nil {
		if user, token := i.source.basic(a); token != "" {
			req.Header.Set("Authorization", "Basic "+basicAuth(user, token))
		}
	}
	return i.next.RoundTrip(req)
}

func basicAuth(user, token string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + token))
}

// repositoryOf is the repository that a request of git's protocol is about.
func repositoryOf(u *url.URL) string {
	target := *u
	target.RawQuery, target.Fragment = "", ""
	for _, end := range []string{"/info/refs", "/git-upload-pack"} {
		target.Path = strings.TrimSuffix(target.Path, end)
	}
	target.RawPath = ""
	return target.String()
}

// trust connects to HTTPS servers that a ca_file or one of the system's
// authorities vouches for. Reading the system's takes 10 ms of processor time,
// which each run would pay, so it is done for a server only for which the file
// did not do. Either way the connection is verified by the standard library.
type trust struct {
	file *http.Transport // trusts the ca_file; nil without one

	once   sync.Once
	wider  *http.Transport // trusts the system's authorities as well
	failed error
	bundle []byte
	dial   dialer
}

// dialer connects; nil: as usual, by way of a proxy where there is one.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// readAuthorities reads a file of certificates; "" is none.
func readAuthorities(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	bundle, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return bundle, nil
}

func newTrust(bundle []byte, dial dialer) *trust {
	t := &trust{bundle: bundle, dial: dial}
	if bundle != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(bundle)
		t.file = newTransport(pool, dial)
	}
	return t
}

// newTransport trusts the given authorities, nil for the system's.
func newTransport(roots *x509.CertPool, dial dialer) *http.Transport {
	t := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	if dial != nil {
		t.Proxy, t.DialContext = nil, dial
	}
	return t
}

// RoundTrip implements http.RoundTripper. A request whose server was not
// trusted has not been sent.
func (t *trust) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.file != nil {
		res, err := t.file.RoundTrip(req)
		if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); !untrusted {
			return res, err
		}
		if req.Body != nil {
			if req.GetBody == nil {
				return nil, err
			}
			body, again := req.GetBody()
			if again != nil {
				return nil, again
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
	}
	t.once.Do(t.widen)
	if t.failed != nil {
		return nil, t.failed
	}
	return t.wider.RoundTrip(req)
}

func (t *trust) widen() {
	if t.bundle == nil {
		t.wider = newTransport(nil, t.dial)
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		t.failed = &localError{fmt.Errorf("read the system's certificates: %w", err)}
		return
	}
	roots.AppendCertsFromPEM(t.bundle)
	t.wider = newTransport(roots, t.dial)
}

// closeIdle closes connections that nothing uses.
func (t *trust) closeIdle() {
	t.once.Do(func() {}) // no request is under way that could widen
	if t.file != nil {
		t.file.CloseIdleConnections()
	}
	if t.wider != nil {
		t.wider.CloseIdleConnections()
	}
}

// systemBundles is where systems keep their certificates in one file.
func systemBundles() []string {
	return []string{
		os.Getenv("SSL_CERT_FILE"),
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
		"/etc/ssl/ca-bundle.pem",                            // SUSE
		"/etc/ssl/cert.pem",
	}
}

// bundle writes the ca_file and the system's certificates into one file below
// dir, for git trusts one file only. "" without a ca_file.
func (s *Source) bundle(dir string) (path string, err error) {
	if s.authorities == nil {
		return "", nil
	}
	text := bytes.Clone(s.authorities)
	for _, name := range systemBundles() {
		if system, err := os.ReadFile(name); name != "" && err == nil {
			text = append(append(text, '\n'), system...)
			break
		}
	}
	file, err := os.CreateTemp(dir, "ca-*.pem")
	if err != nil {
		return "", fmt.Errorf("write the certificates for git: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return "", fmt.Errorf("write the certificates for git: %w", err)
	}
	return file.Name(), nil
}
