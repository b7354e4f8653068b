package queuetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Open opens the transport under test. It closes it when the test is over.
type Open func(t *testing.T, w *World, token string, agent queue.Agent) queue.Queue

// Run runs every case against a transport.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *World, Open){
		"RegisterTellsTheCluster":   registerTellsTheCluster,
		"ClusterKeyIsTold":          clusterKeyIsTold,
		"WrongTokenIsUnauthorized":  wrongTokenIsUnauthorized,
		"RevokedTokenEndsCalls":     revokedTokenEndsCalls,
		"NameInUseIsRefused":        nameInUseIsRefused,
		"NextContractIsServed":      nextContractIsServed,
		"LaterContractIsRefused":    laterContractIsRefused,
		"ClaimOnceAndAgain":         claimOnceAndAgain,
		"ClaimNothing":              claimNothing,
		"SupersededBootIsRefused":   supersededBootIsRefused,
		"RunHasItsTrace":            runHasItsTrace,
		"RunnerHasItsClaim":         runnerHasItsClaim,
		"ChunksAreStoredOnce":       chunksAreStoredOnce,
		"GapIsAnswered":             gapIsAnswered,
		"LogTextSurvives":           logTextSurvives,
		"ReportRunsToSuccess":       reportRunsToSuccess,
		"ReportTwiceIsHarmless":     reportTwiceIsHarmless,
		"MovedTagIsRefused":         movedTagIsRefused,
		"CancelComesByHeartbeat":    cancelComesByHeartbeat,
		"LostClaimIsTold":           lostClaimIsTold,
		"OtherClustersClaimIsLost":  otherClustersClaimIsLost,
		"OrphansEndAtTheNextStart":  orphansEndAtTheNextStart,
		"SensitiveOutputHasNoValue": sensitiveOutputHasNoValue,
		"UnsavedStateIsKept":        unsavedStateIsKept,
		"OlderContractIsServed":     olderContractIsServed,
		"UpgradeKeepsTheAgent":      upgradeKeepsTheAgent,
		"StandingDisturbsNobody":    standingDisturbsNobody,
		"PlanAwaitsApproval":        planAwaitsApproval,
		"PersonIsAsked":             personIsAsked,
		"RunIsSetDown":              runIsSetDown,
		"ChecksAreDone":             checksAreDone,
		"MachinesArePlaced":         machinesArePlaced,
		"IdentityIsShared":          identityIsShared,
		"FailureIsTriedAgain":       failureIsTriedAgain,
		"BlobComesBack":             blobComesBack,
		"BlobIsFencedByItsClaim":    blobIsFencedByItsClaim,
		"DamagedBlobIsTold":         damagedBlobIsTold,
		"AnswersHaveTheirKind":      answersHaveTheirKind,
		"OutagesOfTheContract":      outagesOfTheContract,
		"ContentIsToldFromOutages":  contentIsToldFromOutages,
		"LongAddressesStayTwo":      longAddressesStayTwo,
		"SetAsideIsSaid":            setAsideIsSaid,
		"FittedReportsAreTaken":     fittedReportsAreTaken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, NewWorld(t), open)
		})
	}
}

// registered opens the transport for a new agent and registers it.
func registered(t *testing.T, w *World, open Open, name string) queue.Queue {
	t.Helper()
	q := open(t, w, w.Token, NewAgent(name))
	mustRegister(t, q)
	return q
}

func mustRegister(t *testing.T, q queue.Queue) queue.Registration {
	t.Helper()
	r, err := q.Register(t.Context())
	if err != nil {
		t.Fatalf("Register() = %v, want nil", err)
	}
	return r
}

func mustClaim(t *testing.T, q queue.Queue) *provision.Assignment {
	t.Helper()
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	return a
}

func mustReport(t *testing.T, q queue.Queue, claim uuid.UUID, status provision.Status, detail provision.Detail) {
	t.Helper()
	if err := q.Report(t.Context(), claim, provision.Report{Status: status, Detail: detail}); err != nil {
		t.Fatalf("Report(%s) = %v, want nil", status, err)
	}
}

func wantKind(t *testing.T, call string, err error, want queue.Kind) *queue.Error {
	t.Helper()
	e, ok := errors.AsType[*queue.Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("%s = %v (%+v), want an error of kind %d", call, err, e, want)
	}
	if e.Message == "" {
		t.Errorf("%s gave an error without a message: %+v", call, e)
	}
	return e
}

// applying asks for the acknowledgement of the apply.
var applying = provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40)}

func line(text string) provision.LogChunk {
	return provision.LogChunk{Stream: provision.Stdout, Text: text, EmittedAt: time.Now()}
}
