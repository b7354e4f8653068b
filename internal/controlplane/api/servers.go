package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

const (
	// serverWait is how long a POST waits for the agent to say which server it is, unless the
	// configuration says otherwise.
	serverWait = 10 * time.Second
	// serverLook is how often it looks.
	serverLook = 200 * time.Millisecond
)

type provisionServerInput struct {
	Keyed
	OrgParam
	Body wire.ServerProvisionBody
}

type serverStatusInput struct {
	Operation string `path:"operation_id" maxLength:"200" doc:"The operation, or a server by its id in Ironic: then its newest operation."`
	OrgParam
}

type poolTemplateInput struct {
	PoolRef
	Body wire.PoolTemplateBody
}

// servers registers the provisioning of bare-metal servers.
func (a *api) servers(h huma.API) {
	carryOut(a, h, huma.Operation{
		OperationID: "provision-server", Method: http.MethodPost, Path: "/provision", Tags: []string{"Servers"}, DefaultStatus: http.StatusAccepted,
		Summary: "Provision a bare-metal server",
		Description: "A named server, or any of a resource class, gets an image, by the template that an admin has chosen for its pool. The answer waits up to 10 seconds for the agent to say which server it is; " +
			"until then what is wrong is answered here, afterwards by the operation. A repeat with the same Idempotency-Key gets that answer again, such an error too. Operators may do this.",
		Errors: []int{http.StatusBadGateway},
	}, a.provisionServer, a.awaitServer, false)
	add(a, h, huma.Operation{
		OperationID: "get-server-provision", Method: http.MethodGet, Path: "/provision/{operation_id}", Tags: []string{"Servers"},
		Summary: "How the provisioning of a server stands", Description: "Of a server that Tendril has not provisioned it is what the pool's last report says.",
	}, a.serverStatus)
	add(a, h, huma.Operation{
		OperationID: "set-pool-template", Method: http.MethodPut, Path: "/pools/{ref}/template", Tags: []string{"Servers"}, DefaultStatus: http.StatusNoContent,
		Summary: "Say with which template servers of a pool are provisioned", Description: "Its variables are name, pool, image, server, resource_class, user_data, meta_data and network_data; the last three are JSON or text. Admins may do this.",
	}, func(ctx context.Context, in *poolTemplateInput) (*struct{}, error) {
		return nothing(ctx, a, in.PoolRef, "set the pool's template", func(ctx context.Context, s *store.Store, p store.Pool) error {
			org, err := in.org(ctx, s)
			if err != nil {
				return err
			}
			template, err := s.TemplateByRef(ctx, org, in.Body.Template)
			if err != nil {
				return err
			}
			return s.SetPoolTemplate(ctx, p.ID, template.ID)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "delete-pool-template", Method: http.MethodDelete, Path: "/pools/{ref}/template", Tags: []string{"Servers"}, DefaultStatus: http.StatusNoContent,
		Summary: "Have no servers of a pool provisioned by this API", Description: "Admins may do this.",
	}, func(ctx context.Context, in *PoolRef) (*struct{}, error) {
		return nothing(ctx, a, *in, "set the pool's template", func(ctx context.Context, s *store.Store, p store.Pool) error {
			return s.SetPoolTemplate(ctx, p.ID, uuid.Nil)
		})
	})
}

// serverError is one of document 002's errors, which are told in its words. A repeat with the same
// Idempotency-Key gets it again, whatever has become of the servers.
func serverError(status int, code provision.Code, detail, hint string) *Problem {
	p := newProblem(status, string(code), detail, hint)
	p.kept = true
	return p
}

func serverNotFound(id string) *Problem {
	return serverError(http.StatusNotFound, provision.CodeServerNotFound, fmt.Sprintf("Server %s not found", id), "")
}

func serverNotAvailable(id string) *Problem {
	return serverError(http.StatusConflict, provision.CodeServerNotAvailable, fmt.Sprintf("Server %s is not available for provisioning", id), "")
}

func noServer() *Problem {
	return serverError(http.StatusNotFound, provision.CodeNoServer, "No available servers matching criteria", "")
}

func imageNotFound(id string) *Problem {
	return serverError(http.StatusBadRequest, provision.CodeImageNotFound, fmt.Sprintf("Image %s not found", id), "")
}

func ironicAway(why string) *Problem {
	return serverError(http.StatusBadGateway, provision.CodePoolUnreachable, "Failed to communicate with Ironic", why)
}

// choose finds where a server is to be provisioned, by what the agents have reported.
func choose(servers []store.PoolServer, in wire.ServerProvisionBody) (store.PoolServer, *Problem) {
	named, class := deref(in.ServerID), deref(in.ResourceClass)
	reachable := func(s store.PoolServer) bool { return s.State == store.PoolReachable }
	if named != "" {
		i := slices.IndexFunc(servers, func(s store.PoolServer) bool { return s.Server != nil && s.Server.ID == named })
		if i < 0 {
			i = slices.IndexFunc(servers, func(s store.PoolServer) bool { return s.Node == named })
		}
		if i < 0 {
			// Where a pool could not be listed it may be there.
			if away := slices.IndexFunc(servers, func(s store.PoolServer) bool { return !reachable(s) }); away >= 0 {
				return servers[away], ironicAway(awayBecause(servers[away]))
			}
			return store.PoolServer{}, serverNotFound(named)
		}
		s := servers[i]
		switch {
		case !reachable(s):
			return s, ironicAway(awayBecause(s))
		case s.Server == nil || !s.Server.Available || s.Taken || class != "" && s.Class != class:
			return s, serverNotAvailable(named)
		case !s.Image:
			return s, imageNotFound(in.ImageID)
		case s.Repo == "":
			return s, withoutTemplate(s)
		}
		return s, nil
	}
	var away, bare *store.PoolServer
	image, free := false, map[uuid.UUID]int{}
	var found []store.PoolServer
	for _, s := range servers {
		switch {
		case !reachable(s):
			away = &s
		case s.Node == "":
		case s.Repo == "":
			bare = &s
		default:
			image = image || s.Image
			if s.Image && s.Server != nil && s.Server.Available && !s.Taken && (class == "" || s.Class == class) {
				found = append(found, s)
				free[s.PoolID]++
			}
		}
	}
	switch {
	case len(found) > 0:
		// The pool that has the most left.
		return slices.MaxFunc(found, func(a, b store.PoolServer) int { return free[a.PoolID] - free[b.PoolID] }), nil
	case away != nil:
		return *away, ironicAway(awayBecause(*away))
	case bare != nil && !image:
		return *bare, withoutTemplate(*bare)
	case len(servers) > 0 && !image && slices.ContainsFunc(servers, func(s store.PoolServer) bool { return s.Node != "" }):
		return store.PoolServer{}, imageNotFound(in.ImageID)
	}
	return store.PoolServer{}, noServer()
}

func awayBecause(s store.PoolServer) string {
	if s.Problem != nil {
		return fmt.Sprintf("pool %s: %s", s.Pool, *s.Problem)
	}
	return fmt.Sprintf("pool %s: no agent has reported it since %s", s.Pool, s.ReportedAt.UTC().Format(time.RFC3339))
}

func withoutTemplate(s store.PoolServer) *Problem {
	return newProblem(http.StatusConflict, "pool_without_template", fmt.Sprintf("Servers of pool %s are not provisioned in this way: no template is chosen for it", s.Pool), fmt.Sprintf("an admin chooses one: trellis pools set-template %s TEMPLATE", s.Pool))
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// provisionServer queues the run. What it answers is kept for a repeat, and so says nothing that
// becomes untrue.
func (a *api) provisionServer(ctx context.Context, s *store.Store, in *provisionServerInput) (string, wire.ServerOperation, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return "", wire.ServerOperation{}, err
	}
	servers, err := s.Servers(ctx, org, in.Body.ImageID)
	if err != nil {
		return "", wire.ServerOperation{}, err
	}
	chosen, problem := choose(servers, in.Body)
	if problem != nil {
		return "", wire.ServerOperation{}, problem
	}
	id := uuid.Must(uuid.NewV7())
	name := "server-" + strings.ReplaceAll(id.String(), "-", "")[20:]
	snapshot, err := serverSnapshot(chosen, name, in.Body)
	if err != nil {
		return "", wire.ServerOperation{}, err
	}
	made, err := s.DeployAs(ctx, id, chosen.ClusterID, provision.OperationApply, snapshot)
	if err != nil {
		return "", wire.ServerOperation{}, err
	}
	operation := wire.ServerOperation{OperationID: made.ID.String(), Status: "accepted", Message: "The server is provisioned as soon as an agent takes it up.", StartedAt: time.Now().UTC()}
	return prefix + "/provision/" + operation.OperationID, operation, nil
}

// serverSnapshot is the deploy of a server. The config drive may hold secrets, so it is sealed here,
// and stored nowhere else.
func serverSnapshot(chosen store.PoolServer, name string, in wire.ServerProvisionBody) (json.RawMessage, error) {
	workspace := "servers/" + name
	variables := map[string]any{"name": name, "pool": chosen.Pool, "image": in.ImageID}
	if in.ServerID != nil && *in.ServerID != "" {
		variables["server"] = chosen.Server.ID
	}
	if class := deref(in.ResourceClass); class != "" {
		variables["resource_class"] = class
	}
	snapshot := map[string]any{
		"template_source": wire.Source{Repo: chosen.Repo, Version: chosen.Version, Path: chosen.Path},
		"terraform_vars":  variables, "workspace": workspace, "meta": map[string]string{"reason": "POST /api/v1/provision"},
	}
	parts, problem := configDrive(in.ConfigDrive)
	if problem != "" {
		return nil, fault(http.StatusUnprocessableEntity, "bad_config_drive", "body.config_drive", problem, "")
	}
	if len(parts) > 0 {
		if chosen.AgeKey == "" {
			return nil, newProblem(http.StatusConflict, "cluster_without_key", fmt.Sprintf("cluster %s has no key to seal the config drive to", chosen.Cluster), "start its agent with an identity, or leave config_drive out")
		}
		recipient, err := seal.ParseRecipient(chosen.AgeKey)
		if err != nil {
			return nil, fmt.Errorf("the key of cluster %s: %w", chosen.Cluster, err)
		}
		sealed := map[string]string{}
		for variable, text := range parts {
			value, err := json.Marshal(text)
			if err != nil {
				return nil, err
			}
			use := seal.Use{Cluster: chosen.Cluster, Workspace: workspace, Repo: chosen.Repo, Name: variable}
			if sealed[variable], err = (seal.Variable{Use: use, Value: value}).Seal(recipient); err != nil {
				return nil, fault(http.StatusUnprocessableEntity, "bad_config_drive", "body.config_drive."+variable, err.Error(), "")
			}
		}
		snapshot["sealed_vars"] = sealed
	}
	return json.Marshal(snapshot)
}

// configDrive are the texts of a config drive by the template's variables, or what is wrong with it.
func configDrive(given map[string]any) (parts map[string]string, problem string) {
	if len(given) == 0 {
		return nil, ""
	}
	for key := range given {
		if !slices.Contains([]string{"user_data", "meta_data", "network_data"}, key) {
			given = map[string]any{"user_data": given} // it is cloud-init's own
			break
		}
	}
	parts = map[string]string{}
	for key, value := range given {
		text, isText := value.(string)
		object, isObject := value.(map[string]any)
		switch {
		case value == nil:
			continue
		case isText && key == "user_data":
		case isObject:
			data, err := json.Marshal(object)
			if err != nil {
				return nil, key + ": is no JSON"
			}
			if text = string(data); key == "user_data" {
				text = "#cloud-config\n" + text + "\n"
			}
		case key == "user_data":
			return nil, key + ": must be a text or an object"
		default:
			return nil, key + ": must be an object"
		}
		parts[key] = text
	}
	return parts, ""
}

// awaitServer waits until the agent says which server it is, or that there is none.
func (a *api) awaitServer(ctx context.Context, in *provisionServerInput, operation wire.ServerOperation, keep keeper[wire.ServerOperation]) (wire.ServerOperation, error) {
	id, err := uuid.Parse(operation.OperationID)
	if err != nil {
		return operation, err
	}
	s := a.as(ctx)
	limited, cancel := context.WithTimeout(ctx, cmp.Or(a.ServerWait, serverWait))
	defer cancel()
	unplaced := false
	for {
		p, err := s.Provision(ctx, id.String())
		if err != nil {
			return operation, err
		}
		server, err := s.ServerOfProvision(ctx, id)
		if err != nil {
			return operation, err
		}
		if server != nil && server.ID != "" {
			operation.ServerID, operation.ServerName = &server.ID, server.Node
		}
		switch {
		case p.Status == provision.Failed && p.StartedAt != nil && p.ErrorCode != nil:
			if problem := serverProblem(provision.Code(*p.ErrorCode), in.Body, deref(p.ErrorMessage)); problem != nil {
				return operation, problem
			}
			operation.Status, operation.Message = "failed", deref(p.ErrorMessage)
			return operation, nil
		case p.Unplaced():
			// No server fits: answer at once instead of keeping the run queued. The answer is kept
			// with the cancel, or a repeat would only see a cancelled run. If an agent has claimed the
			// run meanwhile, that agent ends it.
			err := s.Within(ctx, "cancel the run", func(ctx context.Context, s *store.Store) error {
				status, err := s.Cancel(ctx, id)
				if err == nil && status == provision.Cancelled {
					_, err = keep(ctx, s, operation, serverProblem(provision.CodeNoRoom, in.Body, ""))
				}
				return err
			})
			if err != nil && !isRefused(err, "already_ended") && !isRefused(err, "request_under_way") {
				return operation, err
			}
			unplaced = unplaced || err == nil
		case unplaced && p.Status == provision.Cancelled:
			return operation, serverProblem(provision.CodeNoRoom, in.Body, "")
		case p.Status == provision.AwaitingApproval:
			operation.Message = "The plan waits for a person's approval."
			return operation, nil
		case p.Status == provision.Success, operation.ServerID != nil:
			return operation, nil
		case p.Status == provision.Cancelled:
			operation.Status, operation.Message = "failed", "It was cancelled."
			return operation, nil
		}
		select {
		case <-limited.Done():
			if p.Waiting != "" {
				operation.Message = "It waits: " + p.Waiting + "."
			}
			return operation, ctx.Err()
		case <-time.After(serverLook):
		}
	}
}

// serverProblem is what a run's end means to who has asked for a server; nil: nothing of its own.
func serverProblem(code provision.Code, in wire.ServerProvisionBody, why string) *Problem {
	named := deref(in.ServerID)
	switch code {
	case provision.CodeServerNotFound:
		return serverNotFound(named)
	case provision.CodeServerNotAvailable:
		return serverNotAvailable(named)
	case provision.CodeNoServer, provision.CodeNoRoom, provision.CodePlacementRefused:
		if named != "" {
			return serverNotAvailable(named)
		}
		return noServer()
	case provision.CodeImageNotFound:
		return imageNotFound(in.ImageID)
	case provision.CodePoolUnreachable:
		return ironicAway(why)
	}
	return nil
}

// serverStatus says how an operation stands.
func (a *api) serverStatus(ctx context.Context, in *serverStatusInput) (*answer[wire.ServerStatus], error) {
	s := a.as(ctx)
	id, err := uuid.Parse(in.Operation)
	if err == nil {
		p, err := s.Provision(ctx, id.String())
		if err == nil {
			status, err := statusOf(ctx, s, p)
			return &answer[wire.ServerStatus]{status}, err
		} else if refused, ok := errors.AsType[*store.RefusedError](err); !ok || refused.Status() != http.StatusNotFound {
			return nil, err
		}
	}
	org, err := in.org(ctx, s)
	if err != nil {
		return nil, err
	}
	found, err := s.FindServer(ctx, org, in.Operation)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, serverNotFound(in.Operation)
	}
	if found.Provision != nil {
		p, err := s.Provision(ctx, found.Provision.String())
		if err != nil {
			return nil, err
		}
		status, err := statusOf(ctx, s, p)
		return &answer[wire.ServerStatus]{status}, err
	}
	status, deploying := outsideStatus(*found, time.Now())
	if !deploying {
		return nil, newProblem(http.StatusNotFound, "operation_not_found", fmt.Sprintf("Server %s has no operation", in.Operation), fmt.Sprintf("it is %s", found.Server.ProvisionState))
	}
	return &answer[wire.ServerStatus]{status}, nil
}

// isRefused reports whether an error is a refusal for that reason.
func isRefused(err error, reason string) bool {
	refused, ok := errors.AsType[*store.RefusedError](err)
	return ok && refused.Reason == reason
}

// deployments are the states of a server that is deployed or being so.
var deployments = []string{"active", "deploying", "wait call-back", "deploy failed", "deploy hold", "rebuild", "error"}

// outsideStatus is what the last report says of a server that Tendril has not provisioned; false:
// nobody has begun to deploy it.
func outsideStatus(f store.ServerFound, now time.Time) (wire.ServerStatus, bool) {
	state := f.Server.ProvisionState
	status := wire.ServerStatus{OperationID: f.Server.ID, ServerID: &f.Server.ID, Status: "in_progress", ProvisionState: state, StartedAt: f.MeasuredAt}
	switch {
	case state == "active":
		status.Status = "completed"
	case strings.HasSuffix(state, "failed") || state == "error" || f.Server.Maintenance:
		status.Status = "failed"
	}
	status.Message = fmt.Sprintf("%s Not begun by Tendril; seen %d s ago.", sentence(f.Server.Reason, state), int(now.Sub(f.MeasuredAt).Seconds()))
	return status, slices.Contains(deployments, state)
}

func sentence(text, otherwise string) string {
	if text == "" {
		text = "The server is " + otherwise
	}
	return strings.TrimSuffix(text, ".") + "."
}

// statusOf is how a provision stands, as who has asked for a server knows it.
func statusOf(ctx context.Context, s *store.Store, p store.Provision) (wire.ServerStatus, error) {
	nearly := 99 // the agent has yet to say that all is well
	status := wire.ServerStatus{OperationID: p.ID.String(), Status: "in_progress", StartedAt: p.CreatedAt, CompletedAt: p.FinishedAt, ProgressPercent: p.Percent}
	server, err := s.ServerOfProvision(ctx, p.ID)
	if err != nil {
		return status, err
	}
	if server != nil && server.ID != "" {
		status.ServerID = &server.ID
	}
	var last *store.Step
	for i, step := range p.Steps {
		if step.StartedAt != nil && (last == nil || !step.StartedAt.Before(*last.StartedAt)) {
			last = &p.Steps[i]
		}
	}
	if last != nil {
		status.ProvisionState, status.Message = last.ID, sentence(last.Label, last.ID)
		// The percents of its states are of the whole, those of the run of its machines.
		if status.ProgressPercent = last.Percent; last.ID == "active" {
			status.ProgressPercent = &nearly
		}
	}
	whole := 100
	switch p.Status {
	case provision.Success:
		status.Status, status.ProgressPercent, status.Message = "completed", &whole, "The server is provisioned."
		if status.ProvisionState == "" || last != nil {
			status.ProvisionState = "active"
		}
	case provision.Failed:
		status.Status, status.Message = "failed", sentence(deref(p.ErrorMessage), "not provisioned")
		if server != nil && server.Server != nil && server.Newest {
			status.ProvisionState = server.Server.ProvisionState
		} else if status.ProvisionState == "" {
			status.ProvisionState = "not begun"
		}
	case provision.Cancelled:
		status.Status, status.ProvisionState, status.Message = "failed", "cancelled", sentence(deref(p.ErrorMessage), "cancelled")
	case provision.AwaitingApproval:
		status.ProvisionState, status.Message = "awaiting approval", "The plan waits for a person's approval."
	case provision.Queued:
		if last == nil {
			status.ProvisionState, status.Message = "queued", "It waits for an agent."
			if p.Waiting != "" {
				status.Message = "It waits: " + p.Waiting + "."
			}
		}
	default:
		if last == nil {
			status.ProvisionState, status.Message = "planning", "An agent prepares it."
		}
	}
	return status, nil
}
