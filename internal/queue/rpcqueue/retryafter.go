package rpcqueue

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// mostRetryAfter is the longest that an agent lets itself be sent away for, well
// within a lease.
const mostRetryAfter = 30 * time.Second

// retryAfter reads the header of that name, in seconds or a date, and adds up to
// a fifth: all agents were told the same.
func retryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	var d time.Duration
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		now := time.Now()
		// By the server's clock, if it says what that is.
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		d = at.Sub(now)
	}
	if d <= 0 {
		return 0
	}
	d = min(d, mostRetryAfter)
	return d + rand.N(d/5+1) //nolint:gosec // jitter, not a secret
}
