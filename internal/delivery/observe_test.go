package delivery

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// waits is an Observer that knows since when the oldest waits.
type waits struct {
	unobserved
	since atomic.Pointer[time.Time]
}

func (w *waits) Waits(since time.Time) { w.since.Store(&since) }

// want waits until all is still, and wants that the oldest has waited so long;
// 0: nothing waits.
func (w *waits) want(t *testing.T, long time.Duration) {
	t.Helper()
	synctest.Wait()
	since := *w.since.Load()
	switch {
	case since.IsZero() && long != 0:
		t.Errorf("nothing waits, want something that has waited for %s", long)
	case !since.IsZero() && time.Since(since).Round(time.Second) != long:
		t.Errorf("the oldest has waited for %s, want %s", time.Since(since), long)
	}
}

func TestWhatWaits(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"append", "report"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, func(made string) error {
					if strings.HasPrefix(made, call) {
						return errAway
					}
					return nil
				}, false)
				l.waits.want(t, 0)
				l.update(provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: provision.StagePlan}})
				write(t, l.w, provision.Stdout, "a\n")
				time.Sleep(time.Hour)
				write(t, l.w, provision.Stdout, "b\n")
				l.waits.want(t, time.Hour) // whichever of the two it is that waits
				l.back()
				time.Sleep(time.Minute)
				l.waits.want(t, 0)
				l.die()
			})
		})
	}
}
