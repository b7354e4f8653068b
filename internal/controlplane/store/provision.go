package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Provision is one provision as people see it.
type Provision struct {
	ID        uuid.UUID           `db:"id" json:"id"`
	Number    int64               `db:"number" json:"number"`
	Cluster   string              `db:"cluster" json:"cluster"`
	Workspace string              `db:"workspace" json:"workspace"`
	Operation provision.Operation `db:"operation" json:"operation"`
	Status    provision.Status    `db:"status" json:"status"`
	// Waiting says why it is not running yet, when something but its turn is
	// in the way: the message of the first of Why; "" otherwise.
	Waiting string `db:"-" json:"waiting,omitempty"`
	// Why has everything that must be over before it can go on.
	Why []Reason `db:"why" json:"why_waiting,omitempty"`
	// Stage and Percent are how far a running one has come.
	Stage   *provision.Stage `db:"stage" json:"stage,omitempty"`
	Percent *int             `db:"percent" json:"percent,omitempty"`
	// Running are the resources that are being worked on.
	Running []provision.Running `db:"running" json:"running,omitempty"`
	// Stages are those it has reached, in their order. Lists leave them out.
	Stages []StageTime `db:"stages" json:"stages,omitempty"`

	Template Source  `db:"template" json:"template"`
	Commit   *string `db:"commit" json:"commit,omitempty"`
	Engine   *string `db:"engine" json:"engine,omitempty"` // "terraform 1.11.4"

	// Plan is what its plan comes to. Lists leave out its resources.
	Plan *provision.PlanSummary `db:"plan" json:"plan,omitempty"`
	// PlanDigest names the plan that awaits approval, or did.
	PlanDigest *string                     `db:"plan_digest" json:"plan_digest,omitempty"`
	Outputs    map[string]provision.Output `db:"outputs" json:"outputs,omitempty"`

	ErrorCode         *string    `db:"error_code" json:"error_code,omitempty"`
	ErrorMessage      *string    `db:"error_message" json:"error_message,omitempty"`
	RequestedBy       *uuid.UUID `db:"requested_by" json:"requested_by,omitempty"`
	RequestedByName   *string    `db:"requested_by_name" json:"requested_by_name,omitempty"` // what they are called
	CancelRequestedAt *time.Time `db:"cancel_requested_at" json:"cancel_requested_at,omitempty"`
	CreatedAt         time.Time  `db:"created_at" json:"created_at"`
	StartedAt         *time.Time `db:"started_at" json:"started_at,omitempty"`
	FinishedAt        *time.Time `db:"finished_at" json:"finished_at,omitempty"`

	// StateLock is who holds the lock of the workspace's state, as far as the run
	// knew that met it last; nil where none did, or a run has got it since. Lists
	// leave it out.
	StateLock *HeldLock `db:"state_lock" json:"state_lock,omitempty"`

	// AsOf is when this was read, by the clock that all these times are of: the
	// database's.
	AsOf time.Time `db:"as_of" json:"as_of"`

	// Snapshot is what was asked for. Lists leave it out.
	Snapshot json.RawMessage `db:"snapshot" json:"config_snapshot,omitempty"`
}

// Reason is one thing that a provision waits for.
type Reason struct {
	Reason  string `json:"reason"`  // a stable word, such as workspace_busy
	Message string `json:"message"` // for people, without a full stop
	// Detail has what the message names; which keys, the reason says.
	Detail json.RawMessage `json:"detail"`
}

// HeldLock is a lock of a state that a run met.
type HeldLock struct {
	provision.StateLock
	Number int64     `json:"number"` // of the provision that met it
	At     time.Time `json:"at"`
}

