package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// actingTools offers what makes or changes something.
func (s *Server) actingTools() {
	add(s, "plan", "Plan a deploy", "Makes a run that says what a deploy with the same arguments would change, and changes nothing. "+aboutMarks, hints{only: powers.changes}, plan)
	add(s, "deploy", "Propose a deploy", "Makes a run that deploys a template into a workspace. Its plan waits for a person's yes, unless this token may apply in that workspace. "+aboutMarks, hints{destroys: true, only: powers.changes}, deploy)
	add(s, "destroy", "Propose to destroy a workspace", "Makes a run that would destroy everything in a workspace. Its plan always waits for a yes. Use it only when the person has asked for exactly this. "+aboutMarks, hints{destroys: true, only: powers.destroys}, destroy)
	add(s, "retry", "Retry a run", "Makes a run that does once more what an ended run was asked for. Its plan waits as that of a deploy. "+aboutMarks, hints{destroys: true, only: powers.changes}, retry)
	add(s, "cancel", "Cancel a run", "Cancels a run that waits, or asks its agent to stop it. What it has changed stays. "+aboutMarks, hints{destroys: true, repeatable: true, only: powers.changes}, cancel)
	add(s, "draw_up_machines", "Draw up machines", "Notes machines that are wanted, for a person to provision. They are listed as planned, and nothing is made. "+aboutMarks, hints{repeatable: true, only: powers.changes}, drawUpMachines)
	add(s, "approve", "Approve a plan", "Approves the plan of that digest, so that it is applied. Only for a plan that you have shown to the person who then said yes. "+aboutMarks, hints{destroys: true, only: powers.approves}, approve)
}

type deployInput struct {
	Template  string                     `json:"template" jsonschema:"the template, by its name in the catalogue"`
	Version   string                     `json:"version,omitempty" jsonschema:"a tag or a full commit; none: the version that is offered first"`
	Workspace string                     `json:"workspace" jsonschema:"the workspace, such as acme/prod; a new name makes a new one"`
	Cluster   string                     `json:"cluster,omitempty" jsonschema:"the cluster, by name; none: the only one"`
	Variables map[string]json.RawMessage `json:"variables,omitempty" jsonschema:"values of the template's variables, by name; never of sensitive ones"`
	Reason    string                     `json:"reason,omitempty" jsonschema:"why, for the people who read the run"`
	Wait      int                        `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the plan or the end, from 0 to 300; none: do not wait"`
}

func plan(ctx context.Context, c *call, in deployInput) (runAnswer, error) {
	return c.start(ctx, in, provision.OperationPlan)
}

func deploy(ctx context.Context, c *call, in deployInput) (runAnswer, error) {
	return c.start(ctx, in, provision.OperationApply)
}

// start makes a run of a template.
func (c *call) start(ctx context.Context, in deployInput, operation provision.Operation) (runAnswer, error) {
	t, declared, err := c.declared(ctx, in.Template, in.Version)
	if err != nil {
		return runAnswer{}, err
	}
	if in.Workspace == "" {
		return runAnswer{}, errors.New("workspace is missing: it names the state that this belongs to, such as acme/prod. Ask the person which, or call \"workspaces\" for those there are")
	}
	cluster, err := c.cluster(ctx, in.Cluster)
	if err != nil {
		return runAnswer{}, err
	}
	given, err := c.variables(ctx, t, declared, in.Variables)
	if err != nil {
		return runAnswer{}, err
	}
	asked := provision.Snapshot{
		TemplateSource: provision.TemplateSource{Repo: t.Repo, Version: t.Version, Path: t.Path}, TerraformVars: given, Workspace: in.Workspace, Meta: c.meta(in.Reason),
	}
	if operation != provision.OperationPlan {
		if asked.Approval, err = c.approval(ctx, in.Workspace); err != nil {
			return runAnswer{}, err
		}
	}
	data, err := json.Marshal(asked)
	if err != nil {
		return runAnswer{}, fmt.Errorf("encode the deploy: %w", err)
	}
	if _, err := provision.ParseSnapshot(data); err != nil {
		return runAnswer{}, err
	}
	queued, err := c.api.Deploy(ctx, cluster, operation, data)
	if err != nil {
		return runAnswer{}, err
	}
	return c.started(ctx, queued, in.Wait)
}

// meta is what a snapshot says of who made it.
func (c *call) meta(reason string) map[string]json.RawMessage {
	text := func(s string) json.RawMessage {
		data, _ := json.Marshal(s) // no text fails
		return data
	}
	meta := map[string]json.RawMessage{"triggered_by": text("tool " + c.tool)}
	if reason != "" {
		meta["reason"] = text(cut(reason, mostNote))
	}
	return meta
}

// approval is what a run of a workspace asks for: that its plan waits, unless the token may
// apply there. The database wants the same; to ask as well costs nothing.
func (c *call) approval(ctx context.Context, workspace string) (provision.Approval, error) {
	me, err := c.api.Me(ctx)
	if err != nil {
		return "", err
	}
	if powersOf(me).applies(workspace) {
		return "", nil // what template and cluster want
	}
	return provision.ApprovalAlways, nil
}

