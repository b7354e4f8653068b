package console

import (
	"errors"
	"net/http"

	"github.com/tendril-run/tendril/internal/controlplane/placement"
	"github.com/tendril-run/tendril/internal/controlplane/planned"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// previewData is where the machines of a form would go.
type previewData struct {
	placement.Preview
	// Unknown is why that can't be said yet, Refused why they have no places.
	Unknown string
	Refused *store.RefusedError
}

// previewed answers, for the form as it is filled in now, where its machines would go.
func (c *console) previewed(w http.ResponseWriter, r *request) error {
	z, text, err := c.sent(w, r)
	if err != nil {
		return err
	}
	var d previewData
	asked, err := provision.ParseSnapshot([]byte(text))
	if err != nil {
		d.Unknown = "Fix the errors in the form to see where machines go."
	} else {
		workspace, _ := asked.WorkspaceName() // "" where it is not filled in
		d.Preview, err = placement.For(r.Context(), r.store, r.org.ID, z.Cluster.ID, workspace, asked)
		if unknown, is := errors.AsType[*placement.UnknownError](err); is {
			d.Unknown = unknown.Text
		} else if d.Refused = refusal(err); err != nil && d.Refused == nil {
			return err
		}
	}
	c.part(w, r, "deploy", "placement", d)
	return nil
}

// listedNames answers with the names of a list or a CSV that a person has put into the form.
func (c *console) listedNames(w http.ResponseWriter, r *request) error {
	machines, err := planned.Read(r.PostForm.Get("machines"), wire.PlannedMachine{})
	if err != nil {
		return answerJSON(w, map[string]string{"problem": capital(err.Error())})
	}
	names := make([]string, len(machines))
	for i, m := range machines {
		names[i] = m.Name
	}
	return answerJSON(w, map[string][]string{"names": names})
}
