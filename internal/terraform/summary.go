package terraform

import (
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Summarise counts what a plan would do to resources and lists the changes in
// the plan's order. A replacement counts as one Replace and as no Add or
// Destroy. Changes of outputs alone leave the summary empty, although such a
// plan has something to apply: ask what Plan returned.
func Summarise(plan *tfjson.Plan) provision.PlanSummary {
	var s provision.PlanSummary
	for _, change := range plan.ResourceChanges {
		if change == nil || change.Change == nil || change.Mode == tfjson.DataResourceMode {
			continue
		}
		action := count(&s, change)
		if action == "" {
			continue
		}
		if len(s.Resources) == provision.MaxPlanResources {
			s.Truncated++
			continue
		}
		s.Resources = append(s.Resources, provision.PlannedChange{Address: change.Address, Action: action})
	}
	return s
}

// count adds one change to the summary and names its action, "" for none. A
// move or an import may come with an update and then goes by the update's
// name, yet both are counted.
func count(s *provision.PlanSummary, change *tfjson.ResourceChange) (action string) {
	if change.PreviousAddress != "" && change.PreviousAddress != change.Address {
		s.Move++
		action = "move"
	}
	if change.Change.Importing != nil {
		s.Import++
		action = "import"
	}
	actions := change.Change.Actions
	switch {
	case actions.Create():
		s.Add++
		return "create"
	case actions.Update():
		s.Change++
		return "update"
	case actions.Delete():
		s.Destroy++
		return "delete"
	case actions.Replace():
		s.Replace++
		return "replace"
	case actions.Forget():
		s.Forget++
		return "forget"
	}
	return action
}

// Steps is how many steps the plan's apply takes, to count its progress by: a
// replacement is two.
func Steps(s provision.PlanSummary) int {
	return s.Add + s.Change + s.Destroy + 2*s.Replace
}
