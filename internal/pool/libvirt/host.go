package libvirt

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/tendril-run/tendril/internal/pool"
)

const (
	// defaultTimeout bounds one request where the configuration doesn't.
	defaultTimeout = 30 * time.Second
	// downFor is how long a host that could not be reached is not tried again.
	downFor = 5 * time.Second
	// grace is how long a request may go on after its caller gave up, so that what changes
	// something is seldom left in the air.
	grace = 2 * time.Second
	// maxCertificate bounds a certificate or key that is read.
	maxCertificate = 1 << 20
)

// host is one hypervisor and the connection to its daemon.
type host struct {
	name    string
	url     string
	address *url.URL
	config  *pool.Config
	timeout time.Duration

	connecting chan struct{} // holds a token while nobody connects
	// copies and agents bound how many long calls there are at once: a daemon carries out
	// five of a client's, and lets all others wait.
	copies, agents chan struct{}

	mu        sync.Mutex
	conn      *connection
	closed    bool
	downUntil time.Time
	downError error
	calls     sync.WaitGroup

	virt   string // what virtType found
	cpu    map[string]uint64
	cpuUse float64
}

type connection struct {
	rpc  *libvirt.Libvirt
	wire *boundedConn
}

// dialer gives the library a connection that exists.
type dialer struct{ conn net.Conn }

func (d dialer) Dial() (net.Conn, error) { return d.conn, nil }

func newHost(config *pool.Config, name, raw string) (*host, error) {
	address, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("host %s: its URL can't be read: %w", name, err)
	}
	switch {
	case address.Scheme == "unix" && address.Host == "" && address.Path != "":
	case (address.Scheme == "tcp" || address.Scheme == "tls") && address.Hostname() != "":
	default:
		return nil, fmt.Errorf("host %s: the URL %q is none of unix:///path/libvirt-sock, tcp://host:port and tls://host:port", name, address.Redacted())
	}
	if address.User != nil {
		return nil, fmt.Errorf("host %s: its URL has a user; libvirt's daemon knows its clients by their certificate or by who may open its socket", name)
	}
	h := &host{name: name, url: address.String(), address: address, config: config, timeout: config.Timeout, connecting: make(chan struct{}, 1)}
	if h.timeout <= 0 {
		h.timeout = defaultTimeout
	}
	h.connecting <- struct{}{}
	h.copies, h.agents = make(chan struct{}, 2), make(chan struct{}, 2)
	return h, nil
}

// ask calls a procedure of the host's daemon, within the time of one request.
func ask[T any](ctx context.Context, h *host, what string, call func(*libvirt.Libvirt) (T, error)) (T, error) {
	return askWithin(ctx, h, h.timeout, nil, what, call)
}

// do is ask for a procedure that answers nothing.
func (h *host) do(ctx context.Context, what string, call func(*libvirt.Libvirt) error) error {
	_, err := ask(ctx, h, what, func(l *libvirt.Libvirt) (struct{}, error) { return struct{}{}, call(l) })
	return err
}

// askWithin calls a procedure that may take longer. The library knows no contexts: the call has
// a goroutine, and where its time is over the connection is closed, which ends it and
// every other call of this host. A caller that gives up earlier leaves it behind. Calls that are
// long share slots.
func askWithin[T any](ctx context.Context, h *host, limit time.Duration, slots chan struct{}, what string, call func(*libvirt.Libvirt) (T, error)) (T, error) {
	var none T
	conn, err := h.connected(ctx)
	if err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	if slots != nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return none, fmt.Errorf("host %s: %s: waiting for others to end: %w", h.name, what, context.Cause(ctx))
		}
	}
	if !h.begin() {
		if slots != nil {
			<-slots
		}
		return none, fmt.Errorf("host %s: %w: the driver is closed", h.name, pool.ErrUnreachable)
	}
	go func() {
		defer h.calls.Done()
		if slots != nil {
			defer func() { <-slots }()
		}
		late := time.AfterFunc(limit, func() { _ = conn.wire.Close() })
		value, err := call(conn.rpc)
		if !late.Stop() && err != nil {
			err = fmt.Errorf("no answer within %s", limit)
		}
		answered <- answer{value, err}
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done():
		patience := time.NewTimer(grace)
		defer patience.Stop()
		select {
		case got = <-answered:
		case <-patience.C:
			return none, fmt.Errorf("host %s: %s: %w", h.name, what, context.Cause(ctx))
		}
	}
	if got.err == nil {
		return got.value, nil
	}
	if errors.Is(got.err, libvirt.ErrUnsupported) {
		return none, fmt.Errorf("host %s: %s: this version of libvirt can't: %w", h.name, what, got.err)
	}
	var said libvirt.Error
	if errors.As(got.err, &said) {
		said.Message = cut(said.Message, maxText)
		return none, fmt.Errorf("host %s: %s: %w", h.name, what, said)
	}
	if ctx.Err() != nil {
		return none, fmt.Errorf("host %s: %s: %w", h.name, what, context.Cause(ctx))
	}
	// Not the daemon's answer, so the connection is of no more use.
	_ = conn.wire.Close()
	return none, fmt.Errorf("host %s: %s: %w: %w", h.name, what, pool.ErrUnreachable, got.err)
}

