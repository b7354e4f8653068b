// Package web is the HTTP server of the control plane: its limits and time-outs, its
// certificate, and the handler for each path.
//
// It renews a changed certificate without a restart, keeps scanners' failed
// handshakes out of the log, and reports each request by the pattern of its route,
// never by its path.
//
// The package must not know what the handlers do.
package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// Defaults of Limits.
const (
	DefaultHeaderTimeout  = 10 * time.Second
	DefaultReadTimeout    = 30 * time.Second
	DefaultWriteTimeout   = 2 * time.Minute
	DefaultIdleTimeout    = 2 * time.Minute
	DefaultMaxHeader      = 16 << 10
	DefaultMaxConnections = 20_000
	// DefaultMaxAddress is enough for 10,000 agents behind one address.
	DefaultMaxAddress = 12_000
)

// stopLimit is how long open requests may take at the end.
const stopLimit = 5 * time.Second

// Limits bound what one client, and all of them, can hold. Zero: the default.
type Limits struct {
	// HeaderTimeout is for the TLS handshake, and for a request's header, ReadTimeout for a
	// whole request, WriteTimeout for all that comes after its header, IdleTimeout for a
	// connection between two of them.
	HeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	MaxHeader                                             int // bytes
	MaxConnections                                        int // of all clients together
	// MaxAddress bounds the connections of one address (for IPv6 a /64), and its requests under
	// way; further ones are refused. Three quarters of MaxConnections at most: the others are
	// left something.
	MaxAddress int
	// TrustedProxies are believed what they say in X-Forwarded-For, so that MaxAddress counts
	// their clients' requests. Their connections count for MaxConnections alone.
	TrustedProxies []netip.Prefix
}

// Server is one that runs.
type Server struct {
	server *http.Server
	done   chan struct{}
}

// Start answers on the listener until Stop; with a certificate by TLS. It calls
// broken when it cannot go on, and logs the panics of handlers.
func Start(listener net.Listener, handler http.Handler, limits Limits, certificate *Certificate, logger *slog.Logger, broken func(error)) *Server {
	most := cmp.Or(limits.MaxConnections, DefaultMaxConnections)
	by := newAddresses(min(cmp.Or(limits.MaxAddress, DefaultMaxAddress), max(1, most*3/4)), limits.TrustedProxies, logger)
	s := &Server{done: make(chan struct{}), server: &http.Server{
		Handler:           by.bound(handler),
		ReadHeaderTimeout: cmp.Or(limits.HeaderTimeout, DefaultHeaderTimeout),
		ReadTimeout:       cmp.Or(limits.ReadTimeout, DefaultReadTimeout),
		WriteTimeout:      cmp.Or(limits.WriteTimeout, DefaultWriteTimeout),
		IdleTimeout:       cmp.Or(limits.IdleTimeout, DefaultIdleTimeout),
		MaxHeaderBytes:    cmp.Or(limits.MaxHeader, DefaultMaxHeader),
		ErrorLog:          slog.NewLogLogger(&withoutScanners{logger.Handler()}, slog.LevelError),
	}}
	listener = &bounded{netutil.LimitListener(listener, most), by}
	go func() {
		defer close(s.done)
		var err error
		if certificate == nil {
			err = s.server.Serve(listener)
		} else {
			s.server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get}
			err = s.server.ServeTLS(listener, "", "")
		}
		if !errors.Is(err, http.ErrServerClosed) {
			broken(fmt.Errorf("serve HTTP: %w", err))
		}
	}()
	return s
}

// Stop lets open requests finish for a moment, then cuts them.
func (s *Server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // its listener is closed already
	}
	<-s.done
}

// withoutScanners leaves out what net/http tells of clients that do not speak
// its protocols: anybody can make such lines, and as many as they like.
type withoutScanners struct{ slog.Handler }

