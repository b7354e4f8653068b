package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/tracing"
)

// Provision is one provision as people see it.
type Provision struct {
	ID        uuid.UUID           `db:"id"`
	Number    int64               `db:"number"`
	Cluster   string              `db:"cluster"`
	Workspace string              `db:"workspace"`
	Operation provision.Operation `db:"operation"`
	Status    provision.Status    `db:"status"`
	// Waiting says why it is not running yet, when something but its turn is
	// in the way: the message of the first of Why; "" otherwise.
	Waiting string `db:"-"`
	// Why has everything that must be over before it can go on.
	Why []Reason `db:"why"`
	// Stage and Percent are how far a running one has come.
	Stage   *provision.Stage `db:"stage"`
	Percent *int             `db:"percent"`
	// Running are the resources that are being worked on.
	Running []provision.Running `db:"running"`
	// Stages are those it has reached, in their order. Lists leave them out.
	Stages []StageTime `db:"stages"`
	// Agents have carried it out, in the order in which they took it. Lists leave them out.
	Agents []ProvisionAgent `db:"agents"`
	// Traceparent is the trace that the request for it was in, as W3C Trace Context writes it.
	// Lists leave it out.
	Traceparent *string `db:"traceparent"`
	// Steps are those of its machines, where something else than Terraform makes them. Lists
	// leave them out.
	Steps []Step `db:"-"`

	Template Source  `db:"template"`
	Commit   *string `db:"commit"`
	Engine   *string `db:"engine"` // "terraform 1.11.4"

	// Plan is what its plan comes to. Lists leave out its resources.
	Plan *provision.PlanSummary `db:"plan"`
	// PlanDigest names the plan that awaits a person, or did.
	PlanDigest *string                     `db:"plan_digest"`
	Input      *Input                      `db:"input"` // lists leave it out
	Outputs    map[string]provision.Output `db:"outputs"`

	ErrorCode         *string    `db:"error_code"`
	ErrorMessage      *string    `db:"error_message"`
	RequestedBy       *uuid.UUID `db:"requested_by"`
	RequestedByName   *string    `db:"requested_by_name"` // what they are called
	Proposed          bool       `db:"proposed"`          // with a token or by a tool that may not apply there: its plan waits for a person
	CancelRequestedAt *time.Time `db:"cancel_requested_at"`
	CreatedAt         time.Time  `db:"created_at"`
	StartedAt         *time.Time `db:"started_at"`
	FinishedAt        *time.Time `db:"finished_at"`

	// StateLock is who holds the lock of the workspace's state, as far as the run
	// knew that met it last; nil where none did, or a run has got it since. Lists
	// leave it out.
	StateLock *HeldLock `db:"state_lock"`

	// AsOf is when this was read, by the clock that all these times are of: the
	// database's.
	AsOf time.Time `db:"as_of"`

	// Snapshot is what was asked for. Lists leave it out.
	Snapshot json.RawMessage `db:"snapshot"`
}

// Reason is one thing that a provision waits for.
type Reason struct {
	Reason  string `json:"reason"`  // a stable word, such as workspace_busy
	Message string `json:"message"` // for people, without a full stop
	// Detail has what the message names; which keys, the reason says.
	Detail json.RawMessage `json:"detail"`
}

