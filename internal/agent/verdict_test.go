package agent

import (
	"context"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason   job.StopReason
		applying bool
		status   provision.Status
		code     provision.Code
	}{
		{"", false, provision.Failed, provision.CodeExecDied},
		{"", true, provision.Failed, provision.CodeExecDied},
		{job.StopCancelled, false, provision.Cancelled, provision.CodeCancelled},
		// Nobody knows what an apply has done that was killed.
		{job.StopCancelled, true, provision.Failed, provision.CodeExecDied},
		{job.StopDrained, true, provision.Failed, provision.CodeAgentDrained},
		{job.StopLost, false, provision.Failed, provision.CodeAgentLost},
	} {
		report, line := verdict("was ended by signal 9 (killed)", "", c.reason, c.applying)
		if report.Status != c.status || report.Detail.ErrorCode != c.code {
			t.Errorf("verdict(%q, %v) = %s/%s, want %s/%s", c.reason, c.applying, report.Status, report.Detail.ErrorCode, c.status, c.code)
		}
		if begun := strings.Contains(line, "Apply had begun"); begun != c.applying || line != report.Detail.ErrorMessage {
			t.Errorf("verdict(%q, %v) says %q, want it to say whether apply had begun", c.reason, c.applying, line)
		}
	}
}

// reportedQueue takes everything, and passes on each report before it answers.
type reportedQueue struct {
	queue.Queue
	reported func(provision.Report)
}

func (q reportedQueue) AppendLog(_ context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	return first + int64(len(chunks)), nil
}

func (q reportedQueue) Report(_ context.Context, _ uuid.UUID, r provision.Report) error {
	q.reported(r)
	return nil
}

// A heartbeat that is answered while the agent reports the end of a child that died must
// not take the run for lost: the claim ends with that report.
func TestEndOfADeadChildIsKnownToTheHeartbeat(t *testing.T) {
	t.Parallel()
	var r *run
	known := false
	b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{dir: openTestDir(t, t.TempDir())}, reportedQueue{reported: func(said provision.Report) {
		if said.Status.EndsRun() {
			known = r.ending.Load()
		}
	}}, nil, &keys{})
	b.deliveries.ctx = t.Context()
	a := provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "dev/x"}
	r = newRun(b, a)
	r.watch = b.newWatch().run(a, nil)
	s, files, err := newClaimFiles(b.dir, a, 0)
	if err != nil {
		t.Fatal(err)
	}
	files.close()
	dead := exec.Command("false")
	_ = dead.Run()
	if o := r.explain(s, &child{cmd: dead}, false); o.err != nil || o.Result == nil || !known {
		t.Errorf("explain() = %+v with the run ending = %t while it was reported, want a result and true", o, known)
	}
}
