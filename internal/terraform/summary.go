package terraform

import (
	"cmp"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Summarise counts what a plan would do to resources and lists the changes in
// the plan's order. A replacement counts as one Replace and as no Add or
// Destroy. Changes of outputs alone leave the summary empty, although such a
// plan has something to apply: ask what Plan returned.
//
// Where there are more changes than a summary lists, those that take something
// away are listed first. What is deleted or forgotten goes as a whole, so its
// attributes are not listed; the engine's own text in the log has them.
func Summarise(plan *tfjson.Plan) provision.PlanSummary {
	var s provision.PlanSummary
	var sources []*tfjson.ResourceChange
	for _, change := range plan.ResourceChanges {
		if change == nil || change.Change == nil || change.Mode == tfjson.DataResourceMode {
			continue
		}
		if action := count(&s, change); action != "" {
			s.Resources, sources = append(s.Resources, plannedChange(change, action)), append(sources, change)
		}
	}
	listed := gravest(s.Resources)
	s.Truncated = len(s.Resources) - len(listed)
	for i, from := range listed {
		s.Resources[i] = s.Resources[from] // never before its own place
		describeChange(&s.Resources[i], sources[from].Change)
	}
	s.Resources = s.Resources[:len(listed)]
	return s
}

// plannedChange is a change without its attributes.
func plannedChange(change *tfjson.ResourceChange, action string) provision.PlannedChange {
	planned := provision.PlannedChange{Address: change.Address, Action: action, Reason: string(change.ActionReason)}
	if action == "forget" {
		planned.Reason = "" // which would be one to delete
	}
	if change.DeposedKey != "" {
		planned.Reason = "deposed" // left over from a replacement that failed
	}
	if change.PreviousAddress != change.Address {
		planned.From = change.PreviousAddress
	}
	if change.Change.Importing != nil {
		planned.ID = change.Change.Importing.ID
	}
	return planned
}

// describeChange adds the attributes that change.
func describeChange(planned *provision.PlannedChange, change *tfjson.Change) {
	switch planned.Action {
	case "create", "update", "replace":
		planned.Attributes, planned.Truncated = attributeChanges(change)
	}
}

// gravest returns the places, in order, of as many changes as a summary lists.
func gravest(changes []provision.PlannedChange) []int {
	places := make([]int, len(changes))
	for i := range places {
		places[i] = i
	}
	if len(places) <= provision.MaxPlanResources {
		return places
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(gravity(changes[b]), gravity(changes[a])) })
	places = places[:provision.MaxPlanResources]
	slices.Sort(places)
	return places
}

func gravity(change provision.PlannedChange) int {
	switch change.Action {
	case "replace", "delete", "forget":
		return 2
	case "update":
		return 1
	default:
		return 0
	}
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
	case actions.Replace(), isForgetful(actions):
		s.Replace++
		return "replace"
	case actions.Forget():
		s.Forget++
		return "forget"
	case !actions.NoOp() && !actions.Read():
		// Of an engine newer than this program. It may destroy, so who wants to be
		// asked before that is asked.
		s.Replace++
		return "replace"
	}
	return action
}

// isForgetful reports whether a replacement leaves the old object in the world,
// which terraform-json does not know of.
func isForgetful(actions tfjson.Actions) bool {
	return len(actions) == 2 && slices.Contains(actions, tfjson.ActionForget) && slices.Contains(actions, tfjson.ActionCreate)
}

// Steps is how many steps the plan's apply takes, to count its progress by: a
// replacement is two.
func Steps(s provision.PlanSummary) int {
	return s.Add + s.Change + s.Destroy + 2*s.Replace
}
