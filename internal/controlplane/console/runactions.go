package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// What a page offers is a courtesy: whether it may be done, the database says.

func (p *runPage) operator() bool { return atLeast(p.Role, "operator") }

// MayCancel and the like say which buttons there are.
func (p *runPage) MayCancel() bool {
	return p.operator() && !p.Over() && p.Status != provision.AwaitingApproval && p.CancelRequestedAt == nil
}

func (p *runPage) MayRetry() bool {
	return p.operator() && p.Over() && p.Status != provision.Success && p.Operation != provision.OperationState && p.Operation != provision.OperationUnlock &&
		p.Operation != provision.OperationInspect // its template's page asks for it again
}

func (p *runPage) MayPlan() bool {
	return p.operator() && p.Over() && (p.Operation == provision.OperationApply || p.Operation == provision.OperationPlan)
}

// MayDeploy: with what it asked for as a beginning.
func (p *runPage) MayDeploy() bool {
	return p.operator() && p.Over() && (p.Operation == provision.OperationApply || p.Operation == provision.OperationPlan)
}

func (p *runPage) MayDestroy() bool {
	return p.operator() && p.Over() && p.Run.Resources > 0 && p.Operation != provision.OperationDestroy
}

// MayReject: the same may be turned down by whoever may deploy.
func (p *runPage) MayReject() bool {
	return p.operator() && p.Status == provision.AwaitingApproval
}

func (p *runPage) MayApprove() bool { return p.MayReject() && p.WhyNotApprove() == "" }

// WhyNotApprove says why the reader may not approve the plan; "" where they may.
func (p *runPage) WhyNotApprove() string {
	switch {
	case !p.operator():
		return "You may look at this plan, but not decide about it: that takes the role operator."
	case !atLeast(p.Role, p.Run.Approvers):
		return "Plans for this cluster are approved by an admin."
	case p.Run.FourEyes && p.RequestedBy == nil:
		return "Plans for this cluster are approved by somebody else than who asked, and nobody knows who asked for this one. Reject it, and deploy again with your name."
	case p.Run.FourEyes && *p.RequestedBy == p.me:
		return "You asked for this yourself. Plans for this cluster are approved by somebody else: ask another person who may."
	}
	return ""
}

// Approvers says who may approve.
func (p *runPage) Approvers() string {
	who := "an operator or an admin"
	if p.Run.Approvers == "admin" {
		who = "an admin"
	}
	if p.Run.FourEyes {
		who += " who is not the one that asked"
	}
	return who
}

// orphaned are the codes of runs whose end nobody saw.
var orphaned = []provision.Code{provision.CodeAgentLost, provision.CodeAgentRestarted, provision.CodeAgentDrained, provision.CodeExecDied, provision.CodeCancelled, provision.CodeTimedOut}

// PlanFirst reports whether it should be planned again before it is tried again:
// its apply had begun and did not come to its end.
func (p *runPage) PlanFirst() bool {
	applied := slices.ContainsFunc(p.Stages, func(s store.StageTime) bool { return s.Stage == provision.StageApply })
	code := provision.Code(deref(p.ErrorCode))
	return p.Failed() && applied && p.MayPlan() && (slices.Contains(orphaned, code) || code == provision.CodeApplyFailed)
}

// act does something with a provision and returns where to go and what to say.
type act func(r *request, p store.Provision) (to string, said string, err error)

// onProvision mounts an act for a form. The database's no is shown on the page
// that was there.
func (c *console) onProvision(do act) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		p, err := r.provision()
		if err != nil {
			return err
		}
		to, said, err := do(r, p)
		if refused, ok := errors.AsType[*store.RefusedError](err); ok && refused.Status() < 500 {
			c.redirect(w, r, page(p.Number), flash{Kind: "error", Text: asSentence(refused)})
			return nil
		}
		if err != nil {
			return err
		}
		c.redirect(w, r, to, flash{Kind: "success", Text: said})
		return nil
	}
}

