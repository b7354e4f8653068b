// Package web is the control plane's HTTP server: its limits, its certificate,
// and which handler gets which path.
//
// It must not know what the handlers do.
package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
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
	DefaultMaxConnections = 10_000
)

// stopLimit is how long open requests may take at the end.
const stopLimit = 5 * time.Second

// Limits bound what one client, and all of them, can hold. Zero: the default.
type Limits struct {
	// ReadTimeout is for a whole request, WriteTimeout for all that comes after
	// its header, IdleTimeout for a connection between two of them.
	ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	MaxHeader                              int // bytes
	MaxConnections                         int // of all clients together
}

// Server is one that runs.
type Server struct {
	server *http.Server
	done   chan struct{}
}

// Start answers on the listener until Stop; with a certificate by TLS. It calls
// broken when it cannot go on, and logs the panics of handlers.
func Start(listener net.Listener, handler http.Handler, limits Limits, certificate *Certificate, logger *slog.Logger, broken func(error)) *Server {
	s := &Server{done: make(chan struct{}), server: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: DefaultHeaderTimeout,
		ReadTimeout:       cmp.Or(limits.ReadTimeout, DefaultReadTimeout),
		WriteTimeout:      cmp.Or(limits.WriteTimeout, DefaultWriteTimeout),
		IdleTimeout:       cmp.Or(limits.IdleTimeout, DefaultIdleTimeout),
		MaxHeaderBytes:    cmp.Or(limits.MaxHeader, DefaultMaxHeader),
		ErrorLog:          slog.NewLogLogger(&withoutScanners{logger.Handler()}, slog.LevelError),
	}}
	listener = netutil.LimitListener(listener, cmp.Or(limits.MaxConnections, DefaultMaxConnections))
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
