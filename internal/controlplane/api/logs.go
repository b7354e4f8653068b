package api

import (
	"context"
	"errors"
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
	"github.com/tendril-run/tendril/internal/controlplane/wire"
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

// logs registers a provision's log: a range of it, its tail, and as it grows.
func (a *api) logs(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-logs", Method: http.MethodGet, Path: "/provisions/{ref}/logs", Tags: []string{"Logs"}, Summary: "A range of a log, or its tail", Metadata: streaming,
		Description: "Rows are numbered 1, 2, 3, … without a gap. As a file it is sent in pieces, whatever its size.",
		Responses: map[string]*huma.Response{"200": {Description: "The rows", Content: map[string]*huma.MediaType{
			"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(typeOf[wire.LogPage](), true, "LogPage")},
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
		page := wire.LogPage{Items: each(logRowOf, rows), NextAfter: after, LastSeq: end}
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
			"`status`: how the provision stands, at first and whenever that changes. `end`: nothing more will come; a client that comes back gets 204. " +
			"`gone`: you may not see it any more. A comment every 15 s keeps proxies from closing it; after some minutes the server does: come back then.",
	}, "log", typeOf[wire.LogRow](), a.Live.ServeLog)
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

type eventsInput struct {
	Ref   string `path:"ref" doc:"A provision's number or id." example:"42"`
	After int64  `query:"after" minimum:"0" doc:"Leave out the events up to this id."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"At most so many."`
}

// events registers what happened to a provision: so far, and as it happens.
func (a *api) events(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-events", Method: http.MethodGet, Path: "/provisions/{ref}/events", Tags: []string{"Logs"}, Summary: "What happened to a provision",
		Description: "Stages, resources that were started, finished or failed, cancels. Ids grow, with gaps.",
	}, func(ctx context.Context, in *eventsInput) (*answer[wire.EventPageBody], error) {
		s := a.as(ctx)
		p, err := s.ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return nil, err
		}
		found, err := s.Events(ctx, p.ID, in.After, in.Limit)
		if err != nil {
			return nil, err
		}
		page := &answer[wire.EventPageBody]{wire.EventPageBody{Items: each(eventOf, found), NextAfter: in.After}}
		if n := len(page.Body.Items); n > 0 {
			page.Body.NextAfter = page.Body.Items[n-1].ID
		}
		return page, nil
	})
	a.stream(h, huma.Operation{
		OperationID: "follow-events", Path: "/provisions/{ref}/events/stream", Tags: []string{"Logs"}, Summary: "What happens to a provision, as it happens",
		Description: "Server-sent events, as those of a log; `event` carries one.",
	}, "event", typeOf[wire.Event](), a.Live.ServeEvents)
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// streamSchema describes the events of a stream in the document.
func streamSchema(h huma.API, name string, of reflect.Type) *huma.Schema {
	schemas := h.OpenAPI().Components.Schemas
	one := func(event string, data *huma.Schema) *huma.Schema {
		return &huma.Schema{Type: huma.TypeObject, Title: event, Required: []string{"event", "data"}, Properties: map[string]*huma.Schema{
			"id": {Type: huma.TypeInteger}, "event": {Type: huma.TypeString, Enum: []any{event}}, "data": data,
		}}
	}
	return &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{OneOf: []*huma.Schema{
		one(name, schemas.Schema(of, true, name)), one("status", schemas.Schema(typeOf[wire.Sight](), true, "Sight")),
		one("end", &huma.Schema{Type: huma.TypeObject}), one("gone", &huma.Schema{Type: huma.TypeObject}),
	}}}
}

// streaming marks operations that answer for as long as the client takes.
var streaming = map[string]any{streams: true}

// streamProblem is what is answered where no stream came of a request.
func (a *api) streamProblem(ctx context.Context, operation string, err error) *Problem {
	if refused, ok := errors.AsType[*store.RefusedError](err); ok && refused.Status() == http.StatusServiceUnavailable {
		p := newProblem(refused.Status(), refused.Reason, refused.Message, refused.Hint)
		p.retryAfter = "5"
		return p
	}
	p, _ := errors.AsType[*Problem](a.problem(ctx, operation, err))
	if p.Status == http.StatusTooManyRequests {
		p.retryAfter = "5"
	}
	return p
}
