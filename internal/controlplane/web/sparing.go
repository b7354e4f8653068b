package web

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// healthFor is how long an answer to /healthz is given again.
const healthFor = time.Second

// Sparing is Routes.Health for what costs something to find out: whoever asks,
// and how often, it is found out once a second at most, and by one at a time.
func Sparing(find func(context.Context) (body any, ok bool)) func(*http.Request) (any, bool) {
	var mu sync.Mutex
	var body any
	var ok bool
	var found time.Time
	return func(r *http.Request) (any, bool) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(found) >= healthFor {
			// For all who wait: this one may be gone before it is known.
			body, ok = find(context.WithoutCancel(r.Context()))
			found = time.Now()
		}
		return body, ok
	}
}
