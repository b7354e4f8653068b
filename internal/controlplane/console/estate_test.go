package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// hostile is what a template, an agent or a person may call a thing: markup, a
// text that runs the other way, and more than fits.
var hostile = "<script>alert(1)</script>\"'&\u202egnp.exe " + strings.Repeat("w", 200)

// estate fills a world with one workspace of each kind, as an agent would.
type estate struct {
	*world
	agent      queue.Queue
	workspaces map[string]uuid.UUID
	machine    string // the id of web-1
}

func newEstate(t *testing.T) *estate {
	t.Helper()
	s := &estate{world: newWorld(t), workspaces: map[string]uuid.UUID{}}
	known := queuetest.NewAgent("edge-1")
	known.Slots, known.Version, known.AgePublicKey = 3, "v0.9.0", queue.NewPublicKey("age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p")
	known.Host = hostile[:60]
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: s.URL, ListenURL: "off", Token: s.Token, Agent: known})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.agent = q
	s.Exec(t, `INSERT INTO public.agents (org_id, cluster_id, instance_id, boot_id, name, host, version, contract, slots, last_heartbeat_at)
		VALUES ($1, $2, gen_random_uuid(), gen_random_uuid(), 'edge-0', 'old.example', 'v0.7.0', 2, 1, now() - interval '3 hours')`, s.Org, s.Cluster)
	s.NewCluster(t, "staging")

	s.run(t, "shop/prod", "", provision.Success, provision.Detail{
		Plan: &provision.PlanSummary{Add: 2},
		Resources: []provision.Resource{
			{Address: `aws_instance.web["` + hostile + `"]`, Type: "aws_instance", Provider: "registry.terraform.io/hashicorp/aws", ExternalID: "i-0abc123", IPAddresses: []string{"10.1.2.3", "2001:db8::1"}, Status: "created"},
			{Address: "aws_db_instance.main", Type: "aws_db_instance", Provider: "registry.terraform.io/hashicorp/aws", ExternalID: "shop-prod", Status: "tainted"},
		},
		Outputs: map[string]provision.Output{
			"url":    {Value: json.RawMessage(`"https://shop.example/<b>"`)},
			"nodes":  {Value: json.RawMessage(`{"count": 3, "zones": ["a", "b"]}`)},
			"secret": {Sensitive: true},
		},
		Machines: []provision.Machine{
			{Name: "web-1", Status: provision.MachineRunning, Address: "machine.web-1", Pool: "lab", Node: "pve1", ExternalID: "101", IPAddresses: []string{"10.1.2.4", "2001:db8::2"},
				SSHPort: 2222, SSHUser: "root", Image: "debian-12", Cores: 2, MemoryMiB: 2048, DiskGiB: 20, Labels: map[string]string{"class": "a", hostile[:20]: hostile[:60]}, Actions: provision.MachineActions},
			{Name: "odd " + hostile[:100], Status: provision.MachineUnknown, Pool: hostile[:60], Node: hostile[:60], ExternalID: hostile, IPAddresses: []string{hostile[:60]}, SSHUser: "-oProxyCommand=x", Image: hostile},
		},
	})
	s.machine = s.Text(t, "SELECT id::text FROM public.machines WHERE name = 'web-1'")
	s.Exec(t, `UPDATE public.workspaces SET drift_at = now() - interval '20 minutes', drift_count = 2, drift_every = '6 hours', drift_due_at = now() + interval '5 hours', drift = $2 WHERE id = $1`, s.workspaces["shop/prod"],
		`[{"address": "aws_db_instance.main", "action": "update", "attributes": [{"path": "engine_version", "before": "\"15.4\"", "after": "\"15.7\""}, {"path": "password", "sensitive": true}]},
		  {"address": "aws_instance.web[\"a\"]", "action": "delete"}]`)
	s.run(t, "billing/prod", "", provision.Failed, provision.Detail{ErrorCode: "apply_failed", ErrorMessage: "\nError: creating EC2 Instance: " + hostile + "\nmore of it"})
	s.run(t, "billing/dev", "", provision.Failed, provision.Detail{ErrorCode: "init_failed", ErrorMessage: "Error: Failed to query available provider packages"})
	s.run(t, "billing/dev", "", provision.Success, provision.Detail{Resources: []provision.Resource{}})
	s.run(t, "payments/prod", `, "approval": "always"`, provision.AwaitingApproval, provision.Detail{PlanDigest: strings.Repeat("d", 64), Plan: &provision.PlanSummary{Add: 1, Destroy: 2}})
	percent := 42
	since := time.Now().Add(-15 * time.Second)
	s.run(t, "data/prod", "", provision.Processing, provision.Detail{Stage: provision.StageApply, Percent: &percent, Running: []provision.Running{
		{Address: "aws_rds_cluster.main", Action: "create", Since: since}, {Address: `aws_s3_bucket.x["` + hostile[:40] + `"]`, Action: "update", Since: since}}})
	machine := func(kind, id, label string) provision.Event {
		return provision.Event{Kind: kind, Address: "machine.lab-1", Action: id, Message: label, At: time.Now()}
	}
	s.run(t, "lab/prod", "", provision.Processing, provision.Detail{Stage: provision.StageApply, Percent: &percent, Engine: "script",
		Running: []provision.Running{{Address: "machine.lab-1", Action: "create", Step: "Waiting for network", Percent: &percent, Since: since}},
		Events: []provision.Event{{Kind: "step_declared", Action: "clone", Message: "Creating VM from template", At: time.Now()}, {Kind: "step_declared", Action: "commands", Message: "Running commands " + hostile[:30], At: time.Now()},
			machine("step_started", "clone", "Creating VM from template"), machine("step_finished", "clone", "Creating VM from template"), machine("step_started", "net", "Waiting for network")}})
	s.deploy(t, "data/prod", "")
	s.deploy(t, "site/dev", "")
	s.Exec(t, "UPDATE public.workspaces SET locked_at = now() - interval '2 days', locked_by = $2, lock_reason = $3 WHERE id = $1", s.workspaces["site/dev"], s.operator.ID, hostile)
	s.run(t, "legacy/prod", "", provision.Failed, provision.Detail{ErrorCode: "apply_failed", ErrorMessage: "Error: Failed to save state"})
	s.Exec(t, "UPDATE public.workspaces SET unsaved_state_on = $2 WHERE id = $1", s.workspaces["legacy/prod"], known.Instance)
	s.Exec(t, `INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail) VALUES
		($1, $2, 'lock_workspace', 'workspace', $3, jsonb_build_object('reason', $4::text)), ($1, NULL, 'pause_cluster', 'cluster', $5, '{"reason": "maintenance"}'),
		($1, $2, 'approve_provision', 'provision', gen_random_uuid(), '{"was": {"a": 1}}')`, s.Org, s.admin.ID, s.workspaces["site/dev"], hostile, s.Cluster)
	return s
}