// cluster finds the id of a cluster by name; "" is the only one there is.
func (c *call) cluster(ctx context.Context, name string) (uuid.UUID, error) {
	found, err := c.api.FindCluster(ctx, name)
	if refused, ok := errors.AsType[*problem.RefusedError](err); ok && strings.HasPrefix(refused.Reason, "cluster_") {
		return uuid.Nil, c.missing(ctx, "cluster", name)
	}
	return found.ID, err
}

// started answers what made a run, once it was waited for.
func (c *call) started(ctx context.Context, queued wire.QueuedAnswer, seconds int) (runAnswer, error) {
	p, err := c.api.Provision(ctx, queued.ID.String())
	if err == nil {
		p, err = c.await(ctx, p, seconds)
	}
	if err != nil {
		// The run is there: without its number it would be asked for once more.
		return runAnswer{}, sentence("Run %d was made (%s), but how it stands can't be said: %s. Call \"run\" with that number, and do not make it again",
			queued.Number, c.page(queued.Number), c.explain(err))
	}
	return c.runAnswer(p), nil
}

type destroyInput struct {
	Workspace string   `json:"workspace" jsonschema:"the workspace, by name"`
	Targets   []string `json:"targets,omitempty" jsonschema:"only these resources, by their addresses; none: everything"`
	Reason    string   `json:"reason,omitempty" jsonschema:"why, for the people who read the run"`
	Wait      int      `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the plan, from 0 to 300; none: do not wait"`
}

func destroy(ctx context.Context, c *call, in destroyInput) (runAnswer, error) {
	w, err := c.findWorkspace(ctx, in.Workspace)
	if err != nil {
		return runAnswer{}, err
	}
	cluster, last, err := c.api.LastApplied(ctx, w.ID)
	if isNotFound(err) {
		return runAnswer{}, sentence("Nothing was ever deployed in workspace %s, so there is nothing to destroy", c.name(w.Name))
	}
	if err != nil {
		return runAnswer{}, err
	}
	snapshot, err := provision.Again(last, w.Name, "tool "+c.tool, "", func(s *provision.Snapshot) {
		s.Targets, s.Approval, s.Meta = in.Targets, provision.ApprovalAlways, c.meta(in.Reason)
	})
	if err != nil {
		return runAnswer{}, err
	}
	queued, err := c.api.Deploy(ctx, cluster, provision.OperationDestroy, snapshot)
	if err != nil {
		return runAnswer{}, err
	}
	return c.started(ctx, queued, in.Wait)
}

type retryInput struct {
	Run  int64 `json:"run" jsonschema:"the number of the ended run"`
	Wait int   `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the plan or the end, from 0 to 300; none: do not wait"`
}

func retry(ctx context.Context, c *call, in retryInput) (runAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return runAnswer{}, err
	}
	switch {
	case !p.Status.Terminal():
		return runAnswer{}, sentence("Run %d has not ended: it is %s. %s", p.Number, p.Status, c.nextStep(p))
	case p.Operation != provision.OperationPlan && p.Operation != provision.OperationApply && p.Operation != provision.OperationDestroy:
		return runAnswer{}, sentence("Run %d did %s, which no tool repeats: give the person %s", p.Number, p.Operation, c.page(p.Number))
	}
	approval, err := c.approval(ctx, p.Workspace)
	if err != nil {
		return runAnswer{}, err
	}
	if p.Operation == provision.OperationDestroy {
		approval = provision.ApprovalAlways
	}
	before, err := provision.ParseSnapshot(p.Snapshot)
	if err != nil {
		return runAnswer{}, err
	}
	cluster, err := c.cluster(ctx, p.Cluster)
	if err != nil {
		return runAnswer{}, err
	}
	snapshot, err := provision.Again(p.Snapshot, p.Workspace, "tool "+c.tool, "", func(s *provision.Snapshot) {
		s.Targets, s.Replace, s.TimeoutSeconds, s.MaxAttempts = before.Targets, before.Replace, before.TimeoutSeconds, before.MaxAttempts
		s.Meta = c.meta(fmt.Sprintf("retry of run %d", p.Number))
		if s.Approval = approval; approval == "" {
			s.Approval = before.Approval
		}
		if p.Operation == provision.OperationPlan {
			s.Approval = ""
		}
	})
	if err != nil {
		return runAnswer{}, err
	}
	queued, err := c.api.Deploy(ctx, cluster, p.Operation, snapshot)
	if err != nil {
		return runAnswer{}, err
	}
	return c.started(ctx, queued, in.Wait)
}

func cancel(ctx context.Context, c *call, in runInput) (runAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return runAnswer{}, err
	}
	if p.Status.Terminal() {
		answer := c.runAnswer(p)
		answer.Next = "It had ended before. " + answer.Next
		return answer, nil
	}
	if _, err := c.api.Cancel(ctx, p.ID); err != nil {
		return runAnswer{}, err
	}
	if p, err = c.find(ctx, in.Run); err != nil {
		return runAnswer{}, err
	}
	return c.runAnswer(p), nil
}

