package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// reviewStep is what will happen, to be agreed to. Ready is false where only the
// browser knows what was filled in: its script sends that to reviewed.
type reviewStep struct {
	Ready bool
	// Token becomes the provision's id, so that a second click makes no second.
	Token     uuid.UUID
	Title     string
	Snapshot  string
	Workspace string
	// Target is the workspace; nil where this deploy makes it.
	Target   *store.Target
	Changes  []change
	Asked    provision.Snapshot
	Commit   string // which the version stands for; "" before its first use
	Sealed   int
	Modes    []mode
	Problems []problem
	Refused  *store.RefusedError
}

// mode is a way to run a deploy.
type mode struct {
	Name, Title, Text string
	Chosen            bool
	// Against says why it cannot be chosen.
	Against string
}

// reviewed answers with what will happen: as a page, as a part of one (htmx), or
// to a script that asks for JSON with what is wrong alone.
func (c *console) reviewed(w http.ResponseWriter, r *request) error {
	z, text, err := c.sent(w, r)
	if err != nil {
		return err
	}
	asked, workspace, problems := z.check(text, provision.OperationApply)
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		return answerJSON(w, map[string]any{"problems": append([]problem{}, problems...)})
	}
	if len(problems) > 0 && r.Header.Get("HX-Request") == "" {
		return c.refuseConfigured(w, r, z, text, problems)
	}
	if err := z.review(r, text, asked, workspace, problems); err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "deploy", "review", z)
		return nil
	}
	c.showDeploy(w, r, http.StatusOK, z)
	return nil
}

// sent reads a posted snapshot and the URL that it was posted to.
func (c *console) sent(w http.ResponseWriter, r *request) (*wizard, string, error) {
	z, err := c.wizard(r)
	if err != nil {
		return nil, "", err
	}
	if z.Cluster == nil || z.Source.Repo == "" {
		return nil, "", &store.RefusedError{Code: "PT422", Reason: "not_chosen", Message: "Choose a cluster and a template first.", Hint: z.Missing}
	}
	return z, r.PostForm.Get("config_snapshot"), nil
}

func answerJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(value)
}

// refuseConfigured shows the form again, with what is wrong.
func (c *console) refuseConfigured(w http.ResponseWriter, r *request, z *wizard, text string, problems []problem) error {
	if err := z.configure(r, text, problems); err != nil {
		return err
	}
	c.showDeploy(w, r, http.StatusUnprocessableEntity, z)
	return nil
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

// Foreign is the template that the workspace is bound to, if that is another one.
func (s *reviewStep) Foreign() string {
	if s.Target == nil || s.Target.Repo == nil || s.Target.Path == nil {
		return ""
	}
	if store.SameTemplate(*s.Target.Repo, *s.Target.Path, s.Asked.TemplateSource.Repo, s.Asked.TemplateSource.Path) {
		return ""
	}
	return strings.TrimSuffix(*s.Target.Repo+"//"+*s.Target.Path, "//")
}

// FromNumber is the provision that was applied last there.
func (s *reviewStep) FromNumber() string { return strconv.FormatInt(*s.Target.Number, 10) }

// Reason is why, in the words of who asks.
func (s *reviewStep) Reason() string {
	var reason string
	_ = json.Unmarshal(s.Asked.Meta["reason"], &reason) // another's own may be no text
	return reason
}

// rule is the strictest of what the cluster and the catalogue want.
func (z *wizard) rule(source provision.TemplateSource) (rule, whose string) {
	rule, whose = z.Cluster.Approval, "the cluster "+z.Cluster.Name
	for _, e := range z.Catalogue {
		stricter := e.Approval == "always" && rule != "always" || e.Approval == "destructive" && rule == "never"
		if stricter && store.SameTemplate(e.Repo, e.Path, source.Repo, source.Path) {
			rule, whose = e.Approval, "the template "+e.Name
		}
	}
	return rule, whose
}

// modes are the ways to run it. Whatever is chosen, the database has the last
// word on what must be approved.
func (z *wizard) modes(asked provision.Snapshot) []mode {
	rule, whose := z.rule(asked.TemplateSource)
	direct := mode{Name: "apply", Title: "Apply at once", Text: "Makes a plan and applies it, without asking."}
	switch {
	case rule == "always":
		direct.Against = "Not here: " + whose + " wants every plan approved."
	case rule == "destructive":
		direct.Text = "Makes a plan and applies it. A plan that destroys or replaces something waits for approval: " + whose + " wants that."
	case asked.Approval == provision.ApprovalDestructive:
		direct.Text = "Makes a plan and applies it. A plan that destroys or replaces something waits for approval, as its JSON says."
	}
	return []mode{
		{Name: "plan-first", Title: "Plan first", Text: "Makes a plan and shows it. Nothing is changed until somebody approves that very plan.", Chosen: true},
		direct,
		{Name: "plan", Title: "Only plan", Text: "Shows what would change. Nothing is applied, and nothing waits."},
	}
}
