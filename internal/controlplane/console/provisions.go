package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tracing"
)

// provisionsPerPage is how many a page of the list has.
const provisionsPerPage = 50

// provisionList is the page of all provisions.
type provisionList struct {
	Items    []store.Provision
	Clusters []store.Place
	// Status, Operation, Cluster and Workspace are the filters as they were asked
	// for; "" is all.
	Status, Operation, Cluster, Workspace string
	WorkspaceName                         string // of the one asked for
	Self                                  string // this one's
	Pager                                 pager
}

// Statuses and Operations are what can be chosen.
func (provisionList) Statuses() []string {
	return texts([]provision.Status{provision.Queued, provision.Processing, provision.AwaitingApproval, provision.AwaitingInput, provision.Success, provision.Failed, provision.Cancelled})
}

func (provisionList) Operations() []string { return texts(provision.Operations) }

// ClusterNames are the clusters that can be chosen.
func (l provisionList) ClusterNames() (names []string) {
	for _, c := range l.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// Kept is the filter that the form does not show.
func (l provisionList) Kept() map[string]string { return map[string]string{"workspace": l.Workspace} }

// Filtered reports whether anything is left out.
func (l provisionList) Filtered() bool { return l.Status+l.Operation+l.Cluster+l.Workspace != "" }

// provisions lists an organisation's provisions, newest first.
func (c *console) provisions(w http.ResponseWriter, r *request) error {
	asked := r.URL.Query()
	l := &provisionList{Status: asked.Get("status"), Operation: asked.Get("operation"), Cluster: asked.Get("cluster"), Workspace: asked.Get("workspace")}
	var filter store.ProvisionFilter
	if slices.Contains(l.Statuses(), l.Status) {
		filter.Statuses = []provision.Status{provision.Status(l.Status)}
	}
	if slices.Contains(provision.Operations, provision.Operation(l.Operation)) {
		filter.Operations = []provision.Operation{provision.Operation(l.Operation)}
	}
	var err error
	if l.Clusters, err = r.store.Places(r.Context(), r.org.ID); err != nil {
		return err
	}
	for _, place := range l.Clusters {
		if l.Cluster == place.Name || l.Cluster == place.ID.String() {
			l.Cluster, filter.Cluster = place.Name, place.ID
		}
	}
	if l.Workspace != "" {
		found, err := r.store.WorkspaceByRef(r.Context(), r.org.ID, filter.Cluster, l.Workspace)
		if err != nil {
			return err
		}
		l.Workspace, l.WorkspaceName, filter.Workspace = found.ID.String(), found.Name, found.ID
	}
	if l.Cluster != "" && filter.Cluster == uuid.Nil {
		return refuse("cluster_not_found", strconv.Quote(l.Cluster))
	}
	before, _ := strconv.ParseInt(asked.Get("before"), 10, 64) // else from the newest on
	items, following, err := r.store.ListProvisions(r.Context(), r.org.ID, filter, max(0, before), provisionsPerPage)
	if err != nil {
		return err
	}
	l.Items = items
	l.Self = l.at(before)
	if before > 0 {
		l.Pager.First = l.at(0)
	}
	if following > 0 {
		l.Pager.Next = l.at(following)
		if len(items) < provisionsPerPage {
			l.Pager.Searched = store.Window
		}
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "provisions", "list", l)
		return nil
	}
	c.render(w, r, http.StatusOK, "provisions", view{Nav: "provisions", Data: l})
	return nil
}

// at is the address of the list from a number on.
func (l *provisionList) at(before int64) string {
	q := url.Values{}
	for name, value := range map[string]string{"status": l.Status, "operation": l.Operation, "cluster": l.Cluster, "workspace": l.Workspace} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if before > 0 {
		q.Set("before", strconv.FormatInt(before, 10))
	}
	if len(q) == 0 {
		return "/provisions"
	}
	return "/provisions?" + q.Encode()
}

// Template is a provision's template in short.
func (provisionList) Template(p store.Provision) string { return templateOf(p) }

// Took is how long it ran, or runs; "" where it waits.
func (provisionList) Took(p store.Provision) string {
	switch {
	case p.StartedAt == nil || p.FinishedAt == nil && p.Status != provision.Processing:
		return ""
	case p.FinishedAt == nil:
		return duration((&runPage{Provision: p}).Took()) + " so far"
	}
	return duration((&runPage{Provision: p}).Took())
}

