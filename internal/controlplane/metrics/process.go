package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"time"
)

// other stands for a word that is none of ours: clients send what they please.
const other = "other"

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// Request counts one that was answered. route is the pattern that it matched, ""
// for none; a stream is not measured.
func (m *Metrics) Request(route, method string, status int, took time.Duration, stream bool) {
	if route == "" {
		route = other
	}
	if !slices.Contains(methods, method) {
		method = other
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	if !stream {
		m.took.WithLabelValues(route).Observe(took.Seconds())
	}
}

// Call counts a call of an agent; function is "" where it is none that is served.
func (m *Metrics) Call(function string, status int, took time.Duration) {
	if function == "" {
		function = other
	}
	result := "ok"
	switch {
	case status >= http.StatusInternalServerError:
		result = "failed"
	case status == http.StatusTooManyRequests:
		result = "limited"
	case status >= http.StatusBadRequest:
		result = "refused"
	}
	m.calls.WithLabelValues(function, result).Inc()
	m.callTook.WithLabelValues(function).Observe(took.Seconds())
}

// Reap is the duty whose things done are leases that ran out.
const Reap = "reap"

// Duties makes the series of the duties that there are, so that each is 0 and not
// missing.
func (m *Metrics) Duties(names ...string) {
	for _, name := range names {
		m.dutyItems.WithLabelValues(name)
		m.dutyFailures.WithLabelValues(name)
	}
}

// Duty counts what the database did, or that it could not be had to.
func (m *Metrics) Duty(name string, done int, err error) {
	if err != nil {
		m.dutyFailures.WithLabelValues(name).Inc()
		return
	}
	m.dutyItems.WithLabelValues(name).Add(float64(max(done, 0)))
	if name == Reap {
		m.reaped.Add(float64(max(done, 0)))
	}
}

// results are those of attempts to deliver a message.
var results = []string{"delivered", "retried", "given_up"}

// Delivery counts an attempt to deliver a message to a webhook; again: it did not
// arrive, and is sent once more.
func (m *Metrics) Delivery(arrived, again bool) {
	result := results[2]
	switch {
	case arrived:
		result = results[0]
	case again:
		result = results[1]
	}
	m.deliveries.WithLabelValues(result).Inc()
}
