package delivery

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Refused is a part of a spool that the database does not take for its content.
type Refused struct {
	// Kind is "log" for a chunk, "report" for an update.
	Kind   string
	Number int64 // of the chunk or the update
	// Content is a provision.LogChunk or a provision.Report.
	Content any
	Why     error
}

// An answer that blames the content is believed only when the same call without
// that content succeeds. Otherwise the database is at fault, a constraint that
// somebody added for example, and the spool waits as in any outage. So nothing is
// given up for an error that everything would meet.

// lesser is a report without some of its content.
type lesser struct {
	report  provision.Report
	without []string
}

// lessers returns what can be told of a report that is refused for its content: all
// but one part of it, for each part, then what the run needs to come to its end, and
// then its status alone.
func lessers(r provision.Report) (all []lesser) {
	parts := []struct {
		name string
		has  bool
		drop func(*provision.Detail)
	}{
		{"the plan", r.Detail.Plan != nil, func(d *provision.Detail) { d.Plan = nil }},
		{"what a person is to do", r.Detail.Input != nil, func(d *provision.Detail) { d.Input = nil }},
		{"the outputs", r.Detail.Outputs != nil, func(d *provision.Detail) { d.Outputs = nil }},
		{"the resources", r.Detail.Resources != nil, func(d *provision.Detail) { d.Resources, d.ResourcesOmitted = nil, 0 }},
		{"the machines", r.Detail.Machines != nil, func(d *provision.Detail) { d.Machines, d.MachinesOmitted = nil, 0 }},
		{"events", r.Detail.Events != nil, func(d *provision.Detail) { d.Events = nil }},
		{"what is being worked on", r.Detail.Running != nil, func(d *provision.Detail) { d.Running = nil }},
		{"the drift", r.Detail.Drift != nil, func(d *provision.Detail) { d.Drift = nil }},
		{"the template's variables", r.Detail.Variables != nil, func(d *provision.Detail) { d.Variables, d.About = nil, nil }},
		{"the state's lock", r.Detail.StateLock != nil, func(d *provision.Detail) { d.StateLock = nil }},
	}
	bare := lesser{report: r}
	for _, part := range parts {
		if !part.has {
			continue
		}
		one := lesser{report: r, without: []string{part.name}}
		part.drop(&one.report.Detail)
		all = append(all, one)
		part.drop(&bare.report.Detail)
		bare.without = append(bare.without, part.name)
	}
	if len(bare.without) > 1 {
		all = append(all, bare)
	}
	d := bare.report.Detail
	least := lesser{report: provision.Report{Status: r.Status, Detail: provision.Detail{
		StateUnsaved: d.StateUnsaved, PlanDigest: d.PlanDigest, ResultDigest: d.ResultDigest, ErrorCode: d.ErrorCode,
	}}, without: append(bare.without, "everything but the status")}
	return append(all, least)
}

// held is an error after which the spool waits, for what it blames is not to blame.
func held(err error) error {
	if queue.KindOf(err) != queue.ContentRefused {
		return err
	}
	return &queue.Error{Kind: queue.Unavailable, Err: err,
		Message: fmt.Sprintf("%v; it refuses a plain line as well, so its tables are at fault: look for constraints and triggers that are no part of the contract", err)}
}

// longestReason is how many bytes of an answer a line of the log shows.
const longestReason = 300

// reasonOf is an answer in printable ASCII, which a database of any encoding takes.
func reasonOf(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*queue.Error](err); ok {
		text = e.Message
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > longestReason {
		text = text[:longestReason] + " ..."
	}
	return text
}

// refusal says to the child, and so to people, why the database did not accept
// an update. It carries no cause: it goes through a pipe.
func refusal(err error) *provision.Failure {
	return provision.Fail(refusalCode(err), err.Error(), nil)
}

// refusalCode is the reason the database gave where that is a code of ours,
// else what the kind of its answer comes to.
func refusalCode(err error) provision.Code {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		switch code := provision.Code(e.Reason); code {
		case provision.CodeTagMoved, provision.CodeWorkspaceElsewhere, provision.CodeWorkspaceBound,
			provision.CodeCancelled, provision.CodeAgentLost, provision.CodeAgentRestarted,
			provision.CodeStateLocked, provision.CodeOperationRefused, provision.CodeBadSnapshot,
			provision.CodeApprovalNeeded, provision.CodePlanInvalid, provision.CodeNoRoom, provision.CodePlacementRefused, provision.CodeCredentials:
			return code
		case "never_fits", "pool_not_found", "address_taken", "too_many_machines", "bad_wants", "quota":
			return provision.CodePlacementRefused
		case "plan_missing":
			return provision.CodePlanInvalid
		case "workspace_managed":
			return provision.CodeWorkspaceElsewhere
		}
	}
	switch queue.KindOf(err) {
	case queue.CancelRequested:
		return provision.CodeCancelled
	case queue.ClaimLost:
		return provision.CodeAgentLost
	case queue.Superseded:
		return provision.CodeAgentRestarted
	default:
		return provision.CodeInternal
	}
}