// provisionPages mounts the pages of provisions.
func (c *console) provisionPages() {
	c.page("GET /provisions", c.provisions)
	c.page("GET /provisions/{ref}", c.provision)
	c.page("GET /provisions/{ref}/run", c.provisionPart("run"))
	c.page("GET /provisions/{ref}/outcome", c.provisionPart("outcome"))
	c.page("GET /provisions/{ref}/inventory", c.provisionPart("inventory"))
	c.page("GET /provisions/{ref}/handout", c.handOut)
	c.page("POST /provisions/{ref}/approve", c.onProvision(approve))
	c.page("POST /provisions/{ref}/reject", c.onProvision(reject))
	c.page("POST /provisions/{ref}/input", c.giveInput)
	c.page("POST /provisions/{ref}/assign", c.onProvision(assign))
	c.page("POST /provisions/{ref}/comment", c.onProvision(comment))
	c.page("POST /provisions/{ref}/cancel", c.onProvision(cancel))
	c.page("POST /provisions/{ref}/retry", c.onProvision(retry))
	c.page("POST /provisions/{ref}/plan", c.onProvision(planAgain))
	c.page("POST /provisions/{ref}/destroy", c.onProvision(destroy))
}

// provision is one provision: how far it is, what it plans, prints and leaves, and
// what to do next.
func (c *console) provision(w http.ResponseWriter, r *request) error {
	p, err := c.runPage(r, true)
	if err != nil {
		return err
	}
	if number := strconv.FormatInt(p.Number, 10); r.PathValue("ref") != number {
		http.Redirect(w, r.Request, "/provisions/"+number, http.StatusFound)
		return nil
	}
	c.render(w, r, http.StatusOK, "provision", view{Nav: "provisions", Data: p})
	return nil
}

// provisionPart answers with a part of that page as it is now.
func (c *console) provisionPart(name string) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		p, err := c.runPage(r, name == "inventory")
		if err != nil {
			return err
		}
		c.part(w, r, "provision", name, p)
		return nil
	}
}

// runPage reads what the page shows. whole: the resources as well.
func (c *console) runPage(r *request, whole bool) (*runPage, error) {
	p, err := provisionOf(r)
	if err != nil {
		return nil, err
	}
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return nil, err
	}
	page := newRunPage(p, run, r)
	if id := tracing.TraceOf(deref(p.Traceparent)); id != "" && c.TraceURL != "" {
		page.TraceURL = strings.ReplaceAll(c.TraceURL, "{trace_id}", id)
	}
	if whole {
		if page.Exists, err = r.store.Resources(r.Context(), run.WorkspaceID); err != nil {
			return nil, err
		}
		key := store.ProvisionKey{ID: p.ID, WorkspaceID: run.WorkspaceID}
		if page.Machines, err = r.store.ProvisionMachines(r.Context(), key); err != nil {
			return nil, err
		}
		if page.Places, err = r.store.ProvisionReservations(r.Context(), key); err != nil {
			return nil, err
		}
	}
	if p.Status == provision.AwaitingInput && page.MayAnswer() {
		if page.Answerers, err = r.store.Members(r.Context(), run.OrgID); err != nil {
			return nil, err
		}
		page.Answerers = slices.DeleteFunc(page.Answerers, func(m store.Member) bool { return !atLeast(m.Role, "operator") })
	}
	if p.Operation == "refresh" && p.Status == "SUCCESS" {
		page.Drift, err = r.store.Drift(r.Context(), run.WorkspaceID)
	}
	return page, err
}

// provisionOf is the one that the path names.
func provisionOf(r *request) (store.Provision, error) {
	p, err := r.store.Provision(r.Context(), r.PathValue("ref"))
	if _, ok := errors.AsType[*store.NotProvisionError](err); ok {
		err = refuse("provision_not_found", strconv.Quote(r.PathValue("ref")))
	}
	return p, err
}

