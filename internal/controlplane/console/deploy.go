package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/planned"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// wizard is a deploy that is being put together. What is chosen stands in the
// URL, so that back, forward and reload work and a link can be shared; what is
// filled in stays in the browser until it is sent.
type wizard struct {
	Step string // cluster, template, configure or review
	// Asked are the URL's own words.
	Asked url.Values

	Places    []store.Place
	Catalogue []store.Template

	Cluster *store.Place // chosen; nil: not yet
	// Entry is the template of the catalogue; nil where a repository is named.
	Entry  *store.Template
	Source provision.TemplateSource
	// From is the provision that is to be repeated or changed.
	From *store.Provision
	// Planned are the machines that are to be provisioned, all of one workspace, and Ask what
	// that asks for, once it is known.
	Planned []store.Machine
	Ask     *planned.Ask

	MayDeploy bool
	// MissingCluster and MissingTemplate are what the URL names and nobody knows.
	MissingCluster, MissingTemplate string

	Configure *configureStep
	Review    *reviewStep
}

// steps are the wizard's, in their order.
var steps = []string{"cluster", "template", "configure", "review"}

func (c *console) deployPages() {
	c.page("GET /deploy", c.deploy)
	c.page("POST /deploy/review", c.reviewed)
	c.page("POST /deploy", c.deployNow)
	c.page("POST /deploy/inspect", c.lookAt)
	c.page("GET /deploy/declared", c.declares)
	c.page("POST /deploy/preview", c.previewed)
	c.page("POST /deploy/names", c.listedNames)
}

// deploy is the page of a deploy's steps.
func (c *console) deploy(w http.ResponseWriter, r *request) error {
	z, err := c.wizard(r)
	if err != nil {
		return err
	}
	switch z.Step {
	case "configure":
		err = z.configure(r, "", nil)
	case "review":
		z.Review = &reviewStep{} // filled in by what the browser keeps: reviewed
	}
	if err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" && (z.Step == "cluster" || z.Step == "template") {
		c.part(w, r, "deploy", "choices", z)
		return nil
	}
	c.showDeploy(w, r, http.StatusOK, z)
	return nil
}

func (c *console) showDeploy(w http.ResponseWriter, r *request, status int, z *wizard) {
	c.render(w, r, status, "deploy", view{Nav: "deploy", Data: z})
}

// wizard reads the URL.
func (c *console) wizard(r *request) (z *wizard, err error) {
	asked := r.URL.Query()
	z = &wizard{Asked: asked, MayDeploy: may(r, "operator")}
	if z.Places, err = r.store.Places(r.Context(), r.org.ID); err != nil {
		return nil, err
	}
	if z.Catalogue, err = r.store.Catalogue(r.Context(), r.org.ID); err != nil {
		return nil, err
	}
	if from := asked.Get("from"); from != "" {
		found, err := r.store.Provision(r.Context(), from)
		if _, no := errors.AsType[*store.NotProvisionError](err); no {
			err = refuse("provision_not_found", strconv.Quote(from))
		}
		if err != nil {
			return nil, err
		}
		z.From = &found
	}
	if err := z.choosePlanned(r); err != nil {
		return nil, err
	}
	z.chooseCluster()
	z.chooseTemplate()
	z.Step = z.reached(asked.Get("step"))
	return z, nil
}

// choosePlanned looks for the machines that are planned: one, or all of a workspace.
func (z *wizard) choosePlanned(r *request) (err error) {
	if id := z.Asked.Get("machine"); id != "" {
		m, _, err := plannedMachine(r, id)
		z.Planned = []store.Machine{m}
		return err
	}
	if id := z.Asked.Get("planned"); id != "" {
		w, err := r.store.Situation(r.Context(), r.org.ID, id)
		if err != nil {
			return err
		}
		if z.Planned, err = r.store.PlannedMachines(r.Context(), w.ID, nil, planned.Most+1); err != nil {
			return err
		} else if len(z.Planned) == 0 {
			return refuse("none_planned", w.Name)
		} else if len(z.Planned) > planned.Most {
			return refuse("many_planned", w.Name)
		}
	}
	return nil
}

