package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Provision is one provision as people see it.
type Provision struct {
	ID                uuid.UUID                   `json:"id" doc:"Its id."`
	Number            int64                       `json:"number" doc:"What people call it. Numbers grow with time, and are not without gaps."`
	Cluster           string                      `json:"cluster" doc:"The name of the cluster it is for."`
	Workspace         string                      `json:"workspace" doc:"The name of the workspace it is for."`
	Operation         provision.Operation         `json:"operation" enum:"plan,apply,destroy,refresh,power,unlock,state" doc:"What it does there."`
	Status            provision.Status            `json:"status" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,AWAITING_INPUT,SUCCESS,FAILED,CANCELLED" doc:"How it stands. SUCCESS, FAILED and CANCELLED are for good, but for a FAILED with error_code agent_lost, whose agent may report after all."`
	Waiting           string                      `json:"waiting,omitempty" doc:"Why it is not running yet, when something but its turn is in the way."`
	Why               []Reason                    `json:"why_waiting,omitempty" doc:"Everything that must be over before it can go on, while it is QUEUED, AWAITING_APPROVAL or AWAITING_INPUT."`
	Stage             *provision.Stage            `json:"stage,omitempty" enum:"queued,checkout,validate,engine,init,plan,approval,input,apply,outputs,done" doc:"How far it has come."`
	Percent           *int                        `json:"percent,omitempty" doc:"How much of the stage is done, from 0 to 100."`
	Running           []provision.Running         `json:"running,omitempty" doc:"The resources that are being worked on, at most 50."`
	Stages            []StageTime                 `json:"stages,omitempty" doc:"The stages it has reached, in their order. Lists leave them out."`
	Agents            []ProvisionAgent            `json:"agents,omitempty" doc:"The agents that have carried it out, in the order in which they took it. Lists leave them out."`
	Steps             []Step                      `json:"steps,omitempty" doc:"The steps that its template or its provisioner names, those of a machine one after the other. Lists leave them out."`
	Template          Source                      `json:"template" doc:"What it deploys."`
	Commit            *string                     `json:"commit,omitempty" doc:"The commit that the version stands for, once an agent has looked."`
	Engine            *string                     `json:"engine,omitempty" doc:"The engine and its version."`
	Plan              *provision.PlanSummary      `json:"plan,omitempty" doc:"What its plan comes to. Lists leave out its resources."`
	PlanDigest        *string                     `json:"plan_digest,omitempty" doc:"Names the plan that needs approval or that a person carries out, or did: a SHA-256 in hexadecimal."`
	Input             *Input                      `json:"input,omitempty" doc:"What a person is to do for it, or has done. Lists leave it out."`
	Outputs           map[string]provision.Output `json:"outputs,omitempty" doc:"The template's outputs, by their names."`
	ErrorCode         *string                     `json:"error_code,omitempty" doc:"Why it failed or was cancelled: a word that stays the same."`
	ErrorMessage      *string                     `json:"error_message,omitempty" doc:"The same for people, with what to do next. It may have several lines."`
	RequestedBy       *uuid.UUID                  `json:"requested_by,omitempty" doc:"The person who asked for it. Absent where a schedule has."`
	RequestedByName   *string                     `json:"requested_by_name,omitempty" doc:"What that person is called."`
	Proposed          bool                        `json:"proposed,omitempty" doc:"It was asked for with a token, or by a tool, that may propose and no more: its plan waits for a person."`
	CancelRequestedAt *time.Time                  `json:"cancel_requested_at,omitempty" doc:"When somebody asked for it to be stopped."`
	CreatedAt         time.Time                   `json:"created_at" doc:"When it was asked for."`
	StartedAt         *time.Time                  `json:"started_at,omitempty" doc:"When an agent first began with it."`
	FinishedAt        *time.Time                  `json:"finished_at,omitempty" doc:"When it ended."`
	StateLock         *HeldLock                   `json:"state_lock,omitempty" doc:"Who holds the lock of the workspace's state, as far as a run met it. Lists leave it out."`
	AsOf              time.Time                   `json:"as_of" doc:"When this was read, by the clock of which all these times are."`
	Snapshot          json.RawMessage             `json:"config_snapshot,omitempty" doc:"What was asked for. Lists leave it out."`
}

