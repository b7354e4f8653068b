package store

import (
	"context"

	"github.com/google/uuid"
)

// Policy is when plans for a cluster must be approved, and by whom.
type Policy struct {
	Approval  string `db:"approval" json:"approval"`   // never, destructive or always
	Approvers string `db:"approvers" json:"approvers"` // the least role: operator or admin
	FourEyes  bool   `db:"four_eyes" json:"four_eyes"` // whoever asked may not approve
	// ApprovalExpiry is how long a plan waits, as PostgreSQL says it: "7 days".
	ApprovalExpiry string `db:"approval_expiry" json:"approval_expiry"`
}

// PolicyChange is what is to change of a Policy; nil stays.
type PolicyChange struct {
	Approval       *string `json:"approval,omitempty"`
	Approvers      *string `json:"approvers,omitempty"`
	FourEyes       *bool   `json:"four_eyes,omitempty"`
	ApprovalExpiry *string `json:"approval_expiry,omitempty"`
}

// Policy returns a cluster's policy.
func (s *Store) Policy(ctx context.Context, cluster uuid.UUID) (Policy, error) {
	return only[Policy](ctx, s, "read the cluster's policy",
		"SELECT approval, approvers, four_eyes, approval_expiry::text FROM public.clusters WHERE id = $1", cluster)
}

// SetPolicy changes a cluster's policy and returns all of it. A *RefusedError
// when the person is no admin, or what is wanted cannot be.
func (s *Store) SetPolicy(ctx context.Context, cluster uuid.UUID, change PolicyChange) (Policy, error) {
	return only[Policy](ctx, s, "set the cluster's policy", `
		SELECT p ->> 'approval' AS approval, p ->> 'approvers' AS approvers, (p ->> 'four_eyes')::boolean AS four_eyes, p ->> 'approval_expiry' AS approval_expiry
		FROM public.set_cluster_policy($1, $2) p`, cluster, change)
}
