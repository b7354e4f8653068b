package rpcwire

import (
	"flag"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/goldenjson"
)

var update = flag.Bool("update", false, "write testdata/rpc.golden")

// What agents and functions say to each other stays as it is, field by field.
func TestGolden(t *testing.T) {
	t.Parallel()
	types := []any{
		RegisterAgent{Agent: queue.Agent{AgePublicKey: queue.NewPublicKey("age1text")}}, CheckAgent{}, Probe{}, Registered{}, Caller{}, AgentHeartbeat{}, Awaits{}, Pulse{}, FetchNextProvision{}, UpdateProvisionStatus{}, FailOrphanedProvisions{}, LeaseChecks{}, Checks{{}}, ReportChecks{Results: []queue.CheckResult{{}}}, queue.MachineCheck{},
		ReportPools{Pools: []queue.Pool{{Nodes: []queue.PoolNode{{Storages: []queue.PoolStorage{{}}}}, Limits: queue.PoolLimits{Addresses: []queue.PoolAddress{{}}}}}}, ReserveMachines{Wants: []provision.PlaceWanted{{}}}, Places{{}}, ReleaseMachines{}, RotateAgentKey{},
		AgentKey{}, ShareIdentity{}, SharedIdentity{}, ClaimTrace{}, DelegateClaim{}, RenewClaim{}, RequestJoin{}, JoinRequest{}, JoinStanding{}, InsertProvisionLog{}, GetBlob{}, PutBlob{},
	}
	goldenjson.Complete(t, ".", nil, types...)
	goldenjson.Check(t, "testdata/rpc.golden", *update, append(types, queue.Standing{}, queue.PartOfBlob{}, provision.Assignment{})...)
}