// Input is what a person is to do for a provision, and what they have answered.
type Input struct {
	Instructions   string                   `json:"instructions"`
	Destroys       bool                     `json:"destroys"`
	Outputs        []provision.InputOutput  `json:"outputs"`
	Machines       []provision.InputMachine `json:"machines"`
	AskedAt        time.Time                `json:"asked_at"`
	ExpiresAt      time.Time                `json:"expires_at"`
	AssignedTo     *uuid.UUID               `json:"assigned_to"`
	AssignedToName *string                  `json:"assigned_to_name"`
	Done           *bool                    `json:"done"` // nil until somebody has answered
	Reason         *string                  `json:"reason"`
	AnsweredAt     *time.Time               `json:"answered_at"`
	AnsweredBy     *uuid.UUID               `json:"answered_by"`
	AnsweredByName *string                  `json:"answered_by_name"`
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

// ProvisionAgent is an agent that has taken a provision. Key is SHA-256 of the key that it
// signed with, in hexadecimal; nil: it showed a token.
type ProvisionAgent struct {
	Agent     string     `json:"agent"`
	Host      string     `json:"host"`
	At        time.Time  `json:"at"`
	AppliedAt *time.Time `json:"applied_at"`
	Key       *string    `json:"key"`
}

// Source is the template of a provision.
type Source struct {
	Repo    string `json:"repo"`
	Version string `json:"version"`
	Path    string `json:"path,omitempty"`
}

// selected is a query for Provisions, p being public.provisions, to be followed
// by a condition. whole: with what lists leave out.
func selected(whole bool) string {
	more := `NULL::jsonb AS snapshot, NULL::jsonb AS input, NULL::jsonb AS stages, NULL::jsonb AS agents, NULL::text AS traceparent, NULL::jsonb AS state_lock,
	CASE jsonb_typeof(p.plan_summary) WHEN 'object' THEN p.plan_summary - 'resources' END AS plan`
	if whole {
		more = `p.config_snapshot AS snapshot,
	(SELECT i.request || jsonb_build_object('asked_at', i.asked_at, 'expires_at', i.expires_at, 'assigned_to', i.assigned_to, 'answered_at', i.answered_at, 'answered_by', i.answered_by,
	          'done', i.answer -> 'done', 'reason', i.answer -> 'reason',
	          'assigned_to_name', (SELECT coalesce(nullif(n.name, ''), nullif(n.email, '')) FROM public.people n WHERE n.org_id = i.org_id AND n.user_id = i.assigned_to),
	          'answered_by_name', (SELECT coalesce(nullif(n.name, ''), nullif(n.email, '')) FROM public.people n WHERE n.org_id = i.org_id AND n.user_id = i.answered_by))
	 FROM public.provision_inputs i WHERE i.provision_id = p.id) AS input,
	 w.state_lock, p.traceparent, p.plan_summary AS plan,
	(SELECT jsonb_agg(jsonb_build_object('attempt', s.attempt, 'stage', s.stage, 'started_at', s.started_at, 'ended_at', s.ended_at)
	                  ORDER BY s.attempt, s.started_at, s.stage = 'done')
	 FROM public.provision_stages s WHERE s.provision_id = p.id) AS stages,
	(SELECT jsonb_agg(to_jsonb(a)) FROM public.provision_agents(p.id) a) AS agents`
	}
	return `SELECT
	p.id, p.number, c.name AS cluster, w.name AS workspace, p.operation, p.status,
	CASE WHEN p.status IN ('QUEUED', 'AWAITING_APPROVAL', 'AWAITING_INPUT') THEN
	  (SELECT jsonb_agg(to_jsonb(y)) FROM public.why_waiting(p.id) y) END AS why,
	g.stage, g.percent, g.running, p.config_snapshot -> 'template_source' AS template, p.resolved_commit AS commit,
	nullif(concat_ws(' ', p.engine, p.engine_version), '') AS engine, p.plan_digest, p.outputs,
	p.error_code, p.error_message, p.requested_by,
	coalesce(nullif(q.name, ''), nullif(q.email, '')) AS requested_by_name, p.least_approval IS NOT DISTINCT FROM 'always' AS proposed, p.cancel_requested_at, p.created_at, p.started_at, p.finished_at,
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
	one, err := first(found, err, noProvision(ref))
	if err == nil && one.tellsSteps() {
		one.Steps, err = s.steps(ctx, one.ID, one.Running, one.FinishedAt)
	}
	return one, err
}

func noProvision(ref string) error {
	return &RefusedError{Code: "PT404", Reason: "provision_not_found",
		Message: fmt.Sprintf("there is no run %s, or you have no access to it", ref), Hint: `"trellis status" lists the latest`}
}

// Run is what a provision's page tells besides the provision: whose it is, what it
// belongs to, who may decide, and where in the log its stages begin.
type Run struct {
	OrgID       uuid.UUID `db:"org_id"`
	ClusterID   uuid.UUID `db:"cluster_id"`
	WorkspaceID uuid.UUID `db:"workspace_id"`

	// RequestedBy and the like are what people are called; "" where nobody knows.
	RequestedBy string `db:"requested_by_name"`
	CancelledBy string `db:"cancelled_by_name"`

	// Approvers and FourEyes are the cluster's rule, Due when the plan is given up.
	Approvers string     `db:"approvers"`
	FourEyes  bool       `db:"four_eyes"`
	Due       *time.Time `db:"due_at"`
	AgeKey    string     `db:"age_key"` // the cluster's, to which answers are sealed

	// What keeps the workspace from being used. LockReason is why a person has
	// locked it; Held: an agent that was lost may still apply; Unsaved: an agent
	// keeps a state that could not be stored.
	LockReason *string `db:"lock_reason"`
	Held       bool    `db:"held"`
	Unsaved    bool    `db:"unsaved"`

	Attempt  int       `db:"attempt"`
	Attempts []Attempt `db:"attempts"` // what it was tried again from, and as
	Newer    *int64    `db:"newer"`    // the newest provision of the workspace, if it is another

	Resources int         `db:"resources"` // in the workspace
	Starts    []StageLine `db:"starts"`
	Lines     int64       `db:"lines"` // rows of the log
}

// Attempt is another provision of the same request.
type Attempt struct {
	Number  int64            `json:"number"`
	Status  provision.Status `json:"status"`
	Attempt int              `json:"attempt"`
	Before  bool             `json:"before"` // it is the one that failed before
}

// StageLine is the first row of the log that was stored after a stage began: the
// database gives both times, so no clock of an agent matters.
type StageLine struct {
	Attempt int             `json:"attempt"`
	Stage   provision.Stage `json:"stage"`
	Seq     int64           `json:"seq"`
}

// Run reads what belongs to a provision.
func (s *Store) Run(ctx context.Context, id uuid.UUID) (Run, error) {
	return only[Run](ctx, s, "read the provision", `
		SELECT p.org_id, p.cluster_id, p.workspace_id,
		       coalesce(q.name, '') AS requested_by_name, coalesce(x.name, '') AS cancelled_by_name,
		       c.approvers, c.four_eyes, CASE WHEN w.reserved_by = p.id THEN w.due_at END AS due_at,
		       coalesce(c.age_public_key, '') AS age_key,
		       w.lock_reason, w.held_by_claim IS NOT NULL AS held, w.unsaved_state_on IS NOT NULL AS unsaved, p.attempt,
		       (SELECT jsonb_agg(jsonb_build_object('number', o.number, 'status', o.status, 'attempt', o.attempt, 'before', o.id = p.retry_of) ORDER BY o.number)
		        FROM public.provisions o WHERE o.workspace_id = p.workspace_id AND (o.id = p.retry_of OR o.retry_of = p.id AND o.number > p.number)) AS attempts,
		       (SELECT nullif(max(o.number), p.number) FROM public.provisions o WHERE o.workspace_id = p.workspace_id) AS newer,
		       (SELECT count(*) FROM public.resources r WHERE r.workspace_id = p.workspace_id)::int AS resources,
		       (SELECT jsonb_agg(jsonb_build_object('attempt', s.attempt, 'stage', s.stage, 'seq', l.seq) ORDER BY l.seq)
		        FROM (SELECT width_bucket(g.created_at, t.times) AS nth, min(g.seq) AS seq
		              FROM (SELECT g.seq, g.created_at FROM public.provision_logs g WHERE g.provision_id = p.id
		                    UNION ALL SELECT a.first_seq + u.nth - 1, u.created_at
		                    FROM public.provision_log_archives a, unnest(a.created_at) WITH ORDINALITY u (created_at, nth) WHERE a.provision_id = p.id) g,
		                   (SELECT array_agg(started_at ORDER BY started_at, attempt, stage = 'done') AS times FROM public.provision_stages WHERE provision_id = p.id) t
		              GROUP BY 1) l
		        JOIN (SELECT attempt, stage, row_number() OVER (ORDER BY started_at, attempt, stage = 'done') AS nth
		              FROM public.provision_stages WHERE provision_id = p.id) s ON s.nth = l.nth) AS starts,
		       `+logEnd+` AS lines
		FROM public.provisions p
		JOIN public.clusters c ON c.id = p.cluster_id
		JOIN public.workspaces w ON w.id = p.workspace_id
		LEFT JOIN LATERAL (SELECT coalesce(nullif(n.name, ''), n.email) AS name FROM public.people n WHERE n.org_id = p.org_id AND n.user_id = p.requested_by) q ON true
		LEFT JOIN LATERAL (SELECT coalesce(nullif(n.name, ''), n.email) AS name FROM public.people n WHERE n.org_id = p.org_id AND n.user_id = p.cancel_requested_by) x ON true
		WHERE p.id = $1`, id)
}

// Window is how many rows one page of a filtered list looks through: a filter that
// nearly nothing meets must not read a million of them.
const Window = 5000

// lookedThrough is what one page of a list has looked through: how many rows, the last of
// their keys, and the keys of those that are wanted.
type lookedThrough struct {
	Seen int     `db:"seen"`
	Last *int64  `db:"last"`
	Keys []int64 `db:"keys"`
}

// page is what is wanted of it, at most limit, and the key after which the page
// that follows begins, 0 at the end. most is how many rows might have been looked
// through.
func (l lookedThrough) page(limit, most int) (keys []int64, next int64) {
	switch {
	case len(l.Keys) > limit:
		return l.Keys[:limit], l.Keys[limit-1]
	case l.Seen == most:
		return l.Keys, *l.Last
	}
	return l.Keys, 0
}

// What a list looks through.
const (
	ofOrg       = "p.org_id = $1"
	ofWorkspace = "p.workspace_id = $1"
)

// ProvisionFilter says which provisions a list has; what is empty does not
// matter.
type ProvisionFilter struct {
	Statuses   []provision.Status
	Operations []provision.Operation
	Cluster    uuid.UUID
	Workspace  uuid.UUID
}

// narrow reports whether there are provisions that do not meet the filter among
// those that one index has in their order.
func (f ProvisionFilter) narrow() bool {
	return len(f.Statuses)+len(f.Operations) > 0 || f.Cluster != uuid.Nil
}

// ListProvisions lists provisions of an organisation, newest first, at most
// limit, as Provisions does: those with numbers below before (0: from the newest
// on). What is returned as next is the before of the page that follows, 0 at the
// end. A page may have fewer than limit, or none, though others follow: it looks
// through so many rows and no more.
func (s *Store) ListProvisions(ctx context.Context, org uuid.UUID, filter ProvisionFilter, before int64, limit int) (page []Provision, next int64, err error) {
	const doing = "list the provisions"
	if before == 0 {
		before = math.MaxInt64
	}
	most := limit + 1
	if filter.narrow() {
		most = max(Window, most)
	}
	// Either index has them in their order.
	condition, key := ofOrg, org
	if filter.Workspace != uuid.Nil {
		condition, key = ofWorkspace, filter.Workspace
	}
	err = s.Within(ctx, doing, func(ctx context.Context, s *Store) error {
		if err := s.do(ctx, doing, byIndex); err != nil {
			return err
		}
		looked, err := only[lookedThrough](ctx, s, doing, lookQuery(condition),
			key, before, most, org, orNull(filter.Cluster),
			texts(filter.Statuses), texts(filter.Operations), limit+1)
		if err != nil {
			return err
		}
		var numbers []int64
		if numbers, next = looked.page(limit, most); len(numbers) == 0 {
			return nil
		}
		page, err = s.provisions(ctx, doing, selected(false)+" WHERE p.number = ANY ($1) ORDER BY p.number DESC", numbers)
		return err
	})
	return page, next, err
}

// byIndex keeps the planner, in this transaction, from reading all of an
// organisation's rows and sorting them: where there are many organisations, row-
// level security makes it believe that each has a few.
const byIndex = "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true)"

// lookQuery looks through so many provisions as condition says, by an index that
// has them in their order, for those that meet a filter.
func lookQuery(condition string) string {
	return `
		WITH looked AS MATERIALIZED (
		  SELECT p.number, p.org_id, p.cluster_id, p.status, p.operation FROM public.provisions p
		  WHERE ` + condition + ` AND p.number < $2 ORDER BY p.number DESC LIMIT $3)
		SELECT (SELECT count(*) FROM looked) AS seen, (SELECT min(number) FROM looked) AS last,
		       ARRAY(SELECT number FROM looked
		             WHERE org_id = $4 AND ($5::uuid IS NULL OR cluster_id = $5)
		               AND (cardinality($6::text[]) = 0 OR status = ANY ($6)) AND (cardinality($7::text[]) = 0 OR operation = ANY ($7))
		             ORDER BY number DESC LIMIT $8) AS keys`
}

// texts is a list as a parameter that is never null.
func texts[T ~string](list []T) []string {
	found := make([]string, len(list))
	for i, v := range list {
		found[i] = string(v)
	}
	return found
}

// Overview is what goes on in an organisation. Its lists are short; the counts
// say how many there are in all.
type Overview struct {
	Running []Provision
	// Waiting are those whose plan awaits approval, then the next of each
	// workspace where something is queued.
	Waiting []Provision
	// Failed are those of the last seven days, as far back as recent goes.
	Failed []Failure
	Counts Counts
}

// Counts are how many there are of what an Overview lists.
type Counts struct {
	Running   int `db:"running"`
	Approvals int `db:"approvals"`
	// Queued are workspaces where something waits for its turn.
	Queued     int `db:"queued"`
	Workspaces int `db:"workspaces"`
	Drifted    int `db:"drifted"`
	Templates  int `db:"templates"`
}

// Failure is a provision that failed.
type Failure struct {
	Provision
	// Mended: a later one in its workspace has succeeded.
	Mended bool
}

const (
	// listed is how many an Overview lists of each.
	listed = 12
	// recent is how many of the newest provisions are looked through for those
	// that failed: no index has them.
	recent = 1000
)

// Overview tells what goes on in an organisation. What runs and waits is found by
// way of the workspaces, which know: provisions may be a million. An inspection is
// told of while it runs, for it takes a slot; what becomes of it its template says.
func (s *Store) Overview(ctx context.Context, org uuid.UUID) (o Overview, err error) {
	const doing = "see what goes on"
	const places = `SELECT w.* FROM public.clusters c JOIN public.workspaces w ON w.cluster_id = c.id WHERE c.org_id = $1`
	if o.Counts, err = only[Counts](ctx, s, doing, `
		SELECT count(*) FILTER (WHERE w.running_claim IS NOT NULL)::int AS running,
		       count(*) FILTER (WHERE NOT w.hidden AND (w.head_id IS NOT NULL OR w.due_at IS NOT NULL AND r.status = 'QUEUED'))::int AS queued,
		       count(*) FILTER (WHERE r.status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT'))::int AS approvals,
		       count(*) FILTER (WHERE NOT w.hidden)::int AS workspaces, count(*) FILTER (WHERE w.drift_count > 0)::int AS drifted,
		       (SELECT count(*)::int FROM public.templates t WHERE t.org_id = $1) AS templates
		FROM (`+places+`) w LEFT JOIN public.provisions r ON r.id = w.reserved_by`, org); err != nil {
		return o, err
	}
	if o.Running, err = s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT now.id FROM (`+places+` AND w.running_claim IS NOT NULL LIMIT 200) w
		CROSS JOIN LATERAL (SELECT id FROM public.provisions WHERE workspace_id = w.id AND status = 'PROCESSING' ORDER BY number DESC LIMIT 1) now)
		ORDER BY p.started_at, p.number LIMIT $2`, org, listed); err != nil {
		return o, err
	}
	if o.Waiting, err = s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT n.id FROM (`+places+` AND NOT w.hidden AND (w.head_id IS NOT NULL OR w.reserved_by IS NOT NULL)) w
		JOIN public.provisions n ON n.id = ANY (ARRAY[w.head_id, w.reserved_by]) AND n.status IN ('QUEUED', 'AWAITING_APPROVAL', 'AWAITING_INPUT')
		ORDER BY n.status <> 'QUEUED' DESC, n.priority DESC, n.number LIMIT $2)
		ORDER BY p.status <> 'QUEUED' DESC, p.priority DESC, p.number`, org, listed); err != nil {
		return o, err
	}
	o.Failed, err = s.failures(ctx, doing, org)
	return o, err
}

// failures are those that failed lately, and whether that is mended.
func (s *Store) failures(ctx context.Context, doing string, org uuid.UUID) (failed []Failure, err error) {
	found, err := s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT id FROM (SELECT id, number, status, operation, finished_at FROM public.provisions WHERE org_id = $1 ORDER BY number DESC LIMIT $2) n
		WHERE n.status = 'FAILED' AND n.operation <> 'inspect' AND n.finished_at > now() - interval '7 days' ORDER BY n.number DESC LIMIT 6)
		ORDER BY p.number DESC`, org, recent)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	ids := make([]uuid.UUID, len(found))
	for i, p := range found {
		ids[i] = p.ID
	}
	mended := map[uuid.UUID]bool{}
	done, err := rows[struct{ ID uuid.UUID }](ctx, s, doing, `
		SELECT p.id FROM public.provisions p WHERE p.id = ANY ($1) AND EXISTS (
		  SELECT FROM public.provisions n WHERE n.workspace_id = p.workspace_id AND n.number > p.number AND n.status = 'SUCCESS'
		  AND n.operation IN ('apply', 'destroy'))`, ids)
	for _, d := range done {
		mended[d.ID] = true
	}
	for _, p := range found {
		failed = append(failed, Failure{Provision: p, Mended: mended[p.ID]})
	}
	return failed, err
}

