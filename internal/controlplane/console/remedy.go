package console

import (
	"encoding/json"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// step is what to do about something that keeps a provision waiting: a link, or
// words alone where it is over by itself.
type step struct{ Word, Href string }

// remedy says what to do about a reason to wait. The words of reasons are
// stable; what is unknown here needs no step that we could name.
func remedy(reason store.Reason, p store.Provision) step {
	var detail struct {
		Number  int64  `json:"number"`
		Cluster string `json:"cluster"`
	}
	_ = json.Unmarshal(reason.Detail, &detail) // then it names nothing
	workspace := "/workspaces?q=" + escapeQuery(p.Workspace)
	switch reason.Reason {
	case "awaits_approval":
		return step{"Review the plan", "/provisions/" + text(p.Number)}
	case "workspace_locked":
		return step{"See the lock", workspace}
	case "workspace_held", "state_kept":
		return step{"See what holds it", workspace}
	case "workspace_busy", "workspace_reserved", "queued_behind", "higher_priority":
		if detail.Number > 0 {
			return step{"Open provision " + text(detail.Number), "/provisions/" + text(detail.Number)}
		}
		return step{Word: "It has its turn after those before it"}
	case "cluster_paused":
		return step{"Resume " + p.Cluster, clusterPath(p.Cluster)}
	case "no_agent", "home_away", "engine_missing", "operation_refused":
		return step{"See the agents of " + p.Cluster, clusterPath(p.Cluster)}
	case "agent_too_old":
		return step{"Update the agents of " + p.Cluster, clusterPath(p.Cluster)}
	case "slots_busy":
		return step{"See what runs on " + p.Cluster, clusterPath(p.Cluster)}
	case "not_due":
		return step{Word: "It begins by itself"}
	}
	return step{}
}
