package proxies

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// reverse is a proxy that speaks HTTP/1.1 alone.
type reverse struct {
	// patience is after how long without an answer it gives up a call, with 504; 0: never.
	patience time.Duration
	// hangsUp has it close the connection instead.
	hangsUp bool
	// buffers has it pass on requests and answers as wholes.
	buffers bool
	// alter changes answers.
	alter func(*http.Response) error

	cut   atomic.Int64 // calls that it gave up
	whole atomic.Int64 // calls since then that were held and answered
}

// start starts it in front of a server that speaks HTTP.
func (p *reverse) start(t *testing.T, server string) (address string) {
	t.Helper()
	transport := &http.Transport{ResponseHeaderTimeout: p.patience}
	t.Cleanup(transport.CloseIdleConnections)
	handler := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server})
			r.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil && strings.Contains(err.Error(), "timeout awaiting response headers") {
				p.cut.Add(1)
				p.whole.Store(0)
			}
			if p.hangsUp {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusGatewayTimeout)
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Header.Get("Prefer") != "" && r.Header.Get("Preference-Applied") != "" {
				p.whole.Add(1)
			}
			if p.alter != nil {
				return p.alter(r)
			}
			if !p.buffers {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.buffers {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		handler.ServeHTTP(w, r)
	}))
	front.StartTLS() // without HTTP/2
	t.Cleanup(front.Close)
	return front.Listener.Addr().String()
}

// settled reports whether an agent has found out how long the proxy lets it wait; the next
// question is about another agent.
func (p *reverse) settled() bool {
	if p.patience > 0 && (p.cut.Load() < 2 || p.whole.Load() == 0) {
		return false
	}
	p.cut.Store(0)
	return true
}

// tunnel is a proxy that connects clients with one name, which only it knows, by CONNECT.
type tunnel struct {
	name, address string
	connected     atomic.Int64
	open          sync.WaitGroup
}

func (p *tunnel) start(t *testing.T) (proxyURL string) {
	t.Helper()
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		server.Close()
		p.open.Wait()
	})
	return server.URL
}

// ServeHTTP implements http.Handler.
func (p *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host != p.name {
		http.Error(w, "only CONNECT to "+p.name, http.StatusForbidden)
		return
	}
	there, err := net.Dial("tcp", p.address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close() // it was not used
		return
	}
	p.connected.Add(1)
	pass := func(to net.Conn, from io.Reader) {
		defer to.Close() //nolint:errcheck // it ends with the other side
		_, _ = io.Copy(to, from)
	}
	p.open.Go(func() { pass(here, there) })
	p.open.Go(func() { pass(there, buffered) })
}