func (z *wizard) chooseCluster() {
	ref := z.Asked.Get("cluster")
	if ref == "" && len(z.Planned) > 0 {
		ref = z.Planned[0].Cluster
	}
	if ref == "" && z.From != nil {
		ref = z.From.Cluster
	}
	if ref == "" && len(z.Places) == 1 && z.Asked.Get("step") != "cluster" {
		z.Cluster = &z.Places[0]
		return
	}
	i := slices.IndexFunc(z.Places, func(p store.Place) bool { return p.Name == ref || p.ID.String() == ref })
	if i >= 0 {
		z.Cluster = &z.Places[i]
	} else if ref != "" {
		z.MissingCluster = ref
	}
}

func (z *wizard) chooseTemplate() {
	name, repo := z.Asked.Get("template"), z.Asked.Get("repo")
	path, version := z.Asked.Get("path"), z.Asked.Get("version")
	var before *provision.TemplateSource
	if z.From != nil {
		before = &provision.TemplateSource{Repo: z.From.Template.Repo, Path: z.From.Template.Path, Version: z.From.Template.Version}
	} else if len(z.Planned) > 0 {
		var plan provision.Snapshot
		if json.Unmarshal(z.Planned[0].Plan, &plan) == nil { // as the database took it
			before = &plan.TemplateSource
		}
	}
	if name == "" && repo == "" && before != nil {
		repo, path = before.Repo, before.Path
		version = cmp.Or(version, before.Version)
		i := slices.IndexFunc(z.Catalogue, func(e store.Template) bool { return store.SameTemplate(e.Repo, e.Path, repo, path) })
		if i >= 0 {
			name = z.Catalogue[i].Name
		}
	}
	switch {
	case name != "":
		i := slices.IndexFunc(z.Catalogue, func(e store.Template) bool { return e.Name == name || e.ID.String() == name })
		if i < 0 {
			z.MissingTemplate = name
			return
		}
		z.Entry = &z.Catalogue[i]
		z.Source = provision.TemplateSource{Repo: z.Entry.Repo, Path: z.Entry.Path, Version: cmp.Or(version, z.Entry.Version)}
	case repo != "" && version != "":
		z.Source = provision.TemplateSource{Repo: repo, Path: path, Version: version}
	}
}

// reached is the step that was asked for, or the first one before it that lacks
// something.
func (z *wizard) reached(asked string) string {
	switch {
	case z.Cluster == nil || asked == "cluster":
		return "cluster"
	case z.Source.Repo == "" || asked == "template":
		return "template"
	case asked == "review":
		return "review"
	}
	return "configure"
}

// URL is this page at a step, with other choices put in.
func (z *wizard) URL(step string, changes ...string) string {
	q := url.Values{}
	if z.Cluster != nil {
		q.Set("cluster", z.Cluster.Name)
	}
	if z.Entry != nil {
		q.Set("template", z.Entry.Name)
	} else if z.Source.Repo != "" {
		q.Set("repo", z.Source.Repo)
		if z.Source.Path != "" {
			q.Set("path", z.Source.Path)
		}
	}
	if z.Source.Version != "" {
		q.Set("version", z.Source.Version)
	}
	if z.From != nil {
		q.Set("from", strconv.FormatInt(z.From.Number, 10))
	}
	for _, name := range []string{"planned", "machine"} {
		if value := z.Asked.Get(name); value != "" {
			q.Set(name, value)
		}
	}
	for i := 0; i+1 < len(changes); i += 2 {
		if changes[i] == "template" { // another one: nothing of this one's
			for _, name := range []string{"repo", "path", "version", "from", "planned", "machine"} {
				q.Del(name)
			}
		}
		q.Set(changes[i], changes[i+1])
	}
	q.Set("step", step)
	return "/deploy?" + q.Encode()
}

