package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// runPage is what the page of a provision shows.
type runPage struct {
	store.Provision
	Run    store.Run
	Drift  store.Drift
	Exists []store.Resource

	Role string
	// Click names what a form of this page does, so that sent twice it is done once.
	Click uuid.UUID
	me    uuid.UUID
}

func newRunPage(p store.Provision, run store.Run, r *request) *runPage {
	page := &runPage{Provision: p, Run: run, Click: uuid.New(), me: r.person.ID}
	for _, o := range r.orgs {
		if o.ID == run.OrgID {
			page.Role = o.Role
		}
	}
	return page
}

// URL is the page's own.
func (p *runPage) URL() string { return fmt.Sprintf("/provisions/%d", p.Number) }

// LogURL is where the log is read.
func (p *runPage) LogURL() string { return fmt.Sprintf("/api/v1/provisions/%d/logs", p.Number) }

// Over reports whether it has ended.
func (p *runPage) Over() bool { return p.Status.Terminal() }

// Mark changes when the parts of the page do that do not follow each step.
func (p *runPage) Mark() string {
	return fmt.Sprintf("%s %s %v %d %d", p.Status, deref(p.PlanDigest), p.Plan != nil, len(p.Outputs), p.Run.Resources)
}

// Verb is the operation in a word for a heading.
func (p *runPage) Verb() string { return operationWord(p.Operation) }

// inspection names what an inspection looks at, whose workspace is none; "" for
// all else.
func inspection(p store.Provision) string {
	if p.Operation != provision.OperationInspect {
		return ""
	}
	return "Inspection of " + templateOf(p)
}

// templateOf names a provision's template and its version.
func templateOf(p store.Provision) string {
	return (&runPage{Provision: p}).TemplateName() + " " + p.Template.Version
}

func operationWord(o provision.Operation) string {
	switch o {
	case provision.OperationRefresh:
		return "Look for drift"
	case provision.OperationUnlock:
		return "Unlock the state"
	case provision.OperationState:
		return "State"
	}
	return sentence(o)
}

// Reason is why it was asked for, as who asked has said.
func (p *runPage) Reason() string { return p.meta("reason") }

// By is who asked: a person's name, else what the request says of itself.
func (p *runPage) By() string {
	switch {
	case p.Run.RequestedBy != "":
		return p.Run.RequestedBy
	case p.RequestedBy != nil && *p.RequestedBy == p.me:
		return "you"
	case p.RequestedBy != nil:
		return "somebody (" + p.RequestedBy.String() + ")"
	}
	return "the platform"
}

// Trigger is the program it was asked with, where that says so.
func (p *runPage) Trigger() string { return p.meta("triggered_by") }

func (p *runPage) meta(key string) string {
	var s struct {
		Meta map[string]any `json:"meta"`
	}
	_ = json.Unmarshal(p.Snapshot, &s) // nothing depends on it
	value, _ := s.Meta[key].(string)
	return value
}

// TemplateName is the template's repository without what all have in common.
func (p *runPage) TemplateName() string {
	name := strings.TrimSuffix(strings.TrimSuffix(p.Template.Repo, "/"), ".git")
	name = name[strings.LastIndexAny(name, "/:")+1:]
	if p.Template.Path != "" {
		name += "/" + p.Template.Path
	}
	return name
}

// OutputNames are those of the outputs, in order.
func (p *runPage) OutputNames() []string { return slices.Sorted(maps.Keys(p.Outputs)) }

// OutputText is an output's value: a text as it is, else JSON.
func (p *runPage) OutputText(name string) string {
	raw := p.Outputs[name].Value
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return valueText(raw)
}

// Groups are the plan's changes by what is done.
func (p *runPage) Groups() []planGroup { return planGroups(p.Plan.Resources) }

// DriftGroups are what has changed outside.
func (p *runPage) DriftGroups() []planGroup { return planGroups(p.Drift.Changes) }

// PlanFolded reports whether the plan is shown folded: it is long, or is not what
// one comes for.
func (p *runPage) PlanFolded() bool {
	return p.Status != provision.AwaitingApproval && (p.Operation != provision.OperationPlan || planFolded(p.Plan))
}

// Failed reports whether it did not do what was asked.
func (p *runPage) Failed() bool {
	return p.Status == provision.Failed || p.Status == provision.Cancelled
}

// Next is what its failure means and what to do.
func (p *runPage) Next() nextStep { return next(deref(p.ErrorCode)) }

// Took is how long it ran, as far as it is known.
func (p *runPage) Took() time.Duration {
	switch {
	case p.StartedAt == nil:
		return 0
	case p.FinishedAt != nil:
		return p.FinishedAt.Sub(*p.StartedAt)
	}
	return max(0, p.AsOf.Sub(*p.StartedAt))
}

// WaitStep is what ends a reason for waiting.
func (p *runPage) WaitStep(r store.Reason) string { return waitSteps[r.Reason] }

// WaitLink is where a reason for waiting is dealt with: an address and its words.
func (p *runPage) WaitLink(r store.Reason) []string {
	var about struct {
		Number int64 `json:"number"`
	}
	_ = json.Unmarshal(r.Detail, &about) // then there is none
	switch r.Reason {
	case "workspace_locked", "workspace_held", "state_kept":
		return []string{"/workspaces/" + p.Run.WorkspaceID.String(), "Go to the workspace"}
	case "cluster_paused", "no_agent", "home_away", "agent_too_old", "operation_refused", "slots_busy":
		return []string{"/clusters/" + p.Run.ClusterID.String(), "Go to the cluster"}
	}
	if about.Number != 0 && about.Number != p.Number {
		return []string{fmt.Sprintf("/provisions/%d", about.Number), fmt.Sprintf("Go to provision #%d", about.Number)}
	}
	return nil
}

// deref is what a text points to; "" for none.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