// Deployed is a provision just queued.
type Deployed struct {
	ID     uuid.UUID `db:"id"`
	Number int64     `db:"number"`
	// Workspace is the name that the database took from the snapshot.
	Workspace string `db:"workspace"`
}

// Deploy queues a snapshot on a cluster, to apply it or whatever else the
// operation says. The database checks it: what is wrong
// with it comes back as a *RefusedError with reason bad_snapshot, a line for
// each problem.
func (s *Store) Deploy(ctx context.Context, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (Deployed, error) {
	return s.DeployAs(ctx, uuid.Must(uuid.NewV7()), cluster, operation, snapshot)
}

// Cancel cancels a provision that waits, or asks its agent to stop it. It
// returns the status after that: CANCELLED, or PROCESSING while the agent stops.
func (s *Store) Cancel(ctx context.Context, id uuid.UUID) (provision.Status, error) {
	return one[provision.Status](ctx, s, "cancel the provision", "SELECT public.cancel_provision($1) AS answer", id)
}

// Place is a cluster as somebody who is to deploy there needs to know it.
type Place struct {
	ClusterHead
	Agents int `db:"agents"` // alive
	Policy
}

// Places lists an organisation's clusters, by name.
func (s *Store) Places(ctx context.Context, org uuid.UUID) ([]Place, error) {
	return rows[Place](ctx, s, "list the clusters", `
		SELECT o.id, o.name, o.connectivity, o.paused_at, o.last_seen_at, o.created_at, coalesce(c.age_public_key, '') AS age_public_key,
		       (SELECT count(*) FROM public.agents a WHERE a.cluster_id = c.id
		        AND a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds')::int AS agents,
		       c.approval, c.approvers, c.four_eyes, c.approval_expiry::text AS approval_expiry
		FROM public.cluster_overview o JOIN public.clusters c ON c.id = o.id
		WHERE c.org_id = $1 ORDER BY o.name, o.id`, org)
}

// Target is a workspace to which somebody is about to deploy.
type Target struct {
	ID        uuid.UUID `db:"id"`
	Name      string    `db:"name"`
	Repo      *string   `db:"repo"` // what it is bound to, in its canonical form
	Path      *string   `db:"path"`
	Resources int       `db:"resources"`
	// LockReason is why a person has locked it.
	LockReason *string `db:"lock_reason"`
	Held       bool    `db:"held"`
	// Number and Snapshot are of the newest apply that succeeded; nil where none
	// has.
	Number   *int64          `db:"number"`
	Snapshot json.RawMessage `db:"snapshot"`
	At       *time.Time      `db:"at"`
}

// FindTarget returns the workspace of that name on a cluster; nil where there is
// none yet.
func (s *Store) FindTarget(ctx context.Context, cluster uuid.UUID, name string) (*Target, error) {
	return orNil(rows[Target](ctx, s, "look for the workspace", `
		SELECT w.id, w.name, w.repo, w.path, (SELECT count(*) FROM public.resources r WHERE r.workspace_id = w.id)::int AS resources,
		       w.lock_reason, w.held_by_claim IS NOT NULL AS held, p.number, p.config_snapshot AS snapshot, p.finished_at AS at
		FROM public.workspaces w
		LEFT JOIN LATERAL (
		  SELECT number, config_snapshot, finished_at FROM public.provisions
		  WHERE workspace_id = w.id AND operation = 'apply' AND status = 'SUCCESS' ORDER BY number DESC LIMIT 1) p ON true
		WHERE w.cluster_id = $1 AND w.name = $2 AND NOT w.hidden`, cluster, name))
}

// WorkspaceNames lists the workspaces of a cluster by name that are bound to a
// template or to none, at most limit: those that it can be deployed to.
func (s *Store) WorkspaceNames(ctx context.Context, cluster uuid.UUID, repo, path string, limit int) ([]string, error) {
	type named struct {
		Name string `db:"name"`
	}
	found, err := rows[named](ctx, s, "list the workspaces", `
		SELECT name FROM public.workspaces WHERE cluster_id = $1 AND NOT hidden AND (repo IS NULL OR repo = $2 AND path = $3)
		ORDER BY name LIMIT $4`, cluster, canonical.Address(repo), canonical.Path(path), limit)
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Name
	}
	return names, err
}