// Reason is one thing that a provision waits for.
type Reason struct {
	Reason  string          `json:"reason" doc:"Which thing it waits for: a word that stays the same."`
	Message string          `json:"message" doc:"The same for people, without a full stop."`
	Detail  json.RawMessage `json:"detail" doc:"What the message names, by keys that belong to the reason."`
}

// StageTime is one stage that a provision has reached. An attempt begins
// whenever it is queued: at first, after an approval.
type StageTime struct {
	Attempt   int             `json:"attempt" doc:"Which attempt it belongs to: one begins whenever the provision is queued, so after an approval as well."`
	Stage     provision.Stage `json:"stage" enum:"queued,checkout,validate,engine,init,plan,approval,input,apply,outputs,done" doc:"Which stage."`
	StartedAt time.Time       `json:"started_at" doc:"When it was reached."`
	EndedAt   *time.Time      `json:"ended_at,omitempty" doc:"When the next one was. Absent while it lasts."`
}

// ProvisionAgent is an agent that has taken a provision.
type ProvisionAgent struct {
	Agent     string     `json:"agent" doc:"Its name, unknown where it is no longer listed."`
	Host      string     `json:"host" doc:"Where it ran."`
	At        time.Time  `json:"at" doc:"When it took it."`
	AppliedAt *time.Time `json:"applied_at,omitempty" doc:"When it began to apply. Absent: it did not."`
	Key       *string    `json:"key,omitempty" doc:"The fingerprint of the key that it signed with: a SHA-256 in hexadecimal. Absent: it showed a token."`
}

// Step is one step of a provision, or of one machine in it.
type Step struct {
	Machine   string     `json:"machine,omitempty" doc:"The address of the machine that it is of. Absent: the provision itself."`
	ID        string     `json:"id" doc:"What the template or the provisioner calls it."`
	Label     string     `json:"label" doc:"The same for people."`
	State     string     `json:"state" enum:"waiting,running,done,failed" doc:"How it stands."`
	StartedAt *time.Time `json:"started_at,omitempty" doc:"When it began."`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"When it ended."`
	Percent   *int       `json:"percent,omitempty" doc:"How much of a running one is done, from 0 to 100."`
}

// Input is what a person is to do for a provision, and what they have answered.
type Input struct {
	Instructions   string                   `json:"instructions" doc:"What to do, as Markdown of the template's author."`
	Destroys       bool                     `json:"destroys,omitempty" doc:"What the instructions made is to be undone."`
	Outputs        []provision.InputOutput  `json:"outputs" nullable:"false" doc:"The values to fill in."`
	Machines       []provision.InputMachine `json:"machines" nullable:"false" doc:"The machines to make, change or destroy."`
	AskedAt        time.Time                `json:"asked_at" doc:"Since when it waits."`
	ExpiresAt      time.Time                `json:"expires_at" doc:"When it is cancelled if nobody has answered."`
	AssignedTo     *uuid.UUID               `json:"assigned_to,omitempty" doc:"Who is to do it. Absent: anybody who may."`
	AssignedToName *string                  `json:"assigned_to_name,omitempty" doc:"What that person is called."`
	Done           *bool                    `json:"done,omitempty" doc:"Whether it could be done. Absent until somebody has answered."`
	Reason         *string                  `json:"reason,omitempty" doc:"Why it could not be done."`
	AnsweredAt     *time.Time               `json:"answered_at,omitempty" doc:"When somebody answered."`
	AnsweredBy     *uuid.UUID               `json:"answered_by,omitempty" doc:"Who answered."`
	AnsweredByName *string                  `json:"answered_by_name,omitempty" doc:"What that person is called."`
}

// GiveInputBody says that the work of a provision was done, or could not be.
type GiveInputBody struct {
	Done     bool                            `json:"done" doc:"Whether it was done."`
	Reason   string                          `json:"reason,omitempty" required:"false" maxLength:"1000" doc:"Why it could not be done."`
	Outputs  map[string]json.RawMessage      `json:"outputs,omitempty" required:"false" doc:"The values of the outputs that are not sensitive, by their names."`
	Machines map[string]provision.InputFacts `json:"machines,omitempty" required:"false" doc:"Where the machines are that were made or changed, by their names."`
	Sealed   map[string]string               `json:"sealed,omitempty" required:"false" doc:"What is sealed to the cluster's key: output.NAME for each sensitive output, machine.NAME for the credentials of a machine (an object of texts)."`
}

// AssignInputBody says who is to do the work of a provision.
type AssignInputBody struct {
	User *uuid.UUID `json:"user" required:"false" doc:"An operator or admin of the organisation. Left out: anybody."`
}

// CommentBody is a comment on a provision.
type CommentBody struct {
	Text string `json:"text" minLength:"1" maxLength:"1000" doc:"What to say. It is a line of the log." example:"the rack is full until Monday"`
}

// Source is the template of a provision.
type Source struct {
	Repo    string `json:"repo" doc:"The repository."`
	Version string `json:"version" doc:"A tag or a full commit."`
	Path    string `json:"path,omitempty" doc:"The template's directory there; absent: the root."`
}

// HeldLock is a lock of a state that a run met.
type HeldLock struct {
	ID        string    `json:"id" doc:"What the lock is called."`
	Who       string    `json:"who,omitempty" doc:"Who holds it, in the engine's words."`
	Operation string    `json:"operation,omitempty" doc:"For what, in the engine's words."`
	Created   string    `json:"created,omitempty" doc:"Since when, in the engine's words."`
	Number    int64     `json:"number" doc:"The provision that met it."`
	At        time.Time `json:"at" doc:"When that was."`
}

// DeployInputBody asks for a provision.
type DeployInputBody struct {
	Cluster   string              `json:"cluster" maxLength:"100" minLength:"1" doc:"Where to run it, by the cluster's name or id." example:"prod"`
	Snapshot  json.RawMessage     `json:"config_snapshot" doc:"What to deploy."`
	Operation provision.Operation `json:"operation,omitempty" enum:"plan,apply,destroy,refresh,power,unlock,state" default:"apply" doc:"What to do."`
}

// QueuedAnswer is the answer to what makes a provision.
type QueuedAnswer struct {
	ID        uuid.UUID `json:"id" doc:"The provision's id."`
	Number    int64     `json:"number" doc:"The provision's number, which people use." example:"42" minimum:"1"`
	Workspace string    `json:"workspace" doc:"The name of the workspace it is queued in." example:"acme/prod"`
	URL       string    `json:"url" doc:"Where to look how it goes on, on this server." example:"/api/v1/provisions/42"`
	LogsURL   string    `json:"logs_url" doc:"Where its log is." example:"/api/v1/provisions/42/logs"`
}

// PlanAnswerBody is what a provision's plan would do.
type PlanAnswerBody struct {
	PlanDigest string                 `json:"plan_digest,omitempty" doc:"What to approve it by, while it needs approval; what was approved, after that."`
	Status     provision.Status       `json:"status" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,AWAITING_INPUT,SUCCESS,FAILED,CANCELLED" doc:"The provision's state." example:"AWAITING_APPROVAL"`
	Plan       *provision.PlanSummary `json:"plan,omitempty" doc:"What it comes to, with each resource. Absent until there is a plan."`
}

