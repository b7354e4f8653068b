package managedstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// The methods of the protocol that are not HTTP's own.
const (
	methodLock   = "LOCK"
	methodUnlock = "UNLOCK"
)

// Header is what a state says about itself.
type Header struct {
	Version int    `json:"version"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
}

func readHeader(state []byte) (Header, error) {
	var h Header
	if err := json.Unmarshal(state, &h); err != nil {
		return h, fmt.Errorf("no state: %w", err)
	}
	if h.Version <= 0 {
		return h, errors.New("no state: it has no version")
	}
	return h, nil
}

// lock is who has the state locked; the zero value: nobody.
type lock struct {
	id string
	// info is all that the engine says of it, which another one is shown.
	info []byte
}

// maxLockInfo is the most that is taken of a lock's description.
const maxLockInfo = 64 << 10

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !s.knows(r):
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "this state is for one run alone", http.StatusUnauthorized)
	case r.URL.Path != "/":
		http.NotFound(w, r)
	case r.Method == http.MethodGet:
		s.get(w)
	case r.Method == http.MethodPost:
		s.post(w, r)
	case r.Method == methodLock, r.Method == methodUnlock:
		s.changeLock(w, r)
	default: // DELETE too: a workspace's state goes with the workspace
		http.Error(w, "not part of this protocol", http.StatusMethodNotAllowed)
	}
}

func (s *Server) get(w http.ResponseWriter) {
	state := s.State()
	if len(state) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(state) // an engine that has gone needs none
}

// post takes a state from whoever has the lock. A template's commands inherit
// the engine's environment: without the lock they change nothing.
func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	state, err := s.body(r)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok || int64(len(state)) > s.options.Limit {
		if s.options.TooLarge != nil {
			s.options.TooLarge(s.options.Limit)
		}
		http.Error(w, ErrTooLarge.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "the state has not come to its end", http.StatusBadRequest)
		return
	}
	header, err := readHeader(state)
	if err != nil {
		http.Error(w, "this is no state", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := r.URL.Query().Get("ID"); s.lock.id == "" || id != s.lock.id {
		s.refuse(w)
		return
	}
	if err := s.save(state, header); err != nil {
		http.Error(w, "the state could not be stored", http.StatusInternalServerError)
	}
}

// body reads what is sent. Room for it is made at once where the engine says how
// much there is: a state may be a large part of what memory there is.
func (s *Server) body(r *http.Request) ([]byte, error) {
	var body bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= s.options.Limit {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(r.Body)
	return body.Bytes(), err
}

func (s *Server) changeLock(w http.ResponseWriter, r *http.Request) {
	info, err := io.ReadAll(io.LimitReader(r.Body, maxLockInfo))
	var said struct{ ID string }
	if len(info) > 0 {
		err = errors.Join(err, json.Unmarshal(info, &said))
	}
	if err != nil || r.Method == methodLock && said.ID == "" {
		http.Error(w, "this describes no lock", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == methodLock && s.lock.id == "":
		s.lock = lock{id: said.ID, info: info}
	case r.Method == methodUnlock && (said.ID == "" || said.ID == s.lock.id || s.lock.id == ""):
		s.lock = lock{} // without an id: by force
	default:
		s.refuse(w)
	}
}

// refuse says who has the lock.
func (s *Server) refuse(w http.ResponseWriter) {
	if s.lock.id == "" {
		http.Error(w, "the state is not locked", http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusLocked)
	_, _ = w.Write(s.lock.info)
}
