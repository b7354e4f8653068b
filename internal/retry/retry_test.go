package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBetween(t *testing.T) {
	t.Parallel()
	w := Between(time.Second, 5*time.Second)
	for range 3 {
		for n, middle := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			if got := w.NextBackOff(); got < middle/2 || got > middle*3/2+1 {
				t.Errorf("wait %d is %s, want %s, half less to half more", n+1, got, middle)
			}
		}
		w.Reset()
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("Sleep() = false or took %s, want true after a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("Sleep() = true or took %s, want false when its context ended", time.Since(began))
		}
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-1 << 63, -1, 0, 1, 5, time.Minute, 1 << 62} {
		for range 100 {
			if got := Jitter(d); got < max(d, 0)/5*4 || got < 0 {
				t.Errorf("Jitter(%d) = %d, want no less than four fifths", d, got)
			}
		}
	}
}