// StageTime is one stage that a provision has reached. An attempt begins
// whenever it is queued: at first, after an approval.
type StageTime struct {
	Attempt   int             `json:"attempt"`
	Stage     provision.Stage `json:"stage"`
	StartedAt time.Time       `json:"started_at"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}

// Source is the template of a provision.
type Source struct {
	Repo    string `json:"repo"`
	Version string `json:"version"`
	Path    string `json:"path,omitempty"`
}

// NotProvisionError says that a word is neither an id nor a number.
type NotProvisionError struct{ Ref string }

func (e *NotProvisionError) Error() string {
	return fmt.Sprintf("%q is neither a provision's number nor its id", e.Ref)
}

// selected is a query for Provisions, p being public.provisions, to be followed
// by a condition. whole: with what lists leave out.
func selected(whole bool) string {
	more := `NULL::jsonb AS snapshot, NULL::jsonb AS stages, NULL::jsonb AS state_lock,
	CASE jsonb_typeof(p.plan_summary) WHEN 'object' THEN p.plan_summary - 'resources' END AS plan`
	if whole {
		more = `p.config_snapshot AS snapshot, w.state_lock, p.plan_summary AS plan,
	(SELECT jsonb_agg(jsonb_build_object('attempt', s.attempt, 'stage', s.stage, 'started_at', s.started_at, 'ended_at', s.ended_at)
	                  ORDER BY s.attempt, s.started_at, s.stage = 'done')
	 FROM public.provision_stages s WHERE s.provision_id = p.id) AS stages`
	}
	return `SELECT
	p.id, p.number, c.name AS cluster, w.name AS workspace, p.operation, p.status,
	CASE WHEN p.status IN ('QUEUED', 'AWAITING_APPROVAL') THEN
	  (SELECT jsonb_agg(to_jsonb(y)) FROM public.why_waiting(p.id) y) END AS why,
	g.stage, g.percent, g.running, p.config_snapshot -> 'template_source' AS template, p.resolved_commit AS commit,
	nullif(concat_ws(' ', p.engine, p.engine_version), '') AS engine, p.plan_digest, p.outputs,
	p.error_code, p.error_message, p.requested_by,
	coalesce(nullif(q.name, ''), nullif(q.email, '')) AS requested_by_name, p.cancel_requested_at, p.created_at, p.started_at, p.finished_at,
	now() AS as_of, ` + more + `
	FROM public.provisions p
	JOIN public.clusters c ON c.id = p.cluster_id
	JOIN public.workspaces w ON w.id = p.workspace_id
	LEFT JOIN public.provision_progress g ON g.provision_id = p.id
	LEFT JOIN public.people q ON q.org_id = p.org_id AND q.user_id = p.requested_by`
}

// provisions reads what such a query finds.
func (s *Store) provisions(ctx context.Context, doing, query string, args ...any) ([]Provision, error) {
	found, err := rows[Provision](ctx, s, doing, query, args...)
	for i, p := range found {
		if p.Status == provision.Queued && len(p.Why) > 0 {
			found[i].Waiting = p.Why[0].Message
		}
	}
	return found, err
}

// provisionRef is the condition that a number or an id is, p being
// public.provisions.
func provisionRef(ref string) (condition string, key any, err error) {
	if number, err := strconv.ParseInt(strings.TrimPrefix(ref, "#"), 10, 64); err == nil {
		return "p.number = $1", number, nil
	}
	if id, err := uuid.Parse(ref); err == nil {
		return "p.id = $1", id, nil
	}
	return "", nil, &NotProvisionError{Ref: ref}
}

// Provision returns the provision of that id or number. The error is an
// *NotProvisionError when ref is neither, and a *RefusedError (PT404) when there
// is none that the person may see.
func (s *Store) Provision(ctx context.Context, ref string) (Provision, error) {
	condition, key, err := provisionRef(ref)
	if err != nil {
		return Provision{}, err
	}
	found, err := s.provisions(ctx, "read the provision", selected(true)+" WHERE "+condition, key)
	if err != nil {
		return Provision{}, err
	}
	if len(found) != 1 {
		return Provision{}, noProvision(ref)
	}
	return found[0], nil
}

func noProvision(ref string) error {
	return &RefusedError{Code: "PT404", Reason: "provision_not_found",
		Message: fmt.Sprintf("there is no provision %s that you may see", ref), Hint: `"trellis status" lists the latest`}
}
