package tools

import (
	"context"
	"errors"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

// serverTools offers the provisioning of whole servers.
func (s *Server) serverTools() {
	add(s, "provision_server", "Provision a server", "Provisions a server (bare metal) with an operating system image: a named one, or any that is free. Answers an operation to follow with check_provision_status. It waits for a person's yes unless this token may apply it. "+aboutMarks, hints{destroys: true, only: powers.changes}, provisionServer)
	add(s, "check_provision_status", "Check the status of a provisioning", "Says how far the provisioning of a server has come. "+aboutMarks, reading, checkProvisionStatus)
}

type provisionServerInput struct {
	ImageID       string `json:"image_id" jsonschema:"the OS image ID or name to deploy"`
	ServerID      string `json:"server_id,omitempty" jsonschema:"specific server to provision; none: any that is free"`
	ResourceClass string `json:"resource_class,omitempty" jsonschema:"auto-select a server of this class if server_id is not given"`
}

// ServerOperation is what the provisioning of a server has begun as.
type ServerOperation struct {
	OperationID string    `json:"operation_id"`
	ServerID    *string   `json:"server_id" jsonschema:"null: none is chosen yet"`
	ServerName  string    `json:"server_name"`
	Status      string    `json:"status" jsonschema:"accepted, in_progress, completed or failed"`
	Message     string    `json:"message"`
	StartedAt   time.Time `json:"started_at"`
	Next        string    `json:"next"`
}

// ServerStatus is how the provisioning of a server stands.
type ServerStatus struct {
	OperationID     string     `json:"operation_id"`
	ServerID        *string    `json:"server_id" jsonschema:"null: none is chosen yet"`
	Status          string     `json:"status" jsonschema:"in_progress, completed or failed"`
	ProvisionState  string     `json:"provision_state"`
	ProgressPercent *int       `json:"progress_percent"`
	Message         string     `json:"message"`
	StartedAt       time.Time  `json:"started_at"`
	CompletedAt     *time.Time `json:"completed_at"`
	Next            string     `json:"next"`
}

type checkInput struct {
	OperationID string `json:"operation_id" jsonschema:"the operation ID returned from provision_server"`
}

// metal asks for servers.
type metal interface {
	provision(ctx context.Context, image, server, class string) (ServerOperation, error)
	status(ctx context.Context, operation string) (ServerStatus, error)
}

// metalOf asks the server of a client.
var metalOf = func(*client.Client) metal { return noMetal{} }

// noMetal answers for a control plane that provisions none.
type noMetal struct{}

var errNoMetal = errors.New(`This control plane provisions no servers by an image alone. Call "templates" and "pools" for what makes machines here`) //nolint:staticcheck // a sentence for a model

func (noMetal) provision(context.Context, string, string, string) (ServerOperation, error) {
	return ServerOperation{}, errNoMetal
}
func (noMetal) status(context.Context, string) (ServerStatus, error) {
	return ServerStatus{}, errNoMetal
}

func provisionServer(ctx context.Context, c *call, in provisionServerInput) (ServerOperation, error) {
	if in.ImageID == "" {
		return ServerOperation{}, errors.New(`image_id is missing: "pools" lists the images there are`)
	}
	o, err := metalOf(c.api).provision(ctx, in.ImageID, in.ServerID, in.ResourceClass)
	if err != nil {
		return o, err
	}
	o.ServerName, o.Message = c.name(o.ServerName), c.short(o.Message, mostNote)
	o.Next = `Call "check_provision_status" with this operation_id until its status is completed or failed.`
	return o, nil
}

func checkProvisionStatus(ctx context.Context, c *call, in checkInput) (ServerStatus, error) {
	if in.OperationID == "" {
		return ServerStatus{}, errors.New(`operation_id is missing: "provision_server" answers it`)
	}
	o, err := metalOf(c.api).status(ctx, in.OperationID)
	if err != nil {
		return o, err
	}
	o.Message = c.short(o.Message, mostNote)
	switch o.Status {
	case "completed":
		o.Next = "The server is provisioned."
	case "failed":
		o.Next = "It has failed. Tell the person what the message says."
	default:
		o.Next = `Call "check_provision_status" again in half a minute.`
	}
	return o, nil
}
