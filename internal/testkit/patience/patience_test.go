package patience

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestMeasureIsBounded(t *testing.T) {
	t.Parallel()
	for range 3 {
		got := measure()
		t.Logf("this machine is %.1f times slower than usual", got)
		if got < 1 || got > most {
			t.Errorf("measure() = %.1f, want 1 to %d", got, most)
		}
	}
}

func TestSlowestIsRemembered(t *testing.T) {
	t.Parallel()
	s := slowest{factor: most}
	if got := s.again(); got != most {
		t.Errorf("factor after a faster measurement = %.1f, want %d", got, most)
	}
	if got := s.known(); got != most {
		t.Errorf("known factor = %.1f, want %d", got, most)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	if Begin(time.Hour).Over() {
		t.Error("a limit of an hour is over at once")
	}
	passed := Limit{began: time.Now().Add(-most * time.Minute), usual: time.Minute}
	if !passed.Over() {
		t.Errorf("a minute is not over after %d of them, which is the most that a slow machine gets", most)
	}
}

func TestContextEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := Context(t.Context(), time.Minute)
		defer cancel()
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("cause = %v, want %v", cause, context.DeadlineExceeded)
		}
	})
}

func TestContextCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := Context(t.Context(), time.Hour)
	cancel()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("cause = %v, want %v", cause, context.Canceled)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	if !Within(time.Second, time.Second) {
		t.Error("Within() of the usual time = false, want true")
	}
	if Within(most*time.Second+1, time.Second) {
		t.Error("Within() of more than the slowest machine takes = true, want false")
	}
}

func TestFewer(t *testing.T) {
	t.Parallel()
	if got := Fewer(100, 25); got < 25 || got > 100 {
		t.Errorf("Fewer(100, 25) = %d, want 25 to 100", got)
	}
	if got := Fewer(10, 10); got != 10 {
		t.Errorf("Fewer(10, 10) = %d, want 10", got)
	}
}
