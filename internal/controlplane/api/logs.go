package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// logBytes is about how much text a page of a log has, in JSON.
	logBytes = 1 << 20
	// textBytes is how much of a download is read at once.
	textBytes = 256 << 10
	// textLimit is how long a client may take for that much.
	textLimit = time.Minute
)

type logsInput struct {
	Ref    string `path:"ref" doc:"A provision's number or id." example:"42"`
	After  int64  `query:"after" minimum:"0" doc:"Leave out the rows up to this seq."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"At most so many rows. Fewer come where their text would be more than 1 MiB."`
	Tail   int64  `query:"tail" minimum:"0" maximum:"1000000" doc:"Begin so many rows before the newest, if that is after \"after\"."`
	Format string `query:"format" enum:"json,text" default:"json" doc:"text: all of it (after \"after\", or the tail), as a file, without a limit."`
}

type logPage struct {
	Items     []store.LogRow `json:"items" nullable:"false" doc:"Rows of the log in order. Each is some lines, or a part of one: put together they are the text."`
	NextAfter int64          `json:"next_after" doc:"What to give as \"after\" to go on."`
	LastSeq   int64          `json:"last_seq" doc:"The newest row there is. More may come until the provision has ended."`
}

// logs registers a provision's log: a range of it, its tail, and as it grows.
func (a *api) logs(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-logs", Method: http.MethodGet, Path: "/provisions/{ref}/logs", Tags: []string{"Logs"}, Summary: "A range of a log, or its tail", Metadata: streaming,
		Description: "Rows are numbered 1, 2, 3, … without a gap. As a file it is sent in pieces, whatever its size.",
		Responses: map[string]*huma.Response{"200": {Description: "The rows", Content: map[string]*huma.MediaType{
			"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(typeOf[logPage](), true, "LogPage")},
			"text/plain":       {Schema: &huma.Schema{Type: huma.TypeString}},
		}}},
	}, func(ctx context.Context, in *logsInput) (*huma.StreamResponse, error) {
		s := a.as(ctx)
		p, err := s.ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return nil, err
		}
		end, err := s.LogEnd(ctx, p.ID)
		if err != nil {
			return nil, err
		}
		after := in.After
		if in.Tail > 0 {
			after = max(after, end-in.Tail)
		}
		if in.Format == "text" {
			return &huma.StreamResponse{Body: func(c huma.Context) { a.logText(c, s, p, after, end) }}, nil
		}
		rows, err := s.LogPage(ctx, p.ID, after, in.Limit, logBytes)
		if err != nil {
			return nil, err
		}
		page := logPage{Items: rows, NextAfter: after, LastSeq: end}
		if len(rows) > 0 {
			page.NextAfter = rows[len(rows)-1].Seq
			page.LastSeq = max(end, page.NextAfter)
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			c.SetHeader("Content-Type", "application/json")
			c.SetHeader("Cache-Control", "no-store")
			_ = h.Marshal(c.BodyWriter(), "application/json", page) // the client is gone: nobody to tell
		}}, nil
	})
	a.stream(h, huma.Operation{
		OperationID: "follow-logs", Path: "/provisions/{ref}/logs/stream", Tags: []string{"Logs"}, Summary: "A log as it grows",
		Description: "Server-sent events. `log`: a row, whose seq is the event's id, so that a client which comes back with Last-Event-ID (or `after`) misses and repeats nothing. " +
			"`status`: how the provision stands, at first and whenever that changes. `end`: nothing more will come; whoever comes back is answered 204. " +
			"`gone`: you may not see it any more. A comment every 15 s keeps proxies from closing it; after some minutes the server does: come back then.",
	}, "log", typeOf[store.LogRow](), a.Live.ServeLog)
}

// logText sends the rows up to end as one file, in constant memory. Where it
// cannot go on it breaks the connection off: half a log must not look whole.
func (a *api) logText(c huma.Context, s *store.Store, p store.ProvisionKey, after, end int64) {
	r, w := humago.Unwrap(c)
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="provision-%d.log"`, p.Number))
	w.Header().Set("Cache-Control", "no-store")
	for after < end {
		rows, err := s.LogPage(r.Context(), p.ID, after, 1000, textBytes)
		if err != nil || len(rows) == 0 {
			if r.Context().Err() == nil {
				a.Log.Warn("a download of a log was broken off", "provision", p.ID, "error", err)
			}
			panic(http.ErrAbortHandler)
		}
		_ = rc.SetWriteDeadline(time.Now().Add(textLimit)) // the server's own is for the whole
		for _, row := range rows {
			if after = row.Seq; after > end {
				break
			}
			if _, err := io.WriteString(w, row.Text); err != nil {
				return
			}
		}
	}
}

type streamInput struct {
	Ref         string `path:"ref" doc:"A provision's number or id." example:"42"`
	After       int64  `query:"after" minimum:"0" doc:"Leave out what is up to this id."`
	LastEventID string `header:"Last-Event-ID" doc:"The same, as browsers say it when they come back; it goes before \"after\"."`
}

// serveStream answers with a stream, or writes nothing and returns why.
type serveStream = func(http.ResponseWriter, *http.Request, live.Follower) error

// stream registers an event stream of a provision.
func (a *api) stream(h huma.API, op huma.Operation, name string, of reflect.Type, serve serveStream) {
	op.Method, op.Metadata = http.MethodGet, streaming
	op.Errors = []int{http.StatusTooManyRequests}
	op.Responses = map[string]*huma.Response{
		"200": {Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: streamSchema(h, name, of)}}},
		"204": {Description: "Nothing more will come"},
	}
	add(a, h, op, func(ctx context.Context, in *streamInput) (*huma.StreamResponse, error) {
		provision, err := a.as(ctx).ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return nil, err
		}
		p, _ := person.From(ctx)
		f := live.Follower{Person: p.ID, Provision: provision.ID, After: in.After}
		if in.LastEventID != "" {
			if f.After, err = strconv.ParseInt(in.LastEventID, 10, 64); err != nil || f.After < 0 {
				return nil, fault(http.StatusUnprocessableEntity, "invalid_request", "header.Last-Event-ID", "must be an id that this stream has sent", in.LastEventID)
			}
			f.Again = true
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			r, w := humago.Unwrap(c)
			if err := serve(w, r, f); err != nil {
				writeProblem(w, a.streamProblem(r.Context(), op.OperationID, err))
			}
		}}, nil
	})
}
