package redfish

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// Fault is what goes wrong with requests.
type Fault struct {
	// Method and Path say which: "" is any method; Path is how theirs begins or, after a *, ends.
	Method, Path string
	// Times is how many of them; 0: all.
	Times int
	// Delay is how long the answer takes, before Status or, where that is 0, the usual one.
	Delay time.Duration
	// Status is answered in place of what was asked for, and nothing is done. 0: only slow.
	Status int
	// HTML is the body, as of a proxy in front of a BMC; "": an error as Redfish has it.
	HTML string
}

// fault is one that was asked for.
type fault struct {
	Fault
	left int // of its times
}

// Fault makes requests go wrong from now on, until the function that it answers is called. The
// first that fits a request is taken.
func (s *Server) Fault(f Fault) (heal func()) {
	made := &fault{Fault: f, left: f.Times}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, made)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, each := range s.faults {
			if each == made {
				s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
				return
			}
		}
	}
}

// fits says whether a request goes wrong.
func (f *fault) fits(method, path string) bool {
	if f.Method != "" && f.Method != method || f.Times > 0 && f.left == 0 {
		return false
	}
	if end, found := strings.CutPrefix(f.Path, "*"); found {
		return strings.HasSuffix(path, end)
	}
	return strings.HasPrefix(path, f.Path)
}

// misbehave says whether a request was answered by a fault.
func (s *Server) misbehave(w http.ResponseWriter, r *http.Request, path string) bool {
	s.mu.Lock()
	var found *fault
	for _, each := range s.faults {
		if each.fits(r.Method, path) {
			each.left--
			found = each
			break
		}
	}
	s.mu.Unlock()
	if found == nil {
		return false
	}
	if found.Delay > 0 {
		timer := time.NewTimer(found.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return true
		}
	}
	switch {
	case found.Status == 0:
		return false
	case found.HTML != "":
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(found.Status)
		_, _ = io.WriteString(w, found.HTML)
	default:
		fail(w, &problem{found.Status, "InternalError", "The request failed due to an internal service error.  The service is still operational.", nil})
	}
	return true
}

// StickPower makes a server's power button do nothing: the service accepts what it is asked for,
// and the power stays as it is.
func (s *Server) StickPower(id string, stuck bool) {
	each := s.system(id)
	each.mu.Lock()
	defer each.mu.Unlock()
	each.stuck = stuck
}