type machineInput struct {
	Name      string            `json:"name" jsonschema:"its name, unique in the workspace"`
	Pool      string            `json:"pool,omitempty" jsonschema:"the pool that it is to be in"`
	Image     string            `json:"image,omitempty" jsonschema:"what it is made from"`
	Cores     int               `json:"cores,omitempty"`
	MemoryMiB int               `json:"memory_mib,omitempty"`
	DiskGiB   int               `json:"disk_gib,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

type machinesPlan struct {
	Template  string                     `json:"template" jsonschema:"the template that makes them, by its name in the catalogue"`
	Version   string                     `json:"version,omitempty" jsonschema:"a tag or a full commit; none: the version that is offered first"`
	Workspace string                     `json:"workspace" jsonschema:"the workspace that they will belong to, such as acme/lab"`
	Cluster   string                     `json:"cluster,omitempty" jsonschema:"the cluster, by name; none: the only one"`
	Variables map[string]json.RawMessage `json:"variables,omitempty" jsonschema:"values of the template's variables, as far as they are known; never of sensitive ones"`
	Machines  []machineInput             `json:"machines" jsonschema:"the machines, from 1 to 100"`
}

type machinesDrawn struct {
	Workspace string   `json:"workspace"`
	Machines  []string `json:"machines" jsonschema:"their names"`
	URL       string   `json:"url" jsonschema:"where a person provisions them"`
	Next      string   `json:"next"`
}

// mostDrawn is how many machines one call draws up.
const mostDrawn = 100

func drawUpMachines(ctx context.Context, c *call, in machinesPlan) (machinesDrawn, error) {
	switch {
	case len(in.Machines) == 0 || len(in.Machines) > mostDrawn:
		return machinesDrawn{}, fmt.Errorf("machines has %d entries; allowed: 1 to %d", len(in.Machines), mostDrawn)
	case in.Workspace == "":
		return machinesDrawn{}, errors.New("workspace is missing: it names the state that the machines will belong to, such as acme/lab. Ask the person which")
	}
	t, declared, err := c.declared(ctx, in.Template, in.Version)
	if err != nil {
		return machinesDrawn{}, err
	}
	cluster, err := c.cluster(ctx, in.Cluster)
	if err != nil {
		return machinesDrawn{}, err
	}
	for name := range in.Variables {
		for _, v := range declared.Variables {
			if v.Name == name && v.Sensitive {
				return machinesDrawn{}, fmt.Errorf("variable %s is sensitive and can't be given by a tool: leave it out; the person fills it in when they provision the machines", c.name(name))
			}
		}
		if !declared.Inspected {
			return machinesDrawn{}, sentence(`Version %s of template %s was not scanned yet, so that nobody can say which variables are secrets. Call "template" in some seconds, or leave variables out`, c.name(t.Version), c.name(t.Name))
		}
	}
	snapshot, err := json.Marshal(provision.Snapshot{TemplateSource: provision.TemplateSource{Repo: t.Repo, Version: t.Version, Path: t.Path}, TerraformVars: in.Variables, Workspace: in.Workspace})
	if err != nil {
		return machinesDrawn{}, fmt.Errorf("encode the plan: %w", err)
	}
	body := wire.PlanMachinesBody{Cluster: cluster.String(), Snapshot: snapshot}
	answer := machinesDrawn{
		Workspace: c.name(in.Workspace), Machines: []string{}, URL: c.link("/machines?status=planned"),
		Next: `They are planned. Give the person the link: they provision them there.`,
	}
	for _, m := range in.Machines {
		body.Machines = append(body.Machines, wire.PlannedMachine{Name: m.Name, Pool: given(m.Pool), Image: given(m.Image), Cores: given(m.Cores), MemoryMiB: given(m.MemoryMiB), DiskGiB: given(m.DiskGiB), Labels: m.Labels})
		answer.Machines = append(answer.Machines, c.name(m.Name))
	}
	_, err = c.api.PlanMachines(ctx, body)
	return answer, err
}

// given is a value that is left out when it is its zero.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

type approveInput struct {
	Run        int64  `json:"run" jsonschema:"the run's number"`
	PlanDigest string `json:"plan_digest" jsonschema:"the plan_digest that show_plan has told; no other plan is approved by it"`
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func approve(ctx context.Context, c *call, in approveInput) (runAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return runAnswer{}, err
	}
	if p.Status != provision.AwaitingApproval {
		return runAnswer{}, sentence("Run %d has no plan that waits: it is %s. %s", p.Number, p.Status, c.nextStep(p))
	}
	if !sha256Hex.MatchString(in.PlanDigest) {
		return runAnswer{}, errors.New(`plan_digest is missing or is no SHA-256 in hexadecimal: call "show_plan", show the person what changes, and give the plan_digest from there`)
	}
	if _, err := c.api.Approve(ctx, p.ID, in.PlanDigest); err != nil {
		return runAnswer{}, err
	}
	if p, err = c.find(ctx, in.Run); err != nil {
		return runAnswer{}, err
	}
	return c.runAnswer(p), nil
}
