package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// ProvisionRef is the path parameter that names a provision.
type ProvisionRef struct {
	Ref string `path:"ref" maxLength:"100" doc:"The provision, by its number or id." example:"42"`
}

type provisionsInput struct {
	OrgParam
	PageParams
	Status    []provision.Status    `query:"status" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,SUCCESS,FAILED,CANCELLED" doc:"Only those in one of these states, separated by commas."`
	Operation []provision.Operation `query:"operation" enum:"plan,apply,destroy,refresh,unlock,state" doc:"Only those of one of these operations, separated by commas."`
	Cluster   string                `query:"cluster" maxLength:"100" doc:"Only those of this cluster, by its name or id." example:"prod"`
	Workspace string                `query:"workspace" maxLength:"200" doc:"Only those of this workspace, by its name or id." example:"acme/prod"`
}

type deployInput struct {
	Keyed
	Body struct {
		Cluster   string              `json:"cluster" maxLength:"100" minLength:"1" doc:"Where to run it, by the cluster's name or id." example:"prod"`
		Operation provision.Operation `json:"operation,omitempty" enum:"plan,apply,destroy,refresh,unlock,state" default:"apply" doc:"What to do."`
		Snapshot  json.RawMessage     `json:"config_snapshot" doc:"What to deploy."`
	}
	OrgParam
}

// queuedAnswer is the answer to what makes a provision.
type queuedAnswer struct {
	ID        uuid.UUID `json:"id" doc:"The provision's id."`
	Number    int64     `json:"number" doc:"The provision's number, which people use." example:"42" minimum:"1"`
	Workspace string    `json:"workspace" doc:"The name of the workspace it is queued in." example:"acme/prod"`
	URL       string    `json:"url" doc:"Where to look how it goes on, on this server." example:"/api/v1/provisions/42"`
	LogsURL   string    `json:"logs_url" doc:"Where its log is." example:"/api/v1/provisions/42/logs"`
}

func queued(id uuid.UUID, number int64, workspace string) (string, queuedAnswer, error) {
	url := fmt.Sprintf("%s/provisions/%d", prefix, number)
	return url, queuedAnswer{ID: id, Number: number, Workspace: workspace, URL: url, LogsURL: url + "/logs"}, nil
}

type provisionAnswer struct{ Body store.Provision }

// provisions registers what is asked of provisions: to make them and to read
// them.
func (a *api) provisions(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-provisions", Method: http.MethodGet, Path: "/provisions", Tags: []string{"Provisions"},
		Summary: "List provisions, the newest first",
		Description: "Without their snapshots, stages, and what their plans say of each resource. With filters, a page looks through so many provisions and no more: " +
			"it may have fewer entries than the limit, or none, while its next_cursor says that there is more to look through.",
	}, a.listProvisions)

	once(a, h, huma.Operation{
		OperationID: "create-provision", Method: http.MethodPost, Path: "/provisions", Tags: []string{"Provisions"},
		Summary:       "Deploy: queue a snapshot on a cluster",
		Description:   "It is accepted when it is queued; an agent of the cluster runs it as soon as the workspace is free. Operators may do this. A snapshot that is not right is refused with reason bad_snapshot, and errors name every field of it that is wrong.",
		DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, s *store.Store, in *deployInput) (string, queuedAnswer, error) {
		org, err := in.org(ctx, s)
		if err != nil {
			return "", queuedAnswer{}, err
		}
		cluster, err := s.ClusterByRef(ctx, org, in.Body.Cluster)
		if err != nil {
			return "", queuedAnswer{}, err
		}
		d, err := s.Deploy(ctx, cluster.ID, in.Body.Operation, in.Body.Snapshot)
		if err != nil {
			return "", queuedAnswer{}, err
		}
		return queued(d.ID, d.Number, d.Workspace)
	})

	add(a, h, huma.Operation{
		OperationID: "get-provision", Method: http.MethodGet, Path: "/provisions/{ref}", Tags: []string{"Provisions"},
		Summary: "Everything about one provision",
	}, func(ctx context.Context, in *ProvisionRef) (*provisionAnswer, error) {
		p, err := a.as(ctx).Provision(ctx, in.Ref)
		return &provisionAnswer{p}, err
	})
}

func (a *api) listProvisions(ctx context.Context, in *provisionsInput) (*listed[store.Provision], error) {
	var before int64
	if err := decodeCursor("provisions", in.Cursor, &before); err != nil {
		return nil, err
	}
	filter := store.ProvisionFilter{Statuses: in.Status, Operations: in.Operation}
	var list []store.Provision
	var next int64
	err := a.as(ctx).Within(ctx, "list the provisions", func(ctx context.Context, s *store.Store) error {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return err
		}
		if in.Cluster != "" {
			cluster, err := s.ClusterByRef(ctx, org.ID, in.Cluster)
			if err != nil {
				return err
			}
			filter.Cluster = cluster.ID
		}
		if in.Workspace != "" {
			workspace, err := s.WorkspaceByRef(ctx, org.ID, filter.Cluster, in.Workspace)
			if err != nil {
				return err
			}
			filter.Workspace = workspace.ID
		}
		list, next, err = s.ListProvisions(ctx, org.ID, filter, before, in.Limit)
		return err
	})
	return listAfter("provisions", list, next, err)
}
