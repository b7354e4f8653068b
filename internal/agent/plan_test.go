package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestPlanIsStoredBeforeItIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 1", "plan")
	w.becomes(t, id, "AWAITING_APPROVAL")
	got := w.Text(t, "SELECT count(*)::text FROM tendril.blobs b JOIN public.provisions p ON p.id = b.provision_id AND p.plan_digest = b.digest WHERE b.complete_at IS NOT NULL")
	if got != "1" {
		t.Errorf("%s plans of the digest that was reported are stored, want 1", got)
	}
	if got := w.Text(t, "SELECT count(*)::text FROM tendril.blob_parts WHERE position('a plan'::bytea IN data) > 0"); got != "0" {
		t.Error("the plan is stored in clear")
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

// The agent dies after the database has heard of the plan, and before the spool is
// removed: the next start says it again, and nothing has become of it.
func TestPlanIsReportedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	conn, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test is over
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE tendril.blob_parts"); err != nil {
		t.Fatal(err)
	}
	id := w.deploy(t, "prod", "print 1", "plan")
	spool := filepath.Join(w.data, "spool")
	patience.Await(t, "the report in the spool", func() bool {
		found, _ := filepath.Glob(filepath.Join(spool, "*.ndjson"))
		for _, path := range found {
			if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), "AWAITING_APPROVAL") {
				return true
			}
		}
		return false
	})
	before := filepath.Join(t.TempDir(), "spool")
	if err := os.CopyFS(before, os.DirFS(spool)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	w.becomes(t, id, "AWAITING_APPROVAL")
	a.stops(t)
	w.wantNothingLeft(t)
	if err := errors.Join(os.Remove(spool), os.CopyFS(spool, os.DirFS(before))); err != nil {
		t.Fatal(err)
	}
	a = startAgent(t, w.setup())
	a.says(t, "delivered what an earlier start left")
	a.stops(t)
	if got := w.Status(t, id); got != "AWAITING_APPROVAL" {
		t.Errorf("status = %s, want AWAITING_APPROVAL as before", got)
	}
	w.wantNothingLeft(t)
}

// A child that reports a plan and leaves something else: there is nothing that
// anybody could approve.
func TestPlanThatIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "plan nonsense")
	w.becomes(t, id, "FAILED/plan_invalid")
	a.says(t, "cannot be stored")
	a.stops(t)
	w.wantNothingLeft(t)
}

func TestApprovedPlanIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "plan")
	w.becomes(t, id, "AWAITING_APPROVAL")
	w.Exec(t, "DELETE FROM tendril.blobs")
	w.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions")
	w.becomes(t, id, "FAILED/plan_invalid")
	a.stops(t)
	w.wantNothingLeft(t)
}

// A database that does not give the plan out is waited for, but not by a run that
// is to end.
func TestCancelWhileThePlanIsFetched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "plan")
	w.becomes(t, id, "AWAITING_APPROVAL")
	conn, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test is over
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE tendril.blob_parts"); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions")
	patience.Await(t, "the claim", func() bool { return w.Status(t, id) == "PROCESSING" })
	w.cancel(t, id)
	a.says(t, "reason=cancelled")
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil { // the plan goes with its provision
		t.Fatal(err)
	}
	w.becomes(t, id, "CANCELLED/cancelled")
	a.stops(t)
	w.wantNothingLeft(t)
}

// cancel asks again while the database is busy, as whoever does it for a person: here
// the agent has the claim locked for most of the time, while it waits for the plan.
func (w *world) cancel(t *testing.T, id uuid.UUID) {
	t.Helper()
	patience.Await(t, "the database to take a cancel", func() bool {
		_, err := w.Conn.Exec(t.Context(), "SELECT public.cancel_provision($1)", id)
		if said, ok := errors.AsType[*pgconn.PgError](err); ok && said.Code == "PT503" {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	})
}

// Whoever reads a plan must have the key: while identities are rotated, some
// agents have none but the older one.
func TestMakersFollowTheClustersKey(t *testing.T) {
	t.Parallel()
	older, newer := generated(t), generated(t)
	both := append(newer[:1:1], older...)
	for name, tc := range map[string]struct {
		cluster string
		want    seal.Identities
	}{
		"the current one": {newer.Public(), newer}, "an older one": {older.Public(), older}, "none": {"", newer}, "a stranger's": {generated(t).Public(), newer},
	} {
		k := &keys{own: both, cluster: tc.cluster}
		if got := k.makers().Public(); got != tc.want.Public() {
			t.Errorf("%s: makers() = %s, want %s", name, got, tc.want.Public())
		}
	}
}

func generated(t *testing.T) seal.Identities {
	t.Helper()
	made, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// What lies in a spool's file must be the plan of that spool.
func TestPlanOfAnotherProvision(t *testing.T) {
	t.Parallel()
	d := openTestDir(t, t.TempDir())
	a := provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "dev/x"}
	s, files, err := newClaimFiles(d, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	p := &plans{spool: s, log: slog.New(slog.DiscardHandler)}
	for what, b := range map[string]planbundle.Bundle{
		"provision": {Provision: uuid.New(), Workspace: a.WorkspaceID, Name: a.Workspace},
		"workspace": {Provision: a.ProvisionID, Workspace: uuid.New(), Name: a.Workspace},
		"name":      {Provision: a.ProvisionID, Workspace: a.WorkspaceID, Name: "prod"},
	} {
		content, encodeErr := b.Encode()
		if encodeErr != nil {
			t.Fatal(encodeErr)
		}
		if err = files.plan.Truncate(0); err == nil {
			_, err = files.plan.WriteAt(content, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err = p.read(planbundle.Digest(content)); err == nil || !strings.Contains(err.Error(), "another provision") {
			t.Errorf("read() of another %s's = %v, want an error", what, err)
		}
	}
	if got := p.lost(err).Detail.ErrorCode; got != provision.CodePlanInvalid {
		t.Errorf("lost() has the code %s, want %s", got, provision.CodePlanInvalid)
	}
}