// StatusAnswerBody is what a decision has brought about.
type StatusAnswerBody struct {
	Status provision.Status `json:"status" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,AWAITING_INPUT,SUCCESS,FAILED,CANCELLED" doc:"The provision's state now." example:"QUEUED"`
}

// ApproveInputBody approves a plan.
type ApproveInputBody struct {
	PlanDigest string `json:"plan_digest" pattern:"^[0-9a-f]{64}$" doc:"The plan_digest of the plan that you have seen: no other plan is approved by this." example:"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"`
}

// RejectInputBody rejects a plan.
type RejectInputBody struct {
	Reason string `json:"reason" required:"false" maxLength:"1000" doc:"Why; shown to others." example:"the database would be replaced"`
}

// RetryInputBody asks for the same once more.
type RetryInputBody struct {
	RequesterKey string `json:"requester_key" required:"false" maxLength:"8192" doc:"Your public key, age1… or ssh-ed25519 …, or a certificate of one, to which sensitive outputs and results are sealed. Left out: the key that the provision names if you asked for that one, too, else none."`
}

// UploadAnswerBody answers an upload.
type UploadAnswerBody struct {
	ID uuid.UUID `json:"id" doc:"What a snapshot names it by (state.upload)."`
}

// LogRow is one piece of a provision's log: some lines, or a part of one.
type LogRow struct {
	Seq       int64            `json:"seq" doc:"Its number: 1, 2, 3, … without a gap."`
	Stream    provision.Stream `json:"stream" enum:"STDOUT,STDERR,SYSTEM" doc:"Where it was printed: STDOUT, STDERR, or SYSTEM for what Tendril says."`
	Text      string           `json:"text" doc:"Some lines, or a part of one; at most 64 KiB. What was printed may hold anything: escape it."`
	EmittedAt time.Time        `json:"emitted_at" doc:"When it was printed."`
}

