package console

import (
	"fmt"
	"slices"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// stageRow is an attempt's stages.
type stageRow struct {
	Attempt int
	Stages  []stageView
}

// stageView is a stage as the page shows it.
type stageView struct {
	Key   string // names it among all of the provision's
	Name  string
	State string // done, running, failed, waiting or ahead
	Took  time.Duration
	Seq   int64 // the first row of the log in it; 0 where it has printed nothing
}

// stageNames are what stages are called.
var stageNames = map[provision.Stage]string{
	provision.StageQueued: "Queued", provision.StageCheckout: "Checkout", provision.StageValidate: "Variables", provision.StageEngine: "Engine",
	provision.StageInit: "Init", provision.StagePlan: "Plan", provision.StageApproval: "Approval", provision.StageApply: "Apply",
	provision.StageOutputs: "Outputs", provision.StageDone: "Done",
}

// StageRows are the stages it has reached by attempt and, while it goes on, those
// that are still ahead.
func (p *runPage) StageRows() []stageRow {
	var rows []stageRow
	for _, s := range p.Stages {
		if len(rows) == 0 || rows[len(rows)-1].Attempt != s.Attempt {
			rows = append(rows, stageRow{Attempt: s.Attempt})
		}
		v := stageView{Key: fmt.Sprintf("%d-%s", s.Attempt, s.Stage), Name: stageNames[s.Stage], State: "done", Seq: p.startOf(s.Attempt, s.Stage)}
		end := p.AsOf
		switch {
		case s.EndedAt != nil:
			end = *s.EndedAt
		case s.Stage == provision.StageQueued || s.Stage == provision.StageApproval:
			v.State = "waiting"
		default:
			v.State = "running"
		}
		v.Took = max(0, end.Sub(s.StartedAt))
		last := &rows[len(rows)-1]
		last.Stages = append(last.Stages, v)
	}
	if len(rows) == 0 {
		return nil
	}
	last := &rows[len(rows)-1]
	if p.Failed() {
		last.Stages[len(last.Stages)-1].State = "failed"
	} else if !p.Over() {
		at := p.Stages[len(p.Stages)-1].Stage
		for _, ahead := range p.ahead(at) {
			last.Stages = append(last.Stages, stageView{Name: stageNames[ahead], State: "ahead"})
		}
	}
	return rows
}

// ahead are the stages that come after one, as far as the operation tells.
func (p *runPage) ahead(at provision.Stage) (list []provision.Stage) {
	after := slices.Index(provision.Stages, at) + 1
	for _, s := range provision.Stages[after:] {
		switch s {
		case provision.StageApproval: // nobody knows before the plan is there
		case provision.StageApply, provision.StageOutputs:
			if p.Operation == provision.OperationApply || p.Operation == provision.OperationDestroy {
				list = append(list, s)
			}
		default:
			list = append(list, s)
		}
	}
	return list
}

func (p *runPage) startOf(attempt int, stage provision.Stage) int64 {
	for _, s := range p.Run.Starts {
		if s.Attempt == attempt && s.Stage == stage {
			return s.Seq
		}
	}
	return 0
}

// StageNow is the stage it is in, in a word; "" when it is in none.
func (p *runPage) StageNow() string {
	if p.Status != provision.Processing {
		return ""
	}
	if p.Stage == nil {
		return "Starting"
	}
	return stageNames[*p.Stage]
}

// Progress is how much is done, in percent; nil where nobody knows.
func (p *runPage) Progress() *int {
	if p.Status != provision.Processing {
		return nil
	}
	return p.Percent
}
