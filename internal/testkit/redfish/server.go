package redfish

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say how a service is.
type Options struct {
	// User and Password let in; by default admin and password.
	User, Password string
	// Dir is where images are kept that are inserted. The hypervisor must see it by the same path.
	Dir string
	// MaxImage bounds an image, in bytes; by default 4 GiB.
	MaxImage int64
	// DownloadTimeout bounds how long an image may take to arrive; by default 5 minutes.
	DownloadTimeout time.Duration
	// SessionTimeout is how long a session lasts that nobody uses; by default 30 minutes.
	SessionTimeout time.Duration
	// TLS gives the service a certificate that it signs itself, as most BMCs have one.
	TLS bool
}

// restartTimeout is how long a guest may take to shut down before a graceful restart is given up.
const restartTimeout = 5 * time.Minute

// Server is a Redfish service.
type Server struct {
	user           string
	hypervisor     Hypervisor
	dir            string
	maxImage       int64
	sessionTimeout time.Duration
	client         *http.Client // of images
	address        string
	scheme         string
	tls            *tls.Config
	handler        http.Handler

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // requests, and restarts that wait for a guest

	mu          sync.Mutex
	password    string
	sessions    []*session
	lastSession int
	systems     map[string]*system // by the UUID of their domain
	faults      []*fault
	requests    []string
	closed      bool
	http        *http.Server // nil while the BMC is away
	serving     chan struct{}
}

// New starts a service at a port of 127.0.0.1 in front of a hypervisor, which is the service's then: Close
// closes both.
func New(hypervisor Hypervisor, o Options) (*Server, error) {
	s := &Server{
		hypervisor: hypervisor, user: or(o.User, "admin"), password: or(o.Password, "password"), dir: o.Dir,
		maxImage: or(o.MaxImage, 4<<30), sessionTimeout: or(o.SessionTimeout, 30*time.Minute),
		client: &http.Client{Timeout: or(o.DownloadTimeout, 5*time.Minute), Transport: &http.Transport{DisableKeepAlives: true}},
		scheme: "http", systems: map[string]*system{},
	}
	if info, err := os.Stat(s.dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("the directory %q of the images can't be used: %w", s.dir, errors.Join(err, hypervisor.Close()))
	}
	if o.TLS {
		certificate, err := selfSigned()
		if err != nil {
			return nil, errors.Join(err, hypervisor.Close())
		}
		s.scheme, s.tls = "https", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.handler = s.routes()
	s.address = "127.0.0.1:0"
	if err := s.Back(); err != nil {
		s.stop()
		return nil, errors.Join(err, hypervisor.Close())
	}
	return s, nil
}

func or[T comparable](value, otherwise T) T {
	var none T
	if value == none {
		return otherwise
	}
	return value
}

// URL is where the service listens, such as http://127.0.0.1:8000.
func (s *Server) URL() string { return s.scheme + "://" + s.address }

// SystemPath is the path of a domain's computer system, by its UUID.
func SystemPath(id string) string { return serviceRoot + "/Systems/" + id }

// Away makes the BMC unreachable: connections are refused, and those that there are end.
func (s *Server) Away() {
	s.mu.Lock()
	server, serving := s.http, s.serving
	s.http = nil
	s.mu.Unlock()
	if server != nil {
		_ = server.Close()
		<-serving
	}
}

// Back makes it reachable again, at the same port.
func (s *Server) Back() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return nil
	}
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("the Redfish service can't listen at %s: %w", s.address, err)
	}
	s.address = listener.Addr().String()
	if s.tls != nil {
		listener = tls.NewListener(listener, s.tls)
	}
	server, serving := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog: log.New(io.Discard, "", 0), // of clients that refuse its certificate
	}, make(chan struct{})
	s.http, s.serving = server, serving
	go func() {
		defer close(serving)
		_ = server.Serve(listener) // ended by Away
	}()
	return nil
}

// Close ends the service, and removes the images that are still inserted. Its domains run on.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Away()
	s.work.Wait()
	s.client.CloseIdleConnections()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, each := range s.systems {
		for _, d := range each.drives {
			if d.file != "" {
				errs = append(errs, os.Remove(d.file))
			}
		}
	}
	return errors.Join(append(errs, s.hypervisor.Close())...)
}