// stepLink is one step as the page's head shows it.
type stepLink struct {
	Name, Chosen, URL string
	Now               bool
}

// Steps are the links of the page's head; one without a URL cannot be reached
// yet.
func (z *wizard) Steps() []stepLink {
	links := make([]stepLink, len(steps))
	now := slices.Index(steps, z.Step)
	for i, name := range steps {
		links[i] = stepLink{Name: name, Now: i == now}
		if i < now {
			links[i].URL = z.URL(name)
		}
	}
	if z.Cluster != nil {
		links[0].Chosen = z.Cluster.Name
	}
	if z.Source.Repo != "" {
		links[1].Chosen = z.Title()
	}
	return links
}

// Title names the template and its version.
func (z *wizard) Title() string { return z.titleOf(z.Source) }

func (z *wizard) titleOf(source provision.TemplateSource) string {
	for _, e := range z.Catalogue {
		if store.SameTemplate(e.Repo, e.Path, source.Repo, source.Path) && (z.Entry == nil || z.Entry.ID == e.ID || source != z.Source) {
			return e.Name + " " + source.Version
		}
	}
	return strings.TrimSuffix(source.Repo[strings.LastIndexAny(source.Repo, "/:")+1:], ".git") + " " + source.Version
}

// Query is what is chosen, for the forms of this page to be sent with.
func (z *wizard) Query() template.URL {
	_, query, _ := strings.Cut(z.URL(z.Step), "?")
	return template.URL(query) //nolint:gosec // encoded by net/url
}

// SourceJSON is the template that was chosen, for the page's script.
func (z *wizard) SourceJSON() (string, error) {
	text, err := json.Marshal(z.Source)
	return string(text), err
}

// Repo is the repository in the form in which sealed values name it.
func (z *wizard) Repo() string { return canonical.Address(z.Source.Repo) }

// DraftKey is under which the browser keeps what is filled in: of one template,
// whatever its version and cluster.
func (z *wizard) DraftKey() string {
	key := z.Repo() + "//" + z.Source.Path
	if z.From != nil {
		key += " " + strconv.FormatInt(z.From.Number, 10)
	}
	for _, m := range z.Planned {
		key += " " + m.ID.String() + m.UpdatedAt.Format(time.RFC3339Nano)
	}
	return key
}

// Choices are what the step offers.
func (z *wizard) Choices() choices {
	c := choices{Words: strings.TrimSpace(z.Asked.Get("q"))}
	if z.Step == "cluster" {
		c.All = len(z.Places)
		c.Places = choose(z.Places, c.Words, func(p store.Place) (string, string) {
			state := p.Connectivity
			if p.PausedAt != nil {
				state += " PAUSED"
			}
			return p.Name, state
		})
	} else {
		c.All = len(z.Catalogue)
		c.Entries = choose(z.Catalogue, c.Words, wordsOf)
	}
	c.More = c.Count() > mostChoices
	c.Places, c.Entries = c.Places[:min(len(c.Places), mostChoices)], c.Entries[:min(len(c.Entries), mostChoices)]
	c.Search = c.Words != "" || c.All >= searchedFrom
	return c
}

// Kept is what is chosen, for a form of this step to be sent with.
func (z *wizard) Kept() map[string]string {
	_, query, _ := strings.Cut(z.URL(z.Step), "?")
	chosen, _ := url.ParseQuery(query) // of our own making
	kept := map[string]string{}
	for name := range chosen {
		kept[name] = chosen.Get(name)
	}
	return kept
}

