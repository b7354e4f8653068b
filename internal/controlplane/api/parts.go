package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

type provisionListInput struct {
	ProvisionRef
	PageParams
}

type planAnswer struct {
	Body struct {
		PlanDigest string                 `json:"plan_digest,omitempty" doc:"What to approve it by, while it awaits approval; what was approved, after that."`
		Status     provision.Status       `json:"status" doc:"The provision's state." example:"AWAITING_APPROVAL"`
		Plan       *provision.PlanSummary `json:"plan,omitempty" doc:"What it comes to, with each resource. Absent until there is a plan."`
	}
}

// provisionParts registers what is read of one provision alone.
func (a *api) provisionParts(h huma.API) {
	operation := func(word, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: "get-provision-" + word, Method: http.MethodGet, Path: "/provisions/{ref}/" + word, Tags: []string{"Provisions"},
			Summary: summary, Description: description,
		}
	}

	add(a, h, operation("resources", "What it has made or changed", "By address; without what a later provision has changed since."),
		func(ctx context.Context, in *provisionListInput) (*listed[store.Resource], error) {
			var after, next string
			if err := decodeCursor("resources", in.Cursor, &after); err != nil {
				return nil, err
			}
			var list []store.Resource
			err := a.as(ctx).Within(ctx, "list the resources", func(ctx context.Context, s *store.Store) error {
				p, err := s.ProvisionByRef(ctx, in.Ref)
				if err != nil {
					return err
				}
				list, next, err = s.ListProvisionResources(ctx, p, after, in.Limit)
				return err
			})
			return listAfter("resources", list, next, err)
		})

	add(a, h, operation("stages", "The stages it has reached, with their times", "In their order, in one page."),
		func(ctx context.Context, in *ProvisionRef) (*listed[store.StageTime], error) {
			p, err := a.as(ctx).Provision(ctx, in.Ref)
			return listAfter("stages", p.Stages, "", err)
		})

	add(a, h, operation("plan", "What its plan would do, resource by resource", "What is sensitive is not among it."),
		func(ctx context.Context, in *ProvisionRef) (*planAnswer, error) {
			answer := &planAnswer{}
			p, err := a.as(ctx).Provision(ctx, in.Ref)
			if p.PlanDigest != nil {
				answer.Body.PlanDigest = *p.PlanDigest
			}
			answer.Body.Status, answer.Body.Plan = p.Status, p.Plan
			return answer, err
		})
}
