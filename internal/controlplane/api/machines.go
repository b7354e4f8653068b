package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/planned"
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
	Status    string   `query:"status" enum:"planned,reserved,creating,running,stopped,failed,unknown,gone" doc:"Only those of this status. Without it those that are gone are left out." example:"running"`
	Pool      string   `query:"pool" maxLength:"200" doc:"Only those of this pool." example:"lab"`
	Health    string   `query:"health" enum:"healthy,unhealthy,unknown" doc:"Only those of this health." example:"unhealthy"`
	Labels    []string `query:"label" maxItems:"20" doc:"Only those with all of these labels: name=value, with commas between, so none can have one." example:"class=a"`
}

type planMachinesInput struct {
	Keyed
	Body wire.PlanMachinesBody
	OrgParam
}

type provisionMachinesInput struct {
	Keyed
	Body wire.ProvisionMachinesBody
	OrgParam
}

// plans registers what people do with machines that are planned.
func (a *api) plans(h huma.API) {
	once(a, h, huma.Operation{
		OperationID: "plan-machines", Method: http.MethodPost, Path: "/machines", Tags: []string{"Machines"}, DefaultStatus: http.StatusCreated,
		Summary: "Draw up machines, to provision them later", Description: "Nothing is done about them until then. One that is planned already, by its name or its id, is replaced. All or none are planned. Operators may do this.",
	}, func(ctx context.Context, s *store.Store, in *planMachinesInput) (string, wire.PlannedAnswer, error) {
		org, err := in.org(ctx, s)
		if err != nil {
			return "", wire.PlannedAnswer{}, err
		}
		cluster, err := s.ClusterByRef(ctx, org, in.Body.Cluster)
		if err != nil {
			return "", wire.PlannedAnswer{}, err
		}
		ids, err := s.PlanMachines(ctx, cluster.ID, in.Body.Snapshot, in.Body.Machines)
		return prefix + "/machines?status=planned", wire.PlannedAnswer{IDs: ids}, err
	})

	add(a, h, huma.Operation{
		OperationID: "delete-planned-machine", Method: http.MethodDelete, Path: "/machines/{ref}", Tags: []string{"Machines"}, DefaultStatus: http.StatusNoContent,
		Summary: "Delete a machine that is planned", Description: "One that is there is destroyed by a run instead. Operators may do this.",
	}, func(ctx context.Context, in *MachineRef) (*struct{}, error) {
		return nothing(ctx, a, *in, "delete the planned machine", func(ctx context.Context, s *store.Store, m store.Machine) error {
			return s.DeletePlannedMachine(ctx, m.ID)
		})
	})

	once(a, h, huma.Operation{
		OperationID: "provision-machines", Method: http.MethodPost, Path: "/machines/provision", Tags: []string{"Machines"}, DefaultStatus: http.StatusAccepted,
		Summary: "Deploy machines that are planned",
		Description: "Queues an apply of their template, with what was last applied to their workspace and these machines added. It is refused while a run of the workspace has not ended. The template's variables are filled in by name: machines (a map of objects), else names, else name; and image, cores, memory, disk, pool and labels. " +
			"What can't be filled in is refused with reason plan_incomplete. Operators may do this.",
	}, func(ctx context.Context, s *store.Store, in *provisionMachinesInput) (string, wire.QueuedAnswer, error) {
		org, err := in.org(ctx, s)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		workspace, err := s.WorkspaceByRef(ctx, org, uuid.Nil, in.Body.Workspace)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		d, err := planned.Provision(ctx, s, workspace, in.Body.Machines, in.Body.Approval)
		if err != nil {
			return "", wire.QueuedAnswer{}, err
		}
		return queued(d.ID, d.Number, d.Workspace)
	})
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
