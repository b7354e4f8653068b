package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Handler answers GET /healthz, /readyz and /metrics, and nothing else.
func Handler(loops *Loops, standing *Standing, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { alive(w, loops) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, standing) })
	mux.Handle("GET /metrics", metrics)
	return mux
}

// aliveBody is what /healthz answers.
type aliveBody struct {
	Status string      `json:"status"` // ok or stuck
	Reason string      `json:"reason,omitempty"`
	Loops  []string    `json:"loops"`
	Stuck  []stuckBody `json:"stuck,omitempty"`
}

type stuckBody struct {
	Loop string `json:"loop"`
	// Seconds since it last turned.
	Seconds int `json:"seconds"`
}

func alive(w http.ResponseWriter, loops *Loops) {
	body := aliveBody{Status: "ok", Loops: loops.Turning()}
	var reasons []string
	for _, s := range loops.Stuck() {
		body.Stuck = append(body.Stuck, stuckBody{s.Loop, int(s.Since.Seconds())})
		reasons = append(reasons, fmt.Sprintf("%s has not turned for %s", s.Loop, s.Since.Round(time.Second)))
	}
	status := http.StatusOK
	if reasons != nil {
		body.Status, body.Reason, status = "stuck", strings.Join(reasons, "; "), http.StatusServiceUnavailable
	}
	answer(w, status, body)
}

// readyBody is what /readyz answers.
type readyBody struct {
	Status string `json:"status"` // ready or not ready
	Reason string `json:"reason,omitempty"`
	// LastHeartbeat is when the database last answered one.
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
}

func ready(w http.ResponseWriter, standing *Standing) {
	r := standing.Ready()
	body, status := readyBody{Status: "ready", LastHeartbeat: r.Beat.UTC().Truncate(time.Millisecond)}, http.StatusOK
	if r.Beat.IsZero() {
		body.LastHeartbeat = time.Time{}
	}
	if r.Reason != "" {
		body.Status, body.Reason, status = "not ready", r.Reason, http.StatusServiceUnavailable
	}
	answer(w, status, body)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // who has hung up need not know
}
