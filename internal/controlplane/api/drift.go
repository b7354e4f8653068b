package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type driftAnswer struct{ Body store.Drift }

type watchDriftInput struct {
	WorkspaceRef
	Body struct {
		Every int64 `json:"every_seconds" minimum:"0" maximum:"31622400" doc:"How often to look, in seconds: from 300 (5 minutes) to 31622400 (366 days). 0: never." example:"86400"`
	}
}

// drift registers what is asked of drift.
func (a *api) drift(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-drift", Method: http.MethodGet, Path: "/drift", Tags: []string{"Workspaces"},
		Summary:     "The workspaces that are looked at for drift, or were",
		Description: "Those that have drifted first; at most 1,000, in one page.",
	}, func(ctx context.Context, in *OrgParam) (*listed[store.Drift], error) {
		var list []store.Drift
		err := a.as(ctx).Within(ctx, "list what has drifted", func(ctx context.Context, s *store.Store) error {
			org, err := s.FindOrg(ctx, in.Org)
			if err != nil {
				return err
			}
			list, err = s.ListDrifts(ctx, org.ID)
			return err
		})
		return listAfter("drift", list, "", err)
	})

	add(a, h, huma.Operation{
		OperationID: "get-workspace-drift", Method: http.MethodGet, Path: "/workspaces/{ref}/drift", Tags: []string{"Workspaces"},
		Summary: "How the infrastructure differs from the state, as far as is known",
	}, func(ctx context.Context, in *WorkspaceRef) (*driftAnswer, error) {
		answer := &driftAnswer{}
		return answer, a.withWorkspace(ctx, *in, "read what has drifted", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
			answer.Body, err = s.Drift(ctx, w.ID)
			return err
		})
	})

	add(a, h, huma.Operation{
		OperationID: "watch-workspace-drift", Method: http.MethodPut, Path: "/workspaces/{ref}/drift", Tags: []string{"Workspaces"},
		Summary: "Look for drift every so often", Description: "Operators may do this. To look once, make a provision of the operation refresh.",
	}, func(ctx context.Context, in *watchDriftInput) (*driftAnswer, error) {
		answer := &driftAnswer{}
		return answer, a.withWorkspace(ctx, in.WorkspaceRef, "set the schedule", func(ctx context.Context, s *store.Store, w store.Workspace) error {
			if err := s.WatchDrift(ctx, w.ID, time.Duration(in.Body.Every)*time.Second); err != nil {
				return err
			}
			var err error
			answer.Body, err = s.Drift(ctx, w.ID)
			return err
		})
	})
}
