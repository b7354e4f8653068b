package metrics

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The limits of scrapes, each of which costs some time of the agent's.
const (
	scrapes     = 4
	scrapeLimit = 10 * time.Second
)

// Handler answers scrapes. What cannot be measured is left out, and told of in
// the log.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapes, Timeout: scrapeLimit,
		// A compressor takes a megabyte that is kept, for some kilobytes of text.
		DisableCompression: true,
	})
}
