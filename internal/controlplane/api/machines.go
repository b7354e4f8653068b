package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// MachineRef is the path parameter that names a machine.
type MachineRef struct {
	Ref string `path:"ref" maxLength:"200" doc:"The machine, by its name or id." example:"ada"`
	OrgParam
	Workspace string `query:"workspace" maxLength:"200" doc:"The workspace that it is of, by its name or id. Only needed where several have a machine of that name." example:"acme/prod"`
}

func (in MachineRef) find(ctx context.Context, s *store.Store) (store.Machine, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return store.Machine{}, err
	}
	workspace, err := workspaceID(ctx, s, org, in.Workspace)
	if err != nil {
		return store.Machine{}, err
	}
	return s.MachineByRef(ctx, org, workspace, in.Ref)
}

// workspaceID is the id of the workspace that a parameter names, uuid.Nil where it names
// none.
func workspaceID(ctx context.Context, s *store.Store, org uuid.UUID, ref string) (uuid.UUID, error) {
	if ref == "" {
		return uuid.Nil, nil
	}
	workspace, err := s.WorkspaceByRef(ctx, org, uuid.Nil, ref)
	return workspace.ID, err
}

type machinesInput struct {
	OrgParam
	PageParams
	Words     string   `query:"q" maxLength:"200" doc:"Only those with this in the name, an IP address or the external id." example:"ada"`
	Workspace string   `query:"workspace" maxLength:"200" doc:"Only those of this workspace, by its name or id." example:"acme/prod"`
	Status    string   `query:"status" enum:"creating,running,stopped,failed,unknown,gone" doc:"Only those of this status. Without it those that are gone are left out." example:"running"`
	Pool      string   `query:"pool" maxLength:"200" doc:"Only those of this pool." example:"lab"`
	Health    string   `query:"health" enum:"healthy,unhealthy,unknown" doc:"Only those of this health." example:"unhealthy"`
	Labels    []string `query:"label" maxItems:"20" doc:"Only those with all of these labels: name=value, with commas between, so none can have one." example:"class=a"`
}

// machines registers what is read of machines.
func (a *api) machines(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-machines", Method: http.MethodGet, Path: "/machines", Tags: []string{"Machines"},
		Summary: "List machines by name", Description: "As they were last reported. Credentials are not among it.",
	}, a.listMachines)

	add(a, h, huma.Operation{
		OperationID: "get-machine", Method: http.MethodGet, Path: "/machines/{ref}", Tags: []string{"Machines"},
		Summary: "One machine", Description: "Also one that is gone, for as long as the retention says.",
	}, func(ctx context.Context, in *MachineRef) (*answer[wire.Machine], error) {
		return told(ctx, a, machineOf, *in, "look for the machine", itself[store.Machine])
	})

	add(a, h, huma.Operation{
		OperationID: "list-machine-history", Method: http.MethodGet, Path: "/machines/{ref}/history", Tags: []string{"Machines"},
		Summary: "What it has been, the newest first", Description: "Each change of its status and its health, at most 100, in one page.",
	}, func(ctx context.Context, in *MachineRef) (*listed[wire.MachineEvent], error) {
		list, err := about(ctx, a, *in, "read the machine's history", func(ctx context.Context, s *store.Store, m store.Machine) ([]store.MachineEvent, error) {
			return s.MachineHistory(ctx, m.ID)
		})
		return listAfter("history", each(machineEventOf, list), "", err)
	})
}

func (a *api) listMachines(ctx context.Context, in *machinesInput) (*listed[wire.Machine], error) {
	var after store.MachineKey
	if err := decodeCursor("machines", in.Cursor, &after.Name, &after.ID); err != nil {
		return nil, err
	}
	f := store.MachineFilter{Words: in.Words, Status: in.Status, Pool: in.Pool, Health: in.Health, Labels: map[string]string{}}
	for _, label := range in.Labels {
		name, value, is := strings.Cut(label, "=")
		if _, twice := f.Labels[name]; !is || twice {
			return nil, fault(http.StatusUnprocessableEntity, "bad_label", "query.label", "a label is name=value, and each name is given once", label)
		}
		f.Labels[name] = value
	}
	var list []store.Machine
	var next *store.MachineKey
	err := a.as(ctx).Within(ctx, "list the machines", func(ctx context.Context, s *store.Store) error {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return err
		}
		if f.Workspace, err = workspaceID(ctx, s, org.ID, in.Workspace); err != nil {
			return err
		}
		list, next, err = s.ListMachines(ctx, org.ID, f, after, in.Limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	cursor := ""
	if next != nil {
		cursor = encodeCursor("machines", next.Name, next.ID)
	}
	return listOf(each(machineOf, list), cursor), nil
}
