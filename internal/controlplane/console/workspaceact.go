package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// act is one of a workspace's forms: it does what was asked for and says how it
// went, or returns why not. Its tab and name are where a refusal is shown.
func (c *console) act(tab, form string, do func(*request, store.Situation) (flash, error)) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
		if err != nil {
			return err
		}
		said, err := do(r, found)
		if no := refusal(err); no != nil {
			return c.refuseWorkspace(w, r, tab, form, no)
		} else if err != nil {
			return err
		}
		to := workspacePath(found.ID.String())
		if tab != "" {
			to += "?tab=" + tab
		}
		c.redirect(w, r, to, said)
		return nil
	}
}

func lockWorkspace(r *request, w store.Situation) (flash, error) {
	return flash{Kind: "success", Text: w.Name + " is locked: nothing begins there until it is unlocked. What runs goes on."},
		r.store.Lock(r.Context(), w.ID, r.PostFormValue("reason"))
}

func unlockWorkspace(r *request, w store.Situation) (flash, error) {
	return flash{Kind: "success", Text: w.Name + " is unlocked."}, r.store.Unlock(r.Context(), w.ID, r.PostFormValue("reason"))
}

func releaseWorkspace(r *request, w store.Situation) (flash, error) {
	return flash{Kind: "success", Text: w.Name + " is released: what is queued there may begin."}, r.store.Release(r.Context(), w.ID, r.PostFormValue("reason"))
}

func rebindWorkspace(r *request, w store.Situation) (flash, error) {
	repo, path := strings.TrimSpace(r.PostFormValue("repo")), strings.TrimSpace(r.PostFormValue("path"))
	return flash{Kind: "success", Text: w.Name + " may be deployed to from " + repo + " now."}, r.store.Rebind(r.Context(), w.ID, repo, path, r.PostFormValue("reason"))
}

func scheduleDrift(r *request, w store.Situation) (flash, error) {
	seconds, err := strconv.Atoi(r.PostFormValue("every"))
	if err != nil {
		return flash{}, &store.RefusedError{Code: "PT422", Reason: "bad_interval", Message: "Choose how often to look for drift."}
	}
	every := time.Duration(seconds) * time.Second
	said := "Drift of " + w.Name + " is looked for only when somebody asks."
	if seconds > 0 {
		said = "Drift of " + w.Name + " is looked for every " + duration(every) + "."
	}
	return flash{Kind: "success", Text: said}, r.store.WatchDrift(r.Context(), w.ID, every)
}

func checkDrift(r *request, w store.Situation) (flash, error) {
	queued, err := r.again(w, provision.OperationRefresh)
	return flash{Kind: "success", Text: "Provision " + strconv.FormatInt(queued.Number, 10) + " looks for drift; this page shows what it finds."}, err
}

// destroyWorkspace queues the end of all that a workspace has, once its name has
// been typed, and shows that provision.
func (c *console) destroyWorkspace(w http.ResponseWriter, r *request) error {
	found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
	if err != nil {
		return err
	}
	if typed := strings.TrimSpace(r.PostFormValue("confirm")); typed != found.Name {
		return c.refuseWorkspace(w, r, "settings", "destroy", &store.RefusedError{Code: "PT422", Reason: "not_confirmed",
			Message: "What was typed is not the name of this workspace: nothing was destroyed.", Hint: "Type " + found.Name + " as it stands here."})
	}
	queued, err := r.again(found, provision.OperationDestroy)
	if no := refusal(err); no != nil {
		return c.refuseWorkspace(w, r, "settings", "destroy", no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/provisions/"+strconv.FormatInt(queued.Number, 10), flash{Kind: "success", Text: "Everything in " + found.Name + " is to be destroyed; this is the run that does it."})
	return nil
}
