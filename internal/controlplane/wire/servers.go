package wire

import "time"

// ServerProvisionBody asks for a bare-metal server with an image.
type ServerProvisionBody struct {
	ServerID      *string        `json:"server_id,omitempty" maxLength:"200" nullable:"true" doc:"The server, by its id in Ironic or its name. Absent: any that is available." example:"1be26c0b-03f2-4d2e-ae87-c02d7f33c123"`
	ResourceClass *string        `json:"resource_class,omitempty" maxLength:"80" nullable:"true" doc:"Any server of this class, where no server is named." example:"baremetal"`
	ImageID       string         `json:"image_id" minLength:"1" maxLength:"200" doc:"The image, as the pool or Glance calls it." example:"debian-13"`
	ConfigDrive   map[string]any `json:"config_drive,omitempty" nullable:"true" doc:"Either an object with some of user_data (cloud-init's, as text or object), meta_data and network_data, or cloud-init's user data itself. It is sealed to the cluster before it is stored." example:"{\"hostname\": \"db-1\"}"`
}

// ServerOperation is a provisioning that was accepted.
type ServerOperation struct {
	OperationID string    `json:"operation_id" doc:"What names it in requests: the id of the run."`
	ServerID    *string   `json:"server_id" doc:"The server's id in Ironic; null: none is chosen yet."`
	ServerName  string    `json:"server_name" doc:"The server's name; empty: none is chosen yet."`
	Status      string    `json:"status" enum:"accepted,in_progress,completed,failed" doc:"How it stands."`
	Message     string    `json:"message" doc:"That in a sentence."`
	StartedAt   time.Time `json:"started_at" doc:"When it was asked for."`
}

// ServerStatus is how a provisioning stands.
type ServerStatus struct {
	OperationID     string     `json:"operation_id" doc:"What names it in requests."`
	ServerID        *string    `json:"server_id" doc:"The server's id in Ironic; null: none is chosen yet."`
	Status          string     `json:"status" enum:"in_progress,completed,failed" doc:"How it stands."`
	ProvisionState  string     `json:"provision_state" doc:"Ironic's word for the server's state. Before Ironic has been asked: queued, awaiting approval or planning; after a cancellation: cancelled." example:"wait call-back"`
	ProgressPercent *int       `json:"progress_percent" doc:"How much is done; null: not known."`
	Message         string     `json:"message" doc:"How it stands, in a sentence."`
	StartedAt       time.Time  `json:"started_at" doc:"When it was asked for; of what Tendril has not begun, when the report is from."`
	CompletedAt     *time.Time `json:"completed_at" doc:"When it ended."`
}

// PoolTemplateBody says with which template servers of a pool are deployed.
type PoolTemplateBody struct {
	Template string `json:"template" minLength:"1" maxLength:"200" doc:"The template, by its name or id." example:"bare-metal"`
}