// DeployAs is Deploy under an id of the caller's choice: who sends it again, as
// by a second click, gets the provision that there is, and makes no other.
func (s *Store) DeployAs(ctx context.Context, id, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (Deployed, error) {
	const answer = `id, number, coalesce(config_snapshot ->> 'workspace',
		(config_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (config_snapshot -> 'terraform_vars' ->> 'environment')) AS workspace`
	queued, err := only[Deployed](ctx, s, "queue the deploy", `
		WITH queued AS (
		  INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4::text::jsonb)
		  RETURNING id, number, config_snapshot)
		SELECT `+answer+` FROM queued`, id, cluster, operation, string(snapshot))
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Code == uniqueViolation {
		return only[Deployed](ctx, s, "look for the deploy", "SELECT "+answer+" FROM public.provisions WHERE id = $1 AND requested_by = $2", id, s.user)
	}
	return queued, err
}

const uniqueViolation = "23505"

// Approve lets a plan be applied: the very one whose digest the person has
// seen. It returns the status after that. A *RefusedError says so when the
// provision awaits no approval, or that of another plan, and when the person may
// not approve it.
func (s *Store) Approve(ctx context.Context, id uuid.UUID, planDigest string) (provision.Status, error) {
	status, err := one[provision.Status](ctx, s, "approve the plan", "SELECT public.approve_provision($1, $2) AS answer", id, planDigest)
	if err == nil {
		s.traceApproval(ctx, id)
	}
	return status, err
}

// traceApproval records how long a plan has waited for the approval that was just given, in the
// trace of its run.
func (s *Store) traceApproval(ctx context.Context, id uuid.UUID) {
	t := tracing.Of(ctx)
	if t == nil {
		return
	}
	type row struct {
		Traceparent *string   `db:"traceparent"`
		Number      int64     `db:"number"`
		Since       time.Time `db:"since"`
	}
	waited, err := only[row](ctx, s, "read how long the plan has waited", `SELECT p.traceparent, p.number, max(s.started_at) AS since
		FROM public.provisions p JOIN public.provision_stages s ON s.provision_id = p.id AND s.stage = 'approval' WHERE p.id = $1 GROUP BY 1, 2`, id)
	if err != nil || waited.Traceparent == nil {
		return // the approval counts, whatever its trace has
	}
	t.Record(tracing.Into(ctx, *waited.Traceparent), tracing.Span{Name: "approval", Began: waited.Since, Ended: time.Now(), Attributes: []attribute.KeyValue{
		attribute.Int64("tendril.run.number", waited.Number), attribute.String("tendril.run.id", id.String()),
	}})
}

// Reject turns a plan down: its provision ends as CANCELLED.
func (s *Store) Reject(ctx context.Context, id uuid.UUID, reason string) error {
	_, err := one[provision.Status](ctx, s, "reject the plan", "SELECT public.reject_provision($1, $2) AS answer", id, reason)
	return err
}

// GiveInput says that the work of a provision was done, or could not be, and returns the
// status after that.
func (s *Store) GiveInput(ctx context.Context, id uuid.UUID, input provision.Input) (provision.Status, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return "", fmt.Errorf("write the answer: %w", err)
	}
	return one[provision.Status](ctx, s, "give the answer", "SELECT public.give_input($1, $2::text::jsonb) AS answer", id, string(text))
}

