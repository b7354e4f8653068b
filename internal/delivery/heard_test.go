package delivery

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

// A plan was reported, its agent died before it heard the answer, and somebody
// has approved it: the next claim has the log. Nothing of the spool is missing,
// so nobody need be told of it. Every other spool that is refused is kept.
func TestSpoolBehindAnApprovedPlan(t *testing.T) {
	t.Parallel()
	lost := &queue.Error{Kind: queue.ClaimLost, Message: "was followed by a newer one"}
	for name, tc := range map[string]struct {
		final    *provision.Report
		reported error
		want     bool
	}{
		"approved":         {final: new(ended(provision.AwaitingApproval)), want: true},
		"not its report":   {final: new(ended(provision.AwaitingApproval)), reported: lost},
		"not its plan":     {final: new(ended(provision.AwaitingApproval)), reported: &queue.Error{Kind: queue.Refused, Message: "another"}},
		"ended otherwise":  {final: new(ended(provision.Success))},
		"has no last word": {},
	} {
		file := newSpool(t)
		w := spool.NewWriter(file, nil)
		write(t, w, provision.Stdout, "planning\n")
		if tc.final != nil {
			if err := w.Update(*tc.final); err != nil {
				t.Fatal(err)
			}
		}
		closeWriter(t, w)
		away := 2
		q := &memQueue{fault: func(call string) error {
			switch {
			case strings.HasPrefix(call, "append"):
				return lost
			case away > 0:
				away--
				return errAway
			}
			return tc.reported
		}}
		d, err := NewPump(q, uuid.New(), file, PumpOptions{Resume: true}).Run(t.Context(), nil, closed())
		switch {
		case tc.want && (err != nil || d.Result == nil):
			t.Errorf("%s: Run() = %+v, %v, want it delivered", name, d, err)
		case !tc.want && (queue.KindOf(err) != queue.ClaimLost || d.Result != nil || d.Unwanted != nil):
			t.Errorf("%s: Run() = %+v, %v, want the refusal of its lines", name, d, err)
		}
		if (tc.final == nil || tc.final.Status != provision.AwaitingApproval) && q.happened() != "" {
			t.Errorf("%s: reported %s, want nothing", name, q.happened())
		}
	}
}
