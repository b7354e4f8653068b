// Package problem answers as the REST API does (RFC 9457) where no operation of
// its does: what stands before it refuses likewise.
//
// It must not know why.
package problem

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Write refuses a request.
func Write(w http.ResponseWriter, status int, reason, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client is gone: nobody to tell
		"type": "about:blank", "title": http.StatusText(status), "status": status, "reason": reason, "detail": detail,
	})
}

// Refuse is Write for programs, and the detail alone for everybody else.
func Refuse(w http.ResponseWriter, r *http.Request, status int, reason, detail string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		Write(w, status, reason, detail)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, detail, status)
}
