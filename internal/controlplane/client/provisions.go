package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/tmaxmax/go-sse"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostBytes bounds a result: a sealed state is the largest.
const mostBytes = 96 << 20

// Provision returns the provision of that number or id.
func (c *Client) Provision(ctx context.Context, ref string) (wire.Provision, error) {
	ref = strings.TrimPrefix(ref, "#")
	if _, err := strconv.ParseInt(ref, 10, 64); err != nil {
		if _, err := uuid.Parse(ref); err != nil {
			return wire.Provision{}, &problem.NotProvisionError{Ref: ref}
		}
	}
	return get[wire.Provision](ctx, c, "read the provision", "provisions", ref)
}

// Provisions lists the latest provisions, newest first.
func (c *Client) Provisions(ctx context.Context, limit int) ([]wire.Provision, error) {
	return list[wire.Provision](ctx, c, call{doing: "list the provisions", method: http.MethodGet, path: []string{"provisions"}, query: c.inOrg()}, limit)
}

// Deploy queues a snapshot on a cluster.
func (c *Client) Deploy(ctx context.Context, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (wire.QueuedAnswer, error) {
	return post[wire.QueuedAnswer](ctx, c, "queue the deploy", wire.DeployInputBody{Cluster: cluster.String(), Operation: operation, Snapshot: snapshot}, "provisions")
}

// Cancel cancels a provision that waits, or asks its agent to stop it; it returns the
// status after that.
func (c *Client) Cancel(ctx context.Context, id uuid.UUID) (provision.Status, error) {
	after, err := post[wire.StatusAnswerBody](ctx, c, "cancel the provision", nil, "provisions", id.String(), "cancel")
	return after.Status, err
}

// Approve lets the plan of that digest be applied; it returns the status after that.
func (c *Client) Approve(ctx context.Context, id uuid.UUID, planDigest string) (provision.Status, error) {
	after, err := post[wire.StatusAnswerBody](ctx, c, "approve the plan", wire.ApproveInputBody{PlanDigest: planDigest}, "provisions", id.String(), "approve")
	return after.Status, err
}

// Reject turns a plan down.
func (c *Client) Reject(ctx context.Context, id uuid.UUID, reason string) error {
	_, err := post[struct{}](ctx, c, "reject the plan", wire.RejectInputBody{Reason: reason}, "provisions", id.String(), "reject")
	return err
}

// GiveInput says that the work of a provision was done, or could not be; it returns the
// status after that.
func (c *Client) GiveInput(ctx context.Context, id uuid.UUID, answer provision.Input) (provision.Status, error) {
	after, err := post[wire.StatusAnswerBody](ctx, c, "give the answer", wire.GiveInputBody(answer), "provisions", id.String(), "input")
	return after.Status, err
}

// AssignInput says who is to do the work of a provision.
func (c *Client) AssignInput(ctx context.Context, id uuid.UUID, who wire.AssignInputBody) error {
	_, err := post[struct{}](ctx, c, "assign the work", who, "provisions", id.String(), "assign")
	return err
}

// Comment adds a comment to the log of a provision.
func (c *Client) Comment(ctx context.Context, id uuid.UUID, text string) error {
	_, err := post[struct{}](ctx, c, "add the comment", wire.CommentBody{Text: text}, "provisions", id.String(), "comment")
	return err
}

// Retry queues what an ended provision asked for once more.
func (c *Client) Retry(ctx context.Context, id uuid.UUID, requesterKey string) (wire.QueuedAnswer, error) {
	return post[wire.QueuedAnswer](ctx, c, "retry the provision", wire.RetryInputBody{RequesterKey: requesterKey}, "provisions", id.String(), "retry")
}

// logs returns rows of a provision's log after seq.
func (c *Client) logs(ctx context.Context, id uuid.UUID, after int64) (wire.LogPage, error) {
	return ask[wire.LogPage](ctx, c, call{
		doing: "read the log", method: http.MethodGet, path: []string{"provisions", id.String(), "logs"},
		query: url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(mostRows)}},
	})
}

// mostRows is how many rows of a log are asked for at once.
const mostRows = 1000

// Upload brings something that is sealed to a cluster's key, for an operation to
// name by the id returned.
func (c *Client) Upload(ctx context.Context, cluster uuid.UUID, sealed []byte) (uuid.UUID, error) {
	made, err := ask[wire.UploadAnswerBody](ctx, c, call{
		doing: "upload the file", method: http.MethodPost, path: []string{"uploads"}, query: url.Values{"cluster": {cluster.String()}},
		raw: sealed, limit: transferLimit,
	})
	return made.ID, err
}

// Result returns what a provision has left for who asked for it, sealed to the key
// that its snapshot names.
func (c *Client) Result(ctx context.Context, provision uuid.UUID) ([]byte, error) {
	return ask[[]byte](ctx, c, call{
		doing: "fetch the result", method: http.MethodGet, path: []string{"provisions", provision.String(), "result"},
		accept: "application/octet-stream", limit: transferLimit,
	})
}