// runPage is what the page of a provision shows.
type runPage struct {
	store.Provision
	Run      store.Run
	Drift    store.Drift
	Exists   []store.Resource
	Machines []store.Machine     // that this run has changed last
	Places   []store.Reservation // of machines, that were reserved for this run

	Role string
	// Answerers are who may be asked to do the work of a run, and typed and InputError what
	// was answered and refused.
	Answerers  []store.Member
	InputError string
	typed      url.Values
	// TraceURL is where its trace is, "" where nobody has said.
	TraceURL string
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
func (p *runPage) URL() string { return runPath(p.Number) }

func runPath(number int64) string { return fmt.Sprintf("/provisions/%d", number) }

// Log is its log.
func (p *runPage) Log() logView {
	return logView{URL: fmt.Sprintf("/api/v1/provisions/%d/logs", p.Number), Over: p.Over()}
}

// Over reports whether it has ended.
func (p *runPage) Over() bool { return p.Status.Terminal() }

// Mark changes when the parts of the page do that do not follow each step.
func (p *runPage) Mark() string {
	return fmt.Sprintf("%s %s %v %d %d", p.Status, deref(p.PlanDigest), p.Plan != nil, len(p.Outputs), p.Run.Resources)
}

// Reason is why it was asked for, as who asked has said.
func (p *runPage) Reason() string { return p.meta("reason") }

// By is who started it.
func (p *runPage) By() actor {
	by := actorOf(p.Run.RequestedBy, p.RequestedBy)
	by.Me = by.Name == "" && p.RequestedBy != nil && *p.RequestedBy == p.me
	return by
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

// ShownOutputs are its outputs, in order.
func (p *runPage) ShownOutputs() []output { return outputsOf(&p.Provision) }

// PlanFolded reports whether the plan is shown folded: it is long, or is not what
// one comes for.
func (p *runPage) PlanFolded() bool {
	return !p.Status.Awaits() && (p.Operation != provision.OperationPlan || longPlan(p.Plan))
}

func longPlan(p *provision.PlanSummary) bool {
	lines := 0
	for _, r := range p.Resources {
		lines += 1 + len(r.Attributes)
	}
	return lines > 120
}

// Failed reports whether it did not do what was asked.
func (p *runPage) Failed() bool {
	return p.Status == provision.Failed || p.Status == provision.Cancelled
}

// Failure is why it failed, or was cancelled.
func (p *runPage) Failure() failure {
	return failure{Code: deref(p.ErrorCode), Message: deref(p.ErrorMessage)}
}

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

// Waits are the reasons for which it does not start yet.
func (p *runPage) Waits() []wait {
	return waits(p.Provision, workspacePath(p.Run.WorkspaceID.String()))
}

// Requester is the key to which the run's sensitive outputs are sealed.
func (p *runPage) Requester() *requester { return requesterIn(p.Snapshot) }

// HasSealed reports whether it has any.
func (p *runPage) HasSealed() bool { return hasSealed(&p.Provision) }

// stepGroup is what one machine, or the run itself, goes through.
type stepGroup struct {
	Machine string // the address; "" for the run
	Steps   []stepView
}

// stepView is one step and how long it took, or has taken so far.
type stepView struct {
	store.Step
	Took time.Duration
}

// StepGroups are the run's steps by machine.
func (p *runPage) StepGroups() (groups []stepGroup) {
	for _, step := range p.Steps {
		if len(groups) == 0 || groups[len(groups)-1].Machine != step.Machine {
			groups = append(groups, stepGroup{Machine: step.Machine})
		}
		v := stepView{Step: step}
		if step.StartedAt != nil {
			end := p.AsOf
			if step.EndedAt != nil {
				end = *step.EndedAt
			}
			v.Took = max(0, end.Sub(*step.StartedAt))
		}
		last := &groups[len(groups)-1]
		last.Steps = append(last.Steps, v)
	}
	return groups
}

// StageRows are the stages it has reached by attempt and, while it goes on, those
// that are still ahead.
func (p *runPage) StageRows() []stageRow {
	var rows []stageRow
	for _, s := range p.Stages {
		if len(rows) == 0 || rows[len(rows)-1].Attempt != s.Attempt {
			rows = append(rows, stageRow{Attempt: s.Attempt})
		}
		v := stageView{Key: fmt.Sprintf("%d-%s", s.Attempt, s.Stage), Stage: s.Stage, State: "done", Seq: p.startOf(s.Attempt, s.Stage)}
		end := p.AsOf
		switch {
		case s.EndedAt != nil:
			end = *s.EndedAt
		case s.Stage == provision.StageQueued || s.Stage == provision.StageApproval || s.Stage == provision.StageInput:
			v.State = "waiting"
		default:
			v.State = "running"
		}
		v.Took = max(0, end.Sub(s.StartedAt))
		last := &rows[len(rows)-1]
		last.Stages = append(last.Stages, v)
	}
	if len(rows) == 0 {
		return nil
	}
	last := &rows[len(rows)-1]
	if p.Failed() {
		last.Stages[len(last.Stages)-1].State = "failed"
	} else if !p.Over() {
		at := p.Stages[len(p.Stages)-1].Stage
		for _, ahead := range p.ahead(at) {
			last.Stages = append(last.Stages, stageView{Stage: ahead, State: "ahead"})
		}
	}
	return rows
}

// ahead are the stages that come after one, as far as the operation tells.
func (p *runPage) ahead(at provision.Stage) (list []provision.Stage) {
	after := slices.Index(provision.Stages, at) + 1
	for _, s := range provision.Stages[after:] {
		switch s {
		case provision.StageApproval, provision.StageInput: // nobody knows before the plan is there
		case provision.StageApply, provision.StageOutputs:
			if p.Operation == provision.OperationApply || p.Operation == provision.OperationDestroy {
				list = append(list, s)
			}
		default:
			list = append(list, s)
		}
	}
	return list
}

func (p *runPage) startOf(attempt int, stage provision.Stage) int64 {
	for _, s := range p.Run.Starts {
		if s.Attempt == attempt && s.Stage == stage {
			return s.Seq
		}
	}
	return 0
}

// Progress is how much is done, in percent; nil where nobody knows.
func (p *runPage) Progress() *int {
	if p.Status != provision.Processing {
		return nil
	}
	return p.Percent
}

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

// MayReject: operators may reject a plan.
func (p *runPage) MayReject() bool {
	return p.operator() && p.Status == provision.AwaitingApproval
}

func (p *runPage) MayApprove() bool { return p.MayReject() && p.MayNotApprove() == "" }

// MayNotApprove says why the reader may not approve the plan; "" where they may.
func (p *runPage) MayNotApprove() string {
	switch {
	case !p.operator():
		return "role"
	case !atLeast(p.Role, p.Run.Approvers):
		return "admin"
	case p.Run.FourEyes && p.RequestedBy == nil:
		return "unknown"
	case p.Run.FourEyes && *p.RequestedBy == p.me:
		return "requester"
	}
	return ""
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
type act func(r *request, p store.Provision) (to string, said flash, err error)

// onProvision mounts an act for a form. The database's no is shown on the page
// that was there.
func (c *console) onProvision(do act) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		p, err := provisionOf(r)
		if err != nil {
			return err
		}
		to, said, err := do(r, p)
		if refused, ok := errors.AsType[*store.RefusedError](err); ok && refused.Status() < 500 {
			c.redirect(w, r, runPath(p.Number), refusedFlash(refused))
			return nil
		}
		if err != nil {
			return err
		}
		c.redirect(w, r, to, said)
		return nil
	}
}

func approve(r *request, p store.Provision) (string, flash, error) {
	_, err := r.store.Approve(r.Context(), p.ID, r.PostFormValue("plan_digest"))
	return runPath(p.Number), done("run-approved"), err
}

func reject(r *request, p store.Provision) (string, flash, error) {
	return runPath(p.Number), done("run-rejected"), r.store.Reject(r.Context(), p.ID, r.PostFormValue("reason"))
}

func cancel(r *request, p store.Provision) (string, flash, error) {
	status, err := r.store.Cancel(r.Context(), p.ID)
	if status == provision.Cancelled {
		return runPath(p.Number), done("run-cancelled"), err
	}
	return runPath(p.Number), done("run-stopping"), err
}

func retry(r *request, p store.Provision) (string, flash, error) {
	id, err := r.store.Retry(r.Context(), p.ID, r.PostFormValue("requester_key"))
	if err != nil {
		return "", flash{}, err
	}
	return queued(r, id.String())
}

func planAgain(r *request, p store.Provision) (string, flash, error) {
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return "", flash{}, err
	}
	return queueAgain(r, run.ClusterID, provision.OperationPlan, p.Snapshot, p.Workspace)
}

