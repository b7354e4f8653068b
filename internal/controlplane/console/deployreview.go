package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
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

// mode is a way to run a deploy: plan-first, apply or plan.
type mode struct {
	Name   string
	Chosen bool
	// Approval is the rule that apply meets, and Rule says what makes it: cluster,
	// template or json, with its name.
	Approval, Rule, RuleName string
}

// Refused reports whether it can't be chosen.
func (m mode) Refused() bool { return m.Name == "apply" && m.Approval == "always" }

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
		return nil, "", refuse("not_chosen")
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

// Requester is the key to which sensitive outputs are to be sealed.
func (s *reviewStep) Requester() *requester { return requesterOf(s.Asked.RequesterKey) }

// choose marks the mode that was asked for.
func (s *reviewStep) choose(name string) {
	for i := range s.Modes {
		s.Modes[i].Chosen = s.Modes[i].Name == name
	}
}

// deployNow queues what was reviewed. What the database refuses is shown where
// it can be fixed: next to the fields, or above the review.
func (c *console) deployNow(w http.ResponseWriter, r *request) error {
	z, text, err := c.sent(w, r)
	if err != nil {
		return err
	}
	id, err := uuid.Parse(r.PostForm.Get("token"))
	if err != nil {
		return refuse("no_token")
	}
	operation, snapshot, problems := asMode(r.PostForm.Get("mode"), text)
	if problems == nil {
		_, _, problems = z.check(text, operation)
	}
	if len(problems) > 0 {
		return c.refuseConfigured(w, r, z, text, problems)
	}
	queued, err := r.store.DeployAs(r.Context(), id, z.Cluster.ID, operation, snapshot)
	refused, no := errors.AsType[*store.RefusedError](err)
	switch {
	case err == nil:
		http.Redirect(w, r.Request, "/provisions/"+strconv.FormatInt(queued.Number, 10), http.StatusSeeOther)
		return nil
	case !no || refused.Status() >= http.StatusInternalServerError:
		return err
	case refused.Reason == "bad_snapshot" || refused.Reason == "bad_operation":
		return c.refuseConfigured(w, r, z, text, problemsOf(refused.Message))
	}
	asked, workspace, problems := checkSnapshot(text, operation)
	if err := z.review(r, text, asked, workspace, problems); err != nil {
		return err
	}
	z.Review.Refused = refused
	z.Review.choose(r.PostForm.Get("mode"))
	c.showDeploy(w, r, refused.Status(), z)
	return nil
}

// asMode is the snapshot as a mode has it: "plan first" is an apply that is
// approved in any case.
func asMode(name, text string) (operation provision.Operation, snapshot json.RawMessage, problems []problem) {
	operation = provision.OperationApply
	if name == "plan" {
		operation = provision.OperationPlan
	}
	if _, _, problems := checkSnapshot(text, operation); len(problems) > 0 {
		return operation, nil, problems
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil { // it was read before
		return operation, nil, []problem{{Message: err.Error()}}
	}
	switch {
	case name == "plan":
		delete(members, "approval")
	case name == "plan-first":
		members["approval"] = json.RawMessage(`"always"`)
	case string(members["approval"]) == `"always"`: // what was asked for now counts
		delete(members, "approval")
	}
	snapshot, err := json.Marshal(members)
	if err != nil {
		return operation, nil, []problem{{Message: err.Error()}}
	}
	return operation, snapshot, nil
}

// longestShown is how much of a value a change shows.
const longestShown = 400

// compare says what differs between the newest snapshot that was applied and what
// is asked for now.
func compare(applied json.RawMessage, asked provision.Snapshot, declared []provision.Variable) (found []change) {
	was, err := provision.ParseSnapshot(applied)
	if err != nil {
		return nil // of an older contract: it cannot be compared, and nothing depends on it
	}
	add := func(name string, before, now shownValue) {
		none := shownValue{}
		switch {
		case before == now:
		case before == none:
			found = append(found, change{"create", name, none, now})
		case now == none:
			found = append(found, change{"delete", name, before, none})
		default:
			found = append(found, change{"update", name, before, now})
		}
	}
	add("version", shownValue{Text: was.TemplateSource.Version}, shownValue{Text: asked.TemplateSource.Version})
	add("engine", shownValue{Text: engineOf(was)}, shownValue{Text: engineOf(asked)})
	secret := map[string]bool{}
	for _, v := range declared {
		secret[v.Name] = v.Sensitive
	}
	names := map[string]bool{}
	for _, s := range []provision.Snapshot{was, asked} {
		for name := range s.TerraformVars {
			names[name] = true
		}
		for name := range s.SealedVars {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, now := shown(was, name, secret[name]), shown(asked, name, secret[name])
		if before == now && valueOf(was, name) != valueOf(asked, name) {
			now.Other = true // sealed, hidden, or longer than what is shown
		}
		add(name, before, now)
	}
	return found
}

// valueOf is a variable's value in one form, to be compared.
func valueOf(s provision.Snapshot, name string) string {
	if message, ok := s.SealedVars[name]; ok {
		return message
	}
	return plainText(s.TerraformVars[name], "")
}

// shown is what people may see of a variable's value; nothing where it has none.
func shown(s provision.Snapshot, name string, secret bool) shownValue {
	value, plain := s.TerraformVars[name]
	_, isSealed := s.SealedVars[name]
	switch {
	case isSealed:
		return shownValue{Sealed: true}
	case !plain:
		return shownValue{}
	case secret:
		return shownValue{Hidden: true}
	}
	text := []rune(plainText(value, "  "))
	if len(text) > longestShown {
		return shownValue{Text: string(text[:longestShown]) + "…"}
	}
	return shownValue{Text: string(text)}
}

// plainText writes a value in one form, its names sorted and its numbers as they
// are.
func plainText(raw json.RawMessage, indent string) string {
	if raw == nil {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if d.Decode(&value) != nil {
		return string(raw)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	_ = e.Encode(value) // what was decoded can be encoded
	return string(bytes.TrimSpace(out.Bytes()))
}

func engineOf(s provision.Snapshot) string {
	text := s.Terraform.Engine
	if s.Terraform.Version != "" {
		text += " " + s.Terraform.Version
	}
	return text
}
