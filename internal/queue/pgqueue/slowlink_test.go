package pgqueue_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestSlowLink(t *testing.T) {
	t.Parallel()
	w, wire, q := overWire(t, 0)
	queuetest.SlowLink(t, w, q, func() { wire.Share(queuetest.SlowRate) })
}
