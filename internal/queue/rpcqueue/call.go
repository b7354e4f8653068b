package rpcqueue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/tendril-run/tendril/internal/queue"
)

// How a hiccup is met: so many tries of a call, the first repeat so soon, and no
// wait longer than that.
const (
	tries      = 3
	repeatSoon = 100 * time.Millisecond
	patience   = time.Second
)

// mostAnswer is the largest answer that is read, and mostHeader the largest
// header of one. A snapshot is the largest thing that is answered, and the
// database takes none above 256 KiB.
const (
	mostAnswer = 1 << 20
	mostHeader = 64 << 10
)

// reply is what a function answers, once it has been read.
type reply interface {
	// valid tells whether it is what the function answers: any JSON fits into
	// most things.
	valid() bool
}

// call calls a function and reads its result into reply, nil for none.
func (q *Queue) call(ctx context.Context, doing, function string, arguments any, reply reply) error {
	return q.callFor(ctx, 0, doing, function, arguments, reply)
}

// callFor is call for one that is answered with so many bytes.
func (q *Queue) callFor(ctx context.Context, answer int, doing, function string, arguments any, reply reply) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return fmt.Errorf("encode what is sent to %s: %w", function, err)
	}
	return q.send(ctx, queue.CallLimit(q.timeout, len(body)+answer), doing, function, body, reply)
}

// send is call for arguments that are encoded, within a time limit. What goes wrong
// in passing is tried again, which is safe: every call may be repeated.
func (q *Queue) send(ctx context.Context, limit time.Duration, doing, function string, body []byte, reply reply) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	soon := &backoff.ExponentialBackOff{
		InitialInterval: repeatSoon, MaxInterval: patience, Multiplier: 3, RandomizationFactor: 0.5,
	}
	soon.Reset()
	for n := 1; ; n++ {
		err := q.try(ctx, doing, function, body, reply)
		if err == nil {
			q.away.Store(false)
			return nil
		}
		if !err.passing {
			q.away.Store(false) // it is there, and says no
			return err.Error
		}
		wait := queue.Wait(err.Error, soon.NextBackOff())
		if n == tries || q.away.Load() || wait > patience || !sleep(ctx, wait) {
			q.away.Store(true)
			return err.Error
		}
	}
}

// sleep returns true after d, and false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// trouble is why a try came to nothing.
type trouble struct {
	*queue.Error
	// passing: the same request may succeed in a moment.
	passing bool
}

// try makes one exchange. It follows no redirect: what it sends is a credential.
func (q *Queue) try(ctx context.Context, doing, function string, body []byte, reply reply) *trouble {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, q.functions+"/"+function, bytes.NewReader(body))
	if err != nil {
		return &trouble{Error: &queue.Error{Kind: queue.Refused, Message: fmt.Sprintf("could not %s: %v", doing, err), Err: err}}
	}
	request.Header = q.header.Clone()
	response, err := q.transport.RoundTrip(request)
	if err != nil {
		return q.unanswered(ctx, doing, err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end, or given up
	answer := answer{status: response.StatusCode, header: response.Header}
	answer.body, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	if err != nil {
		return q.unanswered(ctx, doing, err)
	}
	if len(answer.body) > mostAnswer {
		answer.body, answer.endless = nil, true
	}
	if answer.result(reply) {
		return nil
	}
	return q.explain(doing, answer)
}
