package tools

import (
	"context"
	"errors"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
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

type serverOperation struct {
	OperationID string    `json:"operation_id"`
	ServerID    *string   `json:"server_id" jsonschema:"null: none is chosen yet"`
	ServerName  string    `json:"server_name"`
	Status      string    `json:"status" jsonschema:"accepted, in_progress, completed or failed"`
	Message     string    `json:"message" jsonschema:"how it stands, in words of the server's pool"`
	StartedAt   time.Time `json:"started_at"`
	URL         string    `json:"url" jsonschema:"its page for people, where its plan is approved"`
	Next        string    `json:"next"`
}

type serverStatus struct {
	OperationID     string     `json:"operation_id"`
	ServerID        *string    `json:"server_id" jsonschema:"null: none is chosen yet"`
	Status          string     `json:"status" jsonschema:"in_progress, completed or failed"`
	ProvisionState  string     `json:"provision_state"`
	ProgressPercent *int       `json:"progress_percent"`
	Message         string     `json:"message" jsonschema:"how it stands, in words of the server's pool"`
	StartedAt       time.Time  `json:"started_at"`
	CompletedAt     *time.Time `json:"completed_at"`
	Next            string     `json:"next"`
}

type checkInput struct {
	OperationID string `json:"operation_id" jsonschema:"the operation ID returned from provision_server"`
}

func provisionServer(ctx context.Context, c *call, in provisionServerInput) (serverOperation, error) {
	if in.ImageID == "" {
		return serverOperation{}, errors.New(`image_id is missing: "pools" lists the images there are`)
	}
	o, err := c.api.ProvisionServer(ctx, wire.ServerProvisionBody{ImageID: in.ImageID, ServerID: given(in.ServerID), ResourceClass: given(in.ResourceClass)})
	if err != nil {
		return serverOperation{}, err
	}
	answer := serverOperation{
		OperationID: o.OperationID, ServerID: c.named(o.ServerID), ServerName: c.name(o.ServerName), Status: o.Status, Message: c.short(o.Message, mostNote), StartedAt: o.StartedAt,
		URL:  c.link("/provisions/" + o.OperationID),
		Next: `Call "check_provision_status" with this operation_id until its status is completed or failed.`,
	}
	if p, err := c.api.Provision(ctx, o.OperationID); err == nil { // else the operation tells enough
		if p.Proposed {
			answer.Next = `Its plan waits for a person's yes: give them the url. Then call "check_provision_status" with this operation_id.`
		}
	}
	return answer, nil
}

func checkProvisionStatus(ctx context.Context, c *call, in checkInput) (serverStatus, error) {
	if in.OperationID == "" {
		return serverStatus{}, errors.New(`operation_id is missing: "provision_server" answers it`)
	}
	o, err := c.api.ServerStatus(ctx, in.OperationID)
	if err != nil {
		return serverStatus{}, err
	}
	answer := serverStatus{
		OperationID: o.OperationID, ServerID: c.named(o.ServerID), Status: o.Status, ProvisionState: c.name(o.ProvisionState), ProgressPercent: o.ProgressPercent,
		Message: c.short(o.Message, mostNote), StartedAt: o.StartedAt, CompletedAt: o.CompletedAt,
		Next: `Call "check_provision_status" again in half a minute.`,
	}
	switch {
	case o.Status == "completed":
		answer.Next = "The server is provisioned."
	case o.Status == "failed":
		answer.Next = "It has failed. Tell the person what the message says."
	case o.ProvisionState == "awaiting approval":
		answer.Next = "Its plan waits for a person's yes at " + c.link("/provisions/"+o.OperationID) + ". Give them the link."
	}
	return answer, nil
}

// named is an id that may be missing, as name has it.
func (c *call) named(id *string) *string {
	if id == nil {
		return nil
	}
	return given(c.name(*id))
}
