package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A request is told by its route's pattern, also through middleware that copies it
// and a mux within a mux, also when its handler breaks off; a stream is known as one
// and can be flushed.
func TestObserve(t *testing.T) {
	t.Parallel()
	inner := http.NewServeMux()
	inner.HandleFunc("GET /api/things/{id}", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) })
	inner.HandleFunc("POST /api/things", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
	})
	outer := http.NewServeMux()
	outer.Handle("/api/", inner)
	outer.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("Flush() = %v", err)
		}
	})
	outer.HandleFunc("GET /gone", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	routed := Routed(outer)
	people := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/foreign" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		routed.ServeHTTP(w, r.WithContext(r.Context()))
	})
	var told []Request
	handler := Observe(Routes{Rest: people, RPC: http.NotFoundHandler(), Health: func(*http.Request) (any, bool) { return nil, false }}, func(r Request) { told = append(told, r) })
	for _, tt := range []struct {
		method, path string
		want         Request
	}{
		{"GET", "/api/things/7?x=secret", Request{Route: "/api/things/{id}", Method: "GET", Status: 200}},
		{"POST", "/api/things", Request{Route: "/api/things", Method: "POST", Status: 418}},
		{"GET", "/live", Request{Route: "/live", Method: "GET", Status: 200, Stream: true}},
		{"GET", "/gone", Request{Route: "/gone", Method: "GET", Status: 200}},
		{"GET", "/nowhere", Request{Method: "GET", Status: 404}},
		{"GET", "/foreign", Request{Method: "GET", Status: 403}},
		{"GET", "/healthz", Request{Route: "/healthz", Method: "GET", Status: 503}},
		{"POST", "/rest/v1/rpc/anything", Request{Route: "/rest/v1/", Method: "POST", Status: 404}},
	} {
		func() {
			defer func() { _ = recover() }() // as the server does
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.path, nil))
		}()
		got := told[len(told)-1]
		if got.Took < 0 {
			t.Errorf("%s %s took %s", tt.method, tt.path, got.Took)
		}
		if got.Took = 0; got != tt.want {
			t.Errorf("%s %s is told as %+v, want %+v", tt.method, tt.path, got, tt.want)
		}
	}
	if len(told) != 8 {
		t.Errorf("%d requests were told of, want 8", len(told))
	}
	alone := httptest.NewRecorder() // without an Observe around it
	if routed.ServeHTTP(alone, httptest.NewRequest(http.MethodGet, "/api/things/7", nil)); alone.Code != http.StatusOK {
		t.Errorf("a Routed alone answers %d, want 200", alone.Code)
	}
}
