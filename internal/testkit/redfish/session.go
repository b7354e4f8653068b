package redfish

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// maxSessions is how many clients may have signed in at the same time, as BMCs have a limit.
const maxSessions = 64

const (
	serviceRoot = "/redfish/v1"
	sessionPath = serviceRoot + "/SessionService/Sessions"
)

// session is a client that has signed in.
type session struct {
	id, token, user string
	used            time.Time
}

// resource shows it to clients; its token is answered once.
func (s *session) resource() resource {
	return resource{
		"@odata.id": sessionPath + "/" + s.id, "@odata.type": "#Session.v1_5_0.Session",
		"Id": s.id, "Name": "Session of a user", "UserName": s.user, "SessionType": "Redfish",
	}
}

// unauthorized is the answer to a user or a token that isn't known.
func unauthorized() error {
	return &problem{http.StatusUnauthorized, "NoValidSession", "There is no valid session established with the implementation.", nil}
}

// authorize lets in who has the password or a session.
func (s *Server) authorize(r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		for i, each := range s.sessions {
			if !same(each.token, token) {
				continue
			}
			if time.Since(each.used) > s.sessionTimeout {
				s.sessions = slices.Delete(s.sessions, i, i+1)
				return unauthorized()
			}
			each.used = time.Now()
			return nil
		}
		return unauthorized()
	}
	if user, password, ok := r.BasicAuth(); ok && s.isPassword(user, password) {
		return nil
	}
	return unauthorized()
}

// isPassword needs the lock.
func (s *Server) isPassword(user, password string) bool {
	return same(s.user, user) && same(s.password, password)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// SetPassword changes the user's password, as somebody may at the BMC itself, and ends all sessions.
func (s *Server) SetPassword(password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.password, s.sessions = password, nil
}

// EndSessions forgets who has signed in, as a BMC does that restarts.
func (s *Server) EndSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = nil
}

// Sessions is how many clients have signed in.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

func (s *Server) sessionService(w http.ResponseWriter, _ *http.Request) error {
	return show(w, resource{
		"@odata.id": serviceRoot + "/SessionService", "@odata.type": "#SessionService.v1_1_8.SessionService",
		"Id": "SessionService", "Name": "Session Service", "ServiceEnabled": true, "Status": status("OK"),
		"SessionTimeout": int(s.sessionTimeout / time.Second), "Sessions": link(sessionPath),
	})
}

func (s *Server) listSessions(w http.ResponseWriter, _ *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := make([]string, len(s.sessions))
	for i, each := range s.sessions {
		paths[i] = sessionPath + "/" + each.id
	}
	return show(w, collection(sessionPath, "SessionCollection", "Session Collection", paths...))
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) error {
	var asked struct{ UserName, Password string }
	if err := read(r, &asked); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isPassword(asked.UserName, asked.Password) {
		return &problem{http.StatusUnauthorized, "ResourceAtUriUnauthorized", "While accessing the resource at " + sessionPath + ", the service received an authorization error: unauthorized.", []string{sessionPath, "unauthorized"}}
	}
	s.sessions = slices.DeleteFunc(s.sessions, func(each *session) bool { return time.Since(each.used) > s.sessionTimeout })
	if len(s.sessions) >= maxSessions {
		return &problem{http.StatusServiceUnavailable, "SessionLimitExceeded", "The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation.", nil}
	}
	s.lastSession++
	made := &session{id: strconv.Itoa(s.lastSession), token: rand.Text(), user: asked.UserName, used: time.Now()}
	s.sessions = append(s.sessions, made)
	w.Header().Set("X-Auth-Token", made.token)
	w.Header().Set("Location", sessionPath+"/"+made.id)
	write(w, http.StatusCreated, made.resource())
	return nil
}

// session finds one; it needs the lock.
func (s *Server) session(r *http.Request) (int, error) {
	id := r.PathValue("session")
	at := slices.IndexFunc(s.sessions, func(each *session) bool { return each.id == id })
	if at < 0 {
		return 0, unknown("Session", id)
	}
	return at, nil
}

func (s *Server) showSession(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := s.session(r)
	if err != nil {
		return err
	}
	return show(w, s.sessions[at].resource())
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := s.session(r)
	if err != nil {
		return err
	}
	s.sessions = slices.Delete(s.sessions, at, at+1)
	return done(w)
}