func (s *estate) deploy(t *testing.T, workspace, more string) {
	t.Helper()
	id := s.DeploySnapshot(t, fmt.Sprintf(`{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1.4.0"}, "workspace": %q%s}`, workspace, more))
	if err := s.Conn.QueryRow(t.Context(), "SELECT workspace_id FROM public.provisions WHERE id = $1", id).Scan(new(uuid.UUID)); err != nil {
		t.Fatal(err)
	}
	s.workspaces[workspace] = uuid.MustParse(s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", id))
}

// run deploys, has the agent claim it, and reports how it goes.
func (s *estate) run(t *testing.T, workspace, more string, status provision.Status, detail provision.Detail) {
	t.Helper()
	s.deploy(t, workspace, more)
	a, err := s.agent.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want the deploy of %s", a, err, workspace)
	}
	report := func(status provision.Status, d provision.Detail) {
		t.Helper()
		if err := s.agent.Report(t.Context(), a.ClaimID, provision.Report{Status: status, Detail: d}); err != nil {
			t.Fatalf("Report(%s of %s) = %v, want nil", status, workspace, err)
		}
	}
	begun := provision.Detail{Stage: provision.StagePlan, Commit: strings.Repeat("a", 40), Engine: "terraform", EngineVersion: "1.11.4", Plan: detail.Plan}
	report(provision.Processing, begun)
	switch status {
	case provision.AwaitingApproval:
		if err := s.agent.PutBlob(t.Context(), a.ClaimID, queue.Blob{Kind: queue.BlobPlan, Digest: detail.PlanDigest}, []byte("a plan")); err != nil {
			t.Fatal(err)
		}
	case provision.Success:
		report(provision.Processing, provision.Detail{Stage: provision.StageApply, Commit: begun.Commit, Engine: begun.Engine, EngineVersion: begun.EngineVersion, Plan: detail.Plan})
	}
	report(status, detail)
}
