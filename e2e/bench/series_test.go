package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// series are the times that one thing took, over all rounds of a benchmark.
type series []time.Duration

func (s *series) add(d time.Duration) { *s = append(*s, d) }

// percentile is the smallest time that p percent of the series do not exceed.
func (s series) percentile(p int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// report reports percentiles in milliseconds, as PREFIXpNN-ms.
func (s series) report(b *testing.B, prefix string, percentiles ...int) {
	b.Helper()
	for _, p := range percentiles {
		b.ReportMetric(milliseconds(s.percentile(p)), fmt.Sprintf("%sp%d-ms", prefix, p))
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// only leaves out the time of a whole round, which says nothing: what is
// measured is reported by name.
func only(b *testing.B) { b.ReportMetric(0, "ns/op") }
