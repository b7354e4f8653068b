package gittest

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
)

// Status answers every request with a status code and a short page.
func Status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, http.StatusText(code), code)
	})
}

// HTML answers every request with a web page, like a captive portal.
func HTML() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><title>Please sign in</title>")
	})
}

// Reset breaks every connection that asks for something, as a firewall does
// that has lost its memory.
func Reset() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // so that closing it resets it
		}
		_ = conn.Close()
	})
}

// Redirect sends every request to the same path and query on another base URL.
func Redirect(base string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, base+r.URL.RequestURI(), http.StatusMovedPermanently)
	})
}

// Hang answers nothing until the client goes away. It closes started at the
// first request.
func Hang(started chan struct{}) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(started) })
		// Without reading the body to its end the server would not notice
		// that the client has gone.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
}

// HangPack serves references, and of each pack the first n bytes of the
// answer; then it waits for the client to go away. It closes started when the
// first one waits.
func (s *Server) HangPack(n int, started chan struct{}) {
	var once sync.Once
	s.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			s.backend.ServeHTTP(w, r)
			return
		}
		s.backend.ServeHTTP(&hangingWriter{
			ResponseWriter: w, left: n, gone: r.Context(),
			started: func() { once.Do(func() { close(started) }) },
		}, r)
	}))
}

// CutPack serves references, and of each pack the first n bytes of the answer;
// then it breaks the connection.
func (s *Server) CutPack(n int) {
	s.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			s.backend.ServeHTTP(w, r)
			return
		}
		cut, cancel := context.WithCancel(r.Context())
		cancel()
		s.backend.ServeHTTP(&hangingWriter{ResponseWriter: w, left: n, gone: cut, started: func() {}}, r)
		panic(http.ErrAbortHandler)
	}))
}

// SpoilPack serves references, and of each pack changes the byte n of the
// answer, as faulty memory on its way does.
func (s *Server) SpoilPack(n int) {
	s.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w = &spoilingWriter{ResponseWriter: w, at: n}
		}
		s.backend.ServeHTTP(w, r)
	}))
}

// spoilingWriter changes one byte.
type spoilingWriter struct {
	http.ResponseWriter
	at int // in what is still to be written
}

func (w *spoilingWriter) Write(p []byte) (int, error) {
	if w.at >= 0 && w.at < len(p) {
		p = bytes.Clone(p)
		p[w.at] ^= 0x20
	}
	w.at -= len(p)
	return w.ResponseWriter.Write(p)
}

// OnlyWhole refuses to serve commits without their history.
func (s *Server) OnlyWhole() {
	s.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil || bytes.Contains(body, []byte("deepen ")) {
				http.Error(w, "no shallow clones here", http.StatusForbidden)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		s.backend.ServeHTTP(w, r)
	}))
}

// hangingWriter passes on a number of bytes and then waits for the client to
// go away.
type hangingWriter struct {
	http.ResponseWriter
	left    int
	gone    context.Context //nolint:containedctx // an http.ResponseWriter gets no other
	started func()
}

func (w *hangingWriter) Write(p []byte) (int, error) {
	if len(p) <= w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	if _, err := w.ResponseWriter.Write(p[:w.left]); err != nil {
		return 0, err
	}
	w.left = 0
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	w.started()
	<-w.gone.Done()
	return 0, w.gone.Err()
}