// configure fills in the step. Without a snapshot it starts from the beginning.
func (z *wizard) configure(r *request, snapshot string, problems []problem) (err error) {
	s := &configureStep{Snapshot: snapshot, Posted: snapshot != "", Problems: problems, Key: z.Cluster.AgePublicKey}
	if len(z.Planned) > 0 {
		ask, err := planned.For(r.Context(), r.store, r.org.ID, z.Source, z.Planned)
		if err != nil {
			return err
		}
		z.Ask = &ask
	}
	if !s.Posted {
		s.Snapshot, s.Problems = z.startingSnapshot(), failedAt(z.From)
	}
	if s.Key != "" {
		s.Fingerprint = seal.Fingerprint(s.Key)
	}
	if s.Workspaces, err = r.store.WorkspaceNames(r.Context(), z.Cluster.ID, z.Source.Repo, z.Source.Path, mostWorkspaces); err != nil {
		return err
	}
	if s.Versions, err = r.store.TemplateVersions(r.Context(), r.org.ID, z.Source.Repo); err != nil {
		return err
	}
	z.Step, z.Configure = "configure", s
	if s.declared, err = z.variablesOf(r, z.Source); err != nil || s.About == nil || s.About.Provisioner != "machine" {
		return err
	}
	s.Places, err = offeredPools(r, z.Cluster.ID)
	return err
}

// variablesOf asks what a template's version declares. What is in the catalogue is
// looked at where nobody has asked for that yet; of another repository somebody
// must say so, for a link alone must not have this server fetch anything.
func (z *wizard) variablesOf(r *request, source provision.TemplateSource) (d declared, err error) {
	if d.Inspection, err = r.store.TemplateVariables(r.Context(), r.org.ID, source.Repo, source.Version, source.Path); err != nil {
		return d, err
	}
	listed := slices.ContainsFunc(z.Catalogue, func(e store.Template) bool { return store.SameTemplate(e.Repo, e.Path, source.Repo, source.Path) })
	if d.Status != "" || !listed || !z.MayDeploy {
		return d, nil
	}
	err = r.store.InspectTemplate(r.Context(), r.org.ID, source.Repo, source.Version, source.Path)
	if _, no := errors.AsType[*store.RefusedError](err); no { // the form is JSON then
		return d, nil
	}
	d.Status = store.InspectionWanted
	return d, err
}

// review fills in the step.
func (z *wizard) review(r *request, text string, asked provision.Snapshot, workspace string, problems []problem) (err error) {
	// Of the JSON, which may have been changed to name another template.
	s := &reviewStep{Ready: true, Token: uuid.New(), Snapshot: text, Title: z.titleOf(asked.TemplateSource), Workspace: workspace, Asked: asked, Sealed: len(asked.SealedVars), Problems: problems}
	z.Step, z.Review = "review", s
	if len(problems) > 0 {
		return nil
	}
	versions, err := r.store.TemplateVersions(r.Context(), r.org.ID, asked.TemplateSource.Repo)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(versions, func(v store.TemplateVersion) bool { return v.Version == asked.TemplateSource.Version }); i >= 0 && versions[i].Commit != nil {
		s.Commit = *versions[i].Commit
	}
	if s.Target, err = r.store.FindTarget(r.Context(), z.Cluster.ID, workspace); err != nil {
		return err
	}
	if s.Target != nil && s.Target.Snapshot != nil {
		known, err := z.variablesOf(r, asked.TemplateSource)
		if err != nil {
			return err
		}
		s.Changes = compare(s.Target.Snapshot, asked, known.Variables)
	}
	s.Modes = z.modes(asked)
	return nil
}

// modes are the ways to run it. Whatever is chosen, the database has the last
// word on what must be approved.
func (z *wizard) modes(asked provision.Snapshot) []mode {
	direct := mode{Name: "apply", Approval: z.Cluster.Approval, Rule: "cluster", RuleName: z.Cluster.Name}
	for _, e := range z.Catalogue { // the strictest of the cluster's and the catalogue's rule counts
		stricter := e.Approval == "always" && direct.Approval != "always" || e.Approval == "destructive" && direct.Approval == "never"
		if stricter && store.SameTemplate(e.Repo, e.Path, asked.TemplateSource.Repo, asked.TemplateSource.Path) {
			direct.Approval, direct.Rule, direct.RuleName = e.Approval, "template", e.Name
		}
	}
	if direct.Approval == "never" && asked.Approval == provision.ApprovalDestructive {
		direct.Approval, direct.Rule = "destructive", "json"
	}
	return []mode{{Name: "plan-first", Chosen: true}, direct, {Name: "plan"}}
}

