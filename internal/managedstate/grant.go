package managedstate

import (
	"crypto/rand"
	"net/http"
)

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
