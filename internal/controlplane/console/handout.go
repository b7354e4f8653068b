package console

import (
	"net/http"
	"slices"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// MayHandOut reports whether this person may have the credentials of the machines handed out.
func (d workspaceData) MayHandOut() bool {
	return atLeast(d.Org.Role, "admin") && slices.ContainsFunc(d.Machines, func(m machineCard) bool {
		return slices.Contains(m.M.Actions, provision.MachineReveals)
	})
}

// revealWorkspace queues the reveal of all machines' credentials, sealed to the key in the
// browser that asks, and shows the page that opens them.
func (c *console) revealWorkspace(w http.ResponseWriter, r *request) error {
	found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
	if err != nil {
		return err
	}
	var queued store.Deployed
	if r.PostFormValue("requester_key") == "" {
		err = refuse("no_requester_key")
	} else {
		queued, err = deployAgain(r, found, provision.OperationState, wire.RevealAll)
	}
	if no := refusal(err); no != nil {
		return c.refuseWorkspace(w, r, "machines", "reveal", no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, runPath(queued.Number)+"/handout", flash{}) // that page says how far it is
	return nil
}

// handOutData is the page on which a browser opens the credentials of a workspace's machines.
// The server has them only as a message that is sealed to a person's key.
type handOutData struct {
	*runPage
	Sealed string // the message; "" while there is none
}

// HandsOut reports whether the run reveals all machines of its workspace.
func (p *runPage) HandsOut() bool {
	s, err := provision.ParseSnapshot(p.Snapshot)
	return err == nil && p.Operation == provision.OperationState && s.State != nil && s.State.Command == "reveal" && len(s.State.Args) == 0
}

func (c *console) handOut(w http.ResponseWriter, r *request) error {
	p, err := c.runPage(r, false)
	if err != nil {
		return err
	}
	if !p.HandsOut() {
		return refuse("no_handout", text(p.Number))
	}
	d := handOutData{runPage: p}
	if p.Requester() != nil {
		d.Sealed = p.Outputs[provision.HandOutOutput].Sealed
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "handout", "handout", d)
		return nil
	}
	c.render(w, r, http.StatusOK, "handout", view{Nav: "workspaces", Data: d})
	return nil
}