// AssignInput says who is to do the work of a provision; nil: anybody.
func (s *Store) AssignInput(ctx context.Context, id uuid.UUID, user *uuid.UUID) error {
	return s.do(ctx, "assign the work", "SELECT public.assign_input($1, $2)", id, user)
}

// Comment adds a comment to the log of a provision.
func (s *Store) Comment(ctx context.Context, id uuid.UUID, text string) error {
	return s.do(ctx, "add the comment", "SELECT public.comment_provision($1, $2)", id, text)
}

// Retry queues what an ended provision asked for once more and returns the new
// provision's id. What the agent seals is for requesterKey; where that is "", for the
// key that the person themselves named the first time, if it was they who asked.
func (s *Store) Retry(ctx context.Context, id uuid.UUID, requesterKey string) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "retry the provision", "SELECT public.retry_provision($1, nullif($2, '')) AS answer", id, requesterKey)
}

// UploadPart brings one part of parts, from 1 on, of something that is sealed to a
// cluster's key, for an operation to name by its id, which is the caller's choice.
// Each has queue.BlobPart bytes but the last.
func (s *Store) UploadPart(ctx context.Context, cluster, id uuid.UUID, part, parts int, data []byte) error {
	_, err := one[uuid.UUID](ctx, s, "upload the file", "SELECT public.upload_blob($1, $2, $3, $4, $5) AS answer",
		cluster, part, parts, base64.StdEncoding.EncodeToString(data), id)
	return err
}

// ResultPart returns one part, from 1 on, of what a provision has left for who
// asked for it, sealed to the key that its snapshot names.
func (s *Store) ResultPart(ctx context.Context, provision uuid.UUID, part int) (queue.PartOfBlob, error) {
	return one[queue.PartOfBlob](ctx, s, "fetch the result", "SELECT public.fetch_result($1, $2) AS answer", provision, part)
}
