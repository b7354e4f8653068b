package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type me struct {
	Body struct {
		ID    uuid.UUID   `json:"id"`
		Name  string      `json:"name,omitempty"`
		Email string      `json:"email,omitempty"`
		Orgs  []store.Org `json:"orgs" doc:"The organisations that this person belongs to, with their role in each."`
	}
}

// me registers who asks.
func (a *api) me(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "whoami", Method: http.MethodGet, Path: "/me", Tags: []string{"People"}, Summary: "Who is signed in",
	}, func(ctx context.Context, _ *struct{}) (*me, error) {
		p, _ := person.From(ctx)
		orgs, err := a.as(ctx).Orgs(ctx)
		if err != nil {
			return nil, err
		}
		answer := &me{}
		answer.Body.ID, answer.Body.Name, answer.Body.Email, answer.Body.Orgs = p.ID, p.Name, p.Email, orgs
		return answer, nil
	})
}