// Events lists what happened to a provision.
func (c *Client) Events(ctx context.Context, id uuid.UUID) ([]wire.Event, error) {
	var events []wire.Event
	for after := int64(0); ; {
		page, err := ask[wire.EventPageBody](ctx, c, call{
			doing: "read the events", method: http.MethodGet, path: []string{"provisions", id.String(), "events"},
			query: url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(mostRows)}},
		})
		events = append(events, page.Items...)
		if err != nil || len(page.Items) == 0 || page.NextAfter <= after || len(events) > MostItems {
			return events, err
		}
		after = page.NextAfter
	}
}

// timing is how long things are waited for; tests want them short.
type timing struct {
	retry    time.Duration // before a call is first repeated
	look     time.Duration // between two looks at a provision that goes on
	hinted   time.Duration // between two looks that hints ask for
	silent   time.Duration // how long a stream may say nothing: the server says something each 15 s
	reopen   time.Duration // before a stream that was cut is opened again
	patience time.Duration // how long the server may be away
}

var usual = timing{
	retry: 100 * time.Millisecond, look: time.Second, hinted: 200 * time.Millisecond, silent: 40 * time.Second, reopen: time.Second, patience: 2 * time.Minute,
}

// Follower has the functions to call while a provision goes on. Calls never overlap; an
// error of one ends Follow.
type Follower struct {
	// Line gets each row of the log after Seq once, in their order; nil: the log
	// is not wanted.
	Line func(wire.LogRow) error
	// Stands gets how the provision stands, at least each second.
	Stands func(wire.Provision) error
	Seq    int64
	// Late goes on past a run's end where its agent was lost: that may deliver lines
	// and a result for a day. The server's stream says when nothing more is to come.
	Late bool
}

// Follow tells of a provision until its run has ended, or awaits approval, and
// returns how it stands then, after the last row of its log. A server that is
// away for less than two minutes is waited for. When ctx ends first, it returns how
// the provision stood when it was last read.
//
// Rows come by an event stream where there is one, and else are asked for. Both
// go by their numbers, so a stream that is cut, or that a proxy keeps for itself,
// costs time and no row.
func (c *Client) Follow(ctx context.Context, id uuid.UUID, f Follower) (wire.Provision, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &following{client: c, id: id, Follower: f}
	defer func() {
		cancel()
		s.cut()
	}()
	tick := time.NewTicker(c.timing.look)
	defer tick.Stop()
	answered := time.Now()
	for due := true; ; {
		if due {
			done, err := s.look(ctx)
			_, away := errors.AsType[*problem.UnreachableError](err)
			switch {
			case err == nil && done:
				return s.now, nil
			case err == nil:
				answered = time.Now()
			case !away || time.Since(answered) > c.timing.patience || ctx.Err() != nil:
				return s.now, err
			}
		}
		if f.Line != nil && s.stream == nil && time.Since(s.cutAt) >= c.timing.reopen && time.Since(answered) < c.timing.look*2 {
			s.open(ctx)
		}
		select {
		case <-ctx.Done():
			return s.now, ctx.Err()
		case event, more := <-s.events():
			var err error
			if due, err = s.take(event, more); err != nil {
				return s.now, err
			}
		case <-tick.C:
			if due = s.dueNow(); !due {
				if err := s.tell(); err != nil {
					return s.now, err
				}
			}
		}
	}
}

// following is one that goes on.
type following struct {
	Follower
	client *Client
	id     uuid.UUID
	now    wire.Provision // as it was last read
	read   time.Time      // when that was
	hinted bool           // it may have changed since
	stream *stream        // nil while there is none
	cutAt  time.Time
	over   bool      // the stream has said that nothing more is to come
	heard  time.Time // of a lost run: when a stream last was there that could say so
}

// look reads how the provision stands, and the rows that are new. The status
// before the log: once it is final, so is the log.
func (s *following) look(ctx context.Context) (done bool, err error) {
	p, err := s.client.Provision(ctx, s.id.String())
	if err != nil {
		return false, err
	}
	s.now, s.read, s.hinted = p, time.Now(), false
	done = p.Status.EndsRun() && !s.mayGoOn()
	if s.Line != nil && (s.stream == nil || done || s.stream.quiet(s.client.timing)) {
		if err := s.catchUp(ctx); err != nil {
			return false, err
		}
	}
	return done, s.tell()
}

// mayGoOn reports whether more is waited for although the run has ended: its agent was
// lost. Without a stream nothing says that the log is complete, so it waits for as long as a
// stream may be silent.
func (s *following) mayGoOn() bool {
	if !s.Late || s.over || !Lost(s.now) {
		return false
	}
	if s.heard.IsZero() || s.stream != nil && !s.stream.quiet(s.client.timing) {
		s.heard = time.Now()
	}
	return time.Since(s.heard) < s.client.timing.silent
}

// Lost reports whether a provision has ended because its agent was lost, and the agent
// may still say otherwise.
func Lost(p wire.Provision) bool {
	return p.Status == provision.Failed && p.ErrorCode != nil && *p.ErrorCode == string(provision.CodeAgentLost)
}

