package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// mostWorkspaces are offered to be chosen from; any other can be typed.
const mostWorkspaces = 100

// configureStep is the form of a deploy. Without script it is the snapshot as
// JSON; with it, deploy.js draws a form from what is declared, beside the JSON.
type configureStep struct {
	Snapshot string // JSON, for people
	// Posted is true when the snapshot is what has just been sent and refused: it
	// goes before what the browser has kept.
	Posted   bool
	Problems []problem
	// Key is what variables are sealed to, with its fingerprint; "" for none yet.
	Key, Fingerprint string
	Workspaces       []string
	Versions         []store.TemplateVersion
	declared
}

// declared is what is known of the variables of a template's version.
type declared struct{ store.Inspection }

// Why says why there is no form, and what comes next; "" where there is one.
func (d declared) Why() string {
	switch {
	case d.Inspected:
		return ""
	case d.Problem != "" && d.Status == store.InspectionFailed:
		return "It could not be looked at: " + d.Problem
	case d.Status == store.InspectionHanded, d.Status == store.InspectionQueued:
		return "This server cannot read the repository, so an agent is to look at it. That takes a moment, once an agent is online."
	case d.Status == store.InspectionWanted:
		return "It is being looked at, for the first time. That takes a moment."
	}
	return "Nobody has looked at this version yet."
}

// Soon is true while it is being looked at.
func (d declared) Soon() bool { return soon(d.Status, d.Inspected) }

func soon(status string, inspected bool) bool {
	return !inspected && (status == store.InspectionWanted || status == store.InspectionQueued || status == store.InspectionHanded)
}

// Failed is true where it could not be looked at, and nothing is known.
func (d declared) Failed() bool { return !d.Inspected && d.Status == store.InspectionFailed }

// VariablesJSON is for the page's script.
func (d declared) VariablesJSON() (string, error) {
	if !d.Inspected {
		return "", nil
	}
	text, err := json.Marshal(d.Variables)
	return string(text), err
}

// ProblemsJSON is for the page's script, which puts each beside its field.
func (s *configureStep) ProblemsJSON() (string, error) {
	text, err := json.Marshal(s.Problems)
	return string(text), err
}

// configure fills in the step. An empty snapshot begins anew.
func (z *wizard) configure(r *request, snapshot string, problems []problem) (err error) {
	s := &configureStep{Snapshot: snapshot, Posted: snapshot != "", Problems: problems, Key: z.Cluster.AgePublicKey}
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
	s.declared, err = z.variablesOf(r, z.Source)
	z.Step, z.Configure = "configure", s
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

// lookAt has a template inspected that is not in the catalogue.
func (c *console) lookAt(w http.ResponseWriter, r *request) error {
	z, _, err := c.sent(w, r)
	if err != nil {
		return err
	}
	if err := r.store.InspectTemplate(r.Context(), r.org.ID, z.Source.Repo, z.Source.Version, z.Source.Path); err != nil {
		return err
	}
	http.Redirect(w, r.Request, z.URL("configure"), http.StatusSeeOther)
	return nil
}

// declares answers whether a template's version has been looked at by now, for
// the page that waits for it.
func (c *console) declares(w http.ResponseWriter, r *request) error {
	z, err := c.wizard(r)
	if err != nil {
		return err
	}
	d, err := z.variablesOf(r, z.Source)
	if err != nil {
		return err
	}
	return answerJSON(w, map[string]any{"soon": d.Soon()})
}

// may tells whether a role is that or above. It only decides what is shown or
// tried: what may be done is the database's to say.
func may(r *request, least string) bool { return atLeast(r.org.Role, least) }
