package pvesim

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options are how a cluster begins.
type Options struct {
	// Speed is how much faster its time passes; 0: 1.
	Speed float64
	// Nodes are its hosts; none: one, pve1.
	Nodes []Node
	// Storages are what all nodes have; none: local, disks (linked clones work), thick (they
	// don't).
	Storages []Storage
	// Round is how often pvestatd looks at the machines; 0: 10 s.
	Round time.Duration
	// Version is what it says it is; "": 9.2.11.
	Version string
	// Forget says that it keeps no requests and few tasks, so that it can run for days.
	Forget bool
	// Backend really runs the machines; nil: they are records alone.
	Backend Backend
}

// Request is one that arrived, as far as it could be read.
type Request struct {
	Method, Path string
	// Values are of the query and the body together.
	Values map[string][]string
	Token  string
	Status int
}

// Server is a cluster. Its methods may be called at any time.
type Server struct {
	options  Options
	began    time.Time
	listener net.Listener
	cert     tls.Certificate
	der      []byte
	context  context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	// mu guards all that follows. Methods and tasks run with it, and give it up to wait.
	mu        sync.Mutex
	conns     map[net.Conn]bool
	requests  []Request
	faults    []*fault
	nodes     []*Node
	storages  []*Storage
	volumes   map[string]*volume // by node, "" of a shared storage, and volume id
	machines  map[int]*machine
	held      map[int]int // lock files: how many hold it together, -1: one alone
	holds     int
	tasks     []*task
	gate      chan struct{} // closed when tasks may begin; nil: they may
	nextPID   int
	users     map[string]bool // enabled
	tokens    map[string]*Token
	grants    []grant
	pools     map[string]*resourcePool
	status    map[int]map[string]any // as pvestatd saw the machines last
	statusAt  time.Time
	skipped   time.Duration
	copyTakes time.Duration
	noQuorum  bool
	Commands  func(vmid int, argv []string) (status int, out string) // what a guest's agent runs
	Files     func(vmid int, path string) (content string, has bool) // what a guest's agent reads
}

// Test is what New needs of a testing.TB. Programs have this package, too, and need none of
// package testing.
type Test interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(end func())
}

// New starts a cluster that ends with the test.
func New(t Test, options Options) *Server {
	t.Helper()
	s, err := Start(options)
	if err != nil {
		t.Fatalf("starting the simulator: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// Start starts a cluster on a port of 127.0.0.1.
func Start(options Options) (*Server, error) {
	if options.Speed == 0 {
		options.Speed = 1
	}
	if options.Round == 0 {
		options.Round = 10 * time.Second
	}
	if options.Version == "" {
		options.Version = "9.2.11"
	}
	if options.Nodes == nil {
		options.Nodes = []Node{{Name: "pve1", Cores: 2, Memory: 25276026880}}
	}
	if options.Storages == nil {
		options.Storages = []Storage{
			{Name: "local", Type: "dir", Path: "/var/lib/vz", Content: "iso,vztmpl,backup,snippets,import", Size: 12884901888},
			{Name: "disks", Type: "dir", Path: "/srv/disks", Content: "images,rootdir", Size: 12884901888},
			{Name: "thick", Type: "lvm", Content: "images,rootdir", Size: 68719476736},
		}
	}
	s := &Server{
		options: options, began: time.Now(), conns: map[net.Conn]bool{}, volumes: map[string]*volume{}, machines: map[int]*machine{},
		held: map[int]int{}, nextPID: 1000, users: map[string]bool{"root@pam": true}, tokens: map[string]*Token{},
		pools: map[string]*resourcePool{}, status: map[int]map[string]any{}, copyTakes: 300 * time.Millisecond,
	}
	for _, n := range options.Nodes {
		s.nodes = append(s.nodes, &n)
	}
	for _, st := range options.Storages {
		s.storages = append(s.storages, &st)
	}
	var err error
	if s.cert, s.der, err = certificate(); err != nil {
		return nil, err
	}
	if s.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.listener = tls.NewListener(s.listener, &tls.Config{Certificates: []tls.Certificate{s.cert}, MinVersion: tls.VersionTLS12})
	s.context, s.stop = context.WithCancel(context.Background())
	s.work.Go(s.accept)
	return s, nil
}

// certificate makes what a host of Proxmox has after its installation: one that nobody signed.
func certificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "pve1"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"pve1"},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, der, nil
}

// URL is where its API is, without /api2/json.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// Fingerprint is the SHA-256 of its certificate.
func (s *Server) Fingerprint() string {
	sum := sha256.Sum256(s.der)
	return hex.EncodeToString(sum[:])
}

// CAFile writes its certificate to a file in dir.
func (s *Server) CAFile(dir string) (string, error) {
	path := filepath.Join(dir, "pve-ca.pem")
	return path, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.der}), 0o600)
}

