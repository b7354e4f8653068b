package wire

import (
	"flag"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/goldenjson"
)

var update = flag.Bool("update", false, "write testdata/wire.golden")

// What REST asks and answers stays as it is, field by field.
func TestGolden(t *testing.T) {
	t.Parallel()
	types := []any{
		Provision{}, Reason{}, StageTime{}, ProvisionAgent{}, Step{}, PendingContract{}, Offering{}, AgentError{}, Source{}, HeldLock{}, DeployInputBody{}, QueuedAnswer{}, PlanAnswerBody{}, StatusAnswerBody{},
		ApproveInputBody{}, RejectInputBody{}, RetryInputBody{}, UploadAnswerBody{},
		LogRow{}, LogPage{}, Event{}, EventPageBody{}, Sight{}, End{}, Gone{}, Changed{},
		Standing{}, WorkspaceDetail{}, Resource{}, Machine{}, MachineEvent{}, PlanMachinesBody{}, PlannedMachine{}, PlannedAnswer{}, ProvisionMachinesBody{}, Pool{}, Load{}, PoolDetail{}, PoolNode{}, Server{}, Storage{}, PlacedMachine{}, Placement{}, PlacementBody{}, Reservation{}, PoolImage{}, PoolImageBody{}, PoolQuota{}, QuotaUse{}, PoolQuotaBody{}, PoolQuotaAnswer{}, PoolTemplateBody{}, ServerProvisionBody{}, ServerOperation{}, ServerStatus{}, Drift{}, StateVersion{}, AppliedAnswerBody{}, LockInputBody{}, WorkspaceReasonInputBody{}, RebindInputBody{}, WatchDriftInputBody{},
		Cluster{}, Agent{}, NewCluster{}, NewToken{}, ClusterToken{}, Policy{}, PolicyChange{}, NewClusterInputBody{}, ClusterReasonInputBody{}, RotateInputBody{},
		JoinRequest{}, ApproveJoinInputBody{}, JoinedKey{}, NewJoinTokenInputBody{}, JoinToken{}, TrustIssuerInputBody{}, Trusted{}, TrustedIssuer{},
		Input{}, GiveInputBody{}, AssignInputBody{}, CommentBody{},
		Template{}, Inspection{}, SaveTemplateInputBody{}, PinInputBody{},
		Webhook{}, Delivery{}, DeliveryAttempt{}, WebhookFields{}, NewWebhookInputBody{}, MadeWebhook{}, ChangeWebhookInputBody{}, WebhookSecretBody{}, SentAnswer{},
		Org{}, Member{}, AuditEvent{}, Invitation{}, OwnInvitation{}, Credential{}, APIToken{}, MeBody{}, SetMemberInputBody{}, NewInvitationInputBody{}, InvitationAnswer{},
		AcceptInvitationInputBody{}, NewAPITokenInputBody{}, Powers{}, CliCode{}, CliToken{}, CliUser{},
		Page[int]{}, Problem{}, Fault{},
	}
	goldenjson.Check(t, "testdata/wire.golden", *update, types...)
	goldenjson.Complete(t, ".", []string{"SSH", "Act"}, types...)
}
