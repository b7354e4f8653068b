package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The limits of a server that anybody may ask who reaches its port: a probe or a
// scrape is one short request, and an agent must not run out of descriptors for
// what others open.
const (
	headerTimeout = 5 * time.Second
	requestLimit  = 30 * time.Second
	headerLimit   = 8 << 10 // bytes
	connections   = 64
)

// Server is the HTTP server of an agent.
type Server struct {
	listener net.Listener
	http     *http.Server
	serving  sync.WaitGroup
}

// Listen opens the port and serves until Close. The error says which setting
// names the port.
func Listen(address string, handler http.Handler) (*Server, error) {
	return listen(address, handler, headerTimeout)
}

func listen(address string, handler http.Handler, headerTimeout time.Duration) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("health.listen = %q: another program, or another agent, has that port already; name a free one", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("health.listen = %q: this user may not open that port; name one from 1024 up", address)
	case err != nil:
		return nil, fmt.Errorf("health.listen = %q: %w", address, err)
	}
	s := &Server{
		listener: Crowd(listener, connections),
		http: &http.Server{
			Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: requestLimit,
			MaxHeaderBytes: headerLimit,
			// What a stranger sends is no news for the agent's log.
			ErrorLog: log.New(io.Discard, "", 0),
		},
	}
	// One request a connection: who asks again in half a minute needs no open one.
	s.http.SetKeepAlivesEnabled(false)
	s.serving.Go(func() { _ = s.http.Serve(s.listener) }) // it ends with Close
	return s, nil
}

// Address is where the server listens, with the port that it was given.
func (s *Server) Address() string { return s.listener.Addr().String() }

// closeLimit is how long what is being answered may take when the agent ends.
const closeLimit = 2 * time.Second

// Close ends the server and waits until nothing of it is left.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // it has had its time
	}
	s.serving.Wait()
}

// Handler answers GET /healthz, /readyz and /metrics, and nothing else.
func Handler(loops *Loops, standing *Standing, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { alive(w, loops) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, standing) })
	mux.Handle("GET /metrics", metrics)
	return mux
}

// aliveBody is what /healthz answers.
type aliveBody struct {
	Status string      `json:"status"` // ok or stuck
	Reason string      `json:"reason,omitempty"`
	Loops  []string    `json:"loops"`
	Stuck  []stuckBody `json:"stuck,omitempty"`
}

type stuckBody struct {
	Loop string `json:"loop"`
	// Seconds since it last turned.
	Seconds int `json:"seconds"`
}

func alive(w http.ResponseWriter, loops *Loops) {
	body := aliveBody{Status: "ok", Loops: loops.Turning()}
	var reasons []string
	for _, s := range loops.Stuck() {
		body.Stuck = append(body.Stuck, stuckBody{s.Loop, int(s.Since.Seconds())})
		reasons = append(reasons, fmt.Sprintf("%s has not turned for %s", s.Loop, s.Since.Round(time.Second)))
	}
	status := http.StatusOK
	if reasons != nil {
		body.Status, body.Reason, status = "stuck", strings.Join(reasons, "; "), http.StatusServiceUnavailable
	}
	answer(w, status, body)
}

// readyBody is what /readyz answers.
type readyBody struct {
	Status string `json:"status"` // ready or not ready
	Reason string `json:"reason,omitempty"`
	// LastHeartbeat is when the database last answered one.
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
}

func ready(w http.ResponseWriter, standing *Standing) {
	r := standing.Ready()
	body, status := readyBody{Status: "ready", LastHeartbeat: r.Beat.UTC().Truncate(time.Millisecond)}, http.StatusOK
	if r.Beat.IsZero() {
		body.LastHeartbeat = time.Time{}
	}
	if r.Reason != "" {
		body.Status, body.Reason, status = "not ready", r.Reason, http.StatusServiceUnavailable
	}
	answer(w, status, body)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // who has hung up need not know
}