// startingSnapshot is what a form begins with: what a provision asked for, else
// the template alone. What was said of that one run is left out.
func (z *wizard) startingSnapshot() string {
	s := provision.Snapshot{}
	if z.Ask != nil {
		s = z.Ask.Snapshot
	} else if z.From != nil {
		if was, err := provision.ParseSnapshot(z.From.Snapshot); err == nil { // as the database took it
			s = provision.Snapshot{
				TerraformVars: was.TerraformVars, Workspace: was.Workspace, Terraform: was.Terraform,
				TimeoutSeconds: was.TimeoutSeconds, MaxAttempts: was.MaxAttempts, RequesterKey: was.RequesterKey,
			}
			if z.From.Cluster == z.Cluster.Name && canonical.Address(was.TemplateSource.Repo) == z.Repo() { // for which they were sealed
				s.SealedVars = was.SealedVars
			}
		}
		if s.Workspace == "" {
			if name, err := s.WorkspaceName(); err != nil || name != z.From.Workspace {
				s.Workspace = z.From.Workspace
			}
		}
	}
	s.TemplateSource = z.Source
	if s.TerraformVars == nil {
		s.TerraformVars = map[string]json.RawMessage{}
	}
	s.Meta = map[string]json.RawMessage{"triggered_by": json.RawMessage(`"console"`)}
	return pretty(struct { // with a place for variables, though there be none
		TemplateSource provision.TemplateSource   `json:"template_source"`
		TerraformVars  map[string]json.RawMessage `json:"terraform_vars"`
		provision.Snapshot
	}{s.TemplateSource, s.TerraformVars, s})
}

// SealedForJSON says for what each sealed value of the run was sealed from which
// this deploy begins, for the page's script.
func (z *wizard) SealedForJSON() (string, error) {
	known := map[string]sealedFor{}
	if z.Ask != nil { // what was applied in the same workspace
		for variable, message := range z.Ask.Snapshot.SealedVars {
			known[variable] = sealedFor{z.Cluster.Name, z.Ask.Snapshot.Workspace, canonical.Address(z.Ask.Snapshot.TemplateSource.Repo), message}
		}
	} else if z.From != nil {
		was, err := provision.ParseSnapshot(z.From.Snapshot)
		name, unnamed := was.WorkspaceName()
		if err == nil && unnamed == nil {
			for variable, message := range was.SealedVars {
				known[variable] = sealedFor{z.From.Cluster, name, canonical.Address(was.TemplateSource.Repo), message}
			}
		}
	}
	text, err := json.Marshal(known)
	return string(text), err
}

// sealedElsewhere says what is wrong with sealed values of the run from which this
// deploy began: they open where that run was, and nowhere else.
func (z *wizard) sealedElsewhere(asked provision.Snapshot) []problem {
	if z.From == nil {
		return nil
	}
	was, err := provision.ParseSnapshot(z.From.Snapshot)
	if err != nil {
		return nil // the agent compares
	}
	if err := was.SealedElsewhere(asked); err != nil {
		return problemsOf(err.Error())
	}
	var all []problem
	for _, name := range slices.Sorted(maps.Keys(asked.SealedVars)) {
		if z.From.Cluster != z.Cluster.Name && asked.SealedVars[name] == was.SealedVars[name] {
			all = append(all, problem{"config_snapshot.sealed_vars." + name, "it was sealed for the cluster " + z.From.Cluster + "; seal the value again"})
		}
	}
	return all
}

// check is checkSnapshot, and that nothing is asked for that no agent will open.
func (z *wizard) check(text string, operation provision.Operation) (provision.Snapshot, string, []problem) {
	s, workspace, problems := checkSnapshot(text, operation)
	if problems == nil {
		problems = z.sealedElsewhere(s)
	}
	return s, workspace, problems
}
