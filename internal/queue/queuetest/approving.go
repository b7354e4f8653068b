package queuetest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// planAwaitsApproval is the way of a plan that a person must see first, from the
// agent that made it to the one that applies it.
func planAwaitsApproval(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	w.Exec(t, "SELECT public.set_cluster_policy($1, '{\"approval\": \"destructive\"}')", w.Cluster)
	id := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "a", "approval": "always", "max_attempts": 3}`)
	a := mustClaim(t, one)
	if a.Approval != provision.ApprovalAlways || a.ApprovedPlan != "" || a.Attempt != 1 {
		t.Fatalf("Claim() = approval %q, approved plan %q, attempt %d, want always, none, 1", a.Approval, a.ApprovedPlan, a.Attempt)
	}
	planned := applying
	planned.Stage, planned.Plan = provision.StagePlan, &provision.PlanSummary{Add: 1}
	mustReport(t, one, a.ClaimID, provision.Processing, planned)
	err := one.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply of what is not approved)", err, queue.Refused)

	digest := strings.Repeat("d", 64)
	awaits := provision.Report{Status: provision.AwaitingApproval, Detail: provision.Detail{PlanDigest: digest}}
	_ = wantKind(t, "Report(AWAITING_APPROVAL of what is not stored)", one.Report(t.Context(), a.ClaimID, awaits), queue.Refused)
	bundle := noise(queue.BlobPart + 1)
	if err := one.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: digest}, bundle); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	for range 2 { // the second time after a lost reply
		mustReport(t, one, a.ClaimID, awaits.Status, awaits.Detail)
	}
	if a, err := two.Claim(t.Context(), uuid.New()); a != nil || err != nil {
		t.Fatalf("Claim() while a plan awaits approval = %v, %v, want nothing", a, err)
	}

	w.Exec(t, "SELECT public.approve_provision($1, $2)", id, digest)
	a = mustClaim(t, two)
	if a.ProvisionID != id || a.ApprovedPlan != digest {
		t.Fatalf("Claim() = provision %s, approved plan %q, want %s, %q", a.ProvisionID, a.ApprovedPlan, id, digest)
	}
	if _, got, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobPlan, 0); err != nil || !bytes.Equal(got, bundle) {
		t.Errorf("GetBlob() = %d bytes, %v, want those that the other agent put", len(got), err)
	}
	err = two.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply of another plan than the approved one)", err, queue.Refused)
	approved := applying
	approved.PlanDigest = digest
	mustReport(t, two, a.ClaimID, provision.Processing, approved)
	mustReport(t, two, a.ClaimID, provision.Success, provision.Detail{})
}

// failureIsTriedAgain is a failure that may pass, where the snapshot wants
// another attempt.
func failureIsTriedAgain(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "a", "max_attempts": 2}`)
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Failed, provision.Detail{ErrorCode: provision.CodeCheckoutFailed, ErrorMessage: "no answer"})
	if a, err := q.Claim(t.Context(), uuid.New()); a != nil || err != nil {
		t.Fatalf("Claim() before the attempt is due = %v, %v, want nothing", a, err)
	}
	w.Exec(t, "UPDATE public.workspaces SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL")
	w.Exec(t, "SELECT tendril.reap()")
	again := mustClaim(t, q)
	if again.ProvisionID == id || again.Attempt != 2 || again.WorkspaceID != a.WorkspaceID || !sameJSON(again.Snapshot, a.Snapshot) {
		t.Errorf("Claim() = %+v, want the second attempt at %s", again, id)
	}
}
