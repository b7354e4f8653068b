package managedstate

import (
	"bytes"
	"crypto/rand"
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
	of *Grant
	// id is the engine's secret: no answer repeats it.
	id string
}

// errEnded answers who shows no password that counts.
const errEnded = "this state is for a command that runs now"

// maxLockInfo is the most that is taken of a lock's description.
const maxLockInfo = 64 << 10

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	grant := s.granted(r)
	switch {
	case grant == nil:
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, errEnded, http.StatusUnauthorized)
	case r.URL.Path != "/":
		http.NotFound(w, r)
	case r.Method == http.MethodGet:
		s.get(w)
	case r.Method == http.MethodPost:
		s.post(w, r, grant)
	case r.Method == methodLock, r.Method == methodUnlock:
		s.changeLock(w, r, grant)
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

// post takes a state from the engine that has the lock.
func (s *Server) post(w http.ResponseWriter, r *http.Request, g *Grant) {
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
	switch id := r.URL.Query().Get("ID"); {
	case !s.live(g):
		http.Error(w, errEnded, http.StatusUnauthorized)
	case g.access < Write:
		s.refuse(w, http.StatusForbidden, "write the state during a command that only reads it")
	case s.lock.of == nil:
		s.refuse(w, http.StatusConflict, "write the state without its lock")
	case s.lock.of != g || id != s.lock.id:
		s.refuse(w, http.StatusLocked, "write the state without the id of its lock")
	default:
		if err := s.follows(state, header); err != nil {
			s.refuse(w, http.StatusConflict, err.Error())
		} else if err := s.save(state, header); err != nil {
			http.Error(w, "the state could not be stored", http.StatusInternalServerError)
		}
	}
}

// follows fails unless a state can come after the stored one. The error completes
// "tried to".
func (s *Server) follows(state []byte, next Header) error {
	if len(s.state) == 0 || bytes.Equal(s.state, state) {
		return nil
	}
	stored, err := readHeader(s.state)
	told := err == nil // an encrypted one tells nothing about itself
	switch {
	case !told:
		return nil
	case next.Lineage != stored.Lineage:
		return errors.New("replace the state by one of another lineage")
	case next.Serial <= stored.Serial:
		return fmt.Errorf("replace the state, serial %d, by one with the serial %d", stored.Serial, next.Serial)
	}
	return nil
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

func (s *Server) changeLock(w http.ResponseWriter, r *http.Request, g *Grant) {
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
	case !s.live(g):
		http.Error(w, errEnded, http.StatusUnauthorized)
	case r.Method == methodLock && g.access < Lock:
		s.refuse(w, http.StatusForbidden, "lock the state during a command that takes no lock")
	case r.Method == methodLock && s.lock.of != nil:
		s.refuse(w, http.StatusLocked, "lock the state, which is locked")
	case r.Method == methodLock && g.locked:
		s.refuse(w, http.StatusForbidden, "lock the state after the engine had released it")
	case r.Method == methodLock:
		s.lock, g.locked = lock{of: g, id: said.ID}, true
	case s.lock.of == nil:
		s.refuse(w, http.StatusConflict, "unlock the state, which is not locked")
	case s.lock.of != g || said.ID != s.lock.id:
		s.refuse(w, http.StatusLocked, "unlock the state without the id of its lock")
	default:
		s.lock = lock{}
	}
}

// refuse answers a request that the engine would not have made, or one that came
// in its way. What completes "tried to". An engine reads the answer as the
// description of a lock.
func (s *Server) refuse(w http.ResponseWriter, status int, what string) {
	if s.options.Refused != nil {
		s.options.Refused(what)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"Who": "this run's engine", "Info": "refused: it tried to " + what})
}

// Access is what an engine command may do with the state.
type Access int

// What Grant gives. Each includes the ones before it.
const (
	// Read is for commands that take no lock, such as show and init.
	Read Access = iota
	// Lock is for commands that lock the state and leave it as it is: plan.
	Lock
	// Write is for commands that change the state.
	Write
)

// Grant is the access of one engine command, until End.
type Grant struct {
	server   *Server
	access   Access
	password string
	// locked says that the command has taken the lock once, under Server.mu.
	locked bool
}

// username goes with every password.
const username = "tendril"

// Grant gives the next engine command its access. End it when the command has
// ended.
func (s *Server) Grant(access Access) *Grant {
	g := &Grant{server: s, access: access, password: rand.Text()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants[g] = struct{}{}
	return g
}

// End takes the access away. The lock of an engine that was killed goes with it.
func (g *Grant) End() {
	s := g.server
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.grants, g)
	if s.lock.of == g {
		s.lock = lock{}
	}
}

// live reports whether a Grant has not ended. Server.mu is held.
func (s *Server) live(g *Grant) bool {
	_, live := s.grants[g]
	return live
}

// Environ is what an engine with an empty http backend needs in its environment.
// No configuration, and so no saved plan, holds any of it.
func (g *Grant) Environ() map[string]string {
	address := g.server.address
	return map[string]string{
		"TF_HTTP_ADDRESS": address, "TF_HTTP_LOCK_ADDRESS": address, "TF_HTTP_UNLOCK_ADDRESS": address,
		"TF_HTTP_UPDATE_METHOD": http.MethodPost, "TF_HTTP_LOCK_METHOD": methodLock, "TF_HTTP_UNLOCK_METHOD": methodUnlock,
		// What could not be saved is for the engine to leave behind, at once: it
		// may be about to be killed, and each repeat takes seconds.
		"TF_HTTP_RETRY_MAX": "0",
		"TF_HTTP_USERNAME":  username, "TF_HTTP_PASSWORD": g.password,
	}
}

// Password must not be shown.
func (g *Grant) Password() string { return g.password }
