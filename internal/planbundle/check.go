package planbundle

import (
	"fmt"

	"github.com/tendril-run/tendril/internal/provision"
)

// Serves fails, with CodePlanInvalid, unless the bundle was made for this very
// assignment.
func (b Bundle) Serves(a provision.Assignment) error {
	snapshot, err := SnapshotDigest(a.Snapshot)
	if err != nil {
		return err
	}
	switch {
	case b.Provision != a.ProvisionID:
		return Invalid("it was made for another provision", nil)
	case b.Workspace != a.WorkspaceID:
		return Invalid("it was made for another workspace", nil)
	case b.Name != a.Workspace:
		return Invalid(fmt.Sprintf("it was made for the workspace when that was called %q, and the database calls it %q", b.Name, a.Workspace), nil)
	case b.Operation != a.Operation:
		return Invalid(fmt.Sprintf("it was made for the operation %q, not %q", b.Operation, a.Operation), nil)
	case b.Snapshot != snapshot:
		return Invalid("the snapshot is not the one that it was made for: it was changed since", nil)
	}
	return nil
}

// Invalid is the Failure of a run whose approved plan cannot be applied.
func Invalid(why string, cause error) *provision.Failure {
	return provision.Fail(provision.CodePlanInvalid, fmt.Sprintf(
		"The approved plan is not applied: %s. Nothing was changed. Deploy again to have a new plan made, and approve that.", why), cause)
}