// destroy queues the destruction of what the newest apply in the workspace made.
func destroy(r *request, p store.Provision) (string, flash, error) {
	if r.PostFormValue("confirm") != p.Workspace {
		return "", flash{}, refuse("not_confirmed", p.Workspace)
	}
	run, err := r.store.Run(r.Context(), p.ID)
	if err != nil {
		return "", flash{}, err
	}
	cluster, last, err := r.store.LastApplied(r.Context(), store.Workspace{ID: run.WorkspaceID, Name: p.Workspace})
	if err != nil {
		return "", flash{}, err
	}
	return queueAgain(r, cluster, provision.OperationDestroy, last, p.Workspace)
}

// queueAgain queues an operation with the template, the variables and the engine
// of a snapshot, and nothing else of it: targets, a reason and the like were for
// that one time.
func queueAgain(r *request, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage, workspace string) (string, flash, error) {
	data, err := provision.Again(snapshot, workspace, "the console", r.PostFormValue("requester_key"), nil)
	if err != nil {
		return "", flash{}, refuse("bad_snapshot", provision.AsFailure(err).Message)
	}
	click, err := uuid.Parse(r.PostFormValue("click"))
	if err != nil {
		return "", flash{}, refuse("no_token")
	}
	made, err := r.store.DeployAs(r.Context(), click, cluster, operation, data)
	if err != nil {
		return "", flash{}, err
	}
	return runPath(made.Number), done("run-queued", text(made.Number)), nil
}

func queued(r *request, ref string) (string, flash, error) {
	p, err := r.store.Provision(r.Context(), ref)
	return runPath(p.Number), done("run-queued", text(p.Number)), err
}
