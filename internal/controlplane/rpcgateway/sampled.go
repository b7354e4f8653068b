package rpcgateway

import (
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// How many refused calls the log tells of: so many a second, and more of those
// that come at once after a while without. Who scans for functions or has a token that was revoked is not to
// fill a disk, nor all agents together while the database is away.
const toldPerSecond, toldAtOnce = 5, 50

// sampled leaves out lines where there are too many. What clients do wrong is
// counted apart from what goes wrong here, which it must not hide.
type sampled struct{ theirs, ours lines }

type lines struct {
	limit   *rate.Limiter
	leftOut atomic.Int64
}

func newSampled() *sampled {
	s := &sampled{}
	for _, l := range []*lines{&s.theirs, &s.ours} {
		l.limit = rate.NewLimiter(toldPerSecond, toldAtOnce)
	}
	return s
}

// tell reports whether a line is to be written, and how many were left out
// before it.
func (s *sampled) tell(level slog.Level) (leftOut int64, told bool) {
	l := &s.theirs
	switch {
	case level < slog.LevelInfo:
		return 0, true
	case level > slog.LevelInfo:
		l = &s.ours
	}
	if !l.limit.Allow() {
		l.leftOut.Add(1)
		return 0, false
	}
	return l.leftOut.Swap(0), true
}
