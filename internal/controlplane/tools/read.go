package tools

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// readTools offers what there is, apart from runs.
func (s *Server) readTools() {
	add(s, "whoami", "Who you act as", "Says whose token this is and what it may change. Call it first.", reading, whoami)
	add(s, "templates", "Templates", "Lists the templates of the catalogue that can be deployed. "+aboutMarks, reading, templates)
	add(s, "template", "One template", "Describes a template: what it says of itself, and each variable with its JSON Schema. Sensitive variables can't be given by a tool. "+aboutMarks, reading, template)
	add(s, "workspaces", "Workspaces", "Lists workspaces: each is one deployment with its own state. "+aboutMarks, reading, workspaces)
	add(s, "workspace", "One workspace", "Describes a workspace: what goes on there, its lock, drift, and the resources that exist. "+aboutMarks, reading, workspace)
	add(s, "machines", "Machines", "Lists machines with their state, size, addresses and health. "+aboutMarks, reading, machines)
	add(s, "pools", "Pools with free capacity", "Lists the pools that machines are made in, with what is free there. "+aboutMarks, reading, pools)
	add(s, "health", "Health", "Says what is wrong now: clusters without agents, pools that can't be reached, machines that are not healthy, runs that wait for a person. "+aboutMarks, reading, health)
}

// listing is what a tool takes that lists.
type listing struct {
	Limit  int    `json:"limit,omitempty" jsonschema:"the most entries of this answer, from 1 to 100; 0 or none: 25"`
	Cursor string `json:"cursor,omitempty" jsonschema:"the next_cursor of the answer before, to go on with the same list"`
}

const (
	usualEntries = 25
	mostEntries  = 100
)

func (l listing) limit() int {
	if l.Limit <= 0 {
		return usualEntries
	}
	return min(l.Limit, mostEntries)
}

// place is where an answer's list goes on: in which page of the server, and after how many
// of its entries, for an answer may end in the middle of one.
type place struct {
	Cursor string `json:"c,omitempty"`
	Limit  int    `json:"l,omitempty"`
	Skip   int    `json:"s,omitempty"`
}

func (p place) String() string {
	text, _ := json.Marshal(p) // texts and numbers
	return base64.RawURLEncoding.EncodeToString(text)
}

