package tracing

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Observe has a histogram of seconds observe how long something took, with the id of its trace as
// exemplar; "" for none.
func Observe(to prometheus.Observer, took time.Duration, trace string) {
	if with, ok := to.(prometheus.ExemplarObserver); ok && trace != "" {
		with.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": trace})
		return
	}
	to.Observe(took.Seconds())
}
