package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type eventsInput struct {
	Ref   string `path:"ref" doc:"A provision's number or id." example:"42"`
	After int64  `query:"after" minimum:"0" doc:"Leave out the events up to this id."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"At most so many."`
}

type eventPage struct {
	Body struct {
		Items     []store.Event `json:"items" nullable:"false"`
		NextAfter int64         `json:"next_after" doc:"What to give as \"after\" to go on."`
	}
}

// events registers what happened to a provision: so far, and as it happens.
func (a *api) events(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-events", Method: http.MethodGet, Path: "/provisions/{ref}/events", Tags: []string{"Logs"}, Summary: "What happened to a provision",
		Description: "Stages, resources that were started, finished or failed, cancels. Ids grow, with gaps.",
	}, func(ctx context.Context, in *eventsInput) (*eventPage, error) {
		s := a.as(ctx)
		p, err := s.ProvisionByRef(ctx, in.Ref)
		if err != nil {
			return nil, err
		}
		page := &eventPage{}
		if page.Body.Items, err = s.Events(ctx, p.ID, in.After, in.Limit); err != nil {
			return nil, err
		}
		page.Body.NextAfter = in.After
		if n := len(page.Body.Items); n > 0 {
			page.Body.NextAfter = page.Body.Items[n-1].ID
		}
		return page, nil
	})
	a.stream(h, huma.Operation{
		OperationID: "follow-events", Path: "/provisions/{ref}/events/stream", Tags: []string{"Logs"}, Summary: "What happens to a provision, as it happens",
		Description: "Server-sent events, as those of a log; `event` carries one.",
	}, "event", typeOf[store.Event](), a.Live.ServeEvents)
}
