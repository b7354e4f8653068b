package executor_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// stateServer is a server for Terraform's http backend, with locks, whose
// writes fail on demand.
type stateServer struct {
	t   *testing.T
	url string

	mu     sync.Mutex
	state  []byte
	lock   string // the id of who holds it
	broken int    // so many writes fail; -1: all
	loses  int    // so many writes are stored and answered by an error
	hangs  bool   // writes are not answered
}

func newStateServer(t *testing.T) *stateServer {
	t.Helper()
	s := &stateServer{t: t}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP implements http.Handler.
func (s *stateServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch r.Method {
	case "LOCK":
		if s.lock != "" {
			w.WriteHeader(http.StatusLocked)
			_, _ = w.Write([]byte(`{"ID":"` + s.lock + `"}`))
			return
		}
		s.lock = lockID(body)
	case "UNLOCK":
		if id := lockID(body); id != s.lock && id != "" { // force-unlock says none
			s.t.Errorf("UNLOCK by %s, and %s holds the lock", id, s.lock)
		}
		s.lock = ""
	case http.MethodGet:
		if s.state == nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(s.state)
	case http.MethodPost:
		if id := r.URL.Query().Get("ID"); id == "" || id != s.lock {
			s.t.Errorf("POST under the lock %q, and %q holds it", id, s.lock)
		}
		if s.hangs {
			s.mu.Unlock()
			<-r.Context().Done()
			s.mu.Lock()
			return
		}
		if s.broken != 0 {
			s.broken--
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		s.state = body
		if s.loses > 0 {
			s.loses--
			http.Error(w, "the reply is lost", http.StatusBadGateway)
		}
	}
}

func lockID(body []byte) string {
	var info struct{ ID string }
	_ = json.Unmarshal(body, &info)
	return info.ID
}

// breaks lets so many writes fail from now on; -1 is all, 0 heals.
func (s *stateServer) breaks(writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = writes
}

// lose lets so many writes be stored without the writer hearing of it.
func (s *stateServer) lose(replies int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loses = replies
}

func (s *stateServer) hang(hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = hangs
}

func (s *stateServer) holdLock(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lock = id
}

func (s *stateServer) stored() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.state)
}

func (s *stateServer) replace(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = []byte(state)
	if state == "" {
		s.state = nil
	}
}
