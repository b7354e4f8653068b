package notify

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	waiting "github.com/tendril-run/tendril/internal/testkit/patience"
)

// Each attempt is told of by what came of it.
func TestAttemptsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	told := map[string]int{}
	n := w.notifier(t, func(n *Notifier) {
		n.options.Attempted = func(arrived, again bool) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case arrived: // whatever would follow if it had not
				told["arrived"]++
			case again:
				told["again"]++
			default:
				told["over"]++
			}
		}
	})
	fails := func(status, times int) *receiver {
		return newReceiver(t, func(attempt int, rw http.ResponseWriter) {
			if attempt <= times {
				rw.WriteHeader(status)
			}
		})
	}
	const retries = 3 // as in notifier
	for _, r := range []*receiver{fails(500, 2), fails(500, 100), fails(http.StatusGone, 100)} {
		w.webhook(t, n, "generic", r.URL)
	}
	w.provision(t, "a", "SUCCESS", "", "")
	// The first arrives at its third attempt, the second is given up, the third wants
	// no more.
	want := fmt.Sprint(map[string]int{"arrived": 1, "again": 2 + retries, "over": 2})
	waiting.Await(t, "all attempts are told of", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(told) == want
	})
}