// Requests answers the requests so far, such as "GET /redfish/v1/Systems".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// routes says what there is. All but the service's root and the sign-in needs a user.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	open := func(pattern string, h handler) { mux.Handle(pattern, h) }
	closed := func(pattern string, h handler) {
		mux.Handle(pattern, handler(func(w http.ResponseWriter, r *http.Request) error {
			if err := s.authorize(r); err != nil {
				return err
			}
			return h(w, r)
		}))
	}
	open("GET /redfish", func(w http.ResponseWriter, _ *http.Request) error {
		return show(w, resource{"v1": serviceRoot + "/"})
	})
	open("GET "+serviceRoot, s.root)
	open("POST "+sessionPath, s.signIn)
	closed("GET "+serviceRoot+"/SessionService", s.sessionService)
	closed("GET "+sessionPath, s.listSessions)
	closed("GET "+sessionPath+"/{session}", s.showSession)
	closed("DELETE "+sessionPath+"/{session}", s.signOut)

	for _, each := range []struct{ path, kind, name string }{
		{"Systems", "ComputerSystemCollection", "Computer System Collection"},
		{"Managers", "ManagerCollection", "Manager Collection"},
		{"Chassis", "ChassisCollection", "Chassis Collection"},
	} {
		path := serviceRoot + "/" + each.path
		closed("GET "+path, func(w http.ResponseWriter, r *http.Request) error {
			ids, err := s.hypervisor.Domains(r.Context())
			if err != nil {
				return err
			}
			slices.Sort(ids)
			for i, id := range ids {
				ids[i] = path + "/" + id
			}
			return show(w, collection(path, each.kind, each.name, ids...))
		})
	}
	// of makes a handler of one domain, which has the lock of what is remembered of it.
	of := func(h func(*system, Domain, http.ResponseWriter, *http.Request) error) handler {
		return func(w http.ResponseWriter, r *http.Request) error {
			d, err := s.hypervisor.Domain(r.Context(), r.PathValue("system"))
			if errors.Is(err, ErrNoDomain) {
				return unknown("ComputerSystem", r.PathValue("system"))
			}
			if err != nil {
				return err
			}
			each := s.system(d.ID)
			each.mu.Lock()
			defer each.mu.Unlock()
			// Read again: whoever had the lock before may have changed it.
			if d, err = s.hypervisor.Domain(r.Context(), d.ID); err != nil {
				return err
			}
			return h(each, d, w, r)
		}
	}
	system, manager, chassis := serviceRoot+"/Systems/{system}", serviceRoot+"/Managers/{system}", serviceRoot+"/Chassis/{system}"
	closed("GET "+system, of(s.showSystem))
	closed("PATCH "+system, of(s.changeSystem))
	closed("POST "+system+"/Actions/ComputerSystem.Reset", of(s.reset))
	closed("GET "+system+"/Processors", of(s.processors))
	closed("GET "+system+"/Processors/{id}", of(s.processor))
	closed("GET "+system+"/Memory", of(s.memories))
	closed("GET "+system+"/Memory/{id}", of(s.memory))
	closed("GET "+system+"/EthernetInterfaces", of(s.interfaces))
	closed("GET "+system+"/EthernetInterfaces/{id}", of(s.ethernet))
	closed("GET "+system+"/Storage", of(s.storages))
	closed("GET "+system+"/Storage/1", of(s.storage))
	closed("GET "+system+"/Storage/1/Drives/{id}", of(s.disk))
	closed("GET "+system+"/Bios", of(s.bios))
	closed("GET "+system+"/Bios/Settings", of(s.biosSettings))
	closed("PATCH "+system+"/Bios/Settings", of(s.changeBIOS))
	closed("POST "+system+"/Bios/Actions/Bios.ResetBios", of(s.resetBIOS))

	closed("GET "+manager, of(s.showManager))
	closed("POST "+manager+"/Actions/Manager.Reset", of(s.resetManager))
	closed("GET "+manager+"/VirtualMedia", of(s.media))
	closed("GET "+manager+"/VirtualMedia/{drive}", of(s.medium))
	closed("POST "+manager+"/VirtualMedia/{drive}/Actions/VirtualMedia.InsertMedia", of(s.insert))
	closed("POST "+manager+"/VirtualMedia/{drive}/Actions/VirtualMedia.EjectMedia", of(s.eject))

	closed("GET "+chassis, of(s.showChassis))
	closed("GET "+chassis+"/Thermal", of(s.thermal))
	closed("GET "+chassis+"/Power", of(s.power))
	closed("/", func(_ http.ResponseWriter, r *http.Request) error { return unknown("Resource", r.URL.Path) })

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimRight(r.URL.Path, "/")
		if !s.begin(r.Method + " " + path) {
			return
		}
		defer s.work.Done()
		w.Header().Set("OData-Version", "4.0")
		w.Header().Set("Cache-Control", "no-cache")
		if s.misbehave(w, r, path) {
			return
		}
		asked := r.Clone(r.Context())
		asked.URL.Path, asked.URL.RawPath = path, ""
		mux.ServeHTTP(w, asked)
	})
}

// begin notes a request, for which Close waits; it says no when the service is closed.
func (s *Server) begin(request string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.requests = append(s.requests, request)
	s.work.Add(1)
	return true
}

func (s *Server) root(w http.ResponseWriter, _ *http.Request) error {
	return show(w, resource{
		"@odata.id": serviceRoot, "@odata.type": "#ServiceRoot.v1_14_0.ServiceRoot",
		"Id": "RootService", "Name": "Root Service", "RedfishVersion": "1.15.0", "UUID": "92384634-2938-2342-8820-489239905423",
		"Product": "Redfish service of a test", "Vendor": manufacturer,
		"Systems": link(serviceRoot + "/Systems"), "Managers": link(serviceRoot + "/Managers"), "Chassis": link(serviceRoot + "/Chassis"),
		"SessionService": link(serviceRoot + "/SessionService"), "Links": resource{"Sessions": link(sessionPath)},
		"ProtocolFeaturesSupported": resource{"ExcerptQuery": false, "FilterQuery": false, "OnlyMemberQuery": false, "SelectQuery": false},
	})
}

// selfSigned makes a certificate for 127.0.0.1 that no client knows.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bmc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
