package web

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// Request is one that was answered.
type Request struct {
	// Route is the pattern that the path matched, such as /api/v1/provisions/{id},
	// never the path itself; "" for none.
	Route, Method string
	Status        int
	Took          time.Duration
	// Stream is true for what goes on for as long as its reader likes.
	Stream bool
}

type routeKey struct{}

// Observe tells of each request that next has answered. Which route it took is
// known by a Routed further inside.
func Observe(next http.Handler, tell func(Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, route := time.Now(), ""
		seen := &seen{ResponseWriter: w}
		defer func() { // also of one that panics, for its client was gone
			status := seen.status
			if status == 0 {
				status = http.StatusOK
			}
			tell(Request{
				Route: route, Method: r.Method, Status: status, Took: time.Since(began),
				Stream: strings.HasPrefix(seen.Header().Get("Content-Type"), "text/event-stream"),
			})
		}()
		next.ServeHTTP(seen, r.WithContext(context.WithValue(r.Context(), routeKey{}, &route)))
	})
}

// Routed has an Observe around it know the pattern that next, an http.ServeMux,
// or one within it, has chosen.
func Routed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			_, path, method := strings.Cut(r.Pattern, " ")
			if !method {
				path = r.Pattern
			}
			took(r, path)
		}()
		next.ServeHTTP(w, r)
	})
}

// took notes which route a request has taken.
func took(r *http.Request, route string) {
	if noted, ok := r.Context().Value(routeKey{}).(*string); ok {
		*noted = route
	}
}

// seen remembers the status that was answered.
type seen struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *seen) WriteHeader(status int) {
	if s.status == 0 && status >= http.StatusOK {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (s *seen) Unwrap() http.ResponseWriter { return s.ResponseWriter }