// connected answers the connection, and makes one if there is none.
func (h *host) connected(ctx context.Context) (*connection, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("host %s was not asked: %w", h.name, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	select { // one at a time, the others wait for it
	case <-h.connecting:
		defer func() { h.connecting <- struct{}{} }()
	case <-ctx.Done():
		return nil, fmt.Errorf("host %s: %w: another caller has been connecting for %s", h.name, pool.ErrUnreachable, h.timeout)
	}
	h.mu.Lock()
	if h.conn != nil {
		select {
		case <-h.conn.wire.closed:
			h.conn = nil
		default:
		}
	}
	conn, closed, down := h.conn, h.closed, h.downError
	if time.Now().After(h.downUntil) {
		down = nil
	}
	h.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("host %s: %w: the driver is closed", h.name, pool.ErrUnreachable)
	case conn != nil:
		return conn, nil
	case down != nil:
		return nil, down
	}
	conn, err := h.connect(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("host %s: %w: no connection to %s: %w", h.name, pool.ErrUnreachable, h.url, err)
		if !errors.Is(err, context.Canceled) { // which says nothing about the host
			h.downError, h.downUntil = err, time.Now().Add(downFor)
		}
		return nil, err
	}
	if h.closed {
		_ = conn.wire.Close()
	}
	h.conn, h.downError = conn, nil
	return conn, nil
}

func (h *host) connect(ctx context.Context) (*connection, error) {
	raw, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}
	wire := newBoundedConn(raw)
	// Ends the handshake, which has no time limit itself.
	stop := context.AfterFunc(ctx, func() { _ = wire.Close() })
	defer stop()
	rpc := libvirt.NewWithDialer(dialer{wire})
	if err := rpc.ConnectToURI(libvirt.QEMUSystem); err != nil {
		_ = wire.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("libvirt's daemon does not answer: %w", context.Cause(ctx))
		}
		return nil, err
	}
	version, err := rpc.ConnectGetLibVersion()
	if err == nil && version < oldest {
		err = fmt.Errorf("libvirt %s is too old; version %s or newer is needed", versionText(version), versionText(oldest))
	}
	if err != nil {
		_ = wire.Close()
		return nil, err
	}
	return &connection{rpc, wire}, nil
}

// oldest is the first version that defines domains with flags and lists leases.
const oldest = 1_002_015

func versionText(version uint64) string {
	return fmt.Sprintf("%d.%d.%d", version/1_000_000, version/1000%1000, version%1000)
}

func (h *host) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	switch h.address.Scheme {
	case "unix":
		return d.DialContext(ctx, "unix", h.address.Path)
	case "tcp":
		return d.DialContext(ctx, "tcp", withPort(h.address, "16509"))
	}
	config, err := h.tlsConfig()
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{NetDialer: &d, Config: config}).DialContext(ctx, "tcp", withPort(h.address, "16514"))
	if err != nil {
		return nil, err
	}
	// One byte says whether the daemon takes our certificate.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var taken [1]byte
	if n, _ := conn.Read(taken[:]); n != 1 || taken[0] != 1 {
		_ = conn.Close()
		return nil, errors.New("the daemon refused our certificate or address; see tls_allowed_dn_list in its libvirtd.conf")
	}
	return conn, nil
}

func withPort(address *url.URL, port string) string {
	if p := address.Port(); p != "" {
		port = p
	}
	return net.JoinHostPort(address.Hostname(), port)
}

// tlsConfig reads the files at each connection, so that a renewed certificate is used.
func (h *host) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: h.address.Hostname()}
	if h.config.Insecure {
		config.InsecureSkipVerify = true // the pool's operator asks for it
	}
	if h.config.Fingerprint != "" {
		config.InsecureSkipVerify = true // the certificate itself is compared
		config.VerifyConnection = func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, strings.ReplaceAll(h.config.Fingerprint, ":", "")) {
				return fmt.Errorf("the daemon's certificate has the fingerprint %s, which is not the pool's", got)
			}
			return nil
		}
	}
	if h.config.CA != "" || h.config.CAFile != "" {
		pem, err := contents(h.config.CA, h.config.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM form", h.config.CAFile)
		}
	}
	if h.config.CertFile != "" {
		cert, err := contents(h.config.Cert, h.config.CertFile)
		if err != nil {
			return nil, err
		}
		key, err := contents(h.config.Key, h.config.KeyFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("the certificate %s and key %s: %w", h.config.CertFile, h.config.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// contents is what a file holds, which may be known already.
func contents(text, path string) ([]byte, error) {
	if text != "" {
		return []byte(text), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCertificate {
		return nil, fmt.Errorf("%s has %d bytes, and at most %d are read", path, info.Size(), maxCertificate)
	}
	return os.ReadFile(path)
}

// begin notes that a call is made, unless the driver is closed.
func (h *host) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.calls.Add(1)
	}
	return !h.closed
}

// close ends the connection and waits for the calls that it had.
func (h *host) close() {
	h.mu.Lock()
	h.closed = true
	conn := h.conn
	h.mu.Unlock()
	if conn != nil {
		_ = conn.wire.Close()
	}
	h.calls.Wait()
}

// is says whether an error is the daemon's, of one of these numbers.
func is(err error, numbers ...libvirt.ErrorNumber) bool {
	var said libvirt.Error
	if !errors.As(err, &said) {
		return false
	}
	for _, number := range numbers {
		if said.Code == uint32(number) {
			return true
		}
	}
	return false
}

// maxText bounds a text of a hypervisor that people read, in bytes.
const maxText = 1000

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}
