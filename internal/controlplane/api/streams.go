package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

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
		one(name, schemas.Schema(of, true, name)), one("status", schemas.Schema(typeOf[store.Sight](), true, "Sight")),
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
