package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// deployNow queues what was reviewed. What the database refuses is shown where
// it can be mended: beside the fields, or above the review.
func (c *console) deployNow(w http.ResponseWriter, r *request) error {
	z, text, err := c.sent(w, r)
	if err != nil {
		return err
	}
	id, err := uuid.Parse(r.PostForm.Get("token"))
	if err != nil {
		return &store.RefusedError{Code: "PT422", Reason: "no_token", Message: "This form is not complete.", Hint: "Load the page again."}
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

// choose marks the mode that was asked for.
func (s *reviewStep) choose(name string) {
	for i := range s.Modes {
		s.Modes[i].Chosen = s.Modes[i].Name == name
	}
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