// Close ends it: tasks, connections and all.
func (s *Server) Close() {
	s.stop()
	_ = s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Requests are all that arrived so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// now is the cluster's time.
func (s *Server) now() time.Time {
	return s.began.Add(time.Duration(float64(time.Since(s.began))*s.options.Speed) + s.skipped)
}

// Skip lets time pass at once; what already waits goes on waiting.
func (s *Server) Skip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped += d
}

// Speed changes how fast time passes from now on.
func (s *Server) Speed(speed float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped += time.Duration(float64(time.Since(s.began)) * (s.options.Speed - speed))
	s.options.Speed = speed
}

// HoldTasks keeps the tasks that requests start from beginning, until begin is called.
func (s *Server) HoldTasks() (begin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gate = gate
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		close(gate)
	}
}

// Pass waits for d of the cluster's time.
func (s *Server) Pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait(s.context, d)
}

// wait gives mu up for d of the cluster's time, and reports whether nothing ended it sooner.
func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(time.Duration(float64(d) / s.options.Speed))
	defer timer.Stop()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			if s.context.Err() != nil {
				return
			}
			continue
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.work.Go(func() {
			defer func() {
				_ = conn.Close()
				s.mu.Lock()
				delete(s.conns, conn)
				s.mu.Unlock()
			}()
			s.serve(conn)
		})
	}
}

// serve answers one connection's requests. It writes answers itself: net/http has no way to
// choose the reason phrase, which is where Proxmox says what is wrong.
func (s *Server) serve(conn net.Conn) {
	limited := &io.LimitedReader{R: conn}
	reader := bufio.NewReader(limited)
	for {
		limited.N = 16 << 10 // of headers; more, and Proxmox closes the connection
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		limited.N = 16 << 20
		body, err := io.ReadAll(io.LimitReader(request.Body, 16<<20))
		if err != nil {
			return
		}
		answer, how := s.answer(request, body)
		if how == cutAfter || how == cutBefore {
			return
		}
		if !s.write(conn, request, answer, how) {
			return
		}
	}
}

// write sends one answer and reports whether the connection stays.
func (s *Server) write(conn net.Conn, request *http.Request, a answer, how string) bool {
	body, kind := a.text, "text/plain"
	if a.kind != "" {
		kind = a.kind
	}
	if a.body != nil {
		data, err := json.Marshal(a.body)
		if err != nil {
			data = []byte(`{"data":null}`)
		}
		body, kind = string(data), "application/json;charset=UTF-8"
	}
	keep := a.status == http.StatusOK && !request.Close
	connection := "close"
	if keep {
		connection = "Keep-Alive"
	}
	length := len(body) + a.flood<<20
	var head strings.Builder
	reason, _, _ := strings.Cut(a.reason, "\n")
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\nCache-Control: max-age=0\r\nConnection: %s\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n",
		a.status, reason, connection, kind, length, a.header)
	if request.Method == http.MethodHead {
		body = ""
	}
	if how == drip {
		for _, b := range []byte(head.String() + body) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return false
			}
			s.mu.Lock()
			ok := s.wait(s.context, time.Second)
			s.mu.Unlock()
			if !ok {
				return false
			}
		}
		return keep
	}
	if _, err := io.WriteString(conn, head.String()+body); err != nil {
		return false
	}
	for range a.flood {
		if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
			return false
		}
	}
	return keep
}

// answer is what a request comes to.
type answer struct {
	status       int
	reason, text string
	kind, header string
	body         map[string]any
	flood        int // MiB of nothing
}

// answer handles one request; how is what a fault does to it.
func (s *Server) answer(request *http.Request, body []byte) (answer, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.requests)
	s.requests = append(s.requests, Request{Method: request.Method, Path: request.URL.Path})
	record := &s.requests[at]
	if s.options.Forget {
		s.requests = s.requests[:at]
		record = &Request{}
	}
	f := s.fault(request.Method, request.URL.Path)
	how := ""
	if f != nil {
		switch how = f.action; how {
		case cutBefore:
			return answer{}, how
		case slow:
			s.wait(s.context, f.takes)
		case status:
			return answer{status: f.status, reason: f.text, body: map[string]any{"data": nil, "message": f.text + "\n"}}, ""
		case proxyFails:
			return answer{status: f.status, reason: f.text}, ""
		case redirect:
			return answer{status: 301, reason: "Moved Permanently", header: "Location: " + f.text + "\r\n"}, ""
		case flood:
			return answer{status: 200, reason: "OK", flood: f.status}, ""
		}
	}
	c := &call{s: s, request: request, raw: body, record: record, fault: f}
	a := c.handle()
	if !s.options.Forget {
		s.requests[at].Status = a.status // appended to meanwhile: the slice may have moved
	}
	return a, how
}

var errInterrupted = errors.New("interrupted by signal")
