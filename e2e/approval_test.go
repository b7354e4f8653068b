package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// approvals is a site whose agents share an identity and the place of states.
type approvals struct {
	*site.Site
	identity   string // its file
	identities seal.Identities
	repo       string
}

// counted counts, in a file, how often it was created.
const counted = `
variable "seen" { type = string }
variable "input" { default = "1" }
variable "secret" {
  sensitive = true
  default   = "a-plan-s3cret"
}
resource "terraform_data" "a" {
  input = [plantimestamp(), var.input, var.secret]
  provisioner "local-exec" {
    command     = "umask 0; echo created >> $SEEN" # the next one may be another user's
    environment = { SEEN = var.seen }
  }
}
output "planned" { value = nonsensitive(terraform_data.a.output[0]) }
`

func newApprovals(t *testing.T) *approvals {
	t.Helper()
	s := &approvals{Site: site.New(t)}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	s.identity = filepath.Join(pgtest.Dir(t), "identity")
	if err := os.WriteFile(s.identity, []byte(key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.identities = seal.Identities{key}
	s.repo = s.Template("approved", map[string]string{"main.tf": counted})
	return s
}

// managed keeps states in the database.
const managed = "[state]\ndefault = \"managed\"\n"

func (s *approvals) agent(name, state string) *site.Agent {
	s.T.Helper()
	a := s.NewAgent(name, 4, state)
	a.Set("TENDRIL_IDENTITY_FILE", s.identity)
	return a
}

// ask queues an apply with more in its snapshot.
func (s *approvals) ask(workspace, input string, more map[string]any) uuid.UUID {
	s.T.Helper()
	var snapshot map[string]any
	vars := map[string]any{"seen": s.seen(workspace), "input": input}
	if err := json.Unmarshal([]byte(site.SnapshotOf(s.repo, workspace, vars)), &snapshot); err != nil {
		s.T.Fatal(err)
	}
	for name, value := range more {
		snapshot[name] = value
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		s.T.Fatal(err)
	}
	return s.DeploySnapshot(s.T, string(text))
}

func (s *approvals) seen(workspace string) string { return filepath.Join(s.Keep, workspace) }

// created is how often the resource of a workspace was created.
func (s *approvals) created(workspace string) int {
	content, _ := os.ReadFile(s.seen(workspace)) // none: it never was
	return bytes.Count(content, []byte("created"))
}

func (s *approvals) wantSuccess(id uuid.UUID) {
	s.T.Helper()
	if got := s.AwaitEnd(id); got != "SUCCESS" {
		s.T.Fatalf("provision = %s: %s", got, s.Message(id))
	}
}

// awaits waits until a plan awaits approval and returns its digest.
func (s *approvals) awaits(id uuid.UUID) string {
	s.T.Helper()
	s.Await("the plan", "SELECT status NOT IN ('QUEUED', 'PROCESSING') FROM public.provisions WHERE id = $1", id)
	if got := s.Status(s.T, id); got != "AWAITING_APPROVAL" {
		s.T.Fatalf("provision = %s, want AWAITING_APPROVAL: %s", got, s.Message(id))
	}
	return s.Text(s.T, "SELECT plan_digest FROM public.provisions WHERE id = $1", id)
}

func (s *approvals) approve(id uuid.UUID, digest string) {
	s.T.Helper()
	s.Exec(s.T, "SELECT public.approve_provision($1, $2)", id, digest)
}

// force writes as somebody who may do anything in the database.
func (s *approvals) force(statement string, args ...any) {
	s.T.Helper()
	s.Exec(s.T, "SET session_replication_role = replica")
	s.Exec(s.T, statement, args...)
	s.Exec(s.T, "RESET session_replication_role")
}

// bundle is what is stored of a plan, opened.
func (s *approvals) bundle(id uuid.UUID) []byte {
	s.T.Helper()
	var sealed []byte
	var meta json.RawMessage
	var digest string
	err := s.Conn.QueryRow(s.T.Context(), `SELECT string_agg(p.data, '' ORDER BY p.part), b.meta, b.digest
		FROM tendril.blobs b JOIN tendril.blob_parts p ON p.blob_id = b.id WHERE b.provision_id = $1 AND b.kind = 'plan' GROUP BY b.id`, id).Scan(&sealed, &meta, &digest)
	if err != nil {
		s.T.Fatal(err)
	}
	content, err := planbundle.Open(s.identities, uuid.Nil, sealed, meta, digest)
	if err != nil {
		s.T.Fatalf("the stored plan does not open: %v", err)
	}
	return content
}

// A replacement awaits approval where the cluster wants it for what destroys.
// The agent that planned is killed; another one applies that very plan, before
// what is queued with a higher priority.
func TestApprovedPlanIsAppliedByAnotherAgent(t *testing.T) {
	t.Parallel()
	s := newApprovals(t)
	s.Exec(t, "UPDATE public.clusters SET approval = 'destructive' WHERE id = $1", s.Cluster)
	first := s.agent("one", managed).Start()
	s.wantSuccess(s.ask("w", "1", nil)) // nothing is destroyed
	id := s.ask("w", "1", map[string]any{"replace": []string{"terraform_data.a"}})
	digest := s.awaits(id)
	if got := s.created("w"); got != 1 {
		t.Errorf("created %d times before the approval, want once", got)
	}
	content := s.bundle(id)
	if planbundle.Digest(content) != digest {
		t.Errorf("what is stored has the digest %s, want that which is approved, %s", planbundle.Digest(content), digest)
	}
	if strings.Contains(dump(s.Site), "s3cret") {
		t.Error("the database holds the secret somewhere")
	}
	// Another agent could run it now, if the workspace were free.
	urgent := s.ask("w", "2", nil)
	s.Exec(t, "UPDATE public.provisions SET priority = 10 WHERE id = $1", urgent)
	first.AwaitNoSpools() // nor the plan in clear
	first.Kill()
	second := s.agent("two", managed).Start()
	second.AwaitOutput("registered")
	s.approve(id, digest)
	s.wantSuccess(id)
	s.wantSuccess(urgent)
	if log := s.Log(t, id); strings.Count(log, "Terraform will perform") != 1 || !strings.Contains(log, "Plan "+digest+" is applied") {
		t.Errorf("log = %s\nwant one plan, and that it was approved", log)
	}
	if got := s.created("w"); got != 2 {
		t.Errorf("created %d times, want once more after the approval", got)
	}
	inTurn := s.Text(t, `SELECT (a.finished_at <= b.started_at)::text FROM public.provisions a, public.provisions b WHERE a.id = $1 AND b.id = $2`, id, urgent)
	if inTurn != "true" {
		t.Error("what was queued with a higher priority began before the approved plan was applied")
	}
	if got := s.Text(t, "SELECT count(*)::text FROM tendril.blobs WHERE kind = 'plan'"); got != "0" {
		t.Errorf("%s bundles are left, want none once they are used", got)
	}
}

// What cannot be the plan that was approved, or does not fit any more.
func TestApprovedPlanThatIsNotGenuine(t *testing.T) {
	t.Parallel()
	s := newApprovals(t)
	s.agent("one", s.SharedState()).Start()
	cases := map[string]struct {
		// meddle changes what awaits approval and returns what is approved.
		meddle func(id uuid.UUID, digest string) string
		after  func(id uuid.UUID) // the approval
		status string
		want   string
	}{
		"forged": {meddle: func(id uuid.UUID, _ string) string {
			b, err := planbundle.Decode(s.bundle(id))
			if err != nil {
				t.Fatal(err)
			}
			b.EngineVersion = "9.9.9"
			content, err := b.Encode()
			if err != nil {
				t.Fatal(err)
			}
			// The public key is all that it takes to seal something.
			recipient, err := seal.ParseRecipient(s.Text(t, "SELECT age_public_key FROM public.clusters WHERE id = $1", s.Cluster))
			if err != nil {
				t.Fatal(err)
			}
			sealed, err := seal.To(recipient, content)
			if err != nil {
				t.Fatal(err)
			}
			forged := planbundle.Digest(content)
			s.Exec(t, "UPDATE tendril.blob_parts SET data = $2 WHERE blob_id = (SELECT id FROM tendril.blobs WHERE provision_id = $1)", id, sealed)
			s.Exec(t, "UPDATE tendril.blobs SET digest = $2 WHERE provision_id = $1", id, forged)
			s.force("UPDATE public.provisions SET plan_digest = $2 WHERE id = $1", id, forged)
			return forged
		}, status: "FAILED/plan_invalid", want: "no agent of this cluster has made"},
		"another-provision": {meddle: func(id uuid.UUID, _ string) string {
			other := s.ask("other", "1", map[string]any{"approval": "always"})
			digest := s.awaits(other)
			s.Exec(t, "DELETE FROM tendril.blobs WHERE provision_id = $1", id)
			s.Exec(t, "UPDATE tendril.blobs SET provision_id = $2 WHERE provision_id = $1", other, id)
			s.force("UPDATE public.provisions SET plan_digest = $2 WHERE id = $1", id, digest)
			return digest
		}, status: "FAILED/plan_invalid", want: "another provision"},
		"snapshot-changed": {after: func(id uuid.UUID) {
			s.force("UPDATE public.provisions SET config_snapshot = jsonb_set(config_snapshot, '{terraform_vars,input}', '\"evil\"') WHERE id = $1", id)
		}, status: "FAILED/plan_invalid", want: "it was changed since"},
		"gone": {after: func(id uuid.UUID) {
			s.Exec(t, "DELETE FROM tendril.blobs WHERE provision_id = $1", id)
		}, status: "FAILED/plan_invalid", want: "not in the database any more"},
		"state-changed": {after: func(id uuid.UUID) {
			path := s.StatePath(s.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", id))
			state := `{"version": 4, "terraform_version": "1.11.4", "serial": 7, "lineage": "another", "outputs": {}, "resources": []}`
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(state), 0o600); err != nil {
				t.Fatal(err)
			}
		}, status: "FAILED/plan_stale", want: "Deploy again"},
	}
	ids := map[string]uuid.UUID{}
	for name := range cases {
		ids[name] = s.ask(name, "1", map[string]any{"approval": "always"})
	}
	for name, tc := range cases {
		id := ids[name]
		digest := s.awaits(id)
		if tc.meddle != nil {
			digest = tc.meddle(id, digest)
		}
		s.Exec(t, "UPDATE public.clusters SET paused_at = now() WHERE id = $1", s.Cluster)
		s.approve(id, digest)
		if tc.after != nil {
			tc.after(id)
		}
		s.Exec(t, "UPDATE public.clusters SET paused_at = NULL WHERE id = $1", s.Cluster)
	}
	for name, tc := range cases {
		id := ids[name]
		if got := s.AwaitEnd(id); got != tc.status || !strings.Contains(s.Message(id), tc.want) {
			t.Errorf("%s: provision = %s: %s, want %s with %q", name, got, s.Message(id), tc.status, tc.want)
		}
		if got := s.created(name); got != 0 {
			t.Errorf("%s: created %d times, want nothing applied", name, got)
		}
	}
}

// The agent dies when its run has ended with a plan and before the database has
// heard of it: the next start stores the plan, then says that it awaits approval.
func TestPlanSurvivesItsAgent(t *testing.T) {
	t.Parallel()
	s := newApprovals(t)
	a := s.agent("one", s.SharedState()).Start()
	a.AwaitOutput("registered")
	conn, err := pgx.Connect(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test is over
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE tendril.blobs"); err != nil {
		t.Fatal(err)
	}
	id := s.ask("w", "1", map[string]any{"approval": "always"})
	a.AwaitSpool("AWAITING_APPROVAL")
	a.Kill()
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	a.Start()
	digest := s.awaits(id)
	if got := planbundle.Digest(s.bundle(id)); got != digest {
		t.Errorf("the digest of what is stored = %s, want %s", got, digest)
	}
	a.AwaitNoSpools()
	s.approve(id, digest)
	s.wantSuccess(id)
	if got := s.created("w"); got != 1 {
		t.Errorf("created %d times, want once", got)
	}
}

// Who turns a plan down frees its workspace, and nothing is applied; and so it
// is where nobody says anything. Here runs
// have uids of their own, if the tests are root's.
func TestRejectedPlanFreesItsWorkspace(t *testing.T) {
	t.Parallel()
	s := newApprovals(t)
	a := s.NewAgent("one", 1, "")
	a.Set("TENDRIL_POLICY_APPROVAL", "always") // the agent's own word
	a.Start()
	id := s.ask("w", "1", nil)
	s.awaits(id)
	next := s.ask("w", "2", nil)
	s.Exec(t, "SELECT public.reject_provision($1, 'not now')", id)
	s.approve(next, s.awaits(next))
	s.wantSuccess(next)
	late := s.ask("w", "3", nil)
	s.awaits(late)
	s.Exec(t, "UPDATE public.workspaces SET due_at = now()") // a week has passed
	s.Exec(t, "SELECT tendril.reap()")                       // as heartbeats do
	if got := s.AwaitEnd(late); got != "CANCELLED/approval_expired" {
		t.Errorf("provision that nobody approved = %s, want CANCELLED/approval_expired", got)
	}
	if got := s.Text(t, "SELECT count(*)::text FROM tendril.blobs"); got != "0" {
		t.Errorf("%s bundles are left, want none", got)
	}
	if got := s.Status(t, id); got != "CANCELLED/rejected" || s.created("w") != 1 {
		t.Errorf("rejected provision = %s, created %d times, want CANCELLED/rejected and once by the next one", got, s.created("w"))
	}
}