func (l listing) place() (place, error) {
	p := place{Limit: l.limit()}
	if l.Cursor == "" {
		return p, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(l.Cursor)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil || p.Limit < 1 || p.Limit > mostEntries || p.Skip < 0 {
		return p, fmt.Errorf("cursor %q is none of this list: give the next_cursor of the answer before, or none", cut(l.Cursor, 60))
	}
	return p, nil
}

// paged asks for one page of a list and translates as many entries as an answer may have.
// next is the cursor to go on with, "" at the end.
func paged[R, T any](l listing, ask func(client.Part) (wire.Page[R], error), to func(R) T) (entries []T, next string, err error) {
	at, err := l.place()
	if err != nil {
		return nil, "", err
	}
	page, err := ask(client.Part{Cursor: at.Cursor, Limit: at.Limit})
	if err != nil {
		return nil, "", err
	}
	items := page.Items[min(at.Skip, len(page.Items)):]
	entries, fitting := fit(items, mostPart, to)
	switch {
	case fitting < len(items):
		return entries, place{at.Cursor, at.Limit, at.Skip + fitting}.String(), nil
	case page.NextCursor != "":
		return entries, place{Cursor: page.NextCursor, Limit: at.Limit}.String(), nil
	}
	return entries, "", nil
}

// fit translates entries for as long as their weight is at most room, at least one.
func fit[R, T any](items []R, room int, to func(R) T) (entries []T, fitting int) {
	entries = []T{}
	for i, item := range items {
		entry := to(item)
		if room -= weight(entry); room < 0 && i > 0 {
			return entries, i
		}
		entries = append(entries, entry)
	}
	return entries, len(items)
}

// goOn ends the next step of a list.
func goOn(next, otherwise string) string {
	if next == "" {
		return otherwise
	}
	return "There is more: call again with cursor set to next_cursor. " + otherwise
}

// value is a value or its zero.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

type whoamiAnswer struct {
	Name          string   `json:"name"`
	Organisations []string `json:"organisations" jsonschema:"each with the person's role there"`
	Change        string   `json:"change" jsonschema:"nothing: this token only reads. propose: a change is a plan that waits for a person"`
	MayApply      []string `json:"may_apply" jsonschema:"workspaces where a change goes on without a person; * is any text"`
	Workspaces    []string `json:"workspaces" jsonschema:"the only workspaces of this token; none: all"`
	MayDestroy    bool     `json:"may_destroy"`
	MayApprove    bool     `json:"may_approve"`
	Next          string   `json:"next"`
}

func whoami(ctx context.Context, c *call, _ struct{}) (whoamiAnswer, error) {
	me, err := c.api.Me(ctx)
	if err != nil {
		return whoamiAnswer{}, err
	}
	p := powersOf(me)
	answer := whoamiAnswer{
		Name: c.name(me.Name), Organisations: []string{}, Change: p.Change, MayApply: c.names(p.MayApply), Workspaces: c.names(p.Workspaces),
		MayDestroy: p.destroys(), MayApprove: p.approves(),
		Next: `Call "templates" to see what can be deployed, or "workspaces" and "machines" to see what exists.`,
	}
	if answer.Name == "" {
		answer.Name = c.name(me.Email)
	}
	for _, org := range me.Orgs {
		answer.Organisations = append(answer.Organisations, c.name(org.Name)+" ("+org.Role+")")
	}
	return answer, nil
}

type templateEntry struct {
	Name        string `json:"name"`
	Version     string `json:"version" jsonschema:"the version that is offered first"`
	Repository  string `json:"repository"`
	Approval    string `json:"approval" jsonschema:"when its plans need a person's yes, besides the rules of a token: never, destructive or always"`
	Description string `json:"description_data,omitempty" jsonschema:"text of its author"`
}

type templatesAnswer struct {
	Templates  []templateEntry `json:"templates"`
	NextCursor string          `json:"next_cursor,omitempty"`
	Next       string          `json:"next"`
}

func templates(ctx context.Context, c *call, in listing) (templatesAnswer, error) {
	list, next, err := paged(in, func(p client.Part) (wire.Page[wire.Template], error) { return c.api.TemplatePage(ctx, p) }, func(t wire.Template) templateEntry {
		return templateEntry{Name: c.name(t.Name), Version: c.name(t.Version), Repository: c.name(t.Repo), Approval: t.Approval, Description: c.short(t.Description, mostNote)}
	})
	return templatesAnswer{list, next, goOn(next, `Call "template" with a name for its variables.`)}, err
}

type templateInput struct {
	Name    string `json:"name" jsonschema:"its name in the catalogue"`
	Version string `json:"version,omitempty" jsonschema:"a tag or a full commit; none: the version that is offered first"`
}

type variableEntry struct {
	Name        string          `json:"name"`
	Required    bool            `json:"required"`
	Sensitive   bool            `json:"sensitive" jsonschema:"a secret: a person fills it in at form_url, never a tool"`
	Schema      json.RawMessage `json:"schema" jsonschema:"the JSON Schema of its value"`
	Default     string          `json:"default_data,omitempty" jsonschema:"its default as JSON"`
	Description string          `json:"description_data,omitempty" jsonschema:"text of the template's author"`
}

type templateAnswer struct {
	templateEntry
	Known     bool            `json:"variables_known" jsonschema:"whether variables is all that this version declares"`
	Variables []variableEntry `json:"variables"`
	LeftOut   int             `json:"left_out,omitempty" jsonschema:"how many optional variables are not listed for want of room"`
	FormURL   string          `json:"form_url" jsonschema:"where a person deploys it, and fills in what is sensitive"`
	Next      string          `json:"next"`
}

func template(ctx context.Context, c *call, in templateInput) (templateAnswer, error) {
	t, declared, err := c.declared(ctx, in.Name, in.Version)
	if err != nil {
		return templateAnswer{}, err
	}
	answer := templateAnswer{
		templateEntry: templateEntry{Name: c.name(t.Name), Version: c.name(t.Version), Repository: c.name(t.Repo), Approval: t.Approval, Description: c.short(t.Description, 4*mostNote)},
		Known:         declared.Inspected, FormURL: c.form(t, ""),
		Next: `Call "plan" with this template, a workspace and the variables to see what would change.`,
	}
	if declared.About != nil && declared.About.Description != "" {
		answer.Description = c.short(declared.About.Description, 4*mostNote)
	}
	// Those that must be given first, in case there is no room for all.
	list := slices.Clone(declared.Variables)
	slices.SortStableFunc(list, func(a, b provision.Variable) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	var fitting int
	answer.Variables, fitting = fit(list, mostPart, func(v provision.Variable) variableEntry {
		entry := variableEntry{Name: c.name(v.Name), Required: v.Required, Sensitive: v.Sensitive, Schema: c.schemaOfType(v), Description: c.short(v.Description, mostNote)}
		if len(v.Default) > 0 {
			entry.Default = c.short(string(v.Default), mostNote)
		}
		return entry
	})
	answer.LeftOut = len(list) - fitting
	if !declared.Inspected {
		answer.Next = "This version was not scanned yet" + c.problem(declared.Problem) + `. Call "template" again in some seconds, or give the person the form_url.`
	}
	return answer, nil
}

// problem is a reason in other people's words, in brackets.
func (c *call) problem(text string) string {
	if text == "" {
		return ""
	}
	return " (" + c.short(text, mostNote) + ")"
}

// declared finds a template, and what a version of it declares. The template that is
// returned has that version.
func (c *call) declared(ctx context.Context, name, version string) (wire.Template, wire.Inspection, error) {
	if name == "" {
		return wire.Template{}, wire.Inspection{}, c.missing(ctx, "template", "")
	}
	t, err := c.api.Template(ctx, name)
	if err != nil {
		if isNotFound(err) {
			return t, wire.Inspection{}, c.missing(ctx, "template", name)
		}
		return t, wire.Inspection{}, err
	}
	if version != "" {
		t.Version = version
	}
	declared, err := c.api.TemplateVariables(ctx, t.ID.String(), version)
	if err == nil && !declared.Inspected && declared.Status == "" {
		declared, err = c.api.InspectTemplate(ctx, t.ID.String(), version)
	}
	return t, declared, err
}

// missing says that something is not there or was not said, and what there is instead.
func (c *call) missing(ctx context.Context, what, name string) error {
	var names []string
	switch what {
	case "template":
		if page, err := c.api.TemplatePage(ctx, client.Part{Limit: mostEntries}); err == nil {
			for _, t := range page.Items {
				names = append(names, t.Name)
			}
		}
	case "workspace":
		if page, err := c.api.WorkspacePage(ctx, "", client.Part{Limit: mostEntries}); err == nil {
			for _, w := range page.Items {
				names = append(names, w.Name)
			}
		}
	case "cluster":
		if list, err := c.api.Clusters(ctx); err == nil {
			for _, cluster := range list {
				names = append(names, cluster.Name)
			}
		}
	}
	slices.Sort(names)
	there := "there is none that you may see"
	if len(names) > 0 {
		there = "allowed: " + strings.Join(c.names(names), ", ")
	}
	if name == "" {
		return fmt.Errorf("%s is missing; %s", what, there)
	}
	return sentence("There is no %s %q, or you have no access to it; %s", what, c.name(name), there)
}

// form is the page where a person deploys a template.
func (c *call) form(t wire.Template, cluster string) string {
	q := url.Values{"template": {t.Name}, "version": {t.Version}, "step": {"configure"}}
	if cluster != "" {
		q.Set("cluster", cluster)
	}
	return c.link("/deploy?" + q.Encode())
}

type workspacesInput struct {
	listing
	Cluster string `json:"cluster,omitempty" jsonschema:"only those of this cluster, by name"`
}

type workspaceEntry struct {
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	Template  string `json:"template,omitempty" jsonschema:"repository//path that it belongs to"`
	Resources int    `json:"resources" jsonschema:"how many resources exist there"`
	Run       int64  `json:"run,omitempty" jsonschema:"the number of its newest run"`
	Status    string `json:"status,omitempty" jsonschema:"how that run stands"`
	Doing     string `json:"doing_data,omitempty" jsonschema:"what goes on there or keeps it from being used"`
}

func (c *call) workspaceEntry(w wire.Standing) workspaceEntry {
	return workspaceEntry{Name: c.name(w.Name), Cluster: c.name(w.Cluster), Template: c.name(w.Template), Resources: w.Resources, Run: value(w.Number), Status: value(w.Status), Doing: c.short(w.Doing, mostNote)}
}

type workspacesAnswer struct {
	Workspaces []workspaceEntry `json:"workspaces"`
	NextCursor string           `json:"next_cursor,omitempty"`
	Next       string           `json:"next"`
}

func workspaces(ctx context.Context, c *call, in workspacesInput) (workspacesAnswer, error) {
	list, next, err := paged(in.listing, func(p client.Part) (wire.Page[wire.Standing], error) {
		return c.api.WorkspacePage(ctx, in.Cluster, p)
	}, c.workspaceEntry)
	return workspacesAnswer{list, next, goOn(next, `Call "workspace" with a name for what exists there, or "runs" for what was done.`)}, err
}

type workspaceInput struct {
	listing
	Workspace string `json:"workspace" jsonschema:"the workspace, by name"`
}

type resourceEntry struct {
	Address    string   `json:"address"`
	Type       string   `json:"type"`
	ExternalID string   `json:"external_id,omitempty"`
	Addresses  []string `json:"ip_addresses,omitempty"`
	Status     string   `json:"status,omitempty"`
}

type workspaceAnswer struct {
	workspaceEntry
	LockedAt   *time.Time      `json:"locked_at,omitempty" jsonschema:"since when a person has kept it from running anything"`
	LockReason string          `json:"lock_reason_data,omitempty"`
	Drift      *int            `json:"drift,omitempty" jsonschema:"how many resources have changed outside of Tendril; none: not known"`
	URL        string          `json:"url"`
	Existing   []resourceEntry `json:"existing" jsonschema:"the resources that exist"`
	NextCursor string          `json:"next_cursor,omitempty" jsonschema:"goes on with the resources"`
	Next       string          `json:"next"`
}

// findWorkspace looks for a workspace by its name.
func (c *call) findWorkspace(ctx context.Context, name string) (wire.WorkspaceDetail, error) {
	if name == "" {
		return wire.WorkspaceDetail{}, c.missing(ctx, "workspace", "")
	}
	w, err := c.api.FindWorkspace(ctx, name)
	if isNotFound(err) {
		return w, c.missing(ctx, "workspace", name)
	}
	return w, err
}

func workspace(ctx context.Context, c *call, in workspaceInput) (workspaceAnswer, error) {
	w, err := c.findWorkspace(ctx, in.Workspace)
	if err != nil {
		return workspaceAnswer{}, err
	}
	list, next, err := paged(in.listing, func(p client.Part) (wire.Page[wire.Resource], error) { return c.api.ResourcePage(ctx, w.ID, p) }, func(r wire.Resource) resourceEntry {
		return resourceEntry{Address: c.name(r.Address), Type: c.name(r.Type), ExternalID: c.name(value(r.ExternalID)), Addresses: c.names(r.IPAddresses), Status: value(r.Status)}
	})
	return workspaceAnswer{
		workspaceEntry: c.workspaceEntry(w.Standing), LockedAt: w.LockedAt, LockReason: c.short(value(w.LockReason), mostNote), Drift: w.DriftCount,
		URL: c.link("/workspaces/" + w.ID.String()), Existing: list, NextCursor: next,
		Next: goOn(next, `Call "outputs" for its outputs, "plan" for what a change would do, or "destroy" to propose its end.`),
	}, err
}

type machinesInput struct {
	listing
	Words     string `json:"words,omitempty" jsonschema:"only those with this in the name, an IP address or the external id"`
	Workspace string `json:"workspace,omitempty" jsonschema:"only those of this workspace"`
	Status    string `json:"status,omitempty" jsonschema:"only those that are planned, reserved, creating, running, stopped, failed, unknown or gone"`
	Pool      string `json:"pool,omitempty" jsonschema:"only those of this pool"`
	Health    string `json:"health,omitempty" jsonschema:"only those that are healthy, unhealthy or unknown"`
}

type machineEntry struct {
	Name      string   `json:"name"`
	Workspace string   `json:"workspace"`
	Status    string   `json:"status"`
	Pool      string   `json:"pool,omitempty"`
	Node      string   `json:"node,omitempty"`
	Image     string   `json:"image,omitempty"`
	Addresses []string `json:"ip_addresses,omitempty"`
	Cores     int      `json:"cores,omitempty"`
	MemoryMiB int      `json:"memory_mib,omitempty"`
	DiskGiB   int      `json:"disk_gib,omitempty"`
	Run       int64    `json:"run,omitempty" jsonschema:"the run that last changed it"`
	Health    string   `json:"health,omitempty"`
	HealthWhy string   `json:"health_why_data,omitempty"`
}

func (c *call) machineEntry(m wire.Machine) machineEntry {
	return machineEntry{
		Name: c.name(m.Name), Workspace: c.name(m.Workspace), Status: m.Status, Pool: c.name(value(m.Pool)), Node: c.name(value(m.Node)), Image: c.name(value(m.Image)),
		Addresses: c.names(m.IPAddresses), Cores: value(m.Cores), MemoryMiB: value(m.MemoryMiB), DiskGiB: value(m.DiskGiB),
		Run: value(m.Number), Health: value(m.Health), HealthWhy: c.short(value(m.HealthWhy), mostNote),
	}
}

type machinesAnswer struct {
	Machines   []machineEntry `json:"machines"`
	NextCursor string         `json:"next_cursor,omitempty"`
	Next       string         `json:"next"`
}

func machines(ctx context.Context, c *call, in machinesInput) (machinesAnswer, error) {
	filter := client.MachineFilter{Words: in.Words, Workspace: in.Workspace, Status: in.Status, Pool: in.Pool, Health: in.Health}
	list, next, err := paged(in.listing, func(p client.Part) (wire.Page[wire.Machine], error) { return c.api.MachinePage(ctx, filter, p) }, c.machineEntry)
	return machinesAnswer{list, next, goOn(next, `Call "workspace" with the workspace of a machine for the rest of it.`)}, err
}

type poolsInput struct {
	listing
	Cluster string `json:"cluster,omitempty" jsonschema:"only those of this cluster, by name"`
}

type poolEntry struct {
	Name          string   `json:"name"`
	Cluster       string   `json:"cluster"`
	Kind          string   `json:"kind"`
	State         string   `json:"state" jsonschema:"reachable, unreachable or stale"`
	Problem       string   `json:"problem_data,omitempty"`
	Nodes         int      `json:"nodes"`
	NodesOnline   int      `json:"nodes_online"`
	Machines      int      `json:"machines"`
	FreeCores     float64  `json:"free_cores" jsonschema:"processor cores that are neither in use nor reserved since"`
	FreeMemoryMiB float64  `json:"free_memory_mib" jsonschema:"memory in MiB that is neither in use nor reserved since"`
	Images        []string `json:"images" jsonschema:"images that machines can be made from"`
}

func (c *call) poolEntry(p wire.Pool) poolEntry {
	free := func(all, used, reserved float64) float64 { return math.Round(max(0, all-used-reserved)*10) / 10 }
	return poolEntry{
		Name: c.name(p.Name), Cluster: c.name(p.Cluster), Kind: c.name(p.Kind), State: p.State, Problem: c.short(value(p.Problem), mostNote),
		Nodes: p.Nodes, NodesOnline: p.Online, Machines: p.Machines,
		FreeCores: free(float64(p.Cores), p.CoresUsed, p.CoresNew), FreeMemoryMiB: free(float64(p.MemoryMiB), p.MemoryUsed, p.MemoryNew),
		Images: c.names(p.Images),
	}
}

type poolsAnswer struct {
	Pools      []poolEntry `json:"pools"`
	NextCursor string      `json:"next_cursor,omitempty"`
	Next       string      `json:"next"`
}

func pools(ctx context.Context, c *call, in poolsInput) (poolsAnswer, error) {
	list, next, err := paged(in.listing, func(p client.Part) (wire.Page[wire.Pool], error) {
		all, err := c.api.Pools(ctx, in.Cluster)
		return wire.Page[wire.Pool]{Items: all}, err // the server has them in one page
	}, c.poolEntry)
	return poolsAnswer{list, next, goOn(next, `Call "templates" for what makes machines in a pool, or "machines" with a pool for what is there.`)}, err
}

type clusterEntry struct {
	Name         string     `json:"name"`
	Connectivity string     `json:"connectivity" jsonschema:"ONLINE, STALE or OFFLINE"`
	Paused       bool       `json:"paused,omitempty"`
	Agents       int        `json:"agents"`
	LastSeen     *time.Time `json:"last_seen,omitempty"`
}

type healthAnswer struct {
	Well      bool           `json:"well" jsonschema:"whether nothing is wrong"`
	Clusters  []clusterEntry `json:"clusters" jsonschema:"the clusters"`
	Pools     []poolEntry    `json:"pools" jsonschema:"those that are not reachable"`
	Machines  []machineEntry `json:"machines" jsonschema:"those that are unhealthy"`
	Waiting   []runEntry     `json:"waiting" jsonschema:"runs that wait for a person"`
	Truncated bool           `json:"truncated,omitempty" jsonschema:"there is more than is listed"`
	Next      string         `json:"next"`
}

func health(ctx context.Context, c *call, _ struct{}) (healthAnswer, error) {
	answer := healthAnswer{Well: true, Clusters: []clusterEntry{}, Pools: []poolEntry{}, Next: `Call "machines" with health unhealthy, "run" with a run's number, or "pools" for more.`}
	clusters, err := c.api.Clusters(ctx)
	if err != nil {
		return answer, err
	}
	// Four lists share an answer.
	const room = mostPart / 4
	of := func(fitting, all int, next string) {
		answer.Truncated = answer.Truncated || fitting < all || next != ""
	}
	var fitting int
	answer.Clusters, fitting = fit(clusters, room, func(cluster wire.Cluster) clusterEntry {
		return clusterEntry{c.name(cluster.Name), cluster.Connectivity, cluster.PausedAt != nil, len(cluster.Agents), cluster.LastSeenAt}
	})
	of(fitting, len(clusters), "")
	for _, cluster := range clusters {
		answer.Well = answer.Well && cluster.Connectivity == "ONLINE" && cluster.PausedAt == nil
	}
	all, err := c.api.Pools(ctx, "")
	if err != nil {
		return answer, err
	}
	all = slices.DeleteFunc(all, func(p wire.Pool) bool { return p.State == "reachable" })
	answer.Pools, fitting = fit(all, room, c.poolEntry)
	of(fitting, len(all), "")
	sick, err := c.api.MachinePage(ctx, client.MachineFilter{Health: "unhealthy"}, client.Part{Limit: usualEntries})
	if err != nil {
		return answer, err
	}
	answer.Machines, fitting = fit(sick.Items, room, c.machineEntry)
	of(fitting, len(sick.Items), sick.NextCursor)
	waiting, err := c.api.ProvisionPage(ctx, client.ProvisionFilter{Status: "AWAITING_APPROVAL,AWAITING_INPUT"}, client.Part{Limit: usualEntries})
	if err != nil {
		return answer, err
	}
	answer.Waiting, fitting = fit(waiting.Items, room, c.runEntry)
	of(fitting, len(waiting.Items), waiting.NextCursor)
	answer.Well = answer.Well && len(answer.Pools)+len(answer.Machines)+len(answer.Waiting) == 0
	return answer, nil
}
