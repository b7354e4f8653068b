package web

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Routes are the handlers of a control plane; what is nil is not there.
type Routes struct {
	// RPC gets all below /rest/v1, with paths as they came: a ServeMux would
	// clean them first, and redirect.
	RPC http.Handler
	// Health says what /healthz answers, and whether all is well.
	Health func(*http.Request) (body any, ok bool)
	// Rest gets everything else.
	Rest http.Handler
}

// ServeHTTP implements http.Handler.
func (r Routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	switch {
	case r.RPC != nil && (path == "/rest/v1" || strings.HasPrefix(path, "/rest/v1/")):
		took(req, "/rest/v1/")
		r.RPC.ServeHTTP(w, req)
	case r.Health != nil && path == "/healthz":
		took(req, path)
		r.health(w, req)
	case r.Rest != nil:
		r.Rest.ServeHTTP(w, req)
	default:
		http.NotFound(w, req)
	}
}

func (r Routes) health(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
		return
	}
	body, ok := r.Health(req)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}