// Handle implements slog.Handler.
func (h *withoutScanners) Handle(ctx context.Context, r slog.Record) error {
	for _, of := range []string{"http: TLS handshake error", "http2: server", "http2: received GOAWAY", "timeout waiting for"} {
		if strings.HasPrefix(r.Message, of) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// Routes are the handlers of a control plane; what is nil is not there.
type Routes struct {
	// RPC gets all below /rest/v1 and below RPCPaths, with paths as they came: a ServeMux
	// would clean them first, and redirect.
	RPC      http.Handler
	RPCPaths []string
	// Health says what /healthz answers, and whether all is well.
	Health func(*http.Request) (body any, ok bool)
	// Rest gets everything else.
	Rest http.Handler
}

// ServeHTTP implements http.Handler.
func (r Routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	switch {
	case r.RPC != nil && (path == "/rest/v1" || strings.HasPrefix(path, "/rest/v1/")):
		took(req, "/rest/v1/")
		r.RPC.ServeHTTP(w, req)
	case r.RPC != nil && slices.ContainsFunc(r.RPCPaths, func(prefix string) bool { return strings.HasPrefix(path, prefix) }):
		took(req, "/rest/v1/")
		r.RPC.ServeHTTP(w, req)
	case r.Health != nil && path == "/healthz":
		took(req, path)
		r.health(w, req)
	case r.Rest != nil:
		r.Rest.ServeHTTP(w, req)
	default:
		http.NotFound(w, req)
	}
}

func (r Routes) health(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
		return
	}
	body, ok := r.Health(req)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}

// healthFor is how long an answer to /healthz is given again.
const healthFor = time.Second

// Sparing is Routes.Health for what costs something to find out: whoever asks,
// and how often, it is found out once a second at most, and by one at a time.
func Sparing(find func(context.Context) (body any, ok bool)) func(*http.Request) (any, bool) {
	var mu sync.Mutex
	var body any
	var ok bool
	var found time.Time
	return func(r *http.Request) (any, bool) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(found) >= healthFor {
			// For all who wait: this one may be gone before it is known.
			body, ok = find(context.WithoutCancel(r.Context()))
			found = time.Now()
		}
		return body, ok
	}
}

// Request is one that was answered.
type Request struct {
	// Route is the pattern that the path matched, such as /api/v1/provisions/{id},
	// never the path itself; "" for none.
	Route, Method string
	Status        int
	Took          time.Duration
	// Stream is true for what goes on for as long as its reader likes, and for what was held
	// until there was something to answer.
	Stream bool
	// Trace is the id of the trace that it was recorded in, "" for none.
	Trace string
}

// notedKey is the key of what is noted of a request for the Observe around it.
type notedKey struct{}

type noted struct{ route, trace string }

// Observe tells of each request that next has answered. Which route it took is
// known by a Routed further inside.
func Observe(next http.Handler, tell func(Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		of, within := r.Context().Value(notedKey{}).(*noted) // of an Observe around this one
		if !within {
			of = &noted{}
			r = r.WithContext(context.WithValue(r.Context(), notedKey{}, of))
		}
		seen := &seen{ResponseWriter: w}
		defer func() { // also of one that panics, for its client was gone
			status := seen.status
			if status == 0 {
				status = http.StatusOK
			}
			tell(Request{
				Route: of.route, Trace: of.trace, Method: r.Method, Status: status, Took: time.Since(began),
				Stream: strings.HasPrefix(seen.Header().Get("Content-Type"), "text/event-stream") || strings.Contains(seen.Header().Get("Preference-Applied"), "wait="),
			})
		}()
		next.ServeHTTP(seen, r)
	})
}

// Routed has an Observe around it know the pattern that next, an http.ServeMux,
// or one within it, has chosen.
func Routed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			_, path, method := strings.Cut(r.Pattern, " ")
			if !method {
				path = r.Pattern
			}
			took(r, path)
		}()
		next.ServeHTTP(w, r)
	})
}

// Traced has an Observe around it know the trace that a request is recorded in, by its id.
func Traced(r *http.Request, id string) {
	if of, ok := r.Context().Value(notedKey{}).(*noted); ok {
		of.trace = id
	}
}

// took notes which route a request has taken.
func took(r *http.Request, route string) {
	if of, ok := r.Context().Value(notedKey{}).(*noted); ok {
		of.route = route
	}
}

// seen remembers the status that was answered.
type seen struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *seen) WriteHeader(status int) {
	if s.status == 0 && status >= http.StatusOK {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (s *seen) Unwrap() http.ResponseWriter { return s.ResponseWriter }