// catchUp asks for the rows that are not there yet.
func (s *following) catchUp(ctx context.Context) error {
	for {
		page, err := s.client.logs(ctx, s.id, s.Seq)
		if err != nil {
			return err
		}
		for _, row := range page.Items {
			if err := s.line(row); err != nil {
				return err
			}
		}
		if len(page.Items) == 0 || s.Seq >= page.LastSeq {
			return nil
		}
	}
}

func (s *following) line(row wire.LogRow) error {
	if row.Seq <= s.Seq {
		return nil
	}
	if err := s.Line(row); err != nil {
		return err
	}
	s.Seq = row.Seq
	return nil
}

// tell says how the provision stands, as of now by the database's clock.
func (s *following) tell() error {
	if s.Stands == nil || s.read.IsZero() {
		return nil
	}
	p := s.now
	p.AsOf = p.AsOf.Add(time.Since(s.read))
	return s.Stands(p)
}

// dueNow reports whether the provision must be asked about without a hint.
func (s *following) dueNow() bool {
	if s.stream == nil || s.hinted || s.stream.quiet(s.client.timing) {
		return true
	}
	// What a queued one waits for, and percentages, come with no event.
	return time.Since(s.read) >= 2*s.client.timing.look
}

// take takes an event of the stream, and says whether to look.
func (s *following) take(e event, more bool) (due bool, err error) {
	if !more {
		s.cut()
		return true, nil
	}
	switch {
	case e.row == nil: // one that is left out is made up for by the next tick
		s.hinted = s.hinted || !e.end
		s.over = s.over || e.end
		return e.end || time.Since(s.read) >= s.client.timing.hinted, nil
	case e.row.Seq > s.Seq+1: // rows were left out: they are asked for
		s.cut()
		return true, nil
	}
	return false, s.line(*e.row)
}

func (s *following) open(ctx context.Context) {
	s.stream = s.client.openStream(ctx, s.id, s.Seq)
}

func (s *following) cut() {
	if s.stream != nil {
		s.stream.close()
		s.stream, s.cutAt = nil, time.Now()
	}
}

func (s *following) events() <-chan event {
	if s.stream == nil {
		return nil
	}
	return s.stream.events
}

// mostEvent bounds one event: a row of a log, escaped.
const mostEvent = 1 << 20

// event is one of a log's stream: a row, or a hint to look.
type event struct {
	row *wire.LogRow
	end bool // nothing more comes
}

// stream is a log's event stream, read by a goroutine of its own.
type stream struct {
	events chan event // closed when it is cut
	cancel context.CancelFunc
	opened time.Time
	heard  atomic.Int64 // when a byte came last, in nanoseconds since opened; 0: never
}

// openStream asks for the rows of a log after seq as they come. The stream that
// is returned ends at once where there is none.
func (c *Client) openStream(ctx context.Context, id uuid.UUID, seq int64) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{events: make(chan event), cancel: cancel, opened: time.Now()}
	go func() {
		defer close(s.events)
		response, err := c.once(ctx, call{
			method: http.MethodGet, path: []string{"provisions", id.String(), "logs", "stream"}, accept: "text/event-stream",
			query: map[string][]string{"after": {strconv.FormatInt(seq, 10)}},
		}, nil, "")
		if err != nil {
			return
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests {
			return // it may be there later
		}
		if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
			<-ctx.Done() // it is asked for instead, and not for a stream again
			return
		}
		s.read(ctx, response.Body)
	}()
	return s
}

func (s *stream) read(ctx context.Context, body io.Reader) {
	for e, err := range sse.Read(&heardReader{body, s}, &sse.ReadConfig{MaxEventSize: mostEvent}) {
		if err != nil {
			return
		}
		got := event{end: e.Type == "end"}
		if e.Type == "log" {
			row := &wire.LogRow{}
			if json.Unmarshal([]byte(e.Data), row) != nil || row.Seq < 1 {
				return // cut in the middle
			}
			got.row = row
		}
		select {
		case s.events <- got:
		case <-ctx.Done():
			return
		}
	}
}

// quiet reports whether the stream has said nothing yet, or nothing for longer
// than it would: a proxy may keep what it is sent.
func (s *stream) quiet(t timing) bool {
	heard := time.Duration(s.heard.Load())
	return heard == 0 || time.Since(s.opened)-heard > t.silent
}

// close ends the stream and waits for its goroutine.
func (s *stream) close() {
	s.cancel()
	for range s.events { // nobody wants what is left
	}
}

// heardReader notes when something was read.
type heardReader struct {
	io.Reader
	stream *stream
}

func (r *heardReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.stream.heard.Store(max(1, int64(time.Since(r.stream.opened))))
	}
	return n, err
}

// Log tells of each row of a provision's log that there is now.
func (c *Client) Log(ctx context.Context, id uuid.UUID, line func(wire.LogRow) error) error {
	return (&following{client: c, id: id, Follower: Follower{Line: line}}).catchUp(ctx)
}