// Event is one thing that happened to a provision.
type Event struct {
	ID     int64           `json:"id" doc:"Counts events, growing with time."`
	Kind   string          `json:"kind" doc:"What happened: stage, resource_started, resource_finished, resource_failed and the like."`
	At     time.Time       `json:"at" doc:"When."`
	Detail json.RawMessage `json:"detail" doc:"More about it, by keys that belong to the kind."`
}

// Sight is what can change about a provision while somebody watches it.
type Sight struct {
	Status          provision.Status `json:"status" doc:"How the provision stands."`
	Stage           *provision.Stage `json:"stage,omitempty" doc:"How far it has come."`
	Percent         *int             `json:"percent,omitempty" doc:"How much of the stage is done, from 0 to 100."`
	Running         json.RawMessage  `json:"running,omitempty" doc:"The resources that are being worked on."`
	ErrorCode       *string          `json:"error_code,omitempty" doc:"Why it failed or was cancelled."`
	ErrorMessage    *string          `json:"error_message,omitempty" doc:"The same for people."`
	CancelRequested bool             `json:"cancel_requested,omitempty" doc:"Somebody has asked for it to be stopped."`
	StartedAt       *time.Time       `json:"started_at,omitempty" doc:"When an agent first began with it."`
	FinishedAt      *time.Time       `json:"finished_at,omitempty" doc:"When it ended."`
	LastSeq         int64            `json:"last_seq" doc:"The newest row of its log."`
	LastEvent       int64            `json:"last_event" doc:"Its newest event."`
	Unsettled       bool             `json:"unsettled,omitempty" doc:"It has ended as far as anybody knows; its agent may still report."`
}

// LogPage is a range of a log.
type LogPage struct {
	Items     []LogRow `json:"items" nullable:"false" doc:"Rows of the log in order. Each is some lines, or a part of one: put together they are the text."`
	NextAfter int64    `json:"next_after" doc:"What to give as \"after\" to go on."`
	LastSeq   int64    `json:"last_seq" doc:"The newest row there is. More may come until the provision has ended."`
}

// EventPageBody is a range of what happened to a provision.
type EventPageBody struct {
	Items     []Event `json:"items" nullable:"false" doc:"The entries, in their order."`
	NextAfter int64   `json:"next_after" doc:"What to give as \"after\" to go on."`
}

// End is the last event of a stream: nothing more will come.
type End struct {
	Status  provision.Status `json:"status"`
	LastSeq int64            `json:"last_seq"`
}

// Gone ends the stream of somebody who may not see the provision any more.
type Gone struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

// Changed says that something about a provision or a cluster has changed; without an
// id, that anything may have.
type Changed struct {
	Provision *uuid.UUID `json:"provision"`
}

// PendingContract is a provision that waits for an agent, in the words of a provider's
// contracts.
type PendingContract struct {
	ContractID         uuid.UUID       `json:"contract_id" doc:"The provision."`
	Action             string          `json:"action" enum:"provision,terminate" doc:"terminate for a destroy, else provision."`
	Number             int64           `json:"number" doc:"The provision's number."`
	Workspace          string          `json:"workspace" doc:"The workspace it is for."`
	Operation          string          `json:"operation" doc:"What it does there."`
	Offering           Offering        `json:"offering" doc:"What it deploys."`
	RequesterSSHPubkey *string         `json:"requester_ssh_pubkey" doc:"The requester's key that results are sealed to, where that is an SSH key."`
	InstanceConfig     json.RawMessage `json:"instance_config" doc:"Its variables that are not sealed. null: none, or more than 8192 bytes."`
	QueuedAt           time.Time       `json:"queued_at" doc:"When it was asked for."`
}

// Offering is the template of a PendingContract.
type Offering struct {
	ID string `json:"id" doc:"The template, as REPO@VERSION."`
}

// AgentError is an error as PostgREST has it.
type AgentError struct {
	Code    string `json:"code" doc:"Such as PT401."`
	Message string `json:"message" doc:"What is wrong, for people."`
	Details string `json:"details" doc:"A stable word, such as token_invalid."`
	Hint    string `json:"hint" doc:"What to do."`
}
