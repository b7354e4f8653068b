package managedstate

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/statechain"
)

// MaxState is the largest state that is taken, in bytes.
const MaxState = statechain.MaxState

// Options are what a Server serves.
type Options struct {
	// State is the state as it is; empty for none.
	State []byte
	// Save stores a state that the engine writes, before the engine is told that
	// it is stored. One at a time; the bytes are the callee's to keep.
	Save func(state []byte, header Header) error
	// Refused hears what a process tried that no engine does; it completes "a
	// process tried to". It must not call the Server.
	Refused func(what string)
	// TooLarge hears of a state beyond the limit, which is refused: the engine
	// says no more than "HTTP error: 413".
	TooLarge func(limit int64)
	// Limit is MaxState when zero.
	Limit int64
}

// Server is Terraform's http backend for one run.
type Server struct {
	options Options
	server  *http.Server
	address string
	served  chan struct{}

	mu      sync.Mutex
	grants  map[*Grant]struct{}
	state   []byte
	refused []byte // the newest that could not be saved, unless a newer one was
	lock    lock
}

// Serve starts a server, which Close ends.
func Serve(o Options) (*Server, error) {
	if o.Limit == 0 {
		o.Limit = MaxState
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the state: %w", err)
	}
	s := &Server{
		options: o, state: o.State, address: "http://" + listener.Addr().String() + "/",
		grants: map[*Grant]struct{}{}, served: make(chan struct{}),
	}
	s.server = &http.Server{Handler: http.MaxBytesHandler(s, o.Limit+1), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	go func() {
		defer close(s.served)
		_ = s.server.Serve(listener) // until Close
	}()
	return s, nil
}

// Close ends the server, whoever is connected. It waits for no request, but for
// one that is being saved.
func (s *Server) Close() {
	_ = s.server.Close()
	<-s.served
	s.mu.Lock() // what is being saved is saved
	defer s.mu.Unlock()
}

// State is the state as it is now; empty for none.
func (s *Server) State() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Put saves a state as if the engine had written it.
func (s *Server) Put(state []byte) error {
	header, err := readHeader(state)
	if err != nil {
		return err
	}
	if int64(len(state)) > s.options.Limit {
		return ErrTooLarge
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.save(state, header)
}

// ErrTooLarge is returned for a state beyond the limit.
var ErrTooLarge = errors.New("the state is too large")

func (s *Server) save(state []byte, header Header) error {
	if err := s.options.Save(state, header); err != nil {
		s.refused = state
		return err
	}
	s.state, s.refused = state, nil
	return nil
}

// Refused is the newest state, where that could not be saved; nil for none. An
// engine that is killed before it has left it anywhere is not missed.
func (s *Server) Refused() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// granted returns the Grant whose password a request shows, nil without one. What
// is compared has one length, so the time says nothing.
func (s *Server) granted(r *http.Request) *Grant {
	name, password, _ := r.BasicAuth()
	got := sha256.Sum256([]byte(name + ":" + password))
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.grants {
		want := sha256.Sum256([]byte(username + ":" + g.password))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return g
		}
	}
	return nil
}
