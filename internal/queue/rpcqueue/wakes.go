package rpcqueue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/realtime"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// pollSeldom is how long the time between polls is at least while wakes arrive: they are hints, and
// some are lost.
const pollSeldom = time.Minute

// Work implements queue.Queue. It receives, too, when the answer to a heartbeat says so.
func (q *Queue) Work() <-chan struct{} {
	if q.realtime == nil {
		return q.work
	}
	return q.realtime.Work()
}

// promise says that there is work.
func (q *Queue) promise() {
	if q.realtime != nil {
		q.realtime.WakeWork()
		return
	}
	select {
	case q.work <- struct{}{}:
	default:
	}
}

// Attention implements queue.Queue. What needs attention is otherwise in the answer to a
// heartbeat that was held.
func (q *Queue) Attention() <-chan struct{} {
	if q.realtime == nil || !q.realtime.Wakes() {
		return nil
	}
	return q.realtime.Attention()
}

// seldom advises polls that are further apart while wakes arrive. When they no longer do, the
// listener wakes us, and the next heartbeat advises what the database does.
func (q *Queue) seldom(pulse queue.Pulse) queue.Pulse {
	if q.realtime != nil && q.realtime.Wakes() {
		pulse.Poll = max(pulse.Poll, pollSeldom)
	}
	return pulse
}

// realtimeOf says where the Realtime of the project is whose functions these are; false where
// there can be none, or nothing would be sent: topics are of tokens, and only trellis takes keys.
// Whether there is one, the database says when the agent registers.
func realtimeOf(o Options, functions *url.URL, transport http.RoundTripper, credential *queue.Credential) (realtime.Options, bool) {
	path, project := strings.CutSuffix(functions.Path, "/rest/v1/rpc")
	if !project || o.APIKey == "" || o.Key != nil {
		return realtime.Options{}, false
	}
	base := url.URL{Scheme: functions.Scheme, Host: functions.Host, Path: path}
	return realtime.Options{
		Project: base.String(), APIKey: o.APIKey, Transport: transport, Log: o.Log,
		Topic: func() string { return realtime.Topic(credential.Hash()) },
	}, true
}

// ErrNoRealtime is a server by which Realtime can't be reached.
var ErrNoRealtime = errors.New("this address is not a Supabase project's, or the agent has no API key")

// Hears finds out whether an agent with these options would be woken by Supabase's Realtime: nil
// if what the database sends arrives.
func Hears(ctx context.Context, o Options) error {
	q, err := New(o)
	if err != nil {
		return err
	}
	defer q.Close()
	functions, err := endpoint(o.URL)
	if err != nil {
		return fmt.Errorf("queue URL: %w", err)
	}
	ro, is := realtimeOf(o, functions, q.transport, q.credential)
	if !is {
		return ErrNoRealtime
	}
	ro.Patience = q.timeout
	return realtime.Hears(ctx, ro, q.probe)
}

// probe has the database send an event by Realtime.
func (q *Queue) probe(ctx context.Context) error {
	var reply standing
	return q.call(ctx, "have an event sent", "check_agent", rpcwire.CheckAgent{Hash: q.credential.Hash(), Agent: rpcwire.Probe{Probe: true}}, &reply)
}