// asSentence is a refusal as one reads it.
func asSentence(e *store.RefusedError) string {
	text := strings.ToUpper(e.Message[:1]) + e.Message[1:] + "."
	if e.Hint != "" {
		text += " " + strings.ToUpper(e.Hint[:1]) + e.Hint[1:] + "."
	}
	return text
}

func page(number int64) string { return fmt.Sprintf("/provisions/%d", number) }

func approve(r *request, p store.Provision) (string, string, error) {
	_, err := r.store.Approve(r.Context(), p.ID, r.PostFormValue("plan_digest"))
	return page(p.Number), "The plan is approved. An agent applies that very plan now.", err
}

func reject(r *request, p store.Provision) (string, string, error) {
	return page(p.Number), "The plan is rejected. Nothing was changed.", r.store.Reject(r.Context(), p.ID, r.PostFormValue("reason"))
}

func cancel(r *request, p store.Provision) (string, string, error) {
	status, err := r.store.Cancel(r.Context(), p.ID)
	if status == provision.Cancelled {
		return page(p.Number), "It is cancelled.", err
	}
	return page(p.Number), "It is asked to stop. Terraform is interrupted once and writes its state first.", err
}

func retry(r *request, p store.Provision) (string, string, error) {
	id, err := r.store.Retry(r.Context(), p.ID)
	if err != nil {
		return "", "", err
	}
	return queued(r, id.String())
}

func planAgain(r *request, p store.Provision) (string, string, error) {
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return "", "", err
	}
	return queueAgain(r, run.ClusterID, provision.OperationPlan, p.Snapshot, p.Workspace)
}

// destroy queues the destruction of what the newest apply in the workspace made.
func destroy(r *request, p store.Provision) (string, string, error) {
	if r.PostFormValue("confirm") != p.Workspace {
		return "", "", &store.RefusedError{Code: "PT422", Reason: "not_confirmed", Message: "the workspace's name was not typed", Hint: "nothing was done"}
	}
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return "", "", err
	}
	cluster, last, err := r.store.LastApplied(r.Context(), store.Workspace{ID: run.WorkspaceID, Name: p.Workspace})
	if err != nil {
		return "", "", err
	}
	return queueAgain(r, cluster, provision.OperationDestroy, last, p.Workspace)
}

// queueAgain queues an operation with the template, the variables and the engine
// of a snapshot, and nothing else of it: targets, a reason and the like were for
// that one time.
func queueAgain(r *request, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage, workspace string) (string, string, error) {
	before, err := provision.ParseSnapshot(snapshot)
	if err != nil {
		return "", "", &store.RefusedError{Code: "PT422", Reason: "bad_snapshot", Message: provision.AsFailure(err).Message}
	}
	asked := provision.Snapshot{
		TemplateSource: before.TemplateSource, TerraformVars: before.TerraformVars, SealedVars: before.SealedVars, Workspace: workspace,
		Terraform: before.Terraform, RequesterKey: before.RequesterKey, Meta: map[string]json.RawMessage{"triggered_by": json.RawMessage(`"the console"`)},
	}
	if err := before.SealedElsewhere(asked); err != nil {
		return "", "", &store.RefusedError{Code: "PT422", Reason: "bad_snapshot", Message: provision.AsFailure(err).Message, Hint: "deploy it again, with the values typed again"}
	}
	data, err := json.Marshal(asked)
	if err != nil {
		return "", "", fmt.Errorf("encode the request: %w", err)
	}
	click, err := uuid.Parse(r.PostFormValue("click"))
	if err != nil {
		return "", "", &store.RefusedError{Code: "PT422", Reason: "no_token", Message: "this form is not complete", Hint: "load the page again"}
	}
	made, err := r.store.DeployAs(r.Context(), click, cluster, operation, data)
	if err != nil {
		return "", "", err
	}
	return page(made.Number), fmt.Sprintf("Provision #%d is queued.", made.Number), nil
}

func queued(r *request, ref string) (string, string, error) {
	p, err := r.store.Provision(r.Context(), ref)
	return page(p.Number), fmt.Sprintf("Provision #%d is queued.", p.Number), err
}
